//! Functions of one element of each operand: one row says what import, export, both backends and
//! differentiation know of a function.
//!
//! The fields `cuda` and `onnx` are the exception to the rule that this crate names no backend and no file format:
//! with them a function is one row. The CPU's code of a function is in `runtime/src/cpu/scalar.rs`: it is made for each
//! element type. The importer's row for it is in `src/onnx/ops/elementwise.rs`.

use crate::types::DType;
use serde::{Deserialize, Serialize};
use std::f64::consts::FRAC_2_SQRT_PI;

/// What is known of a function of one operand.
#[derive(Clone, Copy, Debug)]
pub struct UnaryRow {
    /// ONNX's operator.
    pub onnx: &'static str,
    /// The types of operands that it takes.
    pub takes: Takes,
    /// An element costs several nanoseconds on the CPU.
    pub is_dear: bool,
    /// The expression in CUDA C++, of the operand `{a}`.
    pub cuda: &'static str,
    /// The gradient of the operand.
    pub gradient: Gradient,
}

/// What is known of a function of two operands. How gradients pass it is a rule of
/// differentiation, as it depends on which operand is broadcast or constant.
#[derive(Clone, Copy, Debug)]
pub struct BinaryRow {
    /// ONNX's operator.
    pub onnx: &'static str,
    /// The types of operands that it takes.
    pub takes: Takes,
    /// The result is `bool` whatever the operands are.
    pub is_comparison: bool,
    /// An element costs several nanoseconds on the CPU.
    pub is_dear: bool,
    /// The expression in CUDA C++, of the operands `{a}` and `{b}`.
    pub cuda: &'static str,
}

/// Types of operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// `bool` alone.
    Bool,
    /// Floats.
    Floats,
    /// Floats and integers with a sign.
    Signed,
    /// All but `bool`.
    Numbers,
    /// All.
    All,
}

impl Takes {
    /// True for types that are among these.
    pub fn contains(self, d: DType) -> bool {
        match self {
            Takes::Bool => d == DType::Bool,
            Takes::Floats => d.is_float(),
            Takes::Signed => {
                d.is_float() || matches!(d, DType::I8 | DType::I16 | DType::I32 | DType::I64)
            }
            Takes::Numbers => d != DType::Bool,
            Takes::All => true,
        }
    }
}

/// The gradient of a function's operand.
#[derive(Clone, Copy, Debug)]
pub enum Gradient {
    /// It is zero almost everywhere.
    Zero,
    /// What the last step gives. Steps read the gradient of the result as source 0, and `of` as
    /// source 1; the results of steps follow.
    Steps {
        /// What is kept for it.
        of: Kept,
        /// The gradient is multiplied or divided by a slope, which may be infinite or NaN: it must
        /// be set to zero for elements that do not count.
        has_slope: bool,
        /// What is computed.
        steps: &'static [GradientStep],
    },
}

/// What is kept of a function for its gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Nothing.
    Nothing,
    /// The operand.
    Operand,
    /// The result.
    Result,
}

/// One step of a gradient. Numbers name sources, see [`Gradient::Steps`].
#[derive(Clone, Copy, Debug)]
pub enum GradientStep {
    /// `f(x)`.
    Unary(Unary, usize),
    /// `f(a, b)`.
    Binary(Binary, usize, usize),
    /// This number.
    Number(f64),
    /// The source times this number.
    Scaled(usize, f64),
    /// The second source where the first, a condition, holds, and zero elsewhere.
    Masked(usize, usize),
}

