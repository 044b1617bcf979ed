//! `--device`: which device times are for.

use super::Failure;
use super::named::read_named;
use arenic_ir::cost::Device;
use arenic_passes::devices;
use miette::miette;

/// The device called `name`, or the one that the file `name` describes.
pub(super) fn read_device(name: &str) -> Result<Device, Failure> {
    if name.starts_with("cuda:") {
        let help = "name a description of the device, for example `h100`, or a YAML file";
        return Err(miette!(help = help, "`{name}`: this build cannot ask a GPU what it is").into());
    }
    read_named("device", devices::NAMED, name, devices::parse)
}
