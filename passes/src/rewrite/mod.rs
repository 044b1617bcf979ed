//! The kit that rewrites of the graph are written in.
//!
//! [`GraphView`] is the graph as a matcher sees it: definitions, readers and uses, through changes
//! of shape. Patterns are made of its combinators, each of which gives the operands of an operator
//! ([`GraphView::binary`], [`GraphView::choice`], …) or `None`, so that `?` ends a match;
//! [`GraphView::commuted`] tries both orders of operands. [`Expressions`] tells a value by what it
//! computes: two values of one [`Polynomial`] in the same atoms are equal but for rounding, however
//! an exporter wrote them. [`GraphView::is_closed`] holds where nobody outside of a match reads what
//! is inside of it, and [`Editor`] puts nodes in the place of the match, keeps the names of values,
//! and sweeps what is dead afterwards.
//!
//! Every rewrite reads one view first and edits then, so that a match never sees half a rewrite.
//!
//! `turn` (with `layout`), `precision` and `section` match no patterns: they go over all nodes once, and share
//! [`Graph::arranged`](arenic_ir::Graph::arranged) with the editor.

mod constants;
mod editor;
mod expression;
mod group;
mod polynomial;
mod products;
#[cfg(test)]
mod tests;
mod view;

pub(crate) use constants::is_zero;
pub(crate) use editor::Editor;
pub(crate) use expression::{AxisGroups, Expressions};
pub(crate) use group::Group;
pub(crate) use polynomial::{Groups, Polynomial};
pub(crate) use products::{is_product, rows};
pub(crate) use view::GraphView;
