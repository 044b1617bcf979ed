//! `--device` and `--profile`: which device times are for, and what was measured on it.

use super::Failure;
use super::named::read_named;
use arenic_ir::Graph;
use arenic_ir::cost::Device;
use arenic_ir::profile::Profile;
use arenic_passes::devices;
use miette::miette;
use std::path::Path;

/// The device called `name`, or the one that the file `name` describes.
pub(super) fn read_device(name: &str) -> Result<Device, Failure> {
    if name.starts_with("cuda:") {
        let help = "name a description of the device, for example `h100`, or a YAML file";
        return Err(miette!(help = help, "`{name}`: this build cannot ask a GPU what it is").into());
    }
    read_named("device", devices::NAMED, name, devices::parse)
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

/// Says how many operators a profile has no time for.
pub(super) fn note_unmeasured(device: &Device, g: &Graph) {
    let (missing, all) = (device.unmeasured_nodes(g), g.nodes.len());
    if missing > 0 {
        eprintln!(
            "note: {missing} of {all} operators are not in the profile; they take their roofline"
        );
    }
}
