//! Dead code: nodes whose results reach no output and no state are dropped, results that
//! nobody reads become `None` and own no bytes.
//!
//! Sound because operators are pure (I2): a node acts through its results alone.

use crate::{Cx, GraphPass, PassError, Stats};
use arenic_ir::graph::{Def, Graph, NodeId};
use cranelift_entity::SecondaryMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Drops nodes and results that no output and no state depends on.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DeadCode {}

impl GraphPass for DeadCode {
    fn run(&self, g: &mut Graph, _: &Cx) -> Result<Stats, PassError> {
        let before = g.nodes.len();
        let live = live(g);
        *g = g.compacted(|n| live[n]);
        Ok(Stats::from([("removed_nodes", (before - g.nodes.len()) as u64)]))
    }
}

/// Nodes that an output or a state depends on.
pub(crate) fn live(g: &Graph) -> SecondaryMap<NodeId, bool> {
    let mut live: SecondaryMap<NodeId, bool> = SecondaryMap::new();
    let ends = g.outputs.iter().map(|o| o.value).chain(g.states.values().map(|s| s.exit));
    let mut stack: Vec<_> = ends.collect();
    while let Some(v) = stack.pop() {
        if let Def::Node { node, .. } = g.values[g.resolve(v).root].def
            && !std::mem::replace(&mut live[node], true)
        {
            stack.extend(&g.nodes[node].inputs);
        }
    }
    live
}
