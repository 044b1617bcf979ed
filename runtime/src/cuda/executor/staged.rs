//! What goes to the device before each step and comes back after it, by way of pinned memory.

use super::super::driver::{Driver, DriverError};
use crate::kernel::{Draw, KernelError};
use arenic_ir::graph::{Def, Graph, ValueId};
use arenic_ir::program::{Program, Range};

/// Pinned bytes beside the arena: what goes to the device before each step and comes back.
pub(super) struct Staged {
    /// The whole allocation.
    pub(super) address: u64,
    /// Of each fed input the home and its place here.
    pub(super) inputs: Vec<(ValueId, Range, u64)>,
    /// Of each output its place in the device arena and its place here.
    pub(super) outputs: Vec<(Range, u64)>,
    /// Device memory of seed and step, and of what is refused.
    pub(super) draw: u64,
    pub(super) refusal: u64,
}

/// Seed and step, then what was refused: at the begin of what is staged, and on the device.
pub(super) const DRAW_BYTES: u64 = size_of::<[u64; 2]>() as u64;
pub(super) const REFUSAL_BYTES: u64 = size_of::<[u64; 4]>() as u64;

/// Alignment of arenas and of what is staged.
pub(super) const ALIGN: u64 = 256;

impl Staged {
    /// Places of everything that is fed or comes back, behind seed, step and refusal.
    pub(super) fn new(
        g: &Graph,
        program: &Program,
        driver: &impl Driver,
    ) -> Result<Staged, DriverError> {
        // What goes, what comes back, and the piece through which other homes are filled.
        let mut at = 2 * ALIGN + PIECE;
        let mut place = |bytes: u64| {
            let here = at;
            at += bytes.next_multiple_of(ALIGN);
            here
        };
        let fed = |h: &&arenic_ir::program::Place| {
            g.values.get(h.value).is_some_and(|v| matches!(v.def, Def::Input))
        };
        let inputs =
            program.homes.iter().filter(fed).map(|h| (h.value, h.range, place(h.range.len)));
        let inputs = inputs.collect();
        let outputs = program.outputs.iter().map(|&range| (range, place(range.len))).collect();
        let draw = driver.allocate(DRAW_BYTES + REFUSAL_BYTES)?;
        let address = driver.allocate_pinned(at)?;
        Ok(Staged { address, inputs, outputs, draw, refusal: draw + DRAW_BYTES })
    }

    pub(super) fn bytes(&self) -> u64 {
        let inputs = self.inputs.iter().map(|(_, range, _)| range.len);
        let outputs = self.outputs.iter().map(|(range, _)| range.len);
        let each = inputs.chain(outputs).map(|n| n.next_multiple_of(ALIGN));
        2 * ALIGN + PIECE + each.sum::<u64>()
    }

    /// Where refusals come back.
    pub(super) fn came_back(&self) -> u64 {
        self.address + ALIGN
    }

    /// Where pieces of homes go through, and their size.
    pub(super) fn piece(&self) -> u64 {
        self.address + 2 * ALIGN
    }

    pub(super) fn room(&self) -> u64 {
        PIECE
    }

    /// Writes seed and step, and that nothing is refused.
    pub(super) fn put_draw(&self, draw: Draw) {
        let words = [draw.seed, draw.step, 0, 0, 0, 0];
        // SAFETY: pinned memory with room for these words, which no copy uses between steps.
        unsafe { std::ptr::write(self.address as *mut [u64; 6], words) };
    }

    /// The node that refused, and why.
    pub(super) fn refusal(&self) -> Option<(u64, KernelError)> {
        // SAFETY: pinned memory that came back from the device; the step has ended.
        let words: [u64; 4] = unsafe { std::ptr::read(self.came_back() as *const _) };
        let [node, code, value, extent] = words;
        let (node, value) = (node.checked_sub(1)?, value.cast_signed());
        let error = match code {
            1 => KernelError::IndexOutOfRange { index: value, extent: extent as usize },
            2 => KernelError::DivisionByZero,
            _ => KernelError::Ratio(f64::from_bits(value.cast_unsigned()).to_string()),
        };
        Some((node, error))
    }
}

/// Bytes of homes that are filled or read at a time.
const PIECE: u64 = 4 << 20;
