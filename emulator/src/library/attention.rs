//! Attention, and its gradients, row by row.

use super::Element;
use arenic_backends::cuda::library::Attention;

/// Where the elements of queries, keys, values and the result are: sequence, matrix, row, element.
fn at(a: &Attention, kind: usize, [sequence, matrix, row, element]: [usize; 4]) -> usize {
    let [sequences, matrices, rows] = a.strides[kind];
    a.first[kind] + sequence * sequences + matrix * matrices + row * rows + element
}

/// Computes a call on operands in its order, then its results.
///
/// # Safety
/// The addresses are those of such tensors; a result overlaps no operand.
pub(super) unsafe fn compute<T: Element<f32>>(a: &Attention, operands: &[u64], results: &[u64]) {
    // SAFETY: the caller's promise.
    let read =
        |operand: usize, i: usize| unsafe { (*(operands[operand] as *const T).add(i)).read() };
    // SAFETY: as above.
    let write = |result: usize, i: usize, x: f32| unsafe {
        *(results[result] as *mut T).add(i) = T::of(x);
    };
    let statistics = match (a.gradients, a.keeps_statistics) {
        (true, _) => Some(operands[5]),
        (false, true) => Some(results[1]),
        (false, false) => None,
    };
    let shared = a.heads / a.key_heads;
    assert_eq!(shared * a.key_heads, a.heads, "{a:?}");
    for (b, group) in (0..a.batch).flat_map(|b| (0..a.key_heads).map(move |group| (b, group))) {
        let mut of_keys = vec![0.0f32; a.keys * a.depth];
        let mut of_values = vec![0.0f32; a.keys * a.width];
        let row = |kind: usize, head: usize, row: usize, elements: usize| -> Vec<f32> {
            (0..elements).map(|e| read(kind, at(a, kind.min(3), [b, head, row, e]))).collect()
        };
        let dot = |x: &[f32], y: &[f32]| -> f32 { x.iter().zip(y).map(|(x, y)| x * y).sum() };
        let keys: Vec<_> = (0..a.keys).map(|s| row(1, group, s, a.depth)).collect();
        let values: Vec<_> = (0..a.keys).map(|s| row(2, group, s, a.width)).collect();
        let heads = group * shared..(group + 1) * shared;
        for (head, t) in heads.flat_map(|head| (0..a.queries).map(move |t| (head, t))) {
            let query = row(0, head, t, a.depth);
            let most = if a.causal { a.keys.min(t + 1) } else { a.keys };
            let scores: Vec<_> = keys[..most].iter().map(|k| a.scale * dot(&query, k)).collect();
            let at_row = |address: u64| {
                (address as *mut f32).wrapping_add((b * a.heads + head) * a.queries + t)
            };
            if !a.gradients {
                let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let sum: f32 = scores.iter().map(|s| (s - largest).exp()).sum();
                if let Some(to) = statistics {
                    // SAFETY: the caller's promise.
                    unsafe { *at_row(to) = largest + sum.ln() };
                }
                let weights = scores.iter().map(|s| (s - largest).exp() / sum);
                let weights: Vec<_> = weights.collect();
                for e in 0..a.width {
                    let result = weights.iter().zip(&values).map(|(p, v)| p * v[e]).sum();
                    write(0, at(a, 3, [b, head, t, e]), result);
                }
                continue;
            }
            let (y, dy) = (row(3, head, t, a.width), row(4, head, t, a.width));
            let mean = dot(&y, &dy);
            // SAFETY: as above.
            let of_row = statistics.map_or(0.0, |from| unsafe { *at_row(from) });
            let mut of_query = vec![0.0f32; a.depth];
            for (s, score) in scores.iter().enumerate() {
                let weight = (score - of_row).exp();
                let slope = a.scale * weight * (dot(&dy, &values[s]) - mean);
                for e in 0..a.width {
                    of_values[s * a.width + e] += weight * dy[e];
                }
                for e in 0..a.depth {
                    of_keys[s * a.depth + e] += slope * query[e];
                    of_query[e] += slope * keys[s][e];
                }
            }
            for (e, &x) in of_query.iter().enumerate() {
                write(0, at(a, 0, [b, head, t, e]), x);
            }
        }
        if a.gradients {
            for (result, sums, elements) in [(1, &of_keys, a.depth), (2, &of_values, a.width)] {
                for (i, &x) in sums.iter().enumerate() {
                    write(result, at(a, result, [b, group, i / elements, i % elements]), x);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arenic_ir::DType;

    /// Grouped heads, rows of several matrices beside each other, more queries than keys.
    fn attention(gradients: bool) -> Attention {
        Attention {
            dtype: DType::F32,
            gradients,
            batch: 2,
            heads: 4,
            key_heads: 2,
            queries: 5,
            keys: 3,
            depth: 2,
            width: 3,
            scale: 0.7,
            causal: true,
            keeps_statistics: true,
            strides: [[40, 2, 8], [12, 6, 2], [18, 3, 6], [60, 15, 3]],
            first: [0; 4],
            packed: false,
        }
    }

    fn run(a: &Attention, operands: &[&[f32]], results: &mut [&mut [f32]]) {
        let operands: Vec<_> = operands.iter().map(|x| x.as_ptr() as u64).collect();
        let results: Vec<_> = results.iter_mut().map(|y| y.as_mut_ptr() as u64).collect();
        // SAFETY: the lengths are those of the strides.
        unsafe { compute::<f32>(a, &operands, &results) };
    }

    #[test]
    fn gradients_are_slopes_of_the_result() {
        let some = |n: usize, seed: usize| -> Vec<f32> {
            (0..n).map(|i| ((i * 37 + seed * 11) % 19) as f32 / 9.5 - 1.0).collect()
        };
        let operands = [some(80, 1), some(24, 2), some(36, 3)];
        let dy = some(120, 4);
        let forward = |[q, k, v]: &[Vec<f32>; 3]| {
            let (mut y, mut statistics) = (vec![0.0; 120], vec![0.0; 40]);
            run(&attention(false), &[q, k, v], &mut [&mut y, &mut statistics]);
            (y, statistics)
        };
        let (y, statistics) = forward(&operands);
        let mut gradients = [vec![0.0; 80], vec![0.0; 24], vec![0.0; 36]];
        let [q, k, v] = &operands;
        let [dq, dk, dv] = &mut gradients;
        run(&attention(true), &[q, k, v, &y, &dy, &statistics], &mut [dq, dk, dv]);
        let loss = |operands: &[Vec<f32>; 3]| -> f64 {
            let (y, _) = forward(operands);
            y.iter().zip(&dy).map(|(y, dy)| f64::from(*y) * f64::from(*dy)).sum()
        };
        for (operand, gradient) in gradients.iter().enumerate() {
            for (i, &slope) in gradient.iter().enumerate() {
                let at = |step: f32| {
                    let mut moved = operands.clone();
                    moved[operand][i] += step;
                    loss(&moved)
                };
                let found = (at(0.01) - at(-0.01)) / 0.02;
                assert!((found - f64::from(slope)).abs() < 2e-3, "{operand} {i}: {found} {slope}");
            }
        }
    }
}
