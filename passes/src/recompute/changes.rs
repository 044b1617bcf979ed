//! Random changes of a sequence.
//!
//! A repeat is left out; what lies idle between two readers is made again before the second;
//! a run slides to where less is alive.

use super::runs::{Meter, Runs};

/// Repeats of one change.
const CHAIN: usize = 60;

/// A tensor that nothing reads between two runs.
#[derive(Clone, Copy, Debug)]
struct Idle {
    tensor: u32,
    /// The run that uses it before, and the one that reads it next.
    from: usize,
    until: usize,
    /// The run before is the one that makes it.
    is_new: bool,
}

/// What can be changed about a sequence.
#[derive(Default)]
pub(super) struct Changes {
    /// Runs that are repeats.
    repeats: Vec<usize>,
    idle: Vec<Idle>,
    /// Sums of their bytes times the runs above nine tenths of the limit that they lie idle in.
    weights: Vec<f64>,
    /// The last run that reads the copy that is current at each tensor's next reader.
    last: Vec<Vec<(u32, u32)>>,
    /// For each run: the first one that what it reads is there for, and the first that reads what it
    /// makes; `None` where none does.
    ready: Vec<usize>,
    wanted: Vec<Option<usize>>,
}

impl Changes {
    /// Of the sequence that was measured last.
    pub(super) fn learn(&mut self, meter: &Meter, runs: &[u32], limit: u64) {
        let step = meter.step;
        self.repeats.clear();
        self.idle.clear();
        self.weights.clear();
        self.ready.clear();
        self.wanted.clear();
        self.wanted.resize(runs.len(), None);
        let mut seen = vec![false; step.operators()];
        let mut high = vec![0u32];
        high.extend(meter.live.iter().scan(0, |n, &live| {
            *n += u32::from(live > limit - limit / 10);
            Some(*n)
        }));
        let mut used: Vec<u32> = meter.copies.iter().map(|c| c.made).collect();
        let mut sum = 0.0;
        for (i, &op) in runs.iter().enumerate() {
            if std::mem::replace(&mut seen[op as usize], true) {
                self.repeats.push(i);
            }
            let mut ready = 0;
            for &c in meter.read_by(i) {
                let copy = meter.copies[c as usize];
                let (x, made) = (copy.tensor, copy.made as usize);
                let from = std::mem::replace(&mut used[c as usize], i as u32) as usize;
                let is_made = step.producer[x as usize].is_some();
                if is_made {
                    self.wanted[made].get_or_insert(i);
                    ready = ready.max(made + 1);
                }
                let freed = high[i] - high[(from + 1).min(i)];
                if step.maker(x).is_some() && freed > 0 {
                    sum += step.bytes[x as usize] as f64 * f64::from(freed);
                    self.weights.push(sum);
                    self.idle.push(Idle { tensor: x, from, until: i, is_new: from == made });
                }
            }
            self.ready.push(ready);
        }
        self.last.resize(step.tensors(), Vec::new());
        self.last.iter_mut().for_each(Vec::clear);
        for copy in &meter.copies {
            self.last[copy.tensor as usize].push((copy.made, copy.last));
        }
    }

    /// Nothing can be changed.
    pub(super) fn is_empty(&self) -> bool {
        self.repeats.is_empty() && self.idle.is_empty()
    }

    /// A sequence with a random change.
    pub(super) fn draw(
        &self,
        meter: &Meter,
        runs: &[u32],
        random: &mut fastrand::Rng,
    ) -> Option<Runs> {
        let mut out = runs.to_vec();
        let kind = random.u32(0..14);
        if kind < 4 {
            self.slide(meter, &mut out, random)?;
            return Some(out);
        }
        if kind < 10 && !self.repeats.is_empty() {
            let i = self.repeats[random.usize(0..self.repeats.len())];
            if kind < 7 {
                out.remove(i);
                return Some(out);
            }
            self.insert(meter, &mut out, random)?;
            // What stands before the insertion has not moved.
            let moved = out.len() - runs.len();
            let at = out.iter().zip(runs).take_while(|(a, b)| a == b).count();
            out.remove(if i < at { i } else { i + moved });
            return Some(out);
        }
        self.insert(meter, &mut out, random)?;
        Some(out)
    }

    /// Something that lies idle, what frees much where little is free more often.
    fn pick(&self, random: &mut fastrand::Rng) -> Option<Idle> {
        let drawn = random.f64() * self.weights.last()?;
        let k = self.weights.partition_point(|&w| w <= drawn).min(self.idle.len() - 1);
        Some(self.idle[k])
    }

    /// Makes something later that lies idle from when it is made, or has its next reader run
    /// earlier.
    fn slide(&self, meter: &Meter, runs: &mut Runs, random: &mut fastrand::Rng) -> Option<()> {
        let Idle { from, until, is_new, .. } = self.pick(random)?;
        let slides = |run: usize| meter.step.slides[runs[run] as usize].then_some(());
        if is_new && random.bool() {
            slides(from)?;
            let wanted = self.wanted[from].filter(|&wanted| wanted > from + 1)?;
            runs[from..wanted].rotate_left(1);
        } else {
            slides(until)?;
            let ready = self.ready[until];
            if ready >= until {
                return None;
            }
            let to = if random.bool() { ready } else { random.usize(ready..until) };
            runs[to..=until].rotate_right(1);
        }
        Some(())
    }

    /// Makes something again that lies idle.
    fn insert(&self, meter: &Meter, runs: &mut Runs, random: &mut fastrand::Rng) -> Option<()> {
        let step = meter.step;
        let Idle { tensor: x, until: at, .. } = self.pick(random)?;
        let mut ran = vec![false; step.operators()];
        runs[..at].iter().for_each(|&op| ran[op as usize] = true);
        let mut chain: Vec<u32> = Vec::new();
        let mut stack = vec![(step.maker(x)?, 0usize)];
        // Beyond this chance an operand that is gone is kept for longer, not made again.
        let again = random.f64().sqrt();
        while let Some((op, read)) = stack.pop() {
            let reads = step.reads.row(op as usize);
            if let Some(&y) = reads.get(read) {
                stack.push((op, read + 1));
                let copy = self.last[y as usize].iter().rev().find(|c| (c.0 as usize) < at);
                let gone = copy.is_some_and(|&(_, last)| (last as usize) < at);
                if let Some(maker) = step.maker(y).filter(|_| gone)
                    && !chain.contains(&maker)
                    && !stack.iter().any(|s| s.0 == maker)
                    && random.f64() < again
                {
                    stack.push((maker, 0));
                }
                continue;
            }
            if !step.may_run(op, &ran) {
                return None;
            }
            chain.push(op);
            if chain.len() > CHAIN {
                return None;
            }
        }
        runs.splice(at..at, chain);
        Some(())
    }
}
