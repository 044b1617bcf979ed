//! `SequenceMap`: a graph for each place of a sequence.

use super::*;

impl<'m> Importer<'m, '_> {
    /// Turn `i` reads element `i` of each operand that is a sequence, and tensors as they are; its results are element `i` of
    /// the node's.
    pub(super) fn map(&mut self, node: &FlatNode<'m>) -> Result<(), ImportError> {
        let body = self.body(node, "body")?;
        let mut operands = Vec::with_capacity(node.inputs.len());
        for t in &node.inputs {
            let t = t.ok_or_else(|| self.fault(node, "an operand is missing"))?;
            operands.push(self.operand(node, t)?);
        }
        let length = |slot: &Slot| match slot {
            Slot::Sequence(parts) => Some(parts.len()),
            _ => None,
        };
        let Some(turns) = operands.first().and_then(length) else {
            return Err(self.fault(node, "its first operand is no sequence"));
        };
        if operands.iter().filter_map(length).any(|n| n != turns) {
            return Err(self.fault(node, "its sequences differ in length"));
        }
        let mut results: Vec<Vec<ValueId>> = vec![Vec::with_capacity(turns); node.outputs.len()];
        for turn in 0..turns {
            let element = |slot: &Slot| match slot {
                Slot::Sequence(parts) => Slot::Value(parts[turn]),
                other => other.clone(),
            };
            let made = self.expand(node, body, operands.iter().map(element).collect(), turn)?;
            if made.len() < results.len() {
                return Err(self.fault(node, "its body gives too few values"));
            }
            for (all, slot) in results.iter_mut().zip(made) {
                let Slot::Value(v) = slot else {
                    return Err(self.fault(node, "its body gives a sequence"));
                };
                all.push(v);
            }
        }
        for (t, parts) in node.outputs.iter().zip(results) {
            self.settle(*t, Slot::Sequence(parts));
        }
        Ok(())
    }
}
