//! `--device` and `--profile`: which device times are for, and what was measured on it.

use super::Failure;
use super::named::{Named, read_named};
use arenic_ir::cost::Device;
use arenic_ir::profile::Profile;
use arenic_ir::{DType, Graph};
use arenic_passes::devices;
use arenic_runtime::cuda::{Attributes, Cuda};
use miette::miette;
use std::path::Path;

/// Devices by name.
const DEVICES: Named<'static> = Named { kind: "device", known: devices::NAMED };

/// The device called `name`, or the one that the file `name` describes.
pub(super) fn read_device(name: &str) -> Result<Device, Failure> {
    if let Some(number) = name.strip_prefix("cuda:") {
        let help = "name a description of the device, for example `h100`, or a YAML file";
        let number = number.parse().map_err(|_| miette!("`{name}` names no GPU by its number"))?;
        let attributes = Cuda::new(number).and_then(|cuda| cuda.attributes());
        return described(&attributes.map_err(|e| miette!(help = help, "`{name}`: {e}"))?);
    }
    read_named(&DEVICES, name, devices::parse)
}

/// A description from what a GPU says of itself. It says nothing of its link nor of what kernels
/// reach; those are an H100's until `arenic profile` measures them.
fn described(gpu: &Attributes) -> Result<Device, Failure> {
    let mut device = read_named(&DEVICES, "h100", devices::parse)?;
    device.name.clone_from(&gpu.name);
    device.memory_bytes = gpu.memory_bytes;
    let bandwidth = 2 * gpu.memory_clock * u64::from(gpu.memory_bus / 8);
    if bandwidth > 0 {
        device.memory.bytes_per_second = bandwidth as f64;
    }
    // Lanes of a multiprocessor, single-precision operations for one in double precision, and
    // those on `bf16` by tensor cores for one on `f32`.
    let (lanes, ratio, tensor_cores) = match gpu.capability {
        80 => (64, 2.0, 16.0),
        90 | 100 => (128, 2.0, 16.0),
        _ => (128, 64.0, 2.0),
    };
    // What our own kernels reach goes by multiprocessors and clock, beside an H100's.
    let processors = f64::from(gpu.multiprocessors) * gpu.clock as f64;
    if processors > 0.0 {
        let factor = processors / (132.0 * 1.98e9);
        device.own_kernels = device.own_kernels.map(|own| own.times(factor));
    }
    let flops = (2 * lanes * u64::from(gpu.multiprocessors)) as f64 * gpu.clock as f64;
    for (dtype, rate) in &mut device.arithmetic {
        rate.flops_per_second = match dtype {
            DType::F64 => flops / ratio,
            DType::Bf16 => flops * tensor_cores,
            _ => flops,
        };
    }
    if let Some(rate) = &mut device.tf32 {
        rate.flops_per_second = flops * tensor_cores / 2.0;
    }
    device.link.copy_engines = gpu.copy_engines.clamp(1, 2) as u8;
    device.validate().map_err(|e| miette!("{}: {e}", gpu.name))?;
    Ok(device)
}

/// The same with the times of a profile, where there is one.
pub(super) fn read_profiled(name: &str, profile: Option<&Path>) -> Result<Device, Failure> {
    let device = read_device(name)?;
    let Some(path) = profile else { return Ok(device) };
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| {
        let help = "write one by `arenic profile OUT.arenic -o TABLE`";
        miette!(help = help, "cannot read the profile `{shown}`: {e}")
    })?;
    let profile = Profile::parse(&text).map_err(|e| {
        let help = "write it anew by `arenic profile OUT.arenic -o TABLE`";
        miette!(help = help, "the profile `{shown}`, {e}")
    })?;
    let help = "name the --device that it was measured on, or measure on this one";
    Ok(device.with_profile(&profile).map_err(|e| miette!(help = help, "`{shown}`: {e}"))?)
}

/// Says how many operators a profile has no time for; `None` if it has all.
pub(super) fn unmeasured(device: &Device, g: &Graph) -> Option<String> {
    let (missing, all) = (device.unmeasured_nodes(g), g.nodes.len());
    (missing > 0).then(|| {
        format!(
            "note: {missing} of {all} operators are not in the profile; they take their roofline"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_described_by_what_it_says() {
        let gpu = Attributes {
            name: "NVIDIA A100-SXM4-40GB".into(),
            capability: 80,
            memory_bytes: 40 << 30,
            multiprocessors: 108,
            clock: 1_410_000_000,
            memory_clock: 1_215_000_000,
            memory_bus: 5120,
            copy_engines: 3,
        };
        let Ok(device) = described(&gpu) else { panic!("no description") };
        assert!((device.memory.bytes_per_second / 1.555e12 - 1.0).abs() < 0.01);
        let flops = |d| device.arithmetic[&d].flops_per_second;
        assert!((flops(DType::F32) / 19.5e12 - 1.0).abs() < 0.01);
        assert!((flops(DType::F64) / 9.7e12 - 1.0).abs() < 0.01);
        assert!((flops(DType::Bf16) / 312e12 - 1.0).abs() < 0.01);
        assert!((device.tf32.unwrap().flops_per_second / 156e12 - 1.0).abs() < 0.01);
        assert_eq!(device.link.copy_engines, 2);
    }
}
