//! Scheduling as a plain problem: operators, tensors, dependences. No graph, no plan.
//!
//! Memory while an operator runs counts its outputs beside its inputs: outputs are
//! allocated before inputs are freed, except where a declared pair lets an output take
//! over the bytes of an input that dies there.

/// How long a tensor is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// For the whole step: weights, optimizer state.
    Resident,
    /// From the start to its last reader.
    Input,
    /// From its producer to its last reader.
    Transient,
    /// From its producer to the end.
    Pinned,
}

/// Bytes that an operator makes and others read.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Its size.
    pub bytes: u64,
    /// The operator that makes it.
    pub producer: Option<usize>,
    /// The operators that read it.
    pub readers: Vec<usize>,
    /// How long it is alive.
    pub kind: Kind,
}

impl Tensor {
    /// False where its bytes are alive throughout.
    fn comes_and_goes(&self) -> bool {
        match self.kind {
            Kind::Resident => false,
            Kind::Input => !self.readers.is_empty(),
            Kind::Transient | Kind::Pinned => self.producer.is_some(),
        }
    }
}

/// What makes a problem unsolvable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// The operator waits for itself.
    Cycle(usize),
    /// All tensors together are beyond 2^60 bytes.
    TooLarge,
}

/// Operators and tensors, indexed from zero in definition order.
#[derive(Clone, Debug)]
pub struct Problem {
    pub(super) tensors: Vec<Tensor>,
    /// Tensors that come and go, per operator that reads them.
    pub(super) reads: Vec<Vec<usize>>,
    /// Tensors that come and go, per operator that makes them.
    pub(super) writes: Vec<Vec<usize>>,
    /// Direct predecessors.
    pub(super) before: Vec<Vec<usize>>,
    /// Direct successors.
    pub(super) after: Vec<Vec<usize>>,
    /// Declared in-place pairs (input, output) per operator.
    pub(super) pairs: Vec<Vec<(usize, usize)>>,
    /// Bytes that are alive throughout.
    pub(super) resident: u64,
}

impl Problem {
    /// A problem of `operators` operators. `dependences` are pairs (before, after) beside
    /// those that follow from the tensors; `pairs` are in-place pairs (operator, input,
    /// output). Indices must be in range.
    ///
    /// # Errors
    /// See [`Invalid`].
    pub fn new(
        operators: usize,
        mut tensors: Vec<Tensor>,
        dependences: &[(usize, usize)],
        pairs: &[(usize, usize, usize)],
    ) -> Result<Problem, Invalid> {
        let total: u128 = tensors.iter().map(|t| u128::from(t.bytes)).sum();
        if total > 1 << 60 {
            return Err(Invalid::TooLarge);
        }
        let empty = vec![Vec::new(); operators];
        let mut p = Problem {
            tensors: Vec::new(),
            reads: empty.clone(),
            writes: empty.clone(),
            before: empty.clone(),
            after: empty.clone(),
            pairs: vec![Vec::new(); operators],
            resident: 0,
        };
        for &(a, b) in dependences {
            p.after[a].push(b);
        }
        for (i, t) in tensors.iter_mut().enumerate() {
            t.readers.sort_unstable();
            t.readers.dedup();
            if let Some(w) = t.producer {
                p.after[w].extend(&t.readers);
            }
            if !t.comes_and_goes() {
                p.resident += t.bytes;
            } else if t.bytes > 0 {
                t.readers.iter().for_each(|&r| p.reads[r].push(i));
                if let Some(w) = t.producer {
                    p.writes[w].push(i);
                }
            }
        }
        for a in 0..operators {
            p.after[a].sort_unstable();
            p.after[a].dedup();
            for i in 0..p.after[a].len() {
                let b = p.after[a][i];
                p.before[b].push(a);
            }
        }
        for &(v, x, y) in pairs {
            if p.reads[v].contains(&x) && p.writes[v].contains(&y) {
                p.pairs[v].push((x, y));
            }
        }
        p.tensors = tensors;
        p.refuse_cycles()?;
        Ok(p)
    }

    fn refuse_cycles(&self) -> Result<(), Invalid> {
        let mut blocked: Vec<usize> = self.before.iter().map(Vec::len).collect();
        let mut ready: Vec<usize> = (0..self.len()).filter(|&v| blocked[v] == 0).collect();
        while let Some(v) = ready.pop() {
            for &next in &self.after[v] {
                blocked[next] -= 1;
                if blocked[next] == 0 {
                    ready.push(next);
                }
            }
        }
        // Walking back among what never got ready ends in a cycle.
        let Some(mut v) = (0..self.len()).find(|&v| blocked[v] > 0) else { return Ok(()) };
        for _ in 0..self.len() {
            v = self.before[v].iter().copied().find(|&b| blocked[b] > 0).unwrap_or(v);
        }
        Err(Invalid::Cycle(v))
    }

    /// Number of operators.
    pub fn len(&self) -> usize {
        self.reads.len()
    }

    /// Number of tensors.
    pub fn tensors(&self) -> usize {
        self.tensors.len()
    }

