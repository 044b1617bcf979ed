//! Certificates in words and in JSON, and why buffers are alive ([`Lives`])
//! and what became of them ([`choices`]).

pub mod choices;
mod life;

use crate::artifact::{self, Target};
use arenic_ir::Graph;
use arenic_ir::graph::{NodeId, ValueId};
use arenic_passes::certificate::{Held, OrderCertificate, PeakBound};
pub use life::Lives;
use serde_json::{Value, json};
use std::fmt::{self, Write};

/// The certificate as JSON: `operator` (its name, or null), `own` and `cut` (lists of
/// `tensor` and `bytes`), `bound_bytes`.
pub fn to_json(g: &Graph, c: &PeakBound) -> Value {
    let held = |all: &[Held]| {
        let row = |h: &Held| json!({ "tensor": tensor(g, h), "bytes": h.bytes });
        all.iter().map(row).collect::<Vec<_>>()
    };
    json!({
        "bound_bytes": c.by_cut,
        "operator": c.operator.map(|n| operator(g, n)),
        "own": held(&c.own),
        "cut": held(&c.cut),
    })
}

/// The certificate that an artifact's target holds, in the same form.
pub fn stored_to_json(target: &Target) -> Value {
    let (g, c) = (&target.graph, &target.certificate);
    let held = |all: &[artifact::Held]| {
        let held =
            |h: &artifact::Held| Held { value: h.value.map(ValueId::from_u32), bytes: h.bytes };
        all.iter().map(held).collect()
    };
    let certificate = PeakBound {
        by_cut: c.bound_bytes,
        operator: c.operator.map(NodeId::from_u32),
        own: held(&c.own),
        cut: held(&c.cut),
        ..PeakBound::default()
    };
    to_json(g, &certificate)
}

/// The gap between a peak and a bound, relative to the bound: 0 where the peak is proved.
pub fn relative_gap(peak: u64, bound: u64) -> f64 {
    peak.saturating_sub(bound) as f64 / bound.max(1) as f64
}

/// Tensors that are listed before the rest is summed up.
const LISTED: usize = 10;

/// Where the peak of an order is, what is alive there, and why no order avoids it.
pub struct Explanation<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// What is known about the order.
    pub certificate: &'a OrderCertificate,
    /// Bytes of the plan's peak.
    pub peak: u64,
    /// The best bound known for such plans, in bytes.
    pub bound: u64,
    /// The plan copies tensors to host memory or computes some again, so that what bounds
    /// orders does not bound it.
    pub moves: bool,
    /// Turns bytes into words.
    pub human: fn(u64) -> String,
}

impl fmt::Display for Explanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (g, c, human) = (self.graph, self.certificate, self.human);
        let at = c.at.map_or(String::new(), |n| format!(", reached at {}", operator(g, n)));
        writeln!(f, "The peak is {}{at}.", human(self.peak))?;
        writeln!(f, "Alive there beside {} that is resident:", human(c.resident))?;
        self.list(f, &c.alive)?;
        writeln!(f)?;
        let proved = &c.bound;
        let freely = "before recomputation, swaps and sections";
        match proved.operator {
            Some(n) => {
                writeln!(
                    f,
                    "No order of this graph stays below {}\n({freely}): whenever {} runs,\n\
                     its operands and results are alive,",
                    human(proved.by_cut),
                    operator(g, n)
                )?;
                self.list(f, &proved.own)?;
                if proved.shared > 0 {
                    writeln!(
                        f,
                        "of which results can take over {} in place",
                        human(proved.shared)
                    )?;
                }
                if proved.cut.is_empty() {
                    writeln!(f, "and nothing else has to be.")?;
                } else {
                    writeln!(
                        f,
                        "and at least {} that was made before it and is read after it;\n\
                         the least such set is",
                        human(proved.cut.iter().map(|h| h.bytes).sum())
                    )?;
                    self.list(f, &proved.cut)?;
                }
            }
            None => writeln!(
                f,
                "No order of this graph stays below {}\n({freely}): so much is alive at the \
                 start or at the end of a step.",
                human(proved.by_cut)
            )?,
        }
        if self.moves {
            return writeln!(
                f,
                "This plan copies to host memory or computes again, so that it may stay below.\n\
                 No plan of this graph does with less than {}, which one operator needs at once.",
                human(self.bound)
            );
        }
        if self.bound > proved.by_cut {
            writeln!(f, "A search through all cases proves {}.", human(self.bound))?;
        }
        match self.peak.saturating_sub(self.bound) {
            0 => writeln!(f, "So this order is proved optimal."),
            gap => writeln!(f, "So at most {} might be saved by another order.", human(gap)),
        }
    }
}

impl Explanation<'_> {
    fn list(&self, f: &mut fmt::Formatter<'_>, all: &[Held]) -> fmt::Result {
        for h in all.iter().take(LISTED) {
            writeln!(f, "  {:>12}  {}", (self.human)(h.bytes), tensor(self.graph, h))?;
        }
        let rest = all.get(LISTED..).unwrap_or_default();
        if !rest.is_empty() {
            let bytes = rest.iter().map(|h| h.bytes).sum();
            writeln!(f, "  {:>12}  in {} more", (self.human)(bytes), rest.len())?;
        }
        Ok(())
    }
}

/// The operator's name in the model with what it is, or its id.
fn operator(g: &Graph, n: NodeId) -> String {
    let node = &g.nodes[n];
    match node.name.as_str() {
        "" => format!("{} {n}", node.op.name()),
        name => format!("`{name}` ({})", node.op.name()),
    }
}

/// The value's name in the model, or its id.
fn value(g: &Graph, v: ValueId) -> String {
    match g.values[v].name.as_str() {
        "" => v.to_string(),
        name => name.to_owned(),
    }
}

fn tensor(g: &Graph, h: &Held) -> String {
    let Some(v) = h.value else { return "scratch".into() };
    let mut text = value(g, v);
    // Writing to a string never fails.
    let _ = write!(text, " {}", g.ty(v));
    text
}
