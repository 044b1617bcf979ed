//! Values between two bounds.
//!
//! PyTorch's exporter and JAX's write `clamp(x, low, high)` and `relu6` as `min(max(x, low), high)`, which is
//! [`Op::Clip`] bit by bit. Its gradient needs one mask of what is inside; those of the two operators need `x` and the
//! result of the first as well. On a bound `Clip` passes the gradient on, as PyTorch's `clamp` does. One bound alone stays a
//! maximum or a minimum: its gradient reads `x` alone, too, and halves a tie, as `torch.maximum` and JAX do.

use crate::PassError;
use crate::rewrite::{Editor, GraphView};
use arenic_ir::graph::{Def, Graph, NodeId, ValueId};
use arenic_ir::op::{Binary, Op};

/// Puts a clip in the place of each pair; how many there were.
pub(super) fn clamps(g: &mut Graph) -> Result<u64, PassError> {
    let view = GraphView::new(g);
    let found: Vec<(NodeId, Clamp)> =
        g.nodes.keys().filter_map(|n| Some((n, clamp(&view, n)?))).collect();
    if found.is_empty() {
        return Ok(0);
    }
    let mut e = Editor::new(g);
    for (at, Clamp { x, low, high, result }) in &found {
        let (low, high) = (e.reshaped(*at, *low, &[])?, e.reshaped(*at, *high, &[])?);
        let clip = e.value(*at, Op::Clip { min: true, max: true }, vec![*x, low, high])?;
        e.replace(*at, *result, clip)?;
    }
    e.finish();
    Ok(found.len() as u64)
}

struct Clamp {
    x: ValueId,
    low: ValueId,
    high: ValueId,
    result: ValueId,
}

fn clamp(view: &GraphView, n: NodeId) -> Option<Clamp> {
    let result = view.g.result(n)?;
    let (raised, high) = bounded(view, n, Binary::Min)?;
    let first = view.definition(raised).filter(|_| view.only_use(raised) == Some(n))?;
    let (x, low) = bounded(view, first, Binary::Max)?;
    let is_whole = view.g.ty(x).elements() == view.g.ty(result).elements();
    (is_whole && view.g.ty(x).dtype.is_float()).then_some(Clamp { x, low, high, result })
}

/// What a node compares with a constant of one element, and that constant.
fn bounded(view: &GraphView, n: NodeId, f: Binary) -> Option<(ValueId, ValueId)> {
    let [a, b] = view.applied(n, f)?;
    let is_bound = |v: ValueId| {
        let root = view.base(v);
        view.g.ty(v).elements() == 1 && matches!(view.g.values[root].def, Def::Const(_))
    };
    match (is_bound(a), is_bound(b)) {
        (false, true) => Some((a, b)),
        (true, false) => Some((b, a)),
        _ => None,
    }
}
