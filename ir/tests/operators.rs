//! Text and types of normalisations, of gradients, and of padding.

use arenic_backends::CPU;
use arenic_ir::text::Module;
use arenic_ir::verify::verify;

/// Results that nobody reads are left out; infinite numbers are words.
const TEXT: &str = r#"graph "step" {
  input v0: f32[4,3,6,6] "x"
  input v1: f32[3] "scale"
  input v2: f32[4,3,6,6] "dy"
  input v3: f32[6] "row"
  input v22: f32[3,2,8] "pre"
  input v23: f32[8,2] "r"
  input v24: f32[2,2] "h"
  input v25: f32[6] "peephole"
  n0 batch_norm {"epsilon":9.999999747378752e-6} (v0, v1, v1) -> (v4: f32[4,3,6,6], v5: f32[3], _, v6: f32[3])
  n1 batch_norm_param_grad (v0, v2, v5, v6) -> (v7: f32[3], v8: f32[3])
  n2 batch_norm_input_grad (v0, v2, v1, v5, v6, v7, v8) -> (v9: f32[4,3,6,6])
  n3 layer_norm {"axis":3,"epsilon":0.5} (v0, v3) -> (_, v10: f32[4,3,6,1], v11: f32[4,3,6,1])
  n4 layer_norm_param_grad {"axis":3} (v0, v2, v10, v11) -> (v12: f32[6], _)
  n5 layer_norm_input_grad {"axis":3} (v0, v2, v3, v10, v11) -> (v13: f32[4,3,6,6])
  n6 softmax_grad {"axis":1} (v0, v2) -> (v14: f32[4,3,6,6])
  n7 log_softmax_grad {"axis":3} (v0, v2) -> (v15: f32[4,3,6,6])
  n8 pad {"shape":[4,3,7,13],"starts":[0,0,1,2],"steps":[1,1,1,2],"value":"-inf"} (v0) -> (v16: f32[4,3,7,13])
  n9 pad {"shape":[4],"starts":[1],"steps":[1],"value":1.5} (v1) -> (v17: f32[4])
  n10 max_pool {"window":{"dilations":[1,1],"kernel":[2,2],"pads_begin":[0,0],"pads_end":[0,0],"strides":[2,2]}} (v0) -> (v18: f32[4,3,3,3], v19: i64[4,3,3,3])
  n11 max_pool_grad {"shape":[4,3,6,6],"window":{"dilations":[1,1],"kernel":[2,2],"pads_begin":[0,0],"pads_end":[0,0],"strides":[2,2]}} (v18, v19) -> (v20: f32[4,3,6,6])
  n12 average_pool_grad {"count_include_pad":true,"shape":[4,3,6,6],"window":{"dilations":[1,1],"kernel":[2,2],"pads_begin":[0,0],"pads_end":[0,0],"strides":[2,2]}} (v18) -> (v21: f32[4,3,6,6])
  n13 lstm {"reverse":true} (v22, v23, v24, v24, v25) -> (v26: f32[3,2,2], v27: f32[3,2,8], v28: f32[3,2,2])
  n14 lstm_grad {"dcells":true,"reverse":true} (v27, v28, v23, v24, v26, v28, v25) -> (v29: f32[3,2,8], _, v30: f32[2,2])
  n15 resize {"spec":{"coordinates":"half_pixel","extrapolation":0.0,"mode":"linear","scales":[1.0,1.0,[9,6],0.6000000238418579],"sizes":[4,3,9,3]}} (v0) -> (v31: f32[4,3,9,3])
}
"#;

#[test]
fn text_gives_the_text_again() {
    let module = Module::parse(TEXT, &arenic_backends::ALL).unwrap_or_else(|e| panic!("{e}"));
    verify(&module.graph).unwrap_or_else(|e| panic!("{e}"));
    let again =
        Module::parse(&module.to_string(), &arenic_backends::ALL).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(again, module);
    assert_eq!(again.to_string(), module.to_string());
    // The order of attributes is the printer's.
    let sorted = |text: &str| {
        let mut text: Vec<char> = text.chars().collect();
        text.sort_unstable();
        text
    };
    assert_eq!(sorted(&module.to_string()), sorted(TEXT));
}

