//! Casts.

use super::address::{Dst, Src};
use super::dispatch::for_number;
use super::map::map1;
use super::number::Number;
use super::tasks::{CHEAP, copy};
use crate::kernel::Call;
use arenic_ir::DType;
use arenic_ir::types::bf16;

/// The same numbers in another type; float to integer truncates and saturates. What becomes a
/// `bf16` is rounded to `f32` first.
#[allow(clippy::unnecessary_cast)] // one of the types is `f32`
pub(super) fn run(to: DType, call: &Call) {
    let (x, Some(y)) = (&call.inputs[0], &call.outputs[0]) else { return };
    let from = x.ty().dtype;
    // Integers of one size are the same bits.
    let same = from == to
        || from.is_int() && to.is_int() && from.size() == to.size()
        || from == DType::Bool && to.is_int() && to.size() == 1;
    if same {
        // SAFETY: operand and result have the same bytes; equal or disjoint ranges.
        unsafe { copy(Src::of(x), Dst::of(y), x.ty().bytes() as usize) };
    } else if from == DType::Bf16 {
        match to {
            DType::Bool => map1(x, y, CHEAP, |x: u16| u8::from(bf16::to_f32(x) != 0.0)),
            _ => for_number!(to, D => map1(x, y, CHEAP, |x: u16| bf16::to_f32(x) as D)),
        }
    } else if to == DType::Bf16 {
        for_number!(from, S => map1(x, y, CHEAP, |x: S| bf16::from_f32(x as f32)));
    } else if to == DType::Bool {
        for_number!(from, S => map1(x, y, CHEAP, |x: S| u8::from(x != S::ZERO)));
    } else {
        for_number!(from, S => for_number!(to, D => map1(x, y, CHEAP, |x: S| x as D)));
    }
}
