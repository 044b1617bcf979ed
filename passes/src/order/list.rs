//! A list scheduler over a plain problem.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Tasks that read and write sized buffers.
pub(super) struct Problem {
    /// Bytes of each buffer; zero for buffers that the order cannot change.
    pub(super) size: Vec<i64>,
    /// Buffers that are alive at the end whoever reads them.
    pub(super) pinned: Vec<bool>,
    /// The tasks, in definition order.
    pub(super) tasks: Vec<Task>,
    /// Pairs (before, after).
    pub(super) dependences: Vec<(usize, usize)>,
}

/// What a task reads and writes, each buffer once.
pub(super) struct Task {
    pub(super) reads: Vec<usize>,
    pub(super) writes: Vec<usize>,
}

/// Always runs the ready task that frees most, net of what it allocates; ties go to the
/// earlier definition. O((tasks + reads) log tasks).
pub(super) fn freed_minus_allocated(p: &Problem) -> Vec<usize> {
    let n = p.tasks.len();
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); p.size.len()];
    for (t, task) in p.tasks.iter().enumerate() {
        task.reads.iter().for_each(|&b| readers[b].push(t));
    }
    let mut left: Vec<usize> =
        readers.iter().zip(&p.pinned).map(|(r, &pinned)| r.len() + usize::from(pinned)).collect();
    let mut blocked = vec![0usize; n];
    let mut unlocks: Vec<Vec<usize>> = vec![Vec::new(); n];
    for &(before, after) in &p.dependences {
        blocked[after] += 1;
        unlocks[before].push(after);
    }
    let gain = |t: usize, left: &[usize]| {
        let task = &p.tasks[t];
        let freed: i64 = task.reads.iter().filter(|&&b| left[b] == 1).map(|&b| p.size[b]).sum();
        freed - task.writes.iter().map(|&b| p.size[b]).sum::<i64>()
    };
    let mut done = vec![false; n];
    let mut ready: BinaryHeap<(i64, Reverse<usize>)> = BinaryHeap::new();
    ready.extend((0..n).filter(|&t| blocked[t] == 0).map(|t| (gain(t, &left), Reverse(t))));
    let mut order = Vec::with_capacity(n);
    while let Some((_, Reverse(t))) = ready.pop() {
        // A task whose gain rose stands in the heap twice; the better entry came first.
        if std::mem::replace(&mut done[t], true) {
            continue;
        }
        order.push(t);
        for &b in &p.tasks[t].reads {
            left[b] -= 1;
            if left[b] == 1
                && let Some(&last) = readers[b].iter().find(|&&r| !done[r])
                && blocked[last] == 0
            {
                ready.push((gain(last, &left), Reverse(last)));
            }
        }
        for &next in &unlocks[t] {
            blocked[next] -= 1;
            if blocked[next] == 0 {
                ready.push((gain(next, &left), Reverse(next)));
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frees_a_large_buffer_before_it_makes_another() {
        // 0 and 1 each make 100 bytes, 2 and 3 reduce them to 1 byte.
        let task = |reads: &[usize], writes: &[usize]| Task {
            reads: reads.to_vec(),
            writes: writes.to_vec(),
        };
        let problem = Problem {
            size: vec![100, 100, 1, 1],
            pinned: vec![false, false, true, true],
            tasks: vec![task(&[], &[0]), task(&[], &[1]), task(&[0], &[2]), task(&[1], &[3])],
            dependences: vec![(0, 2), (1, 3)],
        };
        assert_eq!(freed_minus_allocated(&problem), [0, 2, 1, 3]);
    }
}
