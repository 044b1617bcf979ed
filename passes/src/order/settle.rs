//! An order in which every tensor is alive for no longer than it must be.
//!
//! The peak of an order says nothing about its other operators: the mask of an activation may be made long
//! after it could be, and the activation waits for it, as long as the peak lies elsewhere. Under a limit far
//! below that peak, such places count. Here single operators move, backwards or forwards, between those that they
//! depend on and those that depend on them, as long as the sum of live bytes over the order falls.
//!
//! Sound because no operator passes one that it depends on.

use super::problem::{Kind, Problem};

/// How far an operator moves at once, and how often all are tried.
const FAR: usize = 128;
const ROUNDS: usize = 8;

/// The order after moves of single operators, as long as one lowers the sum of live bytes.
pub(crate) fn settled(p: &Problem, order: &[usize]) -> Vec<usize> {
    let mut s = Settling { p, order: order.to_vec(), position: vec![0; p.len()] };
    s.place(0..p.len());
    for _ in 0..ROUNDS {
        let mut moved = false;
        for v in 0..p.len() {
            moved |= s.improve(v);
        }
        if !moved {
            break;
        }
    }
    s.order
}

struct Settling<'a> {
    p: &'a Problem,
    order: Vec<usize>,
    position: Vec<usize>,
}

impl Settling<'_> {
    /// Notes where the operators of some positions are.
    fn place(&mut self, positions: std::ops::Range<usize>) {
        for i in positions {
            self.position[self.order[i]] = i;
        }
    }

    /// Moves an operator to where the sum of live bytes is least; false where it is.
    fn improve(&mut self, v: usize) -> bool {
        let p = self.p;
        let here = self.position[v];
        let first = p.before[v].iter().map(|&b| self.position[b] + 1).max().unwrap_or(0);
        let last = p.after[v].iter().map(|&a| self.position[a] - 1).min().unwrap_or(p.len() - 1);
        let (first, last) = (first.max(here.saturating_sub(FAR)), last.min(here + FAR));
        // The sum turns where the last other reader of an operand is.
        let others = |&t: &usize| {
            let readers = p.tensors[t].readers.iter().filter(|&&r| r != v);
            readers.map(|&r| self.position[r]).max()
        };
        let mut places: Vec<usize> = p.reads[v].iter().filter_map(others).collect();
        places.extend(places.clone().iter().map(|i| i + 1));
        places.retain(|i| (first..=last).contains(i));
        places.extend([first, last]);
        places.sort_unstable();
        places.dedup();
        let mut best = (0i128, here);
        for to in places {
            if to != here {
                best = best.min((self.change(here, to), to));
            }
        }
        if best.0 < 0 {
            self.shift(here, best.1);
        }
        best.0 < 0
    }

    /// Moves what is at a position to another.
    fn shift(&mut self, from: usize, to: usize) {
        match from < to {
            true => self.order[from..=to].rotate_left(1),
            false => self.order[to..=from].rotate_right(1),
        }
        self.place(from.min(to)..from.max(to) + 1);
    }

    /// By how much a move changes the sum of live bytes.
    fn change(&mut self, from: usize, to: usize) -> i128 {
        let window = from.min(to)..from.max(to) + 1;
        let mut used: Vec<usize> =
            self.order[window.clone()].iter().flat_map(|&v| self.p.used_by(v)).collect();
        used.sort_unstable();
        used.dedup();
        let before = self.sum(&used);
        self.shift(from, to);
        let after = self.sum(&used);
        self.shift(to, from);
        after - before
    }

    /// Bytes of tensors times the operators that they are alive for.
    fn sum(&self, tensors: &[usize]) -> i128 {
        let of = |&t: &usize| {
            let tensor = &self.p.tensors[t];
            let made = tensor.producer.map_or(0, |w| self.position[w]);
            let last = match tensor.kind {
                Kind::Pinned => self.p.len(),
                _ => tensor.readers.iter().map(|&r| self.position[r]).max().unwrap_or(made),
            };
            (last - made) as i128 * i128::from(tensor.bytes)
        };
        tensors.iter().map(of).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::problem::Tensor;
    use super::*;

    /// Bytes of tensors over an order, without sharing.
    fn sum(p: &Problem, order: &[usize]) -> u64 {
        (0..order.len()).map(|i| p.bytes(&p.alive_at(order, i))).sum()
    }

    #[test]
    fn a_mask_is_made_before_what_does_not_need_its_activation() {
        // 0 makes an activation that 1 and 4 read; 2 and 3 make what 5 reads; 4 makes a mask for 5.
        let tensor = |bytes, producer, readers: &[usize]| Tensor {
            bytes,
            producer: Some(producer),
            readers: readers.to_vec(),
            kind: Kind::Transient,
        };
        let tensors = vec![
            tensor(100, 0, &[1, 4]),
            tensor(1, 1, &[2, 3]),
            tensor(80, 2, &[5]),
            tensor(80, 3, &[5]),
            tensor(20, 4, &[5]),
        ];
        let p = Problem::new(6, tensors, &[], &[]).unwrap();
        assert_eq!(settled(&p, &[0, 1, 2, 3, 4, 5]), [0, 1, 4, 2, 3, 5]);
    }

    #[test]
    fn dependences_are_kept_and_the_sum_never_rises() {
        let mut fell = 0;
        for seed in 0..300 {
            let mut random = fastrand::Rng::with_seed(seed);
            let n = random.usize(2..40);
            let tensors = (0..n).map(|w| Tensor {
                bytes: random.u64(1..100),
                producer: Some(w),
                readers: (w + 1..n).filter(|_| random.u8(0..8) == 0).collect(),
                kind: if random.u8(0..6) == 0 { Kind::Pinned } else { Kind::Transient },
            });
            let p = Problem::new(n, tensors.collect(), &[], &[]).unwrap();
            let order: Vec<usize> = (0..n).collect();
            let after = settled(&p, &order);
            assert!(p.is_order(&after), "{seed}");
            let (before, after) = (sum(&p, &order), sum(&p, &after));
            assert!(after <= before, "{seed}: {before} {after}");
            fell += usize::from(after < before);
        }
        assert!(fell > 100, "{fell}");
    }
}
