//! `FlexAttention`: attention whose scores, and whose weights after the softmax, pass a graph each that the node holds.

use super::super::context::Cx;
use super::super::ops::attention;
use super::*;

impl<'m> Importer<'m, '_> {
    pub(super) fn flexible(&mut self, node: &FlatNode<'m>) -> Result<(), ImportError> {
        let (scores, values) = self.composed(node, attention::flexible_scores)?;
        let scores = self.modified(node, "score_mod", scores, 0)?;
        let softmax = |cx: &mut Cx| cx.emit1(Op::Softmax { axis: 3 }, vec![scores]);
        let weights = self.composed(node, softmax)?;
        let weights = self.modified(node, "prob_mod", weights, 1)?;
        let y = self.composed(node, |cx| attention::weighted(cx, weights, values))?;
        self.settle(node.outputs.first().copied().flatten(), Slot::Value(y));
        Ok(())
    }

    /// What the graph of an attribute makes of a value, which is one of the same type; without it the value itself.
    fn modified(
        &mut self,
        node: &FlatNode<'m>,
        name: &str,
        x: ValueId,
        turn: usize,
    ) -> Result<ValueId, ImportError> {
        let Some(body) = node.bodies.iter().find(|b| b.name == name) else { return Ok(x) };
        let made = self.expand(node, body, vec![Slot::Value(x)], turn)?;
        match made[..] {
            [Slot::Value(y)] if self.b.g.ty(y) == self.b.g.ty(x) => Ok(y),
            _ => {
                Err(self
                    .fault(node, format!("its {name} gives no one tensor of the type it takes")))
            }
        }
    }

    /// Builds a part of a node by what builds other nodes.
    fn composed<T>(
        &mut self,
        node: &FlatNode<'m>,
        make: impl FnOnce(&mut Cx) -> Result<T, Fault>,
    ) -> Result<T, ImportError> {
        let Importer { names, uses, b, slots, reader, options, literals, .. } = self;
        let mut cx = Cx { b, slots, uses, literals, reader, names, node, mode: options.mode };
        make(&mut cx).map_err(|fault| node.error(names, fault.0))
    }
}
