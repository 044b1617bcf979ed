//! Rows of matrix products, and of operators that use a product in one go.

use super::error::ensure;
use super::families::Product;
use super::family::Row;
use super::{Assembly, Cut, Narrowing, Op, TypeError, Work};
use crate::types::{DType, TensorType, broadcast_shapes};

impl Row for Product<'_> {
    fn arity(&self) -> (usize, usize) {
        match *self {
            Product::MatMul { .. } => (2, 2),
            Product::Gemm { .. } | Product::GemmGelu { .. } => (2, 3),
            Product::GemmGeluGrad { .. } => (3, 3),
            Product::ProductUpdate { update, .. } => {
                // One product instead of one gradient.
                let (least, most) = update.arity();
                (least + 1, most.saturating_add(1))
            }
        }
    }

    fn infer(&self, x: &[&TensorType]) -> Result<Vec<TensorType>, TypeError> {
        match *self {
            Product::MatMul { trans_a, trans_b } => {
                Ok(vec![TensorType::new(x[0].dtype, mat_mul(x, *trans_a, *trans_b)?)])
            }
            Product::Gemm { trans_a, trans_b, .. } => Ok(vec![gemm(x, *trans_a, *trans_b)?]),
            Product::ProductUpdate { trans_a, trans_b, gradient, update, .. } => {
                product_update(update, *gradient, (*trans_a, *trans_b), x)
            }
            Product::GemmGelu { trans_a, trans_b } => {
                let z = gelu_operand(x, *trans_a, *trans_b)?;
                ensure!(
                    x.get(2).is_none_or(|bias| bias.shape == z.shape[1..]),
                    "gemm_gelu with a bias of another shape than [{}]",
                    z.shape[1]
                );
                Ok(vec![z.clone(), z])
            }
            Product::GemmGeluGrad { trans_a, trans_b } => {
                let dz = gelu_operand(x, *trans_a, *trans_b)?;
                ensure!(*x[2] == dz, "gemm_gelu_grad at {}, which is not of type {dz}", x[2]);
                Ok(vec![dz])
            }
        }
    }

    fn in_place(&self, x: &[&TensorType], y: &[&TensorType]) -> Vec<(usize, usize)> {
        match *self {
            Product::Gemm { .. } => vec![(2, 0)],
            Product::ProductUpdate { gradient, update, .. } => {
                let Some(others) = x.len().checked_sub(2) else { return vec![] };
                let place = ProductOperands { gradient: *gradient, others };
                let Some(product) = y.first().filter(|_| *gradient <= others) else {
                    return vec![];
                };
                let pairs = update.in_place_pairs(&place.operands(x, product), y);
                pairs.into_iter().filter_map(|(i, o)| Some((place.of_update(i)?, o))).collect()
            }
            Product::MatMul { .. } | Product::GemmGelu { .. } => vec![],
            // No library says that what it reads beside the sums may be where it writes.
            Product::GemmGeluGrad { .. } => vec![],
        }
    }

    fn cuts(&self, x: &[&TensorType], y: &[&TensorType]) -> Vec<Cut> {
        match *self {
            Product::MatMul { trans_a, trans_b } => mat_mul_cuts(x, y, *trans_a, *trans_b),
            Product::Gemm { trans_a, trans_b, .. } => gemm_cuts(x, *trans_a, *trans_b),
            Product::GemmGelu { trans_a, trans_b } | Product::GemmGeluGrad { trans_a, trans_b } => {
                // A function of a sum is none of its parts.
                let cuts = gemm_cuts(x, *trans_a, *trans_b).into_iter();
                let each = cuts.filter_map(|cut| {
                    let results = Assembly::concat(y, cut.results[0].axis()?);
                    Some(Cut { results, ..cut })
                });
                each.collect()
            }
            Product::ProductUpdate { trans_a, trans_b, .. } => {
                product_update_cuts(x, y, *trans_a, *trans_b)
            }
        }
    }

    fn work(&self, x: &[&TensorType], y: &[&TensorType]) -> Work {
        // Terms of each sum: the axis that both operands share, of operand `i`.
        let terms = |i: usize, transposed: bool| {
            let rank = x.get(i).map_or(0, |t| t.rank());
            let from_end = if transposed && rank > 1 { 2 } else { 1 };
            rank.checked_sub(from_end).map_or(1, |axis| x[i].shape[axis].max(1) as u64)
        };
        let results = y.first().map_or(0, |t| t.elements() as u64);
        // A multiplication and an addition for each term, and some more for each result.
        let flops = |terms: u64, more: u64| {
            results.saturating_mul(terms.saturating_mul(2).saturating_add(more))
        };
        match *self {
            Product::MatMul { trans_a, .. } => {
                Work::of_matrices(flops(terms(0, *trans_a), 0), x, y)
            }
            Product::Gemm { trans_a, .. } => Work::of_matrices(flops(terms(0, *trans_a), 2), x, y),
            Product::GemmGelu { trans_a, .. } => {
                Work::of_matrices(flops(terms(0, *trans_a), 10), x, y)
            }
            Product::GemmGeluGrad { trans_a, .. } => {
                Work::of_matrices(flops(terms(0, *trans_a), 18), x, y)
            }
            Product::ProductUpdate { trans_a, update, .. } => {
                let steps = match update.as_ref() {
                    Op::Pointwise { steps, .. } => steps.len() as u64,
                    _ => 12,
                };
                Work::of_fused_product(
                    flops(terms(x.len().saturating_sub(2), *trans_a), steps),
                    x,
                    y,
                )
            }
        }
    }

    fn moves_elements(&self) -> bool {
        match self {
            Product::MatMul { .. }
            | Product::Gemm { .. }
            | Product::GemmGelu { .. }
            | Product::GemmGeluGrad { .. }
            | Product::ProductUpdate { .. } => false,
        }
    }

    fn narrowing(&self, operands: usize) -> Narrowing {
        match self {
            Product::MatMul { .. }
            | Product::Gemm { .. }
            | Product::GemmGelu { .. }
            | Product::GemmGeluGrad { .. } => Narrowing::product(0..operands),
            Product::ProductUpdate { .. } => {
                Narrowing::product(operands.saturating_sub(2)..operands)
            }
        }
    }
}