    /// The tensors that come and go and that an operator reads.
    pub(crate) fn reads(&self, v: usize) -> &[usize] {
        &self.reads[v]
    }

    /// Its direct predecessors.
    pub(crate) fn before(&self, v: usize) -> &[usize] {
        &self.before[v]
    }

    /// Its direct successors.
    pub(crate) fn after(&self, v: usize) -> &[usize] {
        &self.after[v]
    }

    /// The tensors that come and go and that an operator makes.
    pub(crate) fn writes(&self, v: usize) -> &[usize] {
        &self.writes[v]
    }

    /// An operator's declared in-place pairs (input, output).
    pub(crate) fn pairs(&self, v: usize) -> &[(usize, usize)] {
        &self.pairs[v]
    }

    /// A tensor.
    pub(crate) fn tensor(&self, t: usize) -> &Tensor {
        &self.tensors[t]
    }

    /// True without operators.
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    /// Bytes that are alive throughout.
    pub fn resident(&self) -> u64 {
        self.resident
    }

    /// What an operator reads and writes of the tensors that come and go.
    pub fn used_by(&self, v: usize) -> Vec<usize> {
        let mut used = [&self.reads[v][..], &self.writes[v]].concat();
        used.sort_unstable();
        used.dedup();
        used
    }

    /// The tensors that come and go and are alive while the i-th operator of an order runs.
    pub fn alive_at(&self, order: &[usize], i: usize) -> Vec<usize> {
        let mut position = vec![0; self.len()];
        order.iter().enumerate().for_each(|(i, &v)| position[v] = i);
        let alive = |t: &usize| {
            let tensor = &self.tensors[*t];
            let made = tensor.producer.map_or(0, |w| position[w]);
            let last = tensor.readers.iter().map(|&r| position[r]).max().unwrap_or(made);
            self.comes_and_goes(*t) && made <= i && (tensor.kind == Kind::Pinned || i <= last)
        };
        (0..self.tensors.len()).filter(alive).collect()
    }

    /// Bytes of some tensors together.
    pub fn bytes(&self, tensors: &[usize]) -> u64 {
        tensors.iter().map(|&t| self.tensors[t].bytes).sum()
    }

    /// Bytes alive before the first operator.
    pub(super) fn at_start(&self) -> u64 {
        let inputs = self.tensors.iter().filter(|t| t.kind == Kind::Input && !t.readers.is_empty());
        self.resident + inputs.map(|t| t.bytes).sum::<u64>()
    }

    /// True for a tensor with bytes that are not alive throughout.
    pub fn comes_and_goes(&self, t: usize) -> bool {
        self.tensors[t].bytes > 0 && self.tensors[t].comes_and_goes()
    }

    /// True for a permutation of the operators that keeps to all dependences.
    pub fn is_order(&self, order: &[usize]) -> bool {
        let mut position = vec![usize::MAX; self.len()];
        order.iter().enumerate().for_each(|(i, &v)| position[v] = i);
        let after_all = |v: usize| self.before[v].iter().all(|&b| position[b] < position[v]);
        order.len() == self.len()
            && (0..self.len()).all(|v| position[v] != usize::MAX && after_all(v))
    }

    /// Bytes alive after the last operator.
    pub(super) fn at_end(&self) -> u64 {
        let pinned = self.tensors.iter().filter(|t| t.kind == Kind::Pinned && t.producer.is_some());
        self.resident + pinned.map(|t| t.bytes).sum::<u64>()
    }

    /// True for a tensor that is alive for its producer alone.
    pub(super) fn is_unread(&self, t: usize) -> bool {
        self.tensors[t].kind == Kind::Transient && self.tensors[t].readers.is_empty()
    }

    /// How many readers must have run before the tensor is freed; pinned ones never are.
    pub(super) fn holders(&self) -> Vec<usize> {
        let pinned = |t: &Tensor| usize::from(t.kind == Kind::Pinned);
        self.tensors.iter().map(|t| t.readers.len() + pinned(t)).collect()
    }

    /// Bytes that the operator's inputs and outputs take whatever else is alive: the
    /// largest matching of its declared pairs is taken off.
    pub fn own(&self, v: usize) -> u64 {
        let all = self.bytes(&self.reads[v]) + self.bytes(&self.writes[v]);
        all - self.largest_matching(&self.pairs[v])
    }

    /// Bytes that the operator's outputs take over from inputs that die in it, where
    /// `left` counts the readers that each tensor still waits for.
    pub(super) fn saving(&self, v: usize, left: &[usize]) -> u64 {
        if self.pairs[v].is_empty() {
            return 0;
        }
        let dying = self.pairs[v].iter().copied().filter(|&(x, _)| left[x] == 1);
        self.largest_matching(&dying.collect::<Vec<_>>())
    }

    /// The memory while each operator of an order runs, by position.
    pub fn profile(&self, order: &[usize]) -> Vec<u64> {
        let mut left = self.holders();
        let mut live = self.at_start();
        let mut profile = Vec::with_capacity(order.len());
        for &v in order {
            live += self.bytes(&self.writes[v]);
            profile.push(live - self.saving(v, &left));
            for &t in &self.reads[v] {
                left[t] -= 1;
                if left[t] == 0 {
                    live -= self.tensors[t].bytes;
                }
            }
            let unread = self.writes[v].iter().filter(|&&t| self.is_unread(t));
            live -= unread.map(|&t| self.tensors[t].bytes).sum::<u64>();
        }
        profile
    }

