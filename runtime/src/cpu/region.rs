//! An update of a parameter, a region at a time.

use super::address::Src;
use crate::kernel::{Destination, Operand};
use arenic_ir::Op;

/// Elements of a parameter: rows of `cols` elements, `stride` apart, from `first` on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    pub(super) first: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) stride: usize,
}

/// Updates one region; the gradient's rows lie densely at the address, where there is one.
pub(super) type Kernel<'a> = &'a (dyn Fn(Region, Option<Src>) + Sync);

/// An update to run.
pub(super) struct Update<'a> {
    /// The operator.
    pub(super) op: &'a Op,
    /// Its operands; the gradient's address is not used where it comes as tiles.
    pub(super) inputs: &'a [Operand<'a>],
    /// Its results.
    pub(super) outputs: &'a [Option<Destination<'a>>],
    /// Position of a gradient that comes as tiles.
    pub(super) tiled: Option<usize>,
    /// Calls the kernel with regions that are disjoint and cover the parameter.
    pub(super) drive: &'a dyn Fn(Kernel),
}