fn same_number_type(x: &[&TensorType]) -> Result<(), TypeError> {
    let d = x[0].dtype;
    ensure!(
        d.is_float() || matches!(d, DType::I32 | DType::I64 | DType::U32 | DType::U64),
        "products do not take {d}"
    );
    ensure!(
        x.iter().all(|t| t.dtype == d),
        "operands of different element types, {:?}",
        x.iter().map(|t| t.dtype.name()).collect::<Vec<_>>()
    );
    Ok(())
}

fn mat_mul(x: &[&TensorType], trans_a: bool, trans_b: bool) -> Result<Vec<usize>, TypeError> {
    same_number_type(x)?;
    let matrix = |t: &TensorType, trans: bool, vector: [usize; 2]| match t.shape[..] {
        [] => None,
        [_] if trans => None,
        [_] => Some((vec![], vector)),
        [ref batch @ .., r, c] => Some((batch.to_vec(), if trans { [c, r] } else { [r, c] })),
    };
    let first = |t: &TensorType| t.shape.first().copied().unwrap_or(0);
    let (a, b) = (x[0], x[1]);
    let (Some((batch_a, [m, k])), Some((batch_b, [k2, n]))) =
        (matrix(a, trans_a, [1, first(a)]), matrix(b, trans_b, [first(b), 1]))
    else {
        return Err(TypeError(format!("no product of {a} and {b}")));
    };
    ensure!(k == k2, "no product of {a} and {b}: inner extents {k} and {k2}");
    let mut shape = broadcast_shapes(&batch_a, &batch_b)
        .ok_or_else(|| TypeError(format!("batch axes of {a} and {b} do not broadcast")))?;
    if a.rank() > 1 {
        shape.push(m);
    }
    if b.rank() > 1 {
        shape.push(n);
    }
    Ok(shape)
}

fn gemm(x: &[&TensorType], trans_a: bool, trans_b: bool) -> Result<TensorType, TypeError> {
    same_number_type(x)?;
    ensure!(
        x[0].rank() == 2 && x[1].rank() == 2,
        "gemm of {} and {}, which are no matrices",
        x[0],
        x[1]
    );
    let shape = mat_mul(&x[..2], trans_a, trans_b)?;
    if let Some(c) = x.get(2) {
        ensure!(
            broadcast_shapes(&c.shape, &shape).as_ref() == Some(&shape),
            "{c} does not broadcast to {shape:?}"
        );
    }
    Ok(TensorType::new(x[0].dtype, shape))
}

/// The operand of a GELU, which `GemmGeluGrad` gives the gradient of: a product of the first two
/// operands; all operands have one element type.
fn gelu_operand(x: &[&TensorType], trans_a: bool, trans_b: bool) -> Result<TensorType, TypeError> {
    ensure!(x[0].dtype.is_float(), "no GELU of {}", x[0].dtype);
    let other = x.iter().find(|t| t.dtype != x[0].dtype);
    ensure!(other.is_none(), "operands of different element types");
    gemm(&x[..2], trans_a, trans_b)
}

/// How [`Op::ProductUpdate`] makes the operands of its update: a gradient at one position
/// that is the product of the last two.
#[derive(Clone, Copy, Debug)]
pub struct ProductOperands {
    /// Position of the gradient among the update's operands.
    pub gradient: usize,
    /// Operands of the update besides the gradient.
    pub others: usize,
}

impl ProductOperands {
    /// The position of the update's operand `i` among the node's operands; `None` for the
    /// gradient.
    pub fn of_update(&self, i: usize) -> Option<usize> {
        match i.cmp(&self.gradient) {
            std::cmp::Ordering::Less => Some(i),
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Greater => Some(i - 1),
        }
    }

