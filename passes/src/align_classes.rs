//! Logits get a few classes more, so that tensor cores take the products that make and read them.
//!
//! GPT-2 has 50,257 words. Rows of as many elements of `bf16` begin at no multiple of 16 bytes, so that
//! none of a library's fast kernels can read or write them, and what is left takes several times as long
//! for the three products of a head: the logits, and the gradients of its operand and of its weight. So
//! the classes become the next multiple of 8. The weight is copied with zeros behind it, and a bias of
//! −∞ is added to the logits there, which a library does with the product. The gradient of the weight
//! is the first rows of the longer one: a view.
//!
//! Done where all that reads the logits is their loss as `fuse_cross_entropy` leaves it (the statistics
//! of rows, the logit of each target, the gradient of the cross entropy), and all that reads the
//! gradient are products and sums over rows. Casts may lie between. Any other reader keeps everything as
//! it is: an output, a metric, and label smoothing, which sums the logits of all classes. So does a
//! product that adds to another gradient of the weight, as of micro-batches: that one has no more rows. (In `bf16` no
//! product does: `precision` adds these in `f32`, by a node of its own, which reads the first rows.)
//!
//! Sound because
//!
//! - the added logits of a row are −∞, as `x · 0` is zero for finite `x`. So the maximum stays, and the
//!   sum of `exp(z − max)` has more zeros. Where `x` is not finite, no logit of the row is: sum, loss and
//!   gradient are NaN with and without more classes;
//! - the added gradients are `0 − w · exp((−∞ − max) − ln_sum)`, which is +0: none of these classes is a
//!   target (below), and ignored targets, class weights and the loss are in the row's factor `w`. Where
//!   `w` is infinite, `0 · w` is NaN, as other elements of that row are; the gradient of its operand may
//!   then be NaN that was infinite;
//! - the gradient of the operand has more terms `0 · 0`, that of the weight has more rows, and that of
//!   the bias has more elements, which nobody reads;
//! - targets mean what they did. A negative one counts from the end, and one out of range is refused;
//!   both go by the number of classes, to which `d` are added. So `d` is added to targets that were too
//!   large and subtracted from those below 0: −1 is the same class as before, and what was out of range
//!   is so again. (The error then names the index with `d`.)
//!
//! Sums may be taken in another order, so the last bits may differ. The state stays as it is, and so
//! does whatever else reads it, as an embedding that is tied to the head: the copy is made in each step,
//! of what the products read, which `precision`, an earlier pass, made a cast in `bf16`.
//!
//! It costs memory: the copy, in the type of the products, from the logits to the gradient of their
//! operand, which read the same one; and an element of logits and of gradients per row and added class.
//! GPT-2's step at 8 × 1,024 words has 0.005 % more in `bf16`, whose cast is a copy already, and 2 % in
//! `f32`. Where the weight has its classes in columns, these are cut out of its gradient, which makes
//! another copy.
//!
//! The named pipelines have it for GPUs alone: a CPU's products begin where they like, and GPT-2's joint step (batch 32) would
//! take 3 % more.
//!
//! Only for large products: below `least` multiplications the launches that are added take what is
//! gained, and below `least_rows` rows it is reading and writing the weight once more.
//!
//! Sources: PyTorch pads single products, and cuts their results (`torch/_inductor/fx_passes/pad_mm.py`);
//! nanoGPT (Karpathy) gives the model itself 50,304 words. On multiples of 16 bytes: NVIDIA, "Matrix
//! Multiplication Background User's Guide", on the requirements of tensor cores.

use crate::rewrite::{Editor, GraphView, rows};
use crate::{Cx, GraphPass, PassError, Stats};
use arenic_ir::graph::{Data, Def, Graph, Node, NodeId, ValueId};
use arenic_ir::op::{Binary, Op, Reduction, TypeError};
use arenic_ir::types::{DType, TensorType, bf16};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Gives logits that only their loss reads a few classes more, so that tensor cores take their products.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AlignClasses {
    /// The number of classes becomes a multiple of this.
    #[schemars(range(min = 1))]
    pub multiple: usize,
    /// Multiplications of elements that a product of logits has at least.
    pub least: u64,
    /// Rows that it has at least.
    pub least_rows: usize,
}

