//! Exchanges that wait for one another and go together.

use arenic_ir::graph::{Graph, ValueId};
use arenic_ir::types::DType;

/// Tensors that wait to be exchanged by one operator: each as it is in the old graph and in the new one.
#[derive(Default)]
pub(super) struct Bucket {
    waiting: Vec<(ValueId, ValueId)>,
    bytes: u64,
    dtype: Option<DType>,
}

impl Bucket {
    /// Adds a tensor of the new graph; gives those that are exchanged before it, because they are full with
    /// it, or of another type.
    pub(super) fn add(
        &mut self,
        old: ValueId,
        new: ValueId,
        g: &Graph,
        most: u64,
    ) -> Vec<(ValueId, ValueId)> {
        let ty = g.ty(new);
        let bytes = ty.bytes();
        let full = self.bytes.saturating_add(bytes) > most;
        let other = self.dtype.is_some_and(|dtype| dtype != ty.dtype);
        let before = if full || other { self.take() } else { Vec::new() };
        self.waiting.push((old, new));
        self.bytes += bytes;
        self.dtype = Some(ty.dtype);
        before
    }

    /// True where a tensor of the old graph waits.
    pub(super) fn holds(&self, old: ValueId) -> bool {
        self.waiting.iter().any(|(v, _)| *v == old)
    }

    /// True where no other tensor can join.
    pub(super) fn is_full(&self, most: u64) -> bool {
        self.bytes >= most && !self.waiting.is_empty()
    }

    /// All that waits, in the order in which it came.
    pub(super) fn take(&mut self) -> Vec<(ValueId, ValueId)> {
        (self.bytes, self.dtype) = (0, None);
        std::mem::take(&mut self.waiting)
    }
}
