//! Families of operators, and what a family must say of each of its own.
//!
//! [`Op`](super::Op) lists all operators side by side, for whoever makes or recognises one. Who
//! must have an answer for every operator matches [`Family`] instead, and then the family's own
//! enum. Both matches are exhaustive, so that the compiler finds whoever has no answer for a new
//! operator.

use super::{Cut, Narrowing, TypeError, Work};
use crate::types::TensorType;

/// What is true of an operator on every backend. No method has a default: what a family does not
/// say would be taken for a promise.
///
/// `x` are the operands' types, `y` those of the results, as `infer` gives them.
pub(super) trait Row {
    /// How many operands the operator takes: (least, most).
    fn arity(&self) -> (usize, usize);

    /// The types of all results, of as many operands as `arity` allows.
    fn infer(&self, x: &[&TensorType]) -> Result<Vec<TensorType>, TypeError>;

    /// The (input, output) pairs that every backend's kernel allows where the two have one type:
    /// the output's bytes may be the input's. See [`Op::in_place_pairs`](super::Op::in_place_pairs).
    fn in_place(&self, x: &[&TensorType], y: &[&TensorType]) -> Vec<(usize, usize)>;

    /// Ways to cut the operator into parts that run one after another; there is at least one
    /// result. See [`Op::cuts`](super::Op::cuts).
    fn cuts(&self, x: &[&TensorType], y: &[&TensorType]) -> Vec<Cut>;

    /// Arithmetic and memory traffic. See [`Op::work`](super::Op::work).
    fn work(&self, x: &[&TensorType], y: &[&TensorType]) -> Work;

    /// Elements are moved and none is looked at, so that a kernel for elements of one size moves
    /// all types of that size.
    fn moves_elements(&self) -> bool;

    /// What the operator has to do with `bf16`, for so many operands.
    fn narrowing(&self, operands: usize) -> Narrowing;
}

/// Writes [`Op`](super::Op) and the families' enums from one list: of each family its operators,
/// of each operator its name in the text form, its variant, and its attributes.
macro_rules! operators {
    ($(
        $(#[doc = $family_doc:literal])*
        $family:ident {
            $(
                $(#[$meta:meta])*
                $name:literal $op:ident $({ $(
                    $(#[doc = $field_doc:literal])*
                    $(#[serde $serde:tt])*
                    $field:ident: $ty:ty
                ),* $(,)? })?
            ),* $(,)?
        }
    )*) => {
        /// An operator with its attributes. Nodes apply operators to values.
        ///
        /// Axes are non-negative and in range; `infer` refuses others. Each variant's comment
        /// gives `operands → results`.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub enum Op {
            $($(
                $(#[$meta])*
                #[serde(rename = $name)]
                $op $({ $(
                    $(#[doc = $field_doc])*
                    $(#[serde $serde])*
                    $field: $ty
                ),* })?,
            )*)*
        }

        impl Op {
            /// The names of all operators in the text form.
            pub const NAMES: &'static [&'static str] = &[$($($name),*),*];

            /// The operator's name in the text form, for example `layer_norm`.
            pub fn name(&self) -> &'static str {
                match self {
                    $($(Op::$op { .. } => $name,)*)*
                }
            }

            /// The operator as one of its family's.
            pub fn family(&self) -> Family<'_> {
                match self {
                    $($(
                        Op::$op $({ $($field),* })? =>
                            Family::$family(families::$family::$op $({ $($field),* })?),
                    )*)*
                }
            }
        }

        /// An operator, by its family.
        #[derive(Clone, Copy, Debug)]
        pub enum Family<'a> {
            $(
                $(#[doc = $family_doc])*
                $family(families::$family<'a>),
            )*
        }

        impl Family<'_> {
            /// What the operator's family says of it.
            pub(super) fn row(&self) -> &dyn family::Row {
                match self {
                    $(Family::$family(op) => op,)*
                }
            }
        }

        /// The operators of each family, with borrowed attributes. See [`Op`] for what they are.
        pub mod families {
            #[allow(clippy::wildcard_imports, reason = "attributes are of the operators' types")]
            use super::*;
            $(
                $(#[doc = $family_doc])*
                #[derive(Clone, Copy, Debug)]
                #[allow(missing_docs, reason = "`Op` has them")]
                #[allow(clippy::borrowed_box, reason = "an attribute as `Op` has it")]
                pub enum $family<'a> {
                    $($op $({ $($field: &'a $ty),* })?,)*
                }

                impl $family<'_> {
                    /// The operator's name in the text form.
                    pub fn name(&self) -> &'static str {
                        match self {
                            $($family::$op { .. } => $name,)*
                        }
                    }
                }
            )*
        }
    };
}
pub(super) use operators;