impl Default for AlignClasses {
    fn default() -> AlignClasses {
        AlignClasses { multiple: 8, least: 1 << 28, least_rows: 128 }
    }
}

impl GraphPass for AlignClasses {
    fn run(&self, g: &mut Graph, _: &Cx) -> Result<Stats, PassError> {
        let view = GraphView::new(g);
        let mut taken = BTreeSet::new();
        let mut found = Vec::new();
        for head in g.nodes.keys().filter_map(|n| self.head(&view, n)) {
            // What has classes of two heads is left alone.
            let own: BTreeSet<NodeId> = head.readers.keys().copied().collect();
            if taken.is_disjoint(&own) {
                taken.extend(own);
                found.push(head);
            }
        }
        let mut e = Editor::new(g);
        found.iter().try_for_each(|head| head.replace(&mut e))?;
        e.finish();
        Ok(Stats::from([("aligned_heads", found.len() as u64)]))
    }
}

/// A product that is logits, with all that reads these and their gradient.
struct Head {
    product: NodeId,
    /// How many classes there are, and will be.
    from: usize,
    to: usize,
    /// The weight, and the axis of its classes.
    weight: Weight,
    readers: BTreeMap<NodeId, Reader>,
}

/// A factor that has an element for each class along an axis.
struct Weight {
    value: ValueId,
    axis: usize,
    /// What it is of, the same for values with the same elements.
    source: (ValueId, DType),
}

/// A node that reads logits or their gradient.
struct Reader {
    /// Which operand that is, and what it is under another shape.
    operand: usize,
    of: ValueId,
    makes: Makes,
}

/// What a reader makes.
enum Makes {
    /// The same in another type.
    Cast,
    /// The statistics of rows.
    Statistics,
    /// The logits of targets.
    Gathered,
    /// The gradient of the logits.
    Gradient,
    /// A sum over classes: the product with a factor, which is this operand.
    OverClasses(usize, Weight),
    /// Sums over rows, which have classes along an axis.
    OverRows,
}

/// What lies along the added classes.
#[derive(Clone, Copy, PartialEq)]
enum Added {
    /// −∞.
    Logits,
    /// Zeros.
    Gradients,
}

/// A product of two matrices, the rows of the first perhaps in several axes.
struct Factors {
    values: [ValueId; 2],
    transposed: [bool; 2],
    ranks: [usize; 2],
    /// Something is added to the product.
    added: Option<ValueId>,
}

impl Factors {
    fn of(g: &Graph, n: NodeId) -> Option<Factors> {
        let Node { op, inputs, .. } = &g.nodes[n];
        let transposed = match *op {
            Op::MatMul { trans_a, trans_b } => [trans_a, trans_b],
            // An infinite factor would make NaN of zeros.
            Op::Gemm { alpha, trans_a, trans_b, .. } if alpha.is_finite() => [trans_a, trans_b],
            _ => return None,
        };
        let values = [*inputs.first()?, *inputs.get(1)?];
        let ranks = values.map(|v| g.ty(v).rank());
        let fits = ranks[1] == 2 && (ranks[0] == 2 || (ranks[0] > 2 && !transposed[0]));
        let is_float = values.iter().all(|&v| g.ty(v).dtype.is_float());
        let added = inputs.get(2).copied();
        (fits && is_float).then_some(Factors { values, transposed, ranks, added })
    }

    /// The axis of factor `i` that the product sums over.
    fn summed(&self, i: usize) -> usize {
        let last = self.transposed[i] != (i == 0);
        if last { self.ranks[i] - 1 } else { self.ranks[i] - 2 }
    }
}

