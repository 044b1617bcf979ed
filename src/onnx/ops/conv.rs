//! Convolutions, and the window attributes that pools share with them.

use super::{Row, row};
use crate::onnx::attributes::Access;
use crate::onnx::context::{Built, Cx, extents};
use crate::onnx::error::Fault;
use arenic_ir::op::Window;
use arenic_ir::{Op, TensorType, ValueId};

pub(super) const CONV: &[&str] =
    &["auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"];
pub(super) const CONV_TRANSPOSE: &[&str] = &[
    "auto_pad",
    "dilations",
    "group",
    "kernel_shape",
    "output_padding",
    "output_shape",
    "pads",
    "strides",
];

pub(super) const ROWS: &[Row] = &[
    row("Conv", (2, 3), CONV, conv),
    row("ConvTranspose", (2, 3), CONV_TRANSPOSE, conv_transpose),
];

/// How pads come about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AutoPad {
    NotSet,
    SameUpper,
    SameLower,
    Valid,
}

fn auto_pad(a: &Access) -> Result<AutoPad, Fault> {
    a.one_of(
        "auto_pad",
        "NOTSET",
        &[
            ("NOTSET", AutoPad::NotSet),
            ("SAME_UPPER", AutoPad::SameUpper),
            ("SAME_LOWER", AutoPad::SameLower),
            ("VALID", AutoPad::Valid),
        ],
    )
}

/// One number per spatial axis, or the default for each.
fn per_axis(a: &Access, name: &str, rank: usize, default: usize) -> Result<Vec<usize>, Fault> {
    match a.ints(name)? {
        None => Ok(vec![default; rank]),
        Some(list) if list.len() == rank => {
            extents(list).map_err(|f| Fault(format!("attribute `{name}`: {}", f.0)))
        }
        Some(list) => Err(Fault(format!(
            "attribute `{name}` has {} entries for {rank} spatial axes",
            list.len()
        ))),
    }
}

/// The spatial extents of an operand.
pub(super) fn spatial(ty: &TensorType) -> Result<&[usize], Fault> {
    match ty.shape.get(2..) {
        Some(s) if !s.is_empty() => Ok(s),
        _ => Err(Fault(format!("{ty} has no spatial axes"))),
    }
}

/// The window as the attributes give it, with explicit pads only, and what else asks
/// for pads.
fn explicit(a: &Access, kernel: Vec<usize>) -> Result<(Window, AutoPad), Fault> {
    let n = kernel.len();
    let auto = auto_pad(a)?;
    let (pads_begin, pads_end) = match (a.ints("pads")?, auto) {
        (Some(list), AutoPad::NotSet) => {
            if list.len() != 2 * n {
                return Err(Fault(format!(
                    "attribute `pads` has {} entries for {n} spatial axes",
                    list.len()
                )));
            }
            let pads = extents(list).map_err(|f| Fault(format!("attribute `pads`: {}", f.0)))?;
            (pads[..n].to_vec(), pads[n..].to_vec())
        }
        _ => (vec![0; n], vec![0; n]),
    };
    let strides = per_axis(a, "strides", n, 1)?;
    let dilations = per_axis(a, "dilations", n, 1)?;
    let window = Window { kernel, strides, dilations, pads_begin, pads_end };
    // Checked here, because what follows computes with the entries.
    window.validate()?;
    Ok((window, auto))
}

/// The window that slides over `input`.
pub(super) fn window(a: &Access, kernel: Vec<usize>, input: &[usize]) -> Result<Window, Fault> {
    if kernel.len() != input.len() {
        return Err(Fault(format!(
            "a window of {} axes slides over {} spatial axes",
            kernel.len(),
            input.len()
        )));
    }
    let (mut w, auto) = explicit(a, kernel)?;
    if matches!(auto, AutoPad::SameUpper | AutoPad::SameLower) {
        for (i, &extent) in input.iter().enumerate() {
            let outputs = extent.div_ceil(w.strides[i]);
            let covered = outputs
                .saturating_sub(1)
                .checked_mul(w.strides[i])
                .and_then(|n| n.checked_add(w.span(i)))
                .ok_or("its extents are too large")?;
            let total = covered.saturating_sub(extent);
            let (small, large) = (total / 2, total - total / 2);
            (w.pads_begin[i], w.pads_end[i]) =
                if auto == AutoPad::SameUpper { (small, large) } else { (large, small) };
        }
    }
    Ok(w)
}

