//! Every operator with declared pairs, with operands of their own and with such that are one
//! value; `hold` puts results into all places that are declared.

use super::pairs::{Extents, are_all_covered, cases as all_cases, shared};
use super::random::Random;
use super::{Case, Close, Tensor};
use arenic_ir::{DType, TensorType};

const EXTENTS: Extents = Extents {
    matrix: [3, 5],
    recurrence: [2, 2, 3],
    types: &[DType::Bf16, DType::Bool, DType::F32, DType::I64],
};

pub(super) fn cases(r: &mut Random) -> Vec<Case> {
    let all = all_cases(r, &EXTENTS);
    are_all_covered(&all);
    let mut cases = Vec::new();
    for (op, operands) in all {
        let types: Vec<&TensorType> = operands.iter().map(|(ty, _)| ty).collect();
        for roots in shared(&types) {
            let tensor = |&i: &usize| Tensor { ty: types[i].clone(), bytes: operands[i].1.clone() };
            let inputs: Vec<Tensor> = roots.iter().map(tensor).collect();
            // What is in place is held to the bits of what is apart, whatever these are.
            cases.push(Case { roots, ..Case::new(op.clone(), inputs).close(Close::SUM) });
        }
    }
    cases
}