/// What is said of the text with one piece replaced.
fn defect(from: &str, to: &str) -> String {
    assert!(TEXT.contains(from), "{from}");
    match Module::parse(&TEXT.replacen(from, to, 1), &arenic_backends::ALL) {
        Ok(module) => verify(&module.graph).err().map_or("accepted".into(), |d| d.to_string()),
        Err(e) => e.to_string(),
    }
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let refused = |from: &str, to: &str, why: &str| {
        let said = defect(from, to);
        assert!(said.contains(why), "{to}: {said}");
    };
    refused("(v0, v1, v1)", "(v0, v1, v3)", "an operand is f32[6], not f32[3]");
    refused("(v0, v1, v1)", "(v1, v1, v1)", "f32[3] has no channels");
    refused("(v0, v2, v5, v6)", "(v0, v1, v5, v6)", "an operand is f32[3]");
    refused("(v0, v2, v1, v5, v6, v7, v8)", "(v0, v2, v1, v5, v6, v7)", "takes 7 operands, not 6");
    refused("(v0, v2, v10, v11)", "(v0, v2, v10, v3)", "an operand is f32[6]");
    refused("(v0, v2, v3, v10, v11)", "(v0, v2, v1, v10, v11)", "scale or bias f32[3]");
    refused(r#"softmax_grad {"axis":1} (v0, v2)"#, r#"softmax_grad {"axis":4} (v0, v2)"#, "axis 4");
    refused(r#"softmax_grad {"axis":1} (v0, v2)"#, r#"softmax_grad {"axis":1} (v0, v3)"#, "f32[6]");
    refused("[1,1,1,2],\"value\"", "[1,1,0,2],\"value\"", "the step of axis 2 is zero");
    refused("[0,0,1,2],\"steps\"", "[0,0,2,2],\"steps\"", "leaves its extent 7");
    refused("\"-inf\"", "\"much\"", "`much` is no number");
    refused("(v18, v19)", "(v18, v18)", "indices f32[4,3,3,3] do not fit");
    refused(
        "max_pool_grad {\"shape\":[4,3,6,6]",
        "max_pool_grad {\"shape\":[4,3,8,6]",
        "no gradient",
    );
    refused(
        "(v22, v23, v24, v24, v25)",
        "(v22, v23, v24, v25)",
        "operand 3 is f32[6], not f32[2,2]",
    );
    refused(
        "(v22, v23, v24, v24, v25)",
        "(v22, v22, v24, v24)",
        "operand 1 is f32[3,2,8], not f32[8,2]",
    );
    refused("(v22, v23, v24, v24, v25)", "(v23, v23, v24, v24)", "has no steps, batch and gates");
    refused(
        "(v27, v28, v23, v24, v26, v28, v25)",
        "(v27, v28, v23, v24, v26)",
        "takes 6 or more operands",
    );
    refused("(v18) -> (v21", "(v0) -> (v21", "no gradient of a pool");
}

/// Scales follow from extents, so that no file makes tables longer than a multiple of both.
#[test]
fn a_resize_whose_scale_is_not_that_of_its_extents_is_refused() {
    use arenic_ir::op::{Coordinates, Interpolation, Op, ResizeSpec, Scale};
    use arenic_ir::{DType, TensorType};
    let judged = |shape: &[usize], sizes: &[usize], scale: Scale| {
        let mut scales = vec![Scale::ONE; shape.len()];
        *scales.last_mut().unwrap() = scale;
        let spec = ResizeSpec {
            sizes: sizes.to_vec(),
            scales,
            roi: vec![],
            mode: Interpolation::Linear,
            coordinates: Coordinates::HalfPixel,
            exclude_outside: false,
            antialias: true,
            extrapolation: 0.0,
        };
        let x = TensorType::new(DType::U8, shape);
        let op = Op::Resize { spec };
        op.infer(&[&x]).map(|y| op.scratch_bytes(CPU.target(), &[&x], &[&y[0]]))
    };
    for tiny in [2f32.powi(-59), 2f32.powi(-60), 1e-38, 1e-45, 0.0, -1.0, f32::NAN, f32::INFINITY] {
        assert!(judged(&[1], &[1], Scale::Number(tiny)).is_err(), "{tiny}");
        assert!(judged(&[1 << 20], &[1], Scale::Number(tiny)).is_err(), "{tiny}");
    }
    for (to, from) in [(0, 1), (1, 0), (1, 3), (3, 1), (u32::MAX, u32::MAX - 1)] {
        assert!(judged(&[1], &[1], Scale::Ratio(to, from)).is_err(), "{to} of {from}");
    }
    assert!(judged(&[4], &[7], Scale::Number(1.5)).is_err());
    assert!(judged(&[1 << 32], &[1 << 33], Scale::Number(2.0)).is_err());
    // Rounded down, rounded to the nearest, and one element of all.
    assert_eq!(judged(&[5], &[7], Scale::Number(1.5)), Ok(16 * 2 * 7));
    assert_eq!(judged(&[2, 6], &[2, 5], Scale::Ratio(3, 4)), Ok(16 * (2 * 2 + 4 * 5)));
    let most = 1 << 30;
    assert_eq!(judged(&[most], &[1], Scale::Ratio(1, 1 << 30)), Ok(16 * 2 * most as u64));
    // Nothing is resized to nothing.
    let nothing = |n| judged(&[0, n], &[0, n], Scale::Number(2f32.powi(-59)));
    assert_eq!(nothing(1 << 26), Ok(0));
    assert!(nothing(usize::MAX / 2).is_err());
}
