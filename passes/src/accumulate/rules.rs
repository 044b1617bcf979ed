//! What a part of the batch's rows makes of each operator.
//!
//! A cut of the operator table may be anywhere and as short as one index, so that of most operators each index of the
//! axis is computed by itself, and parts need not be ranges of it ([`is_by_index`] says which). Where a reshape puts the batch inside
//! of another axis ([`Along::outer`]), parts are rows that lie apart.

use arenic_ir::graph::{Def, Graph, ValueId};
use arenic_ir::op::families::{Indexing, Norm, Random};
use arenic_ir::op::{Assembly, Cut, Family, Op, Reduction, Scatter};
use arenic_ir::types::{DType, TensorType};

/// How a value of the whole step exists in the rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The same in every round.
    #[default]
    Shared,
    /// Computed before the first round, of the whole batch; then as `Shared`.
    Early,
    /// Each round has one of `count` equal parts along an axis.
    Rows(Along),
    /// As `Rows` of the first axis; the elements are positions in a max pool's operand, counted within the part.
    Positions,
    /// Of ranks: each has one of its own, as statistics of its rows.
    Own,
    /// The sum of what the rounds compute.
    Sum,
    /// Known after the last round.
    Late,
}

/// Where the batch is in a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Along {
    /// The axis that is cut.
    pub(crate) axis: usize,
    /// The axis is so many blocks, one after another; a part has its share of each.
    pub(crate) outer: usize,
}

impl Along {
    pub(crate) const FIRST: Along = Along { axis: 0, outer: 1 };

    fn at(self, axis: usize) -> Along {
        Along { axis, ..self }
    }

    /// Blocks of a tensor that are one after another in memory and each cut into parts.
    pub(crate) fn blocks(self, ty: &TensorType) -> usize {
        ty.shape[..self.axis].iter().product::<usize>() * self.outer
    }

    /// True where a tensor has `count` equal parts.
    pub(crate) fn divides(self, ty: &TensorType, count: usize) -> bool {
        ty.shape
            .get(self.axis)
            .is_some_and(|&extent| extent > 0 && extent.is_multiple_of(self.outer * count))
    }

    /// Where what is cut so is cut after a reshape.
    fn reshaped(self, from: &TensorType, to: &TensorType, count: usize) -> Option<Along> {
        let blocks = self.blocks(from);
        let found = (0..to.rank()).filter_map(|axis| {
            let before: usize = to.shape[..axis].iter().product();
            let along = Along { axis, outer: blocks.checked_div(before)? };
            (along.blocks(to) == blocks && along.divides(to, count)).then_some(along)
        });
        found.min_by_key(|along| along.outer)
    }
}

/// What one round makes of a node.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    /// The operator of a part.
    pub(crate) op: Op,
    /// Where an operand is cut that is the same in every round.
    pub(crate) narrow: Vec<Option<Along>>,
    /// What becomes of the results.
    pub(crate) results: Vec<Kind>,
    /// What a result that is a sum is multiplied by in every round: the parts' mean of means.
    pub(crate) scale: Option<f64>,
}

/// Random elements are counted in order, by words of four: a part of them is drawn as the whole
/// draws it where the parts follow one another and each begins with a word.
fn draws_by_rows(ty: &TensorType, along: Along, count: usize) -> bool {
    let parts = along.blocks(ty) == 1 && along.divides(ty, count);
    parts && (ty.elements() / count).is_multiple_of(4)
}

/// The `count` parts of each block of a constant have equal bytes, the same in all rounds.
pub(crate) fn repeats(bytes: &[u8], blocks: usize, count: usize) -> bool {
    let block = (bytes.len() / blocks.max(1)).max(1);
    let part = (block / count).max(1);
    bytes.chunks(block).all(|block| block.chunks(part).all(|other| *other == block[..part]))
}

/// An operator that makes a part of a result; of each operand that is cut for it, where.
pub(crate) type Narrowed = (Op, Vec<Option<(ValueId, Along)>>);

