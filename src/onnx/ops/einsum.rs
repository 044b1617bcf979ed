//! Einstein sums: operands are multiplied two at a time, from the left, each pair as one product
//! of matrices over the axes that both have and nobody needs afterwards.

use super::compose::Made;
use super::{ANY, Row, row};
use crate::onnx::context::{Built, Cx};
use crate::onnx::error::Fault;
use arenic_ir::op::{Binary, Reduction};
use arenic_ir::{Op, ValueId};
use std::collections::BTreeMap;

pub(super) const ROWS: &[Row] = &[row("Einsum", (1, ANY), &["equation"], einsum)];

/// An axis by its name: a letter, or one of those that `...` stands for, counted from the last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Unnamed(std::cmp::Reverse<usize>),
    Letter(char),
}

/// A tensor whose axes have names, each another one.
struct Term {
    value: ValueId,
    labels: Vec<Label>,
}

pub(super) fn einsum(cx: &mut Cx) -> Built {
    let equation = cx.attributes().text("equation")?.ok_or("attribute `equation` is missing")?;
    let equation: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let (operands, result) = match equation.split_once("->") {
        Some((operands, result)) => (operands, Some(result)),
        None => (&equation[..], None),
    };
    let inputs = cx.inputs()?;
    let texts: Vec<&str> = operands.split(',').collect();
    if texts.len() != inputs.len() {
        let (n, m) = (texts.len(), inputs.len());
        return Err(Fault(format!("`{equation}` is of {n} operands, the node has {m}")));
    }
    let mut extents: BTreeMap<Label, usize> = BTreeMap::new();
    let mut named = Vec::with_capacity(inputs.len());
    for (text, &value) in texts.iter().zip(&inputs) {
        let shape = cx.ty(value).shape;
        let all = labels(text, Some(shape.len()))?;
        for (&label, &extent) in all.iter().zip(&shape) {
            let known = extents.entry(label).or_insert(extent);
            match (*known, extent, label) {
                (a, b, _) if a == b => {}
                (1, b, Label::Unnamed(_)) => *known = b,
                (_, 1, Label::Unnamed(_)) => {}
                (a, b, _) => {
                    return Err(Fault(format!("`{equation}`: one axis is {a} here, {b} there")));
                }
            }
        }
        named.push((value, all));
    }
    let wanted = match result {
        Some(text) => {
            let unnamed = extents.keys().filter(|l| matches!(l, Label::Unnamed(_))).count();
            labels(text, text.contains("...").then(|| letters(text) + unnamed))?
        }
        None => implicit(&named),
    };
    let unknown = wanted.iter().any(|l| !extents.contains_key(l));
    let twice = (1..wanted.len()).any(|i| wanted[..i].contains(&wanted[i]));
    if unknown || twice {
        return Err(Fault(format!("`{equation}`: the result's axes are not such of operands")));
    }
    let mut terms = Vec::with_capacity(named.len());
    for (value, all) in named {
        terms.push(diagonal(cx, value, all)?);
    }
    let mut terms = terms.into_iter();
    let Some(mut product) = terms.next() else { return Err("it has no operand".into()) };
    while let Some(next) = terms.next() {
        let rest = terms.as_slice();
        let kept = |l: &Label| wanted.contains(l) || rest.iter().any(|t| t.labels.contains(l));
        product = multiplied(cx, product, next, kept)?;
    }
    let product = summed(cx, product, |l| wanted.contains(l))?;
    let shape: Vec<usize> = wanted.iter().map(|l| extents[l]).collect();
    let y = aligned(cx, &product, &wanted)?;
    Ok(vec![Some(expanded(cx, y, &shape)?)])
}

fn letters(text: &str) -> usize {
    text.chars().filter(|c| c.is_ascii_alphabetic()).count()
}

/// The axes of an operand of this rank; of any where there is no `...`.
fn labels(text: &str, rank: Option<usize>) -> Result<Vec<Label>, Fault> {
    let wrong = || Fault(format!("`{text}` does not name the axes of an operand"));
    let (before, after) = text.split_once("...").unwrap_or((text, ""));
    let both = before.chars().chain(after.chars());
    if !both.clone().all(|c| c.is_ascii_alphabetic()) {
        return Err(wrong());
    }
    let named = both.count();
    let unnamed = match rank {
        Some(rank) => rank.checked_sub(named).ok_or_else(wrong)?,
        None => 0,
    };
    if unnamed > 0 && !text.contains("...") {
        return Err(wrong());
    }
    let between = (0..unnamed).rev().map(|i| Label::Unnamed(std::cmp::Reverse(i)));
    let (before, after) = (before.chars().map(Label::Letter), after.chars().map(Label::Letter));
    Ok(before.chain(between).chain(after).collect())
}

/// The result's axes where the equation does not say: unnamed ones, then letters that come up
/// once, by alphabet.
fn implicit(operands: &[(ValueId, Vec<Label>)]) -> Vec<Label> {
    let mut counts: BTreeMap<Label, usize> = BTreeMap::new();
    for label in operands.iter().flat_map(|(_, labels)| labels) {
        *counts.entry(*label).or_default() += 1;
    }
    let once = |(label, count): (Label, usize)| {
        (count == 1 || matches!(label, Label::Unnamed(_))).then_some(label)
    };
    counts.into_iter().filter_map(once).collect()
}

