//! Determinants of small matrices.

use super::position::part;
use super::{Row, row};
use crate::onnx::context::{Built, Cx};
use crate::onnx::error::Fault;
use arenic_ir::ValueId;
use std::collections::BTreeMap;

pub(super) const ROWS: &[Row] =
    &[row("Det", (1, 1), &[], determinant).note("matrices of at most 6 rows")];

/// Most rows: every set of columns has a minor.
const MOST_ROWS: usize = 6;

/// Laplace's expansion: a minor of the last rows is a sum of products of the first of these with minors of
/// the others. It divides by nothing, so that it has its gradient where a matrix is singular, too.
fn determinant(cx: &mut Cx) -> Built {
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    let (batch, n) = match ty.shape[..] {
        [ref batch @ .., a, b] if a == b && (1..=MOST_ROWS).contains(&a) => (batch.to_vec(), a),
        _ => return Err(Fault(format!("{ty} has no matrices of 1 to {MOST_ROWS} rows"))),
    };
    if !ty.dtype.is_float() {
        return Err(Fault(format!("it does not take {ty}")));
    }
    let (rows, columns) = (batch.len(), batch.len() + 1);
    // By the columns' bits.
    let mut minors: BTreeMap<u32, ValueId> = BTreeMap::new();
    for size in 1..=n {
        let mut larger = BTreeMap::new();
        let row = part(cx, x, rows, n - size, 1, 1)?;
        let mut elements = Vec::with_capacity(n);
        for column in 0..n {
            let element = part(cx, row, columns, column, 1, 1)?;
            elements.push(cx.reshape(element, batch.clone())?);
        }
        for set in (0u32..1 << n).filter(|set| set.count_ones() as usize == size) {
            let mut sum = None;
            for (i, column) in (0..n).filter(|c| set >> c & 1 == 1).enumerate() {
                let term = match minors.get(&(set & !(1 << column))) {
                    Some(&minor) => cx.mul(elements[column], minor)?,
                    None => elements[column],
                };
                sum = Some(match sum {
                    None => term,
                    Some(sum) if i % 2 == 0 => cx.add(sum, term)?,
                    Some(sum) => cx.sub(sum, term)?,
                });
            }
            larger.extend(sum.map(|sum| (set, sum)));
        }
        minors = larger;
    }
    let whole = minors.into_values().next().ok_or("it has no rows")?;
    Ok(vec![Some(cx.same(whole)?)])
}
