//! What cuDNN plans for GPUs that are only described: no driver is needed, but the library is
//! (`make cudnn-plans` runs these).

mod attention;

use super::descriptor::{Attribute, Descriptor, Kind};
use super::plan::{Device, plans};
use super::*;

const H100: &str = include_str!("../../../../../tests/cuda/devices/h100.json");

fn described(properties: &str) -> Device {
    let device = Descriptor::new(Kind::CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR).unwrap();
    let text: Vec<std::ffi::c_char> = properties.bytes().map(|b| b as std::ffi::c_char).collect();
    device.set(Attribute::CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, &text).unwrap();
    Device::Described(device.finalized().unwrap())
}

impl descriptor::Value for std::ffi::c_char {
    const TYPE: sys::cudnnBackendAttributeType_t =
        sys::cudnnBackendAttributeType_t::CUDNN_TYPE_CHAR;
}

/// A convolution of 3 × 3 taps of 256 images of 14 × 14, of as many channels as it gives.
fn convolution(direction: Direction, dtype: DType, math: Math, group: usize) -> Convolution {
    let image = [256, 256, 14, 14];
    Convolution {
        dtype,
        direction,
        math,
        input: image,
        filter: [256, 256 / group, 3, 3],
        output: image,
        pads: [1, 1],
        strides: [1, 1],
        dilations: [1, 1],
        group,
        bias: false,
        channels_last: dtype == DType::Bf16 || math == Math::Tf32,
    }
}

#[test]
#[ignore = "needs libcudnn.so.9"]
fn every_direction_has_plans_of_the_kind_that_is_wanted() {
    is_there().unwrap();
    let device = described(H100);
    for direction in [Direction::Forward, Direction::InputGradient, Direction::FilterGradient] {
        for (dtype, math, group) in [
            (DType::Bf16, Math::F32, 1),
            (DType::F32, Math::Tf32, 1),
            (DType::F32, Math::F32, 1),
            (DType::F32, Math::F32, 256),
        ] {
            let c = convolution(direction, dtype, math, group);
            let workspace = 32 << 20;
            let made = convolution::operations(&c).unwrap();
            let found = plans(made, &device, wanted(&c, workspace)).unwrap();
            let first = found.first().unwrap_or_else(|| panic!("no plan for {c:?}"));
            let rounds = dtype == DType::Bf16 || math == Math::Tf32;
            assert_eq!(first.by_tensor_cores, rounds, "{c:?}");
            assert!(found.iter().all(|p| p.workspace <= workspace), "{c:?}");
            assert!(found.iter().all(|p| rounds || !p.by_tensor_cores), "{c:?}");
            assert!(found.iter().any(|p| p.deterministic), "{c:?}");
        }
    }
}

#[test]
#[ignore = "needs libcudnn.so.9"]
fn what_no_engine_takes_has_no_plan() {
    is_there().unwrap();
    let device = described(H100);
    let c = convolution(Direction::Forward, DType::Bf16, Math::F32, 1);
    // More rows than the window can reach.
    let wrong = Convolution { output: [256, 256, 99, 14], ..c };
    let found = convolution::operations(&wrong)
        .and_then(|made| plans(made, &device, wanted(&wrong, 32 << 20)));
    assert!(found.is_err() || found.is_ok_and(|plans| plans.is_empty()));
}
