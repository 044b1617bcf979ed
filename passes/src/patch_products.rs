//! Convolutions of patches that do not overlap become products of matrices.
//!
//! The first layer of a vision transformer cuts an image into patches, 16 × 16 pixels of three channels, and
//! gives a vector for each. As a convolution whose stride is its kernel it has too few channels for tensor
//! cores: a library fills them up to eight in a copy, and its weight's gradient goes by slower kernels. As a matrix with a row for
//! each patch the operand needs no more bytes, and both are products: on an H200, ViT-B/16's took 0.53 and 1.12 ms
//! of a step of 23.3 as convolutions (batch 64, `bf16`).
//!
//! Done for convolutions without padding, dilation or groups whose patches cover their operand and whose rows are
//! aligned for tensor cores, and for the gradients of their weights, which read the same matrix. Models write positions
//! before channels afterwards. Their transposes are left out, and so is a gradient's, also before the sum that
//! is the gradient of the bias.
//!
//! Sound because a patch is read by one result of each channel, so that both are sums of the same products; a
//! kernel may add them in another order, and the last bits may differ. A gradient of the operand stays as it is:
//! images have none.
//!
//! The named pipelines have it for GPUs alone: the CPU's convolution is such a product already.
//!
//! Source: Dosovitskiy et al., "An Image Is Worth 16x16 Words" (ICLR 2021), equation 1, which writes the layer as a
//! product.

use crate::rewrite::{Editor, GraphView};
use crate::{Cx, GraphPass, PassError, Stats};
use arenic_ir::graph::{Graph, Node, NodeId, ValueId};
use arenic_ir::op::{Op, Reduction, Window};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Makes products of convolutions whose patches do not overlap, where the operand has few channels.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PatchProducts {
    /// The operand has fewer channels than this, and rows of the products are multiples of it.
    #[schemars(range(min = 1))]
    pub multiple: usize,
    /// Multiplications of elements that a convolution has at least.
    pub least: u64,
}

impl Default for PatchProducts {
    fn default() -> PatchProducts {
        PatchProducts { multiple: 8, least: 1 << 26 }
    }
}

impl GraphPass for PatchProducts {
    fn run(&self, g: &mut Graph, _: &Cx) -> Result<Stats, PassError> {
        let view = GraphView::new(g);
        let found: Vec<Patches> = g.nodes.keys().filter_map(|n| self.patches(&view, n)).collect();
        let mut e = Editor::new(g);
        let mut matrices = BTreeMap::new();
        for patches in &found {
            let key = (patches.operand, patches.kernel.clone());
            let matrix = match matrices.get(&key) {
                Some(&matrix) => matrix,
                None => *matrices.entry(key).or_insert(patches.matrix(&mut e)?),
            };
            patches.replace(&mut e, matrix)?;
        }
        e.finish();
        Ok(Stats::from([("patch_products", found.len() as u64)]))
    }
}

/// A convolution of patches, or the gradient of its weight.
struct Patches {
    node: NodeId,
    operand: ValueId,
    kernel: Vec<usize>,
    images: usize,
    channels: usize,
    /// Patches along each spatial axis.
    counts: Vec<usize>,
    /// Channels of the result.
    results: usize,
    of: Of,
}

enum Of {
    /// The convolution: the weight, the bias, and transposes that bring positions before channels.
    Result { weight: ValueId, bias: Option<ValueId>, turned: Vec<NodeId> },
    /// The gradient of its weight: that of the result, and with positions before channels where it is made of such.
    Weight { dy: ValueId, turned: Option<Turned> },
}

/// A gradient of the result with positions before channels.
struct Turned {
    of: ValueId,
    /// Its sums over all but the channels.
    sums: Vec<(NodeId, Reduction)>,
}

impl PatchProducts {
    fn patches(&self, v: &GraphView, node: NodeId) -> Option<Patches> {
        let Node { op, inputs, .. } = &v.g.nodes[node];
        let (Op::Conv { window, group: 1 } | Op::ConvWeightGrad { window, group: 1 }) = op else {
            return None;
        };
        let operand = inputs[0];
        let [images, channels, extents @ ..] = &v.g.ty(operand).shape[..] else { return None };
        let counts = counts(window, extents)?;
        let y = v.g.result(node)?;
        let is_gradient = matches!(op, Op::ConvWeightGrad { .. });
        // Channels of the result are the rows of the weight, and of its gradient.
        let &results = v.g.ty(if is_gradient { y } else { inputs[1] }).shape.first()?;
        let terms = channels * window.taps();
        let rows = images * counts.iter().product::<usize>();
        let multiplications = [rows, terms, results].map(|n| n as u64);
        let fits = *channels < self.multiple
            && window.taps() > 1
            && [terms, results].iter().all(|n| n.is_multiple_of(self.multiple))
            && multiplications.into_iter().fold(1, u64::saturating_mul) >= self.least;
        let of = match is_gradient {
            true => Of::Weight { dy: inputs[1], turned: turned(v, inputs[1]) },
            false => Of::Result {
                weight: inputs[1],
                bias: inputs.get(2).copied(),
                turned: transposes(v, y, [*images, results]),
            },
        };
        fits.then(|| Patches {
            node,
            operand,
            kernel: window.kernel.clone(),
            images: *images,
            channels: *channels,
            counts,
            results,
            of,
        })
    }
}

