//! Layer and batch normalisation, and their gradients.
//!
//! Exporters write a normalisation `n = (x − mean(x)) / √(var(x) + ε)`, over the last axes or over
//! all but the channels, and `y = n · scale + bias`, operator by operator: layer normalisation
//! before opset 17, batch normalisation in PyTorch's joint graphs. Gradients ONNX has no operator
//! for. With `g = dy · scale`, PyTorch writes them, and others much like it, as
//!
//! ```text
//! dx     = inv_std · (g − mean(g) − n · mean(g · n))
//! dscale = Σ dy · n,  dbias = Σ dy
//! ```
//!
//! in many orders of factors and terms. What belongs together is found by its polynomial
//! ([`Expressions`]), in `x`, the mean, `inv_std`, the scale and `dy`, which the formulas above have
//! as well: two expressions of equal polynomials are equal but for rounding. `forward` finds
//! normalisations, `gradient` their gradients, `group` all that is replaced by them.
//!
//! A normalisation is replaced where all nodes of it are dead afterwards: whatever else reads
//! one of their results reads one that the operator gives, as the mean and the variance that
//! running statistics are made of. Arithmetic on a few numbers per row or channel stays where others
//! share it, and reads what the operators give; no tensor of the operand's size is computed twice.
//!
//! So the arena does not become larger by more than these few numbers. What a gradient needs of the
//! forward part is `x`, the mean and `inv_std`. Before, it was one of `x`, `x − mean` and `n`, which
//! are as large; where that was another one than `x`, it is dead now (of `n` the mean was not
//! needed: that is what may be more). A gradient that reads the result itself, as one without
//! scale and bias may, stays as it is. Between, an operator has `x`, `dy` and its result, which may
//! take the bytes of either; written as several nodes, `g · n` was there beside both, of which a sum
//! was taken.

mod forward;
mod gradient;
mod group;
mod rewrite;

use crate::PassError;
use crate::rewrite::{AxisGroups, Editor, Expressions, GraphView, Groups, Polynomial};
use arenic_ir::graph::{Graph, ValueId};
use arenic_ir::types::TensorType;
use group::Replaced;

/// How many of each were replaced.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) layer_norms: u64,
    pub(super) layer_norm_gradients: u64,
    pub(super) batch_norms: u64,
    pub(super) batch_norm_gradients: u64,
}

/// Replaces every normalisation, and every gradient of one; how many there were.
pub(super) fn normalisations(g: &mut Graph) -> Result<Counts, PassError> {
    let view = GraphView::new(g);
    let mut found: Vec<Replaced> = Vec::new();
    for n in g.nodes.keys() {
        if let Some(norm) = forward::norm(&view, n)
            && let Some(replaced) = group::replaced(&view, &norm)
            && found.iter().all(|other| other.is_apart_from(&view, &replaced))
        {
            found.push(replaced);
        }
    }
    let mut counts = Counts::default();
    for replaced in &found {
        let (forward, gradient) = match replaced.kind {
            Kind::Layer { .. } => (&mut counts.layer_norms, &mut counts.layer_norm_gradients),
            Kind::Batch => (&mut counts.batch_norms, &mut counts.batch_norm_gradients),
        };
        *forward += u64::from(matches!(replaced.source, Source::Written { .. }));
        *gradient += u64::from(replaced.dy.is_some());
    }
    let mut e = Editor::new(g);
    found.iter().try_for_each(|replaced| replaced.replace(&mut e))?;
    e.finish();
    Ok(counts)
}

/// What is normalised together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The axes from this one on.
    Layer { axis: usize },
    /// All axes but the second.
    Batch,
}

impl Kind {
    /// The axis groups of an operand of this shape.
    fn groups(self, shape: &[usize]) -> AxisGroups {
        let product = |shape: &[usize]| shape.iter().product();
        AxisGroups::new(match self {
            Kind::Layer { axis } => vec![product(&shape[..axis]), product(&shape[axis..])],
            Kind::Batch => vec![shape[0], shape[1], product(&shape[2..])],
        })
    }

    /// The groups that a mean is over.
    fn averaged(self) -> Groups {
        match self {
            Kind::Layer { .. } => 0b10,
            Kind::Batch => 0b101,
        }
    }

    /// The groups along which scale and bias vary.
    fn parameters(self) -> Groups {
        0b10
    }
}

/// A normalisation, as an operator or written as several.
struct Norm<'a> {
    kind: Kind,
    source: Source,
    /// The operand, of this type.
    x: ValueId,
    ty: TensorType,
    /// In `x`, and what the mean and `inv_std` are.
    expressions: Expressions<'a>,
    centred: Polynomial,
    mean: Polynomial,
    variance: Option<Polynomial>,
    inv_std: Polynomial,
}

/// Where a normalisation comes from.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// An operator with this scale, and the mean and `inv_std` that it gives.
    Operator { scale: ValueId, mean: ValueId, inv_std: ValueId },
    /// What was written, up to the standard deviation.
    Written { epsilon: f32, std: ValueId },
}

impl Norm<'_> {
    /// The groups along which the mean varies.
    fn statistics(&self) -> Groups {
        self.expressions.groups.all() & !self.averaged()
    }

    fn averaged(&self) -> Groups {
        self.expressions.groups.of(self.kind.averaged())
    }

    fn parameters(&self) -> Groups {
        self.expressions.groups.of(self.kind.parameters())
    }

    /// `(x − mean) · inv_std`.
    fn normalised(&self) -> Option<Polynomial> {
        self.centred.times(&self.inv_std)
    }

    /// The mean over what is normalised together.
    fn mean_of(&self, p: &Polynomial) -> Polynomial {
        let count = self.expressions.groups.elements(self.averaged()) as f64;
        Polynomial::default().plus(1.0 / count, &self.expressions.sum(p, self.averaged()))
    }

    /// The sum that gradients of scale and bias are.
    fn sum_to_parameters(&self, p: &Polynomial) -> Polynomial {
        let over = self.expressions.groups.all() & !self.parameters();
        self.expressions.sum(p, over)
    }
}
