//! Every operator with declared pairs, in all sets of them that go together, with operands of
//! their own and with such that are one value: the bits of all results computed apart.

use super::pairs::{Extents, are_all_covered, cases, placements, shared};
use super::*;

use DType::{Bf16, Bool, F32, F64, I8, I32, I64, U8, U16};

const SMALL: Extents = Extents {
    matrix: [3, 5],
    recurrence: [3, 2, 4],
    types: &[Bf16, Bool, F32, F64, I8, DType::I16, I32, I64, U8, U16, DType::U32, DType::U64],
};

/// What several threads share, and blocks do not divide.
const LARGE: Extents =
    Extents { matrix: [173, 211], recurrence: [2, 9, 130], types: &[Bf16, Bool, F32, I64] };

/// Runs all cases in all places; returns how many places there were.
fn hold(all: &[pairs::Case], threads: usize) -> usize {
    let mut count = 0;
    for (op, operands) in all {
        let types: Vec<&TensorType> = operands.iter().map(|(ty, _)| ty).collect();
        let results = op.infer(&types).unwrap_or_else(|e| panic!("{op:?}: {e}"));
        let pairs = op.in_place_pairs(&types, &results.iter().collect::<Vec<_>>());
        let wanted = vec![true; results.len()];
        for roots in shared(&types) {
            let inputs: Vec<&Bytes> = roots.iter().map(|&i| &operands[i]).collect();
            let on = |threads: usize, place: &[(usize, usize)]| {
                pool(threads).install(|| run(op, &inputs, &roots, place, &wanted))
            };
            let ways = placements(&pairs, &roots, results.len());
            if ways.len() == 1 {
                continue;
            }
            let apart = on(1, &[]);
            for way in &ways {
                let found = on(threads, way);
                for (o, (a, b)) in found.iter().zip(&apart).enumerate() {
                    assert!(a == b, "result {o} of {op:?} on {types:?}, {roots:?}, {way:?}");
                }
                count += 1;
            }
        }
    }
    count
}

#[test]
fn small_operands() {
    let all = cases(&mut Random(31), &SMALL);
    are_all_covered(&all);
    let count = hold(&all, 1);
    assert!(count > 2000, "{count}");
}

#[test]
fn operands_of_several_threads() {
    let count = hold(&cases(&mut Random(32), &LARGE), 3);
    assert!(count > 800, "{count}");
}
