//! Where an operator may be cut into parts that run one after another.
//!
//! tvDNN (Park et al., "memory-object sectioning") runs a data-parallel task several times,
//! each time on a section of its operands. This table says for each operator along which
//! axes that is so, and how each result is put together. A cut keeps every bit where each
//! element of a result is computed by one part as it is by the whole, or by one part after
//! another in the whole's order. Kernels choose that order by extents, so that it depends on
//! where the parts end: see [`Op::cut_keeps_bits`]. Other cuts add up partial sums and so
//! round otherwise.

use super::recurrence::{self, Role};
use super::{Op, Reduction, channels_last, pointwise};
use crate::types::TensorType;

/// How the parts of a result become the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assembly {
    /// One after another along an axis.
    Concat(usize),
    /// As `Concat` along the first axis; the elements are positions in the operand, and each
    /// part counts from its own first element: so many elements for each index cut off.
    Positions(usize),
    /// They are added.
    Sum,
    /// Each part adds its share to the sum of those before it, as [`Op::onto`] says.
    Accumulate,
}

impl Assembly {
    /// The axis along which the parts of the result follow one another.
    pub fn axis(self) -> Option<usize> {
        match self {
            Assembly::Concat(axis) => Some(axis),
            Assembly::Positions(_) => Some(0),
            Assembly::Sum | Assembly::Accumulate => None,
        }
    }
}

/// One way to cut an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Indices along the axis that is cut.
    pub extent: usize,
    /// The axis along which each operand is cut; none where every part reads all of it.
    pub operands: Vec<Option<usize>>,
    /// How each result is put together.
    pub results: Vec<Assembly>,
    /// Partial sums are never added up by themselves, so that bits may be kept; whether they
    /// are depends on where the parts end ([`Op::cut_keeps_bits`]).
    pub keeps_bits: bool,
}

impl Op {
    /// All cuts, those that may keep every bit first; none for an operator that cannot be cut.
    pub fn cuts(&self, inputs: &[&TensorType], outputs: &[&TensorType]) -> Vec<Cut> {
        let mut cuts = self.all_cuts(inputs, outputs);
        cuts.retain(|cut| cut.extent > 1 && cut.operands.len() == inputs.len());
        cuts.sort_by_key(|cut| !cut.keeps_bits);
        cuts
    }

    /// The operator of a part that has `extent` indices of the cut's.
    pub fn part(&self, cut: &Cut, extent: usize) -> Op {
        if let Op::ChannelsLast { of } = self {
            return channels_last::part(of, cut, extent);
        }
        let mut op = self.clone();
        if let (
            Op::Reshape { shape }
            | Op::Expand { shape }
            | Op::Pad { shape, .. }
            | Op::AveragePoolGrad { shape, .. },
            Some(axis),
        ) = (&mut op, cut.results.first().and_then(|r| r.axis()))
        {
            shape[axis] = extent;
        }
        op
    }

    /// The operator that adds its result to one operand more, the last one; `None` where
    /// there is no such operator.
    pub fn onto(&self) -> Option<Op> {
        match *self {
            Op::MatMul { trans_a, trans_b } => {
                Some(Op::Gemm { alpha: 1.0, beta: 1.0, trans_a, trans_b })
            }
            Op::Gemm { alpha, trans_a, trans_b, .. } => {
                Some(Op::Gemm { alpha, beta: 1.0, trans_a, trans_b })
            }
            _ => None,
        }
    }