/// How many patches there are along each axis, where they cover it and do not overlap.
fn counts(window: &Window, extents: &[usize]) -> Option<Vec<usize>> {
    let Window { kernel, strides, dilations, pads_begin, pads_end } = window;
    let fits = kernel == strides
        && dilations.iter().all(|&d| d == 1)
        && pads_begin.iter().chain(pads_end).all(|&pad| pad == 0)
        && extents.iter().zip(kernel).all(|(extent, tap)| extent.is_multiple_of(*tap));
    fits.then(|| extents.iter().zip(kernel).map(|(extent, tap)| extent / tap).collect())
}

/// The value with channels last that a transpose makes `dy` of, with positions as they are.
fn turned(v: &GraphView, dy: ValueId) -> Option<Turned> {
    let transpose = v.definition(dy)?;
    let Node { op: Op::Transpose { perm }, inputs, .. } = &v.g.nodes[transpose] else {
        return None;
    };
    let rank = perm.len();
    let brings_channels = rank > 2
        && perm[..2] == [0, rank - 1]
        && perm[2..].iter().copied().eq(1..rank - 1)
        && v.g.ty(v.base(dy)).shape[..2] == v.g.ty(dy).shape[..2];
    let sums = v.consumers(v.base(dy)).into_iter().filter_map(|n| {
        let Node { op: Op::Reduce { f, axes, .. }, inputs, .. } = &v.g.nodes[n] else {
            return None;
        };
        let shape = &v.g.ty(inputs[0]).shape;
        let all_but_channels = axes.iter().copied().eq((0..shape.len()).filter(|&a| a != 1));
        let fits = all_but_channels && shape[..2] == v.g.ty(dy).shape[..2];
        (fits && v.is(inputs[0], dy)).then_some((n, *f))
    });
    brings_channels.then(|| Turned { of: inputs[0], sums: sums.collect() })
}

/// The transposes that read a result of so many images and channels, and bring its channels last.
fn transposes(v: &GraphView, y: ValueId, first: [usize; 2]) -> Vec<NodeId> {
    let brings_positions = |&n: &NodeId| {
        let Node { op: Op::Transpose { perm }, inputs, .. } = &v.g.nodes[n] else { return false };
        let rank = perm.len();
        rank > 2
            && v.g.ty(inputs[0]).shape[..2] == first
            && perm.iter().copied().eq([0].into_iter().chain(2..rank).chain([1]))
    };
    v.uses(y).into_iter().flatten().filter(brings_positions).collect()
}

impl Patches {
    fn positions(&self) -> usize {
        self.counts.iter().product()
    }

    fn rows(&self) -> usize {
        self.images * self.positions()
    }

    fn terms(&self) -> usize {
        self.channels * self.kernel.iter().product::<usize>()
    }

    /// The patches as rows, of channels and taps.
    fn matrix(&self, e: &mut Editor) -> Result<ValueId, PassError> {
        let space = self.counts.len();
        let along = self.counts.iter().zip(&self.kernel).flat_map(|(&count, &taps)| [count, taps]);
        let shape: Vec<usize> = [self.images, self.channels].into_iter().chain(along).collect();
        let [counts, taps] = [2, 3].map(|first| (0..space).map(move |d| first + 2 * d));
        let perm = [0].into_iter().chain(counts).chain([1]).chain(taps).collect();
        let cut = e.reshaped(self.node, self.operand, &shape)?;
        let patches = e.value(self.node, Op::Transpose { perm }, vec![cut])?;
        e.reshaped(self.node, patches, &[self.rows(), self.terms()])
    }

    fn replace(&self, e: &mut Editor, matrix: ValueId) -> Result<(), PassError> {
        let node = self.node;
        let Some(old) = e.g.result(node) else { return Ok(()) };
        let product = |trans_a, trans_b| Op::Gemm { alpha: 1.0, beta: 1.0, trans_a, trans_b };
        let exchanged = || Op::Transpose { perm: vec![0, 2, 1] };
        match &self.of {
            Of::Result { weight, bias, turned } => {
                let weight = e.reshaped(node, *weight, &[self.results, self.terms()])?;
                let operands = [matrix, weight].into_iter().chain(*bias).collect();
                let y = e.value(node, product(false, true), operands)?;
                for &n in turned {
                    if let Some(turned) = e.g.result(n) {
                        e.replace(n, turned, y)?;
                    }
                }
                let y = e.reshaped(node, y, &[self.images, self.positions(), self.results])?;
                let y = e.value(node, exchanged(), vec![y])?;
                e.replace(node, old, y)
            }
            Of::Weight { dy, turned } => {
                let rows = [self.rows(), self.results];
                let of = match turned {
                    Some(Turned { of, sums }) => {
                        for &(n, f) in sums {
                            let Some(sum) = e.g.result(n) else { continue };
                            let dy = e.reshaped(n, *of, &rows)?;
                            let op = Op::Reduce { f, axes: vec![0], keep: false };
                            let made = e.value(n, op, vec![dy])?;
                            e.replace(n, sum, made)?;
                        }
                        *of
                    }
                    None => {
                        let shape = [self.images, self.results, self.positions()];
                        let dy = e.reshaped(node, *dy, &shape)?;
                        e.value(node, exchanged(), vec![dy])?
                    }
                };
                let dy = e.reshaped(node, of, &rows)?;
                let dw = e.value(node, product(true, false), vec![dy, matrix])?;
                e.replace(node, old, dw)
            }
        }
    }
}