    /// The largest memory at any time of an order.
    pub fn peak(&self, order: &[usize]) -> u64 {
        self.profile(order).into_iter().fold(self.at_start(), u64::max)
    }

    /// Adds dependences (before, after).
    ///
    /// # Errors
    /// An operator would wait for itself.
    pub(super) fn add_dependences(&mut self, arcs: &[(usize, usize)]) -> Result<(), Invalid> {
        for &(a, b) in arcs {
            if !self.after[a].contains(&b) {
                self.after[a].push(b);
                self.before[b].push(a);
            }
        }
        self.refuse_cycles()
    }

    /// Operators that are comparable with all others, by position: whatever the order, the
    /// same operators run before them. Between two of them a problem splits exactly.
    pub fn fixed_positions(&self) -> Vec<usize> {
        let forwards = alone(&self.before, &self.after);
        let backwards = alone(&self.after, &self.before);
        let n = self.len();
        // Alone from the front at position i: all others of the rest follow it. Alone from
        // the back there too: all before precede it.
        (0..n).filter(|&i| forwards[i].is_some() && forwards[i] == backwards[n - 1 - i]).collect()
    }

    /// The largest total of pairs without a common member. Operators declare a handful,
    /// so trying all subsets is cheap.
    fn largest_matching(&self, pairs: &[(usize, usize)]) -> u64 {
        match pairs {
            [_] => self.shared(pairs),
            _ => self.shared(&self.best_matching(pairs)),
        }
    }

    /// The pairs of operator v that share most, among inputs that die in it.
    pub(super) fn matching(&self, v: usize, dies: impl Fn(usize) -> bool) -> Vec<(usize, usize)> {
        let dying = self.pairs[v].iter().copied().filter(|&(x, _)| dies(x));
        self.best_matching(&dying.collect::<Vec<_>>())
    }

    fn best_matching(&self, pairs: &[(usize, usize)]) -> Vec<(usize, usize)> {
        let Some((&(x, y), rest)) = pairs.split_first() else { return Vec::new() };
        let apart: Vec<_> = rest.iter().copied().filter(|&(a, b)| a != x && b != y).collect();
        let mut with = self.best_matching(&apart);
        with.push((x, y));
        let without = self.best_matching(rest);
        if self.shared(&without) >= self.shared(&with) { without } else { with }
    }

    fn shared(&self, pairs: &[(usize, usize)]) -> u64 {
        let bytes = |&(x, y): &(usize, usize)| self.tensors[x].bytes.min(self.tensors[y].bytes);
        pairs.iter().map(bytes).sum()
    }
}

/// The operator at each position of some order where it was the only one that could run.
fn alone(before: &[Vec<usize>], after: &[Vec<usize>]) -> Vec<Option<usize>> {
    let mut blocked: Vec<usize> = before.iter().map(Vec::len).collect();
    let mut ready: Vec<usize> = (0..before.len()).filter(|&v| blocked[v] == 0).collect();
    let mut alone = Vec::with_capacity(before.len());
    while let Some(v) = ready.pop() {
        alone.push(ready.is_empty().then_some(v));
        for &next in &after[v] {
            blocked[next] -= 1;
            if blocked[next] == 0 {
                ready.push(next);
            }
        }
    }
    alone
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(bytes: u64, producer: usize, readers: &[usize]) -> Tensor {
        let readers = readers.to_vec();
        Tensor { bytes, producer: Some(producer), readers, kind: Kind::Transient }
    }

    #[test]
    fn outputs_are_allocated_before_inputs_are_freed() {
        let input = Tensor { bytes: 5, producer: None, readers: vec![0], kind: Kind::Input };
        let weight = Tensor { bytes: 100, producer: None, readers: vec![0], kind: Kind::Resident };
        let output = Tensor { kind: Kind::Pinned, ..tensor(1, 1, &[]) };
        let tensors = vec![input, weight, tensor(10, 0, &[1]), output];
        let p = Problem::new(2, tensors.clone(), &[], &[]).unwrap();
        assert_eq!(p.profile(&[0, 1]), [115, 111]);
        let p = Problem::new(2, tensors, &[], &[(0, 0, 2)]).unwrap();
        assert_eq!(p.profile(&[0, 1]), [110, 111]);
    }

    #[test]
    fn cycles_and_absurd_sizes_are_refused() {
        let ring = vec![tensor(1, 0, &[1]), tensor(1, 1, &[0])];
        assert!(matches!(Problem::new(2, ring, &[], &[]), Err(Invalid::Cycle(_))));
        let huge = vec![tensor(u64::MAX, 0, &[]), tensor(u64::MAX, 0, &[])];
        assert_eq!(Problem::new(1, huge, &[], &[]).unwrap_err(), Invalid::TooLarge);
    }
}