    fn all_cuts(&self, x: &[&TensorType], y: &[&TensorType]) -> Vec<Cut> {
        let Some(&result) = y.first() else { return Vec::new() };
        match self {
            Op::Unary { .. }
            | Op::Cast { .. }
            | Op::Copy
            | Op::Binary { .. }
            | Op::Where
            | Op::Clip { .. }
            | Op::Pointwise { .. }
            | Op::Expand { .. } => (0..result.rank()).map(|d| broadcast(x, y, d)).collect(),
            Op::SoftmaxOfStats | Op::CrossEntropyGrad => {
                (0..result.rank().saturating_sub(1)).map(|d| broadcast(x, y, d)).collect()
            }
            Op::Softmax { axis }
            | Op::LogSoftmax { axis }
            | Op::SoftmaxGrad { axis }
            | Op::LogSoftmaxGrad { axis } => {
                (0..result.rank()).filter(|d| d != axis).map(|d| broadcast(x, y, d)).collect()
            }
            Op::LayerNorm { axis, .. } | Op::LayerNormInputGrad { axis } => {
                (0..*axis).map(|d| broadcast(x, y, d)).collect()
            }
            Op::LayerNormParamGrad { axis } => {
                let cut = |d: usize| {
                    let operands = vec![Some(d), Some(d), None, None];
                    along(x[0].shape[d], operands, concat(y, d - axis))
                };
                (*axis..x[0].rank()).map(cut).collect()
            }
            Op::BatchNorm { .. } | Op::BatchNormParamGrad | Op::BatchNormInputGrad => {
                let channels = |t: &TensorType| usize::from(t.rank() > 1);
                let operands = x.iter().map(|t| Some(channels(t))).collect();
                let results = y.iter().map(|t| Assembly::Concat(channels(t))).collect();
                vec![along(x[0].shape[1], operands, results)]
            }
            // A part would draw for other elements.
            Op::Attention { spec } | Op::AttentionGrad { spec } if spec.dropout.is_some() => {
                Vec::new()
            }
            Op::Attention { .. } | Op::AttentionGrad { .. } => {
                let batch = 0..result.rank().saturating_sub(2);
                batch.map(|d| attention(x, y, d)).collect()
            }
            Op::LogSoftmaxStats => {
                let rows = 0..x[0].rank().saturating_sub(1);
                rows.map(|d| along(x[0].shape[d], vec![Some(d)], concat(y, d))).collect()
            }
            Op::Reduce { f, axes, keep } => reduce(*f, axes, *keep, x[0]),
            Op::PointwiseReduce { f, axes, keep, .. } => {
                let terms = pointwise::terms(x);
                let mut cuts = reduce(*f, axes, *keep, &terms);
                for cut in &mut cuts {
                    let axis = cut.operands[0];
                    let of = |t: &&TensorType| axis.filter(|_| t.shape == terms.shape);
                    cut.operands = x.iter().map(of).collect();
                }
                cuts
            }
            Op::Transpose { perm } => {
                let cut = |(d, &p): (usize, &usize)| {
                    along(x[0].shape[p], vec![Some(p)], vec![Assembly::Concat(d)])
                };
                perm.iter().enumerate().map(cut).collect()
            }
            Op::Reshape { .. } => reshape(x[0], result),
            Op::Concat { axis } => {
                let cut = |d| along(result.shape[d], vec![Some(d); x.len()], concat(y, d));
                (0..result.rank()).filter(|d| d != axis).map(cut).collect()
            }
            Op::GatherElements { axis } | Op::ScatterElements { axis, .. } => {
                let fits = |&d: &usize| {
                    d != *axis && x.iter().all(|t| t.shape.get(d) == x[0].shape.get(d))
                };
                let cut = |d: usize| along(x[0].shape[d], vec![Some(d); x.len()], concat(y, d));
                (0..x[0].rank()).filter(fits).map(cut).collect()
            }
            Op::MatMul { trans_a, trans_b } => mat_mul(x, y, *trans_a, *trans_b),
            Op::Gemm { trans_a, trans_b, .. } => gemm(x, *trans_a, *trans_b),
            Op::GemmGelu { trans_a, trans_b } | Op::GemmGeluGrad { trans_a, trans_b } => {
                // A function of a sum is none of its parts.
                let cuts = gemm(x, *trans_a, *trans_b).into_iter();
                let each = cuts.filter_map(|cut| {
                    let results = concat(y, cut.results[0].axis()?);
                    Some(Cut { results, ..cut })
                });
                each.collect()
            }
            Op::Lstm { .. }
            | Op::LstmGrad { .. }
            | Op::Gru { .. }
            | Op::GruGrad { .. }
            | Op::Rnn { .. }
            | Op::RnnGrad { .. } => {
                let batch = |role: &Role| match role {
                    Role::Steps(_) => Some(1),
                    Role::State => Some(0),
                    Role::Weight(_) | Role::Units(_) => None,
                };
                let operands = recurrence::operands(self, x.len()).iter().map(batch).collect();
                let results = recurrence::results(self).iter().filter_map(batch);
                let results = results.map(Assembly::Concat).collect();
                vec![along(x[0].shape[1], operands, results)]
            }
            Op::Conv { group, .. } => conv(x, *group, 0),
            Op::ConvTranspose { group, .. } => conv(x, *group, 1),
            Op::ConvWeightGrad { group, .. } => conv_weight(x, *group),
            Op::MaxPool { .. } => {
                let each = x[0].shape[1..].iter().product();
                let results = vec![Assembly::Concat(0), Assembly::Positions(each)];
                vec![along(x[0].shape[0], vec![Some(0)], results)]
            }
            Op::Pad { .. } => {
                let kept = |&d: &usize| x[0].shape[d] == result.shape[d];
                let cut = |d: usize| along(x[0].shape[d], vec![Some(d)], concat(y, d));
                (0..result.rank()).filter(kept).map(cut).collect()
            }
            Op::AveragePool { .. } | Op::AveragePoolGrad { .. } => {
                (0..2).map(|d| along(x[0].shape[d], vec![Some(d)], concat(y, d))).collect()
            }
            Op::ChannelsLast { of } => channels_last::cuts(of, x, y),
            Op::Adam { .. } | Op::Adagrad { .. } | Op::Momentum { .. } => {
                (0..result.rank()).map(|d| update(x, y, d)).collect()
            }
            Op::ProductUpdate { trans_a, trans_b, .. } => product_update(x, y, *trans_a, *trans_b),
            // A part would draw for other elements.
            Op::Dropout { .. } | Op::RandomUniform { .. } => Vec::new(),
            // Parts would read, or write, what others do.
            Op::Slice { .. }
            | Op::Gather { .. }
            | Op::GatherNd { .. }
            | Op::ScatterNd { .. }
            | Op::TopK { .. }
            | Op::MaxPoolGrad { .. }
            | Op::Resize { .. }
            | Op::Opaque { .. } => Vec::new(),
        }
    }
}