/// Writes an enum of functions, a list of them, and their rows.
macro_rules! functions {
    (
        $(#[$meta:meta])*
        $functions:ident: $Row:ident {
            $($(#[$doc:meta])* $f:ident => { $($row:tt)* },)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[allow(missing_docs, reason = "the names are the functions")]
        pub enum $functions {
            $($(#[$doc])* $f,)*
        }

        impl $functions {
            /// All of them.
            pub const ALL: &'static [$functions] = &[$($functions::$f),*];

            /// What is known of the function.
            pub fn row(self) -> $Row {
                match self {
                    $($functions::$f => $Row { $($row)* },)*
                }
            }

            /// The function that ONNX's operator of this name computes; `None` if there is none.
            pub fn of_onnx(name: &str) -> Option<$functions> {
                $functions::ALL.iter().copied().find(|f| f.row().onnx == name)
            }

            /// True where the function takes operands of this type.
            pub fn takes(self, d: DType) -> bool {
                self.row().takes.contains(d)
            }
        }
    };
}

use Gradient::{Steps, Zero};
use GradientStep as G;

functions! {
    /// Elementwise functions of one operand; the result has the operand's type.
    Unary: UnaryRow {
        Abs => {
            onnx: "Abs",
            takes: Takes::Numbers,
            is_dear: false,
            cuda: "abs_of({a})",
            gradient: Steps {
                of: Kept::Operand,
                has_slope: true,
                steps: &[G::Unary(Unary::Sign, 1), G::Binary(Binary::Mul, 0, 2)],
            }
        },
        Atan => {
            onnx: "Atan",
            takes: Takes::Floats,
            is_dear: true,
            cuda: "atan_of({a})",
            // 1 / (1 + x²)
            gradient: Steps {
                of: Kept::Operand,
                has_slope: true,
                steps: &[
                    G::Binary(Binary::Mul, 1, 1),
                    G::Number(1.0),
                    G::Binary(Binary::Add, 3, 2),
                    G::Binary(Binary::Div, 0, 4),
                ],
            }
        },
        Atanh => {
            onnx: "Atanh",
            takes: Takes::Floats,
            is_dear: true,
            cuda: "atanh_of({a})",
            // 1 / ((1 − x) · (1 + x))
            gradient: Steps {
                of: Kept::Operand,
                has_slope: true,
                steps: &[
                    G::Number(1.0),
                    G::Binary(Binary::Sub, 2, 1),
                    G::Binary(Binary::Add, 2, 1),
                    G::Binary(Binary::Mul, 3, 4),
                    G::Binary(Binary::Div, 0, 5),
                ],
            }
        },
        Ceil => {
            onnx: "Ceil",
            takes: Takes::Floats,
            is_dear: false,
            cuda: "ceil_of({a})",
            gradient: Zero
        },
        Cos => {
            onnx: "Cos",
            takes: Takes::Floats,
            is_dear: true,
            cuda: "cos_of({a})",
            gradient: Steps {
                of: Kept::Operand,
                has_slope: true,
                steps: &[
                    G::Unary(Unary::Sin, 1),
                    G::Binary(Binary::Mul, 0, 2),
                    G::Unary(Unary::Neg, 3),
                ],
            }
        },
        Erf => {
            onnx: "Erf",
            takes: Takes::Floats,
            is_dear: true,
            cuda: "erf_of({a})",
            // 2/√π · exp(−x²)
            gradient: Steps {
                of: Kept::Operand,
                has_slope: true,
                steps: &[
                    G::Binary(Binary::Mul, 1, 1),
                    G::Unary(Unary::Neg, 2),
                    G::Unary(Unary::Exp, 3),
                    G::Scaled(4, FRAC_2_SQRT_PI),
                    G::Binary(Binary::Mul, 0, 5),
                ],
            }
        },
        Exp => {
            onnx: "Exp",
            takes: Takes::Floats,
            is_dear: true,
            cuda: "exp_of({a})",
            gradient: Steps {
                of: Kept::Result,
                has_slope: true,
                steps: &[G::Binary(Binary::Mul, 0, 1)],
            }
        },
        Floor => {
            onnx: "Floor",
            takes: Takes::Floats,
            is_dear: false,
            cuda: "floor_of({a})",
            gradient: Zero
        },
        Log => {
            onnx: "Log",
            takes: Takes::Floats,
            is_dear: true,
            cuda: "log_of({a})",
            gradient: Steps {
                of: Kept::Operand,
                has_slope: true,
                steps: &[G::Binary(Binary::Div, 0, 1)],
            }
        },
        Neg => {
            onnx: "Neg",
            takes: Takes::Signed,
            is_dear: false,
            cuda: "neg_of({a})",
            gradient: Steps {
                of: Kept::Nothing,
                has_slope: false,
                steps: &[G::Unary(Unary::Neg, 0)],
            }
        },
        Not => {
            onnx: "Not",
            takes: Takes::Bool,
            is_dear: false,
            cuda: "not_of({a})",
            gradient: Zero
        },
        Reciprocal => {
            onnx: "Reciprocal",
            takes: Takes::Floats,
            is_dear: false,
            cuda: "reciprocal_of({a})",
            gradient: Steps {
                of: Kept::Result,
                has_slope: true,
                steps: &[
                    G::Binary(Binary::Mul, 1, 1),
                    G::Binary(Binary::Mul, 0, 2),
                    G::Unary(Unary::Neg, 3),
                ],
            }
        },
        Relu => {
            onnx: "Relu",
            takes: Takes::Signed,
            is_dear: false,
            cuda: "relu_of({a})",
            gradient: Steps {
                of: Kept::Result,
                has_slope: false,
                steps: &[
                    G::Number(0.0),
                    G::Binary(Binary::Greater, 1, 2),
                    G::Masked(3, 0),
                ],
            }
        },
        Sigmoid => {
            onnx: "Sigmoid",
            takes: Takes::Floats,
            is_dear: true,
            cuda: "sigmoid_of({a})",
            // y · (1 − y)
            gradient: Steps {
                of: Kept::Result,
                has_slope: true,
                steps: &[
                    G::Number(1.0),
                    G::Binary(Binary::Sub, 2, 1),
                    G::Binary(Binary::Mul, 1, 3),
                    G::Binary(Binary::Mul, 0, 4),
                ],
            }
        },
        Sign => {
            onnx: "Sign",
            takes: Takes::Numbers,
            is_dear: false,
            cuda: "sign_of({a})",
            gradient: Zero
        },
        Sin => {
            onnx: "Sin",
            takes: Takes::Floats,
            is_dear: true,
            cuda: "sin_of({a})",
            gradient: Steps {
                of: Kept::Operand,
                has_slope: true,
                steps: &[G::Unary(Unary::Cos, 1), G::Binary(Binary::Mul, 0, 2)],
            }
        },
        Sqrt => {
            onnx: "Sqrt",
            takes: Takes::Floats,
            is_dear: false,
            cuda: "sqrt_of({a})",
            gradient: Steps {
                of: Kept::Result,
                has_slope: true,
                steps: &[G::Scaled(1, 2.0), G::Binary(Binary::Div, 0, 2)],
            }
        },
        Tanh => {
            onnx: "Tanh",
            takes: Takes::Floats,
            is_dear: true,
            cuda: "tanh_of({a})",
            // 1 − y²
            gradient: Steps {
                of: Kept::Result,
                has_slope: true,
                steps: &[
                    G::Number(1.0),
                    G::Binary(Binary::Mul, 1, 1),
                    G::Binary(Binary::Sub, 2, 3),
                    G::Binary(Binary::Mul, 0, 4),
                ],
            }
        },
    }
}

functions! {
    /// Elementwise functions of two operands of one type, with broadcasting.
    Binary: BinaryRow {
        Add => {
            onnx: "Add",
            takes: Takes::Numbers,
            is_comparison: false,
            is_dear: false,
            cuda: "add({a}, {b})"
        },
        And => {
            onnx: "And",
            takes: Takes::Bool,
            is_comparison: false,
            is_dear: false,
            cuda: "{a} & {b}"
        },
        Div => {
            onnx: "Div",
            takes: Takes::Numbers,
            is_comparison: false,
            is_dear: false,
            cuda: "divide({a}, {b})"
        },
        Equal => {
            onnx: "Equal",
            takes: Takes::All,
            is_comparison: true,
            is_dear: false,
            cuda: "{a} == {b}"
        },
        Greater => {
            onnx: "Greater",
            takes: Takes::Numbers,
            is_comparison: true,
            is_dear: false,
            cuda: "{a} > {b}"
        },
        GreaterOrEqual => {
            onnx: "GreaterOrEqual",
            takes: Takes::Numbers,
            is_comparison: true,
            is_dear: false,
            cuda: "{a} >= {b}"
        },
        Less => {
            onnx: "Less",
            takes: Takes::Numbers,
            is_comparison: true,
            is_dear: false,
            cuda: "{a} < {b}"
        },
        LessOrEqual => {
            onnx: "LessOrEqual",
            takes: Takes::Numbers,
            is_comparison: true,
            is_dear: false,
            cuda: "{a} <= {b}"
        },
        Max => {
            onnx: "Max",
            takes: Takes::Numbers,
            is_comparison: false,
            is_dear: false,
            cuda: "larger({a}, {b})"
        },
        Min => {
            onnx: "Min",
            takes: Takes::Numbers,
            is_comparison: false,
            is_dear: false,
            cuda: "smaller({a}, {b})"
        },
        Mul => {
            onnx: "Mul",
            takes: Takes::Numbers,
            is_comparison: false,
            is_dear: false,
            cuda: "mul({a}, {b})"
        },
        Or => {
            onnx: "Or",
            takes: Takes::Bool,
            is_comparison: false,
            is_dear: false,
            cuda: "{a} | {b}"
        },
        Pow => {
            onnx: "Pow",
            takes: Takes::Numbers,
            is_comparison: false,
            is_dear: true,
            cuda: "power({a}, {b})"
        },
        /// What a truncated quotient leaves: of the dividend's sign, as C's `fmod`. ONNX's `Mod` does
        /// so where it is told to.
        Rem => {
            onnx: "Mod",
            takes: Takes::Numbers,
            is_comparison: false,
            is_dear: true,
            cuda: "remainder_of({a}, {b})"
        },
        Sub => {
            onnx: "Sub",
            takes: Takes::Numbers,
            is_comparison: false,
            is_dear: false,
            cuda: "sub({a}, {b})"
        },
        Xor => {
            onnx: "Xor",
            takes: Takes::Bool,
            is_comparison: false,
            is_dear: false,
            cuda: "{a} ^ {b}"
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of gradients read what there is before them.
    #[test]
    fn gradients_read_what_is_there() {
        for &f in Unary::ALL {
            let Steps { of, steps, .. } = f.row().gradient else { continue };
            for (k, step) in steps.iter().enumerate() {
                let read = match *step {
                    G::Unary(_, x) | G::Scaled(x, _) => vec![x],
                    G::Binary(_, a, b) | G::Masked(a, b) => vec![a, b],
                    G::Number(_) => vec![],
                };
                let is_there = |&s: &usize| s < 2 + k && (s != 1 || of != Kept::Nothing);
                assert!(read.iter().all(is_there), "step {k} of {f:?}");
            }
        }
    }

    #[test]
    fn every_function_has_a_name_of_its_own() {
        for &f in Unary::ALL {
            assert_eq!(Unary::of_onnx(f.row().onnx), Some(f));
            assert!(f.row().cuda.contains("{a}"));
        }
        for &f in Binary::ALL {
            assert_eq!(Binary::of_onnx(f.row().onnx), Some(f));
            assert!(f.row().cuda.contains("{a}") && f.row().cuda.contains("{b}"));
        }
    }
}