/// The kernel's extents: what the weights say, which the attribute must not contradict.
pub(super) fn kernel(a: &Access, weights: &TensorType) -> Result<Vec<usize>, Fault> {
    let of_weights = spatial(weights)?.to_vec();
    match a.ints("kernel_shape")? {
        None => Ok(of_weights),
        Some(list) if extents(list)? == of_weights => Ok(of_weights),
        Some(list) => {
            Err(Fault(format!("attribute `kernel_shape` {list:?} differs from weights {weights}")))
        }
    }
}

pub(super) fn group(a: &Access) -> Result<usize, Fault> {
    let group = a.int_or("group", 1)?;
    usize::try_from(group).map_err(|_| Fault(format!("attribute `group` is {group}")))
}

/// Data, weights and, where there is one, bias.
fn operands(cx: &mut Cx) -> Result<Vec<ValueId>, Fault> {
    let mut inputs = vec![cx.input(0)?, cx.input(1)?];
    if let Some(bias) = cx.optional(2)? {
        let ty = cx.ty(bias);
        if ty.rank() != 1 {
            // PyTorch's exporter writes zeros for each spatial axis, too, where a Conv3d has no bias.
            let zeros = cx.b.contents(bias).is_some_and(|bytes| bytes.iter().all(|&b| b == 0));
            if zeros && ty.shape.first() == cx.b.g.ty(inputs[1]).shape.first() {
                return Ok(inputs);
            }
            return Err(Fault(format!("its bias is {ty}, not one number for each channel")));
        }
        inputs.push(bias);
    }
    Ok(inputs)
}

pub(super) fn conv(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    let inputs = operands(cx)?;
    let (x, w) = (cx.ty(inputs[0]), cx.ty(inputs[1]));
    let window = window(&a, kernel(&a, &w)?, spatial(&x)?)?;
    cx.whole(Op::Conv { window, group: group(&a)? }, inputs)
}

pub(super) fn conv_transpose(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    let inputs = operands(cx)?;
    let (x, w) = (cx.ty(inputs[0]), cx.ty(inputs[1]));
    let input = spatial(&x)?;
    let kernel = kernel(&a, &w)?;
    let n = kernel.len();
    if n != input.len() {
        return Err(Fault(format!("weights {w} do not fit {x}")));
    }
    let (mut window, auto) = explicit(&a, kernel)?;
    let mut output_padding = per_axis(&a, "output_padding", n, 0)?;
    let same = matches!(auto, AutoPad::SameUpper | AutoPad::SameLower);
    let target = match a.ints("output_shape")? {
        Some(list) if list.len() == n => Some(extents(list)?),
        Some(list) => {
            return Err(Fault(format!(
                "attribute `output_shape` has {} entries for {n} spatial axes",
                list.len()
            )));
        }
        None if same => {
            let product = |(&d, &s): (&usize, &usize)| d.checked_mul(s);
            let shape: Option<_> = input.iter().zip(&window.strides).map(product).collect();
            Some(shape.ok_or("its extents are too large")?)
        }
        None => None,
    };
    if let Some(target) = target {
        (window.pads_begin, window.pads_end) = (vec![0; n], vec![0; n]);
        let full = window.unslide(input, &output_padding)?;
        for i in 0..n {
            // Where the target is larger than the full result, zeros make up the rest.
            output_padding[i] += target[i].saturating_sub(full[i]);
            let total = full[i].saturating_sub(target[i]);
            let (small, large) = (total / 2, total - total / 2);
            (window.pads_begin[i], window.pads_end[i]) =
                if auto == AutoPad::SameUpper { (small, large) } else { (large, small) };
        }
    }
    cx.whole(Op::ConvTranspose { window, group: group(&a)?, output_padding }, inputs)
}