fn along(extent: usize, operands: Vec<Option<usize>>, results: Vec<Assembly>) -> Cut {
    let keeps_bits = !results.contains(&Assembly::Sum);
    Cut { extent, operands, results, keeps_bits }
}

fn concat(y: &[&TensorType], axis: usize) -> Vec<Assembly> {
    vec![Assembly::Concat(axis); y.len()]
}

/// Operands that broadcast to the result, cut along its axis `d`.
fn broadcast(x: &[&TensorType], y: &[&TensorType], d: usize) -> Cut {
    let (rank, extent) = (y[0].rank(), y[0].shape[d]);
    let operand = |t: &&TensorType| {
        let axis = (d + t.rank()).checked_sub(rank)?;
        (t.shape[axis] == extent).then_some(axis)
    };
    along(extent, x.iter().map(operand).collect(), concat(y, d))
}

/// Operands and results begin with the axes of the batch, but for the mask, which broadcasts.
fn attention(x: &[&TensorType], y: &[&TensorType], d: usize) -> Cut {
    let (rank, extent) = (x[0].rank(), x[0].shape[d]);
    let mask = if x.len() > 4 { 6 } else { 3 };
    let operand = |(i, t): (usize, &&TensorType)| {
        let axis = if i == mask { (d + t.rank()).checked_sub(rank)? } else { d };
        (t.shape[axis] == extent).then_some(axis)
    };
    along(extent, x.iter().enumerate().map(operand).collect(), concat(y, d))
}

/// `lr, t, x, g, …`, of which the last have the results' shape.
fn update(x: &[&TensorType], y: &[&TensorType], d: usize) -> Cut {
    let operand = |i: usize| (i > 1).then_some(d);
    along(y[0].shape[d], (0..x.len()).map(operand).collect(), concat(y, d))
}

fn product_update(x: &[&TensorType], y: &[&TensorType], trans_a: bool, trans_b: bool) -> Vec<Cut> {
    let Some(others) = x.len().checked_sub(2) else { return Vec::new() };
    let cut = |d: usize| {
        let full = |t: &&TensorType| (t.shape == y[0].shape).then_some(d);
        let mut operands: Vec<_> = x[..others].iter().map(full).collect();
        let (row, column) = (usize::from(trans_a), usize::from(!trans_b));
        operands.extend(if d == 0 { [Some(row), None] } else { [None, Some(column)] });
        along(y[0].shape[d], operands, concat(y, d))
    };
    (0..2).map(cut).collect()
}

