//! What an operator has to do with `bf16`, for the pass that puts steps into it.

/// How an operator may take `bf16` beside values of `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bf16Role {
    /// A product: faster on `bf16`, so that its operands are worth being rounded.
    Product,
    /// It takes `bf16` where its operands are that already.
    Follows,
    /// It computes in `f32`; its result may be stored as `bf16`.
    Elementwise,
    /// It stays in `f32`.
    Wide,
}

/// An operator's role, and which of its operands it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Narrowing {
    /// The role.
    pub role: Bf16Role,
    /// Positions of the operands that are `bf16` where the operator takes it; statistics, factors of
    /// normalisations, masks and indices are not among them.
    pub operands: Vec<usize>,
}

impl Narrowing {
    pub(super) fn product(operands: impl IntoIterator<Item = usize>) -> Narrowing {
        Narrowing { role: Bf16Role::Product, operands: operands.into_iter().collect() }
    }

    pub(super) fn follows(operands: impl IntoIterator<Item = usize>) -> Narrowing {
        Narrowing { role: Bf16Role::Follows, operands: operands.into_iter().collect() }
    }

    /// Of all operands, of which there are so many.
    pub(super) fn elementwise(count: usize) -> Narrowing {
        Narrowing { role: Bf16Role::Elementwise, operands: (0..count).collect() }
    }

    pub(super) fn wide() -> Narrowing {
        Narrowing { role: Bf16Role::Wide, operands: Vec::new() }
    }
}