/// The operator that makes the first part of a shared result, and where its operands are cut.
pub(crate) fn narrowed(g: &Graph, v: ValueId, along: Along, count: usize) -> Option<Narrowed> {
    let Def::Node { node: n, output } = g.values[v].def else { return None };
    let node = &g.nodes[n];
    let types = g.output_types(n).ok()?;
    let (x, y) = (g.input_types(n), types.iter().collect::<Vec<_>>());
    let mut op = node.op.clone();
    match &mut op {
        Op::RandomUniform { shape, .. } => {
            shape[along.axis] /= count;
            return draws_by_rows(y[0], along, count).then_some((op, Vec::new()));
        }
        Op::Dropout { .. } => {
            let operands = vec![Some((node.inputs[0], along)), None];
            return draws_by_rows(y[0], along, count).then_some((op, operands));
        }
        Op::Reshape { shape } => {
            let from = along.reshaped(y[0], x[0], count)?;
            shape[along.axis] /= count;
            return Some((op, vec![Some((node.inputs[0], from))]));
        }
        _ => {}
    }
    let cut = cuts(&node.op, &x, &y).into_iter().find(|cut| {
        cut.results[output] == Assembly::Concat(along.axis) && cut.extent.is_multiple_of(count)
    })?;
    let cuts = node.inputs.iter().zip(&cut.operands);
    let operands = cuts.map(|(&x, axis)| axis.map(|axis| (x, along.at(axis)))).collect();
    Some((node.op.part(&cut, cut.extent / count), operands))
}

/// True where each index of a cut's axis is computed by itself, so that any set of them may be a part. No operator is
/// so by default: one that goes by positions would be divided into parts that compute something else. Tests divide each
/// of these in random steps (`tests/rounds/random.rs`).
fn is_by_index(op: &Op) -> bool {
    match op.family() {
        Family::Movement(_)
        | Family::Elementwise(_)
        | Family::Reducing(_)
        | Family::Softmax(_)
        | Family::Product(_)
        | Family::Convolution(_)
        | Family::Pool(_)
        | Family::Attention(_)
        | Family::Recurrent(_)
        | Family::Update(_) => true,
        Family::Indexing(op) => match op {
            // Along other axes than the one that indices select from.
            Indexing::GatherElements { .. } | Indexing::ScatterElements { .. } => true,
            // By `special` alone.
            Indexing::Gather { .. }
            | Indexing::GatherNd { .. }
            | Indexing::ScatterNd { .. }
            | Indexing::TopK { .. } => false,
        },
        Family::Norm(op) => match op {
            Norm::LayerNorm { .. }
            | Norm::LayerNormParamGrad { .. }
            | Norm::LayerNormInputGrad { .. }
            | Norm::BatchNorm { .. }
            | Norm::BatchNormParamGrad
            | Norm::BatchNormInputGrad => true,
            // Made of steps that are divided.
            Norm::FusedNorm { .. } | Norm::FusedNormGrad { .. } => false,
        },
        // What is drawn goes by positions: by `special` alone.
        Family::Random(op) => match op {
            Random::Dropout { .. } | Random::RandomUniform { .. } => false,
        },
        // Neighbours count: by `special` alone.
        Family::Resizing(_) => false,
        Family::Wrapping(_) => match op {
            Op::ChannelsLast { of } => is_by_index(of),
            // Made of steps that are divided.
            _ => false,
        },
        Family::Collective(_) | Family::Opaque(_) => false,
    }
}

/// The cuts of the operator table whose parts may be any indices.
fn cuts(op: &Op, x: &[&TensorType], y: &[&TensorType]) -> Vec<Cut> {
    if is_by_index(op) { op.cuts(x, y) } else { Vec::new() }
}

fn one(op: Op, results: Vec<Kind>, operands: usize) -> Vec<Rule> {
    vec![Rule { op, narrow: vec![None; operands], results, scale: None }]
}

