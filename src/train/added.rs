//! Where steps lie that are added to a session while it lives.

use crate::artifact::Target;
use arenic_runtime::rounds::WholeStep;
use std::sync::{Arc, OnceLock};

/// A list that only grows: what is in it stays where it is.
pub(super) struct Chain<T>(OnceLock<Box<(T, Chain<T>)>>);

impl<T> Default for Chain<T> {
    fn default() -> Self {
        Chain(OnceLock::new())
    }
}

impl<T> Chain<T> {
    /// Adds something at the end.
    pub(super) fn push(&self, item: T) -> &T {
        let mut chain = self;
        while let Some(next) = chain.0.get() {
            chain = &next.1;
        }
        &chain.0.get_or_init(|| Box::new((item, Chain::default()))).0
    }
}

/// Places for steps that are added.
#[derive(Clone, Copy)]
pub(super) struct More<'s, 'g> {
    pub(super) targets: &'g Chain<Arc<Target>>,
    /// Of those in rounds.
    pub(super) whole: &'s Chain<Option<WholeStep<'g>>>,
}
