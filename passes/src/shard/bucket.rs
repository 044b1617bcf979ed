//! Exchanges that wait for one another and go together.

use arenic_ir::graph::{Graph, ValueId};
use arenic_ir::types::DType;

/// Tensors that wait to be exchanged by one operator: each as it is in the old graph and in the new one.
#[derive(Default)]
pub(super) struct Bucket {
    waiting: Vec<(ValueId, ValueId)>,
    bytes: u64,
    kind: Option<Kind>,
}

/// What tensors have in common that are exchanged together.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Kind {
    dtype: DType,
    /// They depend on a state. What follows from inputs alone, as the number of targets that count does, is known before the
    /// first of several micro-batches, and then has to be exchanged by itself.
    is_stateful: bool,
}

impl Bucket {
    /// Adds a tensor of the new graph; gives those that are exchanged before it, because they are full with
    /// it, or of another kind.
    pub(super) fn add(
        &mut self,
        old: ValueId,
        new: ValueId,
        g: &Graph,
        is_stateful: bool,
        most: u64,
    ) -> Vec<(ValueId, ValueId)> {
        let ty = g.ty(new);
        let bytes = ty.bytes();
        let kind = Kind { dtype: ty.dtype, is_stateful };
        let full = self.bytes.saturating_add(bytes) > most;
        let other = self.kind.is_some_and(|waiting| waiting != kind);
        let before = if full || other { self.take() } else { Vec::new() };
        self.waiting.push((old, new));
        self.bytes += bytes;
        self.kind = Some(kind);
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
        (self.bytes, self.kind) = (0, None);
        std::mem::take(&mut self.waiting)
    }
}