/// Rules that the table of cuts does not have: `None` where it decides.
pub(crate) fn special(
    op: &Op,
    kinds: &[Kind],
    x: &[&TensorType],
    y: &[&TensorType],
    count: usize,
    first_is_zero: bool,
) -> Option<Vec<Rule>> {
    let along = |i: usize| match kinds.get(i) {
        Some(Kind::Rows(along)) => Some(*along),
        _ => None,
    };
    let axis = |i: usize| along(i).map(|along| along.axis);
    let none = Vec::new;
    let mut part = op.clone();
    let rows = |along: Along| vec![Kind::Rows(along); y.len()];
    Some(match &mut part {
        Op::Reshape { shape } => match along(0)?.reshaped(x[0], y[0], count) {
            Some(to) => {
                shape[to.axis] /= count;
                one(part, rows(to), 1)
            }
            None => none(),
        },
        Op::Slice { starts, steps, shape } => {
            let a = axis(0)?;
            match starts[a] == 0 && steps[a] == 1 && shape[a] == x[0].shape[a] {
                true => {
                    shape[a] /= count;
                    one(part, rows(along(0)?), 1)
                }
                false => none(),
            }
        }
        Op::Gather { axis: of } => match (along(0), along(1)) {
            (None, Some(a)) => one(op.clone(), rows(a.at(*of + a.axis)), 2),
            (Some(a), None) if a.axis != *of => {
                let behind = if a.axis < *of { a.axis } else { a.axis + x[1].rank() - 1 };
                one(op.clone(), rows(a.at(behind)), 2)
            }
            _ => none(),
        },
        Op::GatherNd { batch_dims } => match (along(0), along(1)) {
            (None, Some(a)) if *batch_dims == 0 && a.axis + 1 < x[1].rank() => {
                one(op.clone(), rows(a), 2)
            }
            (Some(a), Some(b)) if a == b && a.axis < *batch_dims => one(op.clone(), rows(a), 2),
            // Behind the axes that indices select from.
            (Some(a), None) => match a.axis.checked_sub(*batch_dims + x[1].shape.last()?) {
                Some(behind) => one(op.clone(), rows(a.at(x[1].rank() - 1 + behind)), 2),
                None => none(),
            },
            _ => none(),
        },
        Op::ScatterNd { reduction } => match (along(0), along(1), along(2)) {
            (None, Some(a), Some(b)) if a == b && a.axis + 1 < x[1].rank() => {
                match first_is_zero && *reduction == Scatter::Add {
                    true => one(op.clone(), vec![Kind::Sum], 3),
                    false => none(),
                }
            }
            (onto, None, Some(a)) => {
                let behind = a.axis.checked_sub(x[1].rank() - 1);
                let to = behind.zip(x[1].shape.last()).map(|(behind, k)| a.at(k + behind));
                match to.filter(|&to| onto.is_none_or(|onto| onto == to)) {
                    Some(to) => {
                        let narrow = vec![Some(to).filter(|_| onto.is_none()), None, None];
                        vec![Rule { op: part, narrow, results: rows(to), scale: None }]
                    }
                    None => none(),
                }
            }
            _ => none(),
        },
        Op::ScatterElements { axis: of, reduction: Scatter::Add } => {
            let sums = axis(0).is_none() && first_is_zero && axis(1) == Some(*of);
            match sums && along(2) == along(1) {
                true => one(op.clone(), vec![Kind::Sum], 3),
                false => return None,
            }
        }
        Op::GatherElements { axis: of } => match axis(0).is_none() && axis(1) == Some(*of) {
            true => one(op.clone(), rows(along(1)?), 2),
            false => return None,
        },
        Op::Reduce { f: Reduction::Mean, axes, .. } if axes.contains(&axis(0)?) => {
            let rule = |scale| {
                let (op, narrow) = (op.clone(), vec![None]);
                Rule { op, narrow, results: vec![Kind::Sum], scale: Some(scale) }
            };
            // A mean of integers is rounded before it could be added to others.
            let is_exact = matches!(y[0].dtype, DType::F32 | DType::F64);
            is_exact.then(|| rule(1.0 / count as f64)).into_iter().collect()
        }
        Op::LayerNormParamGrad { axis: first } => {
            let same = kinds.iter().all(|&k| k == kinds[0]);
            match axis(0).filter(|a| same && a < first) {
                Some(_) => one(op.clone(), vec![Kind::Sum; y.len()], x.len()),
                None => none(),
            }
        }
        Op::TopK { axis: of, .. } => match axis(0)? == *of {
            false => one(op.clone(), rows(along(0)?), 1),
            true => none(),
        },
        // Scores are drawn one row of the batch after another.
        Op::Attention { spec } | Op::AttentionGrad { spec, .. } if spec.dropout.is_some() => {
            let [q, k, _] = spec.heads_first(x);
            let scores = q.with_extent(q.rank() - 1, k.shape[k.rank() - 2]);
            let gradients = spec.gradients();
            spec.dropout = None;
            let mut rules = by_table(&part, kinds, x, y, count);
            let first = Kind::Rows(Along::FIRST);
            let draws = draws_by_rows(&scores, Along::FIRST, count);
            rules.retain(|rule| {
                draws && rule.results.iter().take(gradients).all(|&kind| kind == first)
            });
            rules.iter_mut().for_each(|rule| rule.op = op.clone());
            rules
        }
        Op::Dropout { .. } => match (along(0), along(1)) {
            (Some(a), None) if draws_by_rows(x[0], a, count) => one(op.clone(), rows(a), 2),
            _ => none(),
        },
        Op::Resize { spec } => {
            let a = axis(0)?;
            match spec.keeps(a, x[0].shape[a]) {
                true => {
                    spec.sizes[a] /= count;
                    one(part, rows(along(0)?), 1)
                }
                false => none(),
            }
        }
        // What is added to a product is added once in all.
        Op::Gemm { trans_a, trans_b, beta, .. } if x.len() == 3 && *beta != 0.0 => {
            let (inner_a, inner_b) = (usize::from(!*trans_a), usize::from(*trans_b));
            if axis(0) != Some(inner_a) && axis(1) != Some(inner_b) {
                return None;
            }
            // Integers have no such part; `f64` has one where the factor, an `f32`, is exact.
            let ty = y[0].dtype;
            if !ty.is_float() || ty == DType::F64 && !count.is_power_of_two() {
                return Some(none());
            }
            *beta /= count as f32;
            let narrow = by_table(op, kinds, x, y, count).into_iter().map(|rule| rule.narrow);
            let rule = |narrow| {
                let results = vec![Kind::Sum];
                Rule { op: part.clone(), narrow, results, scale: None }
            };
            narrow.map(rule).collect()
        }
        _ => return None,
    })
}