/// Where two axes of an operand have one name, the elements whose indices there are equal.
fn diagonal(cx: &mut Cx, mut value: ValueId, mut labels: Vec<Label>) -> Result<Term, Fault> {
    while let Some((i, j)) = twice(&labels) {
        let rank = labels.len();
        let mut perm: Vec<usize> = (0..rank).filter(|&a| a != i && a != j).collect();
        labels = perm.iter().map(|&a| labels[a]).chain([labels[i]]).collect();
        perm.extend([i, j]);
        let moved = cx.transposed(value, perm)?;
        let mut shape = cx.ty(moved).shape;
        let extent = shape.pop().unwrap_or(1);
        let last = shape.len() - 1;
        shape[last] = extent.saturating_mul(extent);
        let flat = cx.reshape(moved, shape.clone())?;
        let (starts, mut steps) = (vec![0; shape.len()], vec![1; shape.len()]);
        steps[last] = extent as i64 + 1;
        shape[last] = extent;
        value = cx.emit1(Op::Slice { starts, steps, shape }, vec![flat])?;
    }
    Ok(Term { value, labels })
}

fn twice(labels: &[Label]) -> Option<(usize, usize)> {
    let pairs = (0..labels.len()).flat_map(|j| (0..j).map(move |i| (i, j)));
    pairs.into_iter().find(|&(i, j)| labels[i] == labels[j])
}

/// The sum over axes that nobody needs.
fn summed(cx: &mut Cx, term: Term, kept: impl Fn(&Label) -> bool) -> Result<Term, Fault> {
    let axes: Vec<usize> = (0..term.labels.len()).filter(|&i| !kept(&term.labels[i])).collect();
    if axes.is_empty() {
        return Ok(term);
    }
    let value = cx.without(Reduction::Sum, term.value, &axes)?;
    Ok(Term { value, labels: term.labels.into_iter().filter(kept).collect() })
}

/// A term with these axes, of extent 1 where it has none of the name.
fn aligned(cx: &mut Cx, term: &Term, labels: &[Label]) -> Made {
    let places: Vec<Option<usize>> =
        labels.iter().map(|l| term.labels.iter().position(|own| own == l)).collect();
    let value = cx.transposed(term.value, places.iter().flatten().copied().collect())?;
    let mut own = cx.ty(value).shape.into_iter();
    let shape = places.iter().map(|p| p.and_then(|_| own.next()).unwrap_or(1)).collect();
    cx.reshape(value, shape)
}

/// A value that has this shape, or is repeated along axes of extent 1.
fn expanded(cx: &mut Cx, x: ValueId, shape: &[usize]) -> Made {
    match cx.ty(x).shape == shape {
        true => Ok(x),
        false => cx.emit1(Op::Expand { shape: shape.to_vec() }, vec![x]),
    }
}

/// The product of two terms, summed over what both have and nobody needs.
fn multiplied(cx: &mut Cx, a: Term, b: Term, kept: impl Fn(&Label) -> bool) -> Result<Term, Fault> {
    let a = summed(cx, a, |l| kept(l) || b.labels.contains(l))?;
    let b = summed(cx, b, |l| kept(l) || a.labels.contains(l))?;
    let (both, rows): (Vec<Label>, Vec<Label>) =
        a.labels.iter().partition(|l| b.labels.contains(l));
    let columns: Vec<Label> = b.labels.iter().filter(|l| !both.contains(l)).copied().collect();
    let (batch, inner): (Vec<Label>, Vec<Label>) = both.into_iter().partition(&kept);
    let labels = [&batch[..], &rows, &columns].concat();
    if inner.is_empty() {
        let (a, b) = (aligned(cx, &a, &labels)?, aligned(cx, &b, &labels)?);
        return Ok(Term { value: cx.both(Binary::Mul, a, b)?, labels });
    }
    let left = aligned(cx, &a, &[&batch[..], &rows, &inner].concat())?;
    let right = aligned(cx, &b, &[&batch[..], &inner, &columns].concat())?;
    let (mut left_shape, mut right_shape) = (cx.ty(left).shape, cx.ty(right).shape);
    // Of unnamed axes, one operand may have extent 1.
    let (l, r) = (batch.len() + rows.len(), batch.len());
    for i in 0..inner.len() {
        let extent = left_shape[l + i].max(right_shape[r + i]);
        (left_shape[l + i], right_shape[r + i]) = (extent, extent);
    }
    let [left, right] = [expanded(cx, left, &left_shape)?, expanded(cx, right, &right_shape)?];
    let size = |shape: &[usize]| shape.iter().product::<usize>();
    let (m, k, n) =
        (size(&left_shape[r..l]), size(&left_shape[l..]), size(&right_shape[r + inner.len()..]));
    let left = cx.reshape(left, [&left_shape[..r], &[m, k]].concat())?;
    let right = cx.reshape(right, [&right_shape[..r], &[k, n]].concat())?;
    let product = cx.emit1(Op::MatMul { trans_a: false, trans_b: false }, vec![left, right])?;
    let batches = cx.ty(product).shape[..r].to_vec();
    let shape = [&batches[..], &left_shape[r..l], &right_shape[r + inner.len()..]].concat();
    Ok(Term { value: cx.reshape(product, shape)?, labels })
}
