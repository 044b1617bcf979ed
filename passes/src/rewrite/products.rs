//! Matrix products that passes make parts of other operators.

use arenic_ir::graph::{Graph, NodeId};
use arenic_ir::op::Op;

/// A tensor as a matrix of its rows.
pub(crate) fn rows(shape: &[usize]) -> [usize; 2] {
    match shape {
        [] => [1, 1],
        [above @ .., last] => [above.iter().product(), *last],
    }
}

/// True for a product of two matrices, the rows of the first perhaps in several axes, to which
/// nothing is added yet.
pub(crate) fn is_product(g: &Graph, n: NodeId) -> bool {
    let node = &g.nodes[n];
    let rank = |i: usize| g.ty(node.inputs[i]).rank();
    let is_float = node.inputs.iter().all(|&v| g.ty(v).dtype.is_float());
    let is_one = match node.op {
        Op::MatMul { trans_a, .. } => rank(1) == 2 && (rank(0) == 2 || rank(0) > 2 && !trans_a),
        Op::Gemm { .. } => node.inputs.len() == 2,
        _ => false,
    };
    is_one && is_float
}
