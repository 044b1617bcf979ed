//! Every operator with declared pairs, with operands of their own and with such that are one
//! value; `hold` puts results into all places that are declared.

use super::pairs::{Extents, are_all_covered, cases as all_cases, placements, shared};
use super::random::Random;
use super::{Case, Close, Tensor};
use arenic_ir::{DType, TensorType};
use std::collections::BTreeSet;

/// Few types: that their elements are read before they are written is the same text for all.
const EXTENTS: Extents =
    Extents { matrix: [3, 5], recurrence: [2, 2, 3], types: &[DType::Bool, DType::F32] };

pub(super) fn cases(r: &mut Random) -> Vec<Case> {
    let all = all_cases(r, &EXTENTS);
    are_all_covered(&all);
    let (mut cases, mut tried) = (Vec::new(), BTreeSet::new());
    for (i, (op, operands)) in all.into_iter().enumerate() {
        let types: Vec<&TensorType> = operands.iter().map(|(ty, _)| ty).collect();
        let results = op.infer(&types).unwrap_or_else(|e| panic!("{op:?}: {e}"));
        let pairs = op.in_place_pairs(&types, &results.iter().collect::<Vec<_>>());
        let ways = shared(&types).into_iter();
        let ways = ways.filter(|roots| placements(&pairs, roots, results.len()).len() > 1);
        // Emulating is dear: a third of them, and of every operator some.
        let is_new = tried.insert(op.name());
        let some = ways.enumerate().filter(|(k, _)| (i + k) % 3 == 0 || is_new && *k == 0);
        for (_, roots) in some {
            let tensor = |&i: &usize| Tensor { ty: types[i].clone(), bytes: operands[i].1.clone() };
            let inputs: Vec<Tensor> = roots.iter().map(tensor).collect();
            // What is in place is held to the bits of what is apart, whatever these are.
            cases.push(Case { shared: roots, ..Case::new(op.clone(), inputs).close(Close::SUM) });
        }
    }
    cases
}
