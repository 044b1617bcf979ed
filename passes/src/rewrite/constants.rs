//! What is known of constants.

use arenic_ir::graph::{Def, Graph, ValueId};
use arenic_ir::op::Op;

/// True for a constant of zeros, under whatever shape.
pub(crate) fn is_zero(g: &Graph, v: ValueId) -> bool {
    match &g.values[v].def {
        Def::Const(data) => data.bytes().is_some_and(|b| b.iter().all(|&byte| byte == 0)),
        Def::Node { node, .. } => {
            let node = &g.nodes[*node];
            matches!(node.op, Op::Expand { .. } | Op::Reshape { .. }) && is_zero(g, node.inputs[0])
        }
        _ => false,
    }
}