impl AlignClasses {
    /// The head whose logits a node makes.
    fn head(&self, v: &GraphView, product: NodeId) -> Option<Head> {
        let g = v.g;
        let factors = Factors::of(g, product)?;
        let logits = g.result(product)?;
        let shape = &g.ty(logits).shape;
        let &from = shape.last()?;
        let to = from.checked_next_multiple_of(self.multiple)?;
        let rows: usize = shape[..shape.len() - 1].iter().product();
        let [a, b] = factors.values;
        let terms = g.ty(a).shape[factors.summed(0)];
        let multiplications =
            (rows as u64).saturating_mul(from as u64).saturating_mul(terms as u64);
        let is_bias = |c: ValueId| {
            let ty = g.ty(c);
            ty.elements() == from && ty.shape.last() == Some(&from)
        };
        let beta = match g.nodes[product].op {
            Op::Gemm { beta, .. } => beta,
            _ => 1.0,
        };
        let fits = from != to
            && rows >= self.least_rows.max(1)
            && multiplications >= self.least
            // Libraries take no larger tensors, and narrow indices reach that far.
            && rows.checked_mul(to).is_some_and(|n| i32::try_from(n).is_ok())
            && factors.added.is_none_or(|c| beta == 1.0 && is_bias(c));
        if !fits {
            return None;
        }
        let weight = weight(v, b, 1 - factors.summed(1));
        let mut head = Head { product, from, to, weight, readers: BTreeMap::new() };
        let mut longer = vec![(logits, Added::Logits)];
        while let Some((of, added)) = longer.pop() {
            for n in v.uses(of)? {
                let reader = head.reader(v, n, of, added)?;
                match reader.makes {
                    Makes::Cast => longer.push((g.result(n)?, added)),
                    Makes::Gradient => longer.push((g.result(n)?, Added::Gradients)),
                    _ => {}
                }
                // Nobody reads two of them.
                if head.readers.insert(n, reader).is_some() {
                    return None;
                }
            }
        }
        // Without a gradient there is one product, and its logits are seldom kept.
        let has_statistics = head.readers.values().any(|r| matches!(r.makes, Makes::Statistics));
        has_statistics.then_some(head)
    }
}

/// A factor with classes along an axis.
fn weight(v: &GraphView, value: ValueId, axis: usize) -> Weight {
    let of = v.cast(value).map_or(value, |(of, _)| of);
    Weight { value, axis, source: (v.base(of), v.g.ty(value).dtype) }
}

impl Head {
    /// A node that reads `of`, if it can do with more classes.
    fn reader(&self, v: &GraphView, n: NodeId, of: ValueId, added: Added) -> Option<Reader> {
        let g = v.g;
        let Node { op, inputs, .. } = &g.nodes[n];
        let mut reads = inputs.iter().enumerate().filter(|(_, x)| v.is(**x, of));
        let (Some((operand, &x)), None) = (reads.next(), reads.next()) else { return None };
        let ty = g.ty(x);
        let last = ty.rank().checked_sub(1)?;
        if ty.dtype != g.ty(of).dtype || ty.shape[last] != self.from {
            return None;
        }
        let makes = match (added, op, operand) {
            (_, Op::Cast { to }, 0) if to.is_float() => Makes::Cast,
            (Added::Logits, Op::LogSoftmaxStats, 0) => Makes::Statistics,
            (Added::Logits, Op::GatherElements { axis }, 0) if *axis == last => Makes::Gathered,
            (Added::Logits, Op::CrossEntropyGrad, 0) => {
                let are_own = [0, 1].iter().all(|&o| self.is_statistic(v, inputs[o + 1], o));
                are_own.then_some(Makes::Gradient)?
            }
            (Added::Gradients, Op::Reduce { f: Reduction::Sum, axes, .. }, 0)
                if !axes.contains(&last) =>
            {
                Makes::OverRows
            }
            (Added::Gradients, Op::MatMul { .. } | Op::Gemm { .. }, 0 | 1) => {
                self.product(v, n, operand, last)?
            }
            _ => return None,
        };
        Some(Reader { operand, of, makes })
    }

