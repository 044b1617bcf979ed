//! Sections: an operator whose operands are too large runs in parts, one after another.
//!
//! tvDNN (Park et al.) runs a data-parallel task several times, each time on a section of its
//! memory objects. Here that is a rewrite of the graph: a node becomes one node for each
//! part, along an axis of the operator table ([`Op::cuts`](arenic_ir::Op::cuts)), and a large
//! value between nodes that are cut alike only ever exists in parts, each of which the later
//! passes place, swap and compute again by itself. States that are read and written in parts
//! become one state for each. Where a reader wants the whole, the parts are joined.
//!
//! How many parts there are follows from the limit: the pipeline runs what follows on the graph
//! as it is and, where that is not as fast as without a limit, on the numbers of parts that promise
//! most (`pipeline::variants`).
//!
//! Sound because a part computes the elements of its results as the whole operator does, sums
//! in the same order ([`Op::cut_keeps_bits`](arenic_ir::Op::cut_keeps_bits)). Cuts that take a
//! sum in another order round otherwise, so they have to be allowed.

mod cuts;
mod rewrite;

use crate::views::Views;
use crate::{Cx, GraphPass, InParts, PassError, Stats, Turns};
use arenic_ir::graph::Graph;
use cuts::Sections;
use rewrite::{Rewriter, with_reshapes};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Cuts operators whose own operands take too much of the byte limit into parts.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Section {
    /// Number of parts of the largest operators; by default the byte limit decides.
    #[schemars(range(min = 1, max = 1024))]
    pub parts: Option<usize>,
    /// Cut sums, too, which changes their order and thereby bits.
    pub allow_reassociation: bool,
}

impl GraphPass for Section {
    fn run(&self, g: &mut Graph, cx: &Cx) -> Result<Stats, PassError> {
        let Some(parts) = self.parts.filter(|&parts| parts > 1) else { return Ok(Stats::new()) };
        let (cut, operators) = self.cut(g, parts, cx)?;
        *g = cut;
        Ok(section_stats(parts, operators))
    }

    fn in_parts(&self, cx: &Cx) -> Option<&dyn InParts> {
        (self.parts.is_none() && cx.limits.device.is_some()).then_some(self)
    }
}

impl InParts for Section {
    fn cut(&self, g: &Graph, parts: usize, cx: &Cx) -> Result<(Graph, u64), PassError> {
        let whole = with_reshapes(g);
        let reassociate = self.allow_reassociation || cx.allow_reassociation;
        let mut sections = Sections::new(&whole, parts, cx.target, reassociate);
        // States that other programs have, too, stay whole.
        sections.states = cx.turns == Turns::Alone;
        sections.grow();
        let operators = sections.cut.values().filter(|cut| cut.is_some()).count();
        let mut cut = Rewriter::new(&sections).rewrite()?;
        Views {}.run(&mut cut, cx)?;
        Ok((cut, operators as u64))
    }
}

/// What there is to print of a cut.
pub(crate) fn section_stats(parts: usize, operators: u64) -> Stats {
    Stats::from([("operators_cut", operators), ("parts", parts as u64)])
}
