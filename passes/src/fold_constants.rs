//! Constant folding: a node whose operands are all constants becomes a constant.
//!
//! Sound because operators are pure (I2) and the evaluator is the runtime's own kernel.
//! A named float constant of rank ≥ 1 is a parameter that `arenic run --init` may
//! replace, so nothing is folded through it. Results above a limit are not folded
//! either: a constant owns bytes during the whole step, a node's result does not.

use crate::{Cx, GraphPass, PassError, Purpose, Stats};
use arenic_ir::graph::{Data, Def, Graph, NodeId, ValueId};
use bytes::Bytes;
use cranelift_entity::SecondaryMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Evaluates nodes whose operands are all constants.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FoldConstants {
    /// Results above this many bytes are not folded.
    pub max_bytes: u64,
}

impl Default for FoldConstants {
    fn default() -> Self {
        FoldConstants { max_bytes: 4096 }
    }
}

impl GraphPass for FoldConstants {
    fn run(&self, g: &mut Graph, cx: &Cx) -> Result<Stats, PassError> {
        let Some(evaluator) = cx.evaluate else { return Ok(Stats::new()) };
        let mut folded: SecondaryMap<NodeId, bool> = SecondaryMap::new();
        let mut count = 0;
        for n in g.nodes.keys().collect::<Vec<_>>() {
            let Some(results) = self.evaluate(g, n, cx, evaluator) else { continue };
            for (v, bytes) in g.nodes[n].outputs.clone().into_iter().zip(results) {
                if let Some(v) = v {
                    g.values[v].def = Def::Const(Data::Bytes(Bytes::from(bytes)));
                    // A computed value is nothing that a user could replace by name.
                    g.values[v].name.clear();
                }
            }
            folded[n] = true;
            count += 1;
        }
        if count > 0 {
            *g = g.compacted(|n| !folded[n]);
        }
        Ok(Stats::from([("folded_nodes", count)]))
    }
}

impl FoldConstants {
    fn evaluate(
        &self,
        g: &Graph,
        n: NodeId,
        cx: &Cx,
        evaluator: &dyn crate::Evaluate,
    ) -> Option<Vec<Vec<u8>>> {
        let node = &g.nodes[n];
        if node.inputs.is_empty() || node.inputs.iter().any(|&v| is_parameter(g, v, cx)) {
            return None;
        }
        let results = g.output_types(n).ok()?;
        if results.iter().map(|t| t.bytes()).sum::<u64>() > self.max_bytes
            || node.op.rng().is_some()
        {
            return None;
        }
        let operands: Vec<Bytes> =
            node.inputs.iter().map(|&v| g.const_bytes(v)).collect::<Option<_>>()?;
        let operands: Vec<_> =
            g.input_types(n).into_iter().zip(operands.iter().map(|b| &b[..])).collect();
        evaluator.evaluate(&node.op, &operands)
    }
}

/// A named float constant of rank ≥ 1, seen through views; where what was trained is evaluated, a
/// scalar, too, since the importer has folded those that were not.
fn is_parameter(g: &Graph, v: ValueId, cx: &Cx) -> bool {
    let root = &g.values[g.resolve(v).root];
    let may_be_scalar = cx.purpose == Purpose::Evaluation;
    !root.name.is_empty() && root.ty.dtype.is_float() && (root.ty.rank() > 0 || may_be_scalar)
}