    /// True for result `o` of the statistics of the logits.
    fn is_statistic(&self, v: &GraphView, x: ValueId, o: usize) -> bool {
        let Def::Node { node, output } = v.g.values[v.base(x)].def else { return false };
        let Node { op, inputs, .. } = &v.g.nodes[node];
        let mut of = inputs.first().copied();
        while let Some((from, _)) = of.and_then(|x| v.cast(x)) {
            of = Some(from);
        }
        let is_own = of.and_then(|x| v.definition(x)) == Some(self.product);
        is_own && output == o && matches!(op, Op::LogSoftmaxStats)
    }

    /// A product of which the gradient of logits is factor `i`, whose last axis is `last`.
    fn product(&self, v: &GraphView, n: NodeId, i: usize, last: usize) -> Option<Makes> {
        let factors = Factors::of(v.g, n)?;
        if factors.summed(i) == last {
            let other = 1 - i;
            let axis = factors.summed(other);
            let is_matrix = factors.ranks[other] == 2;
            let weight = weight(v, factors.values[other], axis);
            return is_matrix.then_some(Makes::OverClasses(other, weight));
        }
        // What is added would have to be longer, too.
        let fits = factors.ranks == [2, 2] && factors.added.is_none();
        fits.then_some(Makes::OverRows)
    }

    fn replace(&self, e: &mut Editor) -> Result<(), PassError> {
        let mut longer = Longer { from: self.from, to: self.to, ..Longer::default() };
        self.logits(e, &mut longer)?;
        for (&at, Reader { operand, of, makes }) in &self.readers {
            let Node { op, mut inputs, outputs, .. } = e.g.nodes[at].clone();
            let mut shape = e.g.ty(inputs[*operand]).shape.clone();
            if let Some(last) = shape.last_mut() {
                *last = self.to;
            }
            inputs[*operand] = e.reshaped(at, longer.values[of], &shape)?;
            match makes {
                Makes::Gathered => inputs[1] = longer.target(e, at, inputs[1])?,
                Makes::Gradient => inputs[3] = longer.target(e, at, inputs[3])?,
                Makes::OverClasses(i, weight) => inputs[*i] = longer.weight(e, at, weight)?,
                _ => {}
            }
            let made = e.node(at, op, inputs)?;
            for (old, new) in outputs.into_iter().zip(made) {
                let Some(old) = old else { continue };
                match makes {
                    Makes::Cast | Makes::Gradient => longer.take_place(e, old, new),
                    Makes::OverRows => {
                        let shape = e.g.ty(old).shape.clone();
                        let part = e.leading(at, new, &shape)?;
                        e.replace(at, old, part)?;
                    }
                    _ => e.replace(at, old, new)?,
                }
            }
        }
        Ok(())
    }

    /// The product with more columns, which are −∞.
    fn logits(&self, e: &mut Editor, longer: &mut Longer) -> Result<(), PassError> {
        let at = self.product;
        let Node { op, inputs, .. } = e.g.nodes[at].clone();
        let (alpha, trans_a, trans_b) = match op {
            Op::Gemm { alpha, trans_a, trans_b, .. } => (alpha, trans_a, trans_b),
            Op::MatMul { trans_a, trans_b } => (1.0, trans_a, trans_b),
            op => return Err(TypeError(format!("a product, not {}", op.name())).into()),
        };
        let Some(old) = e.g.result(at) else { return Ok(()) };
        let dtype = e.g.ty(old).dtype;
        let left = rows(&e.g.ty(inputs[0]).shape);
        let a = e.reshaped(at, inputs[0], &left)?;
        let b = longer.weight(e, at, &self.weight)?;
        let never = element(dtype, f32::NEG_INFINITY).repeat(self.to - self.from);
        let bias = match inputs.get(2) {
            Some(&bias) => {
                let bias = e.reshaped(at, bias, &[self.from])?;
                let never = constant(e, dtype, &[self.to - self.from], never);
                e.value(at, Op::Concat { axis: 0 }, vec![bias, never])?
            }
            None => {
                let all = [element(dtype, 0.0).repeat(self.from), never].concat();
                constant(e, dtype, &[self.to], all)
            }
        };
        let gemm = Op::Gemm { alpha, beta: 1.0, trans_a, trans_b };
        let new = e.value(at, gemm, vec![a, b, bias])?;
        longer.take_place(e, old, new);
        Ok(())
    }
}