    /// The update's operands, the gradient being `gradient`.
    pub fn operands<T: Copy>(&self, x: &[T], gradient: T) -> Vec<T> {
        let mut operands = x[..self.others].to_vec();
        operands.insert(self.gradient, gradient);
        operands
    }
}

/// Results of [`Op::ProductUpdate`].
fn product_update(
    update: &Op,
    gradient: usize,
    (trans_a, trans_b): (bool, bool),
    x: &[&TensorType],
) -> Result<Vec<TensorType>, TypeError> {
    ensure!(
        matches!(
            update,
            Op::Pointwise { .. } | Op::Adam { .. } | Op::Adagrad { .. } | Op::Momentum { .. }
        ),
        "{} is no update",
        update.name()
    );
    let Some(others) = x.len().checked_sub(2) else {
        return Err(TypeError(format!("{} operands hold no product", x.len())));
    };
    ensure!(gradient <= others, "no operand {gradient} among {}", others + 1);
    let operands = ProductOperands { gradient, others };
    let (a, b) = (x[others], x[others + 1]);
    ensure!(
        a.rank() == 2 && b.rank() == 2 && a.dtype.is_float(),
        "product_update of {a} and {b}, which are no matrices of floats"
    );
    // Nothing of it is ever stored, so that sums need not be rounded.
    let product = Op::MatMul { trans_a, trans_b }.infer(&[a, b])?.swap_remove(0).accumulated();
    if let Op::Pointwise { .. } = update {
        // Tiles have no axes to broadcast along.
        let fits = |t: &&&TensorType| {
            t.dtype == product.dtype && (t.shape == product.shape || t.elements() == 1)
        };
        let other = x[..others].iter().find(|t| !fits(t));
        ensure!(other.is_none(), "an operand of the update is neither like {product} nor a scalar");
    }
    let results = update.infer(&operands.operands(x, &product))?;
    ensure!(
        results.iter().all(|y| *y == product),
        "the update of {} is not of its gradient's type {product}",
        results[0]
    );
    Ok(results)
}

fn mat_mul_cuts(x: &[&TensorType], y: &[&TensorType], trans_a: bool, trans_b: bool) -> Vec<Cut> {
    let (a, b) = (x[0].rank(), x[1].rank());
    if a < 2 || b < 2 {
        return vec![];
    }
    let rank = y[0].rank();
    let (rows, inner_a) = if trans_a { (a - 1, a - 2) } else { (a - 2, a - 1) };
    let (inner_b, columns) = if trans_b { (b - 1, b - 2) } else { (b - 2, b - 1) };
    let mut cuts: Vec<Cut> = (0..rank - 2).map(|d| Cut::broadcast(x, y, d)).collect();
    let result = |axis| Assembly::concat(y, axis);
    cuts.push(Cut::along(x[0].shape[rows], vec![Some(rows), None], result(rank - 2)));
    cuts.push(Cut::along(x[1].shape[columns], vec![None, Some(columns)], result(rank - 1)));
    let inner = vec![Some(inner_a), Some(inner_b)];
    let sum = if a == 2 && b == 2 { Assembly::Accumulate } else { Assembly::Sum };
    cuts.push(Cut::along(x[0].shape[inner_a], inner, vec![sum]));
    cuts
}

fn gemm_cuts(x: &[&TensorType], trans_a: bool, trans_b: bool) -> Vec<Cut> {
    let (row, column) = (usize::from(trans_a), usize::from(!trans_b));
    let (m, n) = (x[0].shape[row], x[1].shape[column]);
    // `c` broadcasts to the result.
    let added = |d: usize, extent: usize| {
        x.get(2).map(|c| {
            let axis = (d + c.rank()).checked_sub(2)?;
            (c.shape[axis] == extent && extent > 1).then_some(axis)
        })
    };
    let with_c = |product: [Option<usize>; 2], d: usize, extent: usize| {
        let operands = product.into_iter().chain(added(d, extent)).collect();
        Cut::along(extent, operands, vec![Assembly::Concat(d)])
    };
    let mut cuts = vec![with_c([Some(row), None], 0, m), with_c([None, Some(column)], 1, n)];
    let inner = [Some(1 - row), Some(1 - column), None];
    let inner = inner[..x.len()].to_vec();
    cuts.push(Cut::along(x[0].shape[1 - row], inner, vec![Assembly::Accumulate]));
    cuts
}

fn product_update_cuts(
    x: &[&TensorType],
    y: &[&TensorType],
    trans_a: bool,
    trans_b: bool,
) -> Vec<Cut> {
    let Some(others) = x.len().checked_sub(2) else { return vec![] };
    let cut = |d: usize| {
        let full = |t: &&TensorType| (t.shape == y[0].shape).then_some(d);
        let mut operands: Vec<_> = x[..others].iter().map(full).collect();
        let (row, column) = (usize::from(trans_a), usize::from(!trans_b));
        operands.extend(if d == 0 { [Some(row), None] } else { [None, Some(column)] });
        Cut::along(y[0].shape[d], operands, Assembly::concat(y, d))
    };
    (0..2).map(cut).collect()
}
