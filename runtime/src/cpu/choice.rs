//! Choice by a condition, and clipping.

use super::address::{Dst, Src};
use super::dispatch::{for_number, for_size};
use super::map::{map1, map3};
use super::number::Number;
use super::tasks::{CHEAP, copy};
use crate::kernel::Call;
use arenic_ir::DType;

/// `y = a` where the condition holds, `b` elsewhere.
pub(super) fn choose(call: &Call) {
    let ([c, a, b], Some(y)) = (call.inputs, &call.outputs[0]) else { return };
    for_size!(a.ty().dtype, T => {
        map3([c, a, b], y, CHEAP, |c: u8, a: T, b: T| if c != 0 { a } else { b });
    });
}

/// `x` between bounds; the upper one wins where they cross.
pub(super) fn clip(min: bool, max: bool, call: &Call) {
    let (x, Some(y)) = (&call.inputs[0], &call.outputs[0]) else { return };
    let bounds = &call.inputs[1..];
    for_number!(x.ty().dtype, T => {
        // SAFETY: bounds are scalars of the operand's type by inference.
        let bound = |i: usize| unsafe { bounds[i].ptr::<T>().read() };
        match (min, max) {
            (false, false) => {
                // SAFETY: operand and result have one type; equal or disjoint ranges.
                unsafe { copy(Src::of(x), Dst::of(y), x.ty().bytes() as usize) };
            }
            (true, false) => {
                let low = bound(0);
                map1(x, y, CHEAP, |x: T| x.larger(low));
            }
            (false, true) => {
                let high = bound(0);
                map1(x, y, CHEAP, |x: T| x.smaller(high));
            }
            (true, true) => {
                let (low, high) = (bound(0), bound(1));
                map1(x, y, CHEAP, |x: T| x.larger(low).smaller(high));
            }
        }
    });
}
