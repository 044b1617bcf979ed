//! The devices that come with arenic, and descriptions from files.

use crate::yaml::{self, YamlError};
use arenic_ir::cost::Device;
use std::borrow::Cow;

/// The named devices: name and YAML.
pub const NAMED: &[(&str, &str)] = &[
    ("cpu", include_str!("../devices/cpu.yaml")),
    ("gtx1080ti", include_str!("../devices/gtx1080ti.yaml")),
    ("titanx", include_str!("../devices/titanx.yaml")),
    ("p100", include_str!("../devices/p100.yaml")),
    ("a100", include_str!("../devices/a100.yaml")),
    ("h100", include_str!("../devices/h100.yaml")),
    ("h200", include_str!("../devices/h200.yaml")),
    ("rtx4090", include_str!("../devices/rtx4090.yaml")),
];

/// Reads a device's description.
///
/// # Errors
/// YAML errors, unknown and missing fields with line and column; figures that no device has.
pub fn parse(text: &str) -> Result<Device, YamlError> {
    let device: Device = yaml::read(text)?;
    device.validate().map_err(|e| YamlError::from(e.to_string()))?;
    Ok(device)
}

/// The description `cpu`.
///
/// # Errors
/// Never in a release: a test reads every named device.
pub fn cpu() -> Result<Device, YamlError> {
    parse(NAMED[0].1)
}

/// The device that times are for: the one given, else the description `cpu`.
///
/// # Errors
/// As [`cpu`].
pub fn or_cpu(device: Option<&Device>) -> Result<Cow<'_, Device>, YamlError> {
    device.map_or_else(|| cpu().map(Cow::Owned), |device| Ok(Cow::Borrowed(device)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_device_reads() {
        for (name, text) in NAMED {
            assert!(parse(text).is_ok_and(|d| d.usable_bytes() > 1 << 30), "{name}");
        }
    }

    fn refusal(from: &str, to: &str) -> String {
        let text = NAMED[0].1;
        assert!(text.contains(from), "{from}");
        parse(&text.replace(from, to)).err().map_or("accepted".into(), |e| e.message)
    }

    #[test]
    fn not_missing_negative_or_unknown_figures() {
        assert!(refusal("alignment: 64\n", "").contains("alignment"));
        assert!(refusal("alignment: 64", "alignment: 48").contains("power of two"));
        assert!(refusal("12.0e9", "-12.0e9").contains("memory.bytes_per_second"));
        assert!(refusal("12.0e9", ".nan").contains("positive"));
        assert!(refusal("efficiency: 0.80", "efficiency: 80").contains("efficiency"));
        assert!(refusal("copy_engines: 2", "copy_engines: 3").contains("1 or 2"));
        let beside = |what: &str| {
            let latency = "latency_seconds: 2.0e-6";
            refusal(latency, &format!("{latency}, beside_kernels: {{{what}}}"))
        };
        assert_eq!(beside("rate: 1, drag: 0, join_seconds: 0"), "accepted");
        assert!(beside("rate: 0, drag: 0, join_seconds: 0").contains("beside_kernels.rate"));
        assert!(beside("rate: 1, drag: 1, join_seconds: 0").contains("beside_kernels.drag"));
        assert!(beside("rate: 1, drag: 0, join_seconds: -1").contains("join_seconds"));
        assert!(beside("rate: 1").contains("drag"));
        assert!(refusal("f32:", "f64x:").contains("f64x"));
        assert!(refusal("f32:", "i32:").contains("f32"));
        assert!(refusal("0.5e-6", "-1").contains("launch_seconds"));
        assert!(refusal("17179869184", "0").contains("memory_bytes"));
        assert!(refusal("name:", "title:").contains("title"));
        assert!(parse("[").is_err_and(|e| e.location.is_some()));
    }
}