fn reduce(f: Reduction, axes: &[usize], keep: bool, x: &TensorType) -> Vec<Cut> {
    let cut = |d: usize| {
        let before = axes.iter().filter(|&&a| a < d).count();
        let result = match axes.contains(&d) {
            false => Assembly::Concat(if keep { d } else { d - before }),
            true if f == Reduction::Sum => Assembly::Sum,
            true => return None,
        };
        Some(along(x.shape[d], vec![Some(d)], vec![result]))
    };
    (0..x.rank()).filter_map(cut).collect()
}

/// Axes that a reshape leaves as they are: as many elements come before them.
fn reshape(x: &TensorType, y: &TensorType) -> Vec<Cut> {
    let before = |t: &TensorType, axis: usize| t.shape[..axis].iter().product::<usize>();
    let mut cuts = Vec::new();
    for from in 0..x.rank() {
        let same = |&to: &usize| y.shape[to] == x.shape[from] && before(y, to) == before(x, from);
        if let Some(to) = (0..y.rank()).find(same).filter(|_| x.elements() > 0) {
            cuts.push(along(x.shape[from], vec![Some(from)], vec![Assembly::Concat(to)]));
        }
    }
    cuts
}

fn mat_mul(x: &[&TensorType], y: &[&TensorType], trans_a: bool, trans_b: bool) -> Vec<Cut> {
    let (a, b) = (x[0].rank(), x[1].rank());
    if a < 2 || b < 2 {
        return Vec::new();
    }
    let rank = y[0].rank();
    let (rows, inner_a) = if trans_a { (a - 1, a - 2) } else { (a - 2, a - 1) };
    let (inner_b, columns) = if trans_b { (b - 1, b - 2) } else { (b - 2, b - 1) };
    let mut cuts: Vec<Cut> = (0..rank - 2).map(|d| broadcast(x, y, d)).collect();
    cuts.push(along(x[0].shape[rows], vec![Some(rows), None], concat(y, rank - 2)));
    cuts.push(along(x[1].shape[columns], vec![None, Some(columns)], concat(y, rank - 1)));
    let inner = vec![Some(inner_a), Some(inner_b)];
    let sum = if a == 2 && b == 2 { Assembly::Accumulate } else { Assembly::Sum };
    cuts.push(along(x[0].shape[inner_a], inner, vec![sum]));
    cuts
}

fn gemm(x: &[&TensorType], trans_a: bool, trans_b: bool) -> Vec<Cut> {
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
        along(extent, operands, vec![Assembly::Concat(d)])
    };
    let mut cuts = vec![with_c([Some(row), None], 0, m), with_c([None, Some(column)], 1, n)];
    let inner = [Some(1 - row), Some(1 - column), None];
    let inner = inner[..x.len()].to_vec();
    cuts.push(along(x[0].shape[1 - row], inner, vec![Assembly::Accumulate]));
    cuts
}

/// Channels of either operand, and images, which are summed over.
fn conv_weight(x: &[&TensorType], group: usize) -> Vec<Cut> {
    let images = along(x[0].shape[0], vec![Some(0), Some(0)], vec![Assembly::Sum]);
    if group > 1 {
        return vec![images];
    }
    let rows = along(x[1].shape[1], vec![None, Some(1)], vec![Assembly::Concat(0)]);
    let columns = along(x[0].shape[1], vec![Some(1), None], vec![Assembly::Concat(1)]);
    vec![rows, columns, images]
}

/// Images, result channels, and channels that are summed over; `out` is the weights' axis of
/// result channels.
fn conv(x: &[&TensorType], group: usize, out: usize) -> Vec<Cut> {
    let bias = x.len() - 2;
    let images = [vec![Some(0), None], vec![None; bias]].concat();
    let mut cuts = vec![along(x[0].shape[0], images, vec![Assembly::Concat(0)])];
    if group == 1 {
        let channels = [vec![None, Some(out)], vec![Some(0); bias]].concat();
        cuts.push(along(x[1].shape[out], channels, vec![Assembly::Concat(1)]));
        if bias == 0 {
            let summed = vec![Some(1), Some(1 - out)];
            cuts.push(along(x[0].shape[1], summed, vec![Assembly::Sum]));
        }
    }
    cuts
}