/// What has more classes already, by what it takes the place of.
#[derive(Default)]
struct Longer {
    from: usize,
    to: usize,
    values: HashMap<ValueId, ValueId>,
    weights: HashMap<(ValueId, DType, Vec<usize>, usize), ValueId>,
    targets: HashMap<ValueId, ValueId>,
}

impl Longer {
    /// Lets `new` have the name of `old`, and be read instead.
    fn take_place(&mut self, e: &mut Editor, old: ValueId, new: ValueId) {
        e.g.values[new].name = e.g.values[old].name.clone();
        self.values.insert(old, new);
    }

    /// A factor with zeros for the added classes. Both products read one.
    fn weight(&mut self, e: &mut Editor, at: NodeId, of: &Weight) -> Result<ValueId, PassError> {
        let TensorType { dtype, mut shape } = e.g.ty(of.value).clone();
        let (source, stored) = of.source;
        let key = (source, stored, shape.clone(), of.axis);
        if let Some(&known) = self.weights.get(&key) {
            return Ok(known);
        }
        shape[of.axis] = self.to - self.from;
        let zeros = element(dtype, 0.0).repeat(shape.iter().product());
        let zeros = constant(e, dtype, &shape, zeros);
        let longer = e.value(at, Op::Concat { axis: of.axis }, vec![of.value, zeros])?;
        self.weights.insert(key, longer);
        Ok(longer)
    }

    /// Targets that mean among more classes what these mean: `t + d · sign(t − clip(t))`, the number
    /// of added classes being `d`.
    fn target(&mut self, e: &mut Editor, at: NodeId, of: ValueId) -> Result<ValueId, PassError> {
        if let Some(&known) = self.targets.get(&of) {
            return Ok(known);
        }
        let dtype = e.g.ty(of).dtype;
        let [zero, last, below, above, more] =
            [0, self.from as i32 - 1, -1, 1, (self.to - self.from) as i32].map(|x| {
                let bytes = match dtype {
                    DType::I32 => x.to_le_bytes().to_vec(),
                    _ => i64::from(x).to_le_bytes().to_vec(),
                };
                constant(e, dtype, &[], bytes)
            });
        let clip = Op::Clip { min: true, max: true };
        let binary = |f| Op::Binary { f };
        let within = e.value(at, clip.clone(), vec![of, zero, last])?;
        let outside = e.value(at, binary(Binary::Sub), vec![of, within])?;
        let sign = e.value(at, clip, vec![outside, below, above])?;
        let shift = e.value(at, binary(Binary::Mul), vec![sign, more])?;
        let shifted = e.value(at, binary(Binary::Add), vec![of, shift])?;
        self.targets.insert(of, shifted);
        Ok(shifted)
    }
}

/// The bytes of one element.
fn element(dtype: DType, x: f32) -> Vec<u8> {
    match dtype {
        DType::F64 => f64::from(x).to_le_bytes().to_vec(),
        DType::Bf16 => bf16::from_f32(x).to_le_bytes().to_vec(),
        _ => x.to_le_bytes().to_vec(),
    }
}

fn constant(e: &mut Editor, dtype: DType, shape: &[usize], bytes: Vec<u8>) -> ValueId {
    e.g.add_const("", TensorType::new(dtype, shape), Data::Bytes(bytes.into()))
}