/// Rules by the table of cuts; those that cut the fewest shared operands come first.
pub(crate) fn by_table(
    op: &Op,
    kinds: &[Kind],
    x: &[&TensorType],
    y: &[&TensorType],
    count: usize,
) -> Vec<Rule> {
    let mut rules = Vec::new();
    let cut_along = kinds.iter().find_map(|kind| match kind {
        Kind::Rows(along) => Some(*along),
        _ => None,
    });
    let Some(first) = cut_along else { return rules };
    for cut in cuts(op, x, y) {
        let mut narrow = vec![None; x.len()];
        let fits =
            kinds.iter().zip(&cut.operands).enumerate().all(|(i, (kind, &axis))| match kind {
                Kind::Rows(along) => axis == Some(along.axis) && along.outer == first.outer,
                _ => {
                    narrow[i] = axis.map(|axis| first.at(axis));
                    true
                }
            });
        // Positions in what is pooled are counted from its first part on.
        let counts = cut.results.iter().any(|r| matches!(r, Assembly::Positions(_)));
        let parts = first.outer * count;
        if !fits || !cut.extent.is_multiple_of(parts) || (counts && first != Along::FIRST) {
            continue;
        }
        let kind = |assembly: &Assembly| match assembly {
            Assembly::Concat(axis) => Kind::Rows(first.at(*axis)),
            Assembly::Positions(_) => Kind::Positions,
            Assembly::Sum | Assembly::Accumulate => Kind::Sum,
        };
        let results = cut.results.iter().map(kind).collect();
        rules.push(Rule { op: op.part(&cut, cut.extent / count), narrow, results, scale: None });
    }
    rules.sort_by_key(|rule| rule.narrow.iter().flatten().count());
    rules
}
