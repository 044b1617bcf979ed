//! Placement by integer program: OLLA's equations 6–8 and 15.
//!
//! With the order given, two buffers coexist or they do not, so a pair that does takes one
//! binary (which of both lies below) and two rows instead of two binaries; pairs that do not
//! coexist take none. The pyramid (function 5) is fixed first, as in the paper. The program
//! starts from the lowest of some one-pass placements around it, or, without the pyramid, from
//! what the heuristics of `place` find where that is lower: branch and bound alone finds no
//! such placement, where HiGHS has heuristics of its own. Sound because what the solver says is
//! used as a sequence only: buffers are put at their least free offsets in the order of its
//! addresses, and the result is measured.

use crate::Search;
use crate::mip::{self, Failure, Var};
use crate::place::{
    Buffer, Fit, ONE_PASS, Place, Placer, Problem, Sequence, Solution, Wish, one_pass,
    one_pass_work, pyramid, stack,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Places slots by OLLA's integer program over addresses, the pyramid first.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PlaceIlp {
    /// Effort for the program, in seconds of the reference core.
    #[schemars(range(min = 0.0))]
    pub effort: f64,
    /// Fix the pyramid of nested lifetimes first.
    pub pyramid: bool,
    /// Most pairs of coexisting buffers for an integer program; beyond them the heuristic's
    /// placement stays.
    pub max_pairs: usize,
}

impl Default for PlaceIlp {
    fn default() -> Self {
        PlaceIlp { effort: 60.0, pyramid: true, max_pairs: 20_000 }
    }
}

impl Placer for PlaceIlp {
    fn place(&self, p: &Problem, wish: &Wish) -> Solution {
        let mut fixed = if self.pyramid { pyramid(p) } else { Vec::new() };
        let named = |offsets| Solution::of(p, offsets, "place_ilp", wish.capacity);
        let mut heuristic = named(start(p, &fixed));
        if !heuristic.optimal {
            let search = Search { effort: Some(0.0), ..wish.search };
            let quick = Place { effort: 0.0 }.place(p, &Wish { search, ..*wish });
            if quick.height < heuristic.height {
                (fixed, heuristic) = (Vec::new(), named(quick.offsets));
            }
        }
        let enough = wish.capacity.is_some_and(|c| heuristic.height <= c);
        if heuristic.optimal || heuristic.impossible || enough {
            return heuristic;
        }
        let budget = wish.search.budget(self.effort);
        let limits = mip::Limits::new(&budget, wish.search.seed);
        let Some(pairs) = coexisting(p, self.max_pairs) else { return heuristic };
        let Ok(sequence) = solve(p, &fixed, &heuristic, &pairs, &limits) else { return heuristic };
        let found = named(stack(p, &sequence));
        if found.height < heuristic.height { found } else { heuristic }
    }
}

/// The lowest of the one-pass placements around what is fixed.
fn start(p: &Problem, fixed: &[(usize, u64)]) -> Vec<u64> {
    // Unlimited work always ends in a placement.
    let first = one_pass(p, (Sequence::Size, Fit::Best), fixed, &mut u64::MAX.clone());
    let mut work = one_pass_work(p.buffers().len());
    let others = ONE_PASS.into_iter().map_while(|(_, pass)| one_pass(p, pass, fixed, &mut work));
    first.into_iter().chain(others).min_by_key(|offsets| p.height(offsets)).unwrap_or_default()
}

/// Pairs of buffers that are alive at once; `None` where there are more than `most`. A sweep
/// over time, so that the others cost nothing.
fn coexisting(p: &Problem, most: usize) -> Option<Vec<(usize, usize)>> {
    let buffers = p.buffers();
    let mut by_start: Vec<usize> = (0..buffers.len()).filter(|&i| buffers[i].size > 0).collect();
    by_start.sort_by_key(|&i| (buffers[i].lower, i));
    let mut alive: Vec<usize> = Vec::new();
    let mut pairs = Vec::new();
    for i in by_start {
        alive.retain(|&j| buffers[j].upper > buffers[i].lower);
        if pairs.len() + alive.len() > most {
            return None;
        }
        pairs.extend(alive.iter().map(|&j| (j, i)));
        alive.push(i);
    }
    Some(pairs)
}

/// The buffers in the order of the addresses that the program gives them.
fn solve(
    p: &Problem,
    fixed: &[(usize, u64)],
    start: &Solution,
    pairs: &[(usize, usize)],
    limits: &mip::Limits,
) -> Result<Vec<usize>, Failure> {
    let buffers = p.buffers();
    let unit = unit(buffers, start.height);
    let units = |bytes: u64| bytes as f64 / unit;
    let height = units(start.height);
    let mut program = mip::IntegerProgram::default();
    let mut values = Vec::new();
    let mut real = |program: &mut mip::IntegerProgram, min: f64, max: f64, value: f64| {
        values.push(value);
        program.real(min, max)
    };
    let peak = real(&mut program, units(p.bound()).min(height), height, height);
    let mut address: Vec<Var> = Vec::with_capacity(buffers.len());
    for (i, b) in buffers.iter().enumerate() {
        let at = units(start.offsets[i]);
        let pinned = b.offset.is_some() || fixed.iter().any(|&(f, _)| f == i);
        let (min, max) = if pinned { (at, at) } else { (0.0, height) };
        let a = real(&mut program, min, max, at);
        program.at_most(&[(1.0, a), (-1.0, peak)], -units(b.rounded()));
        address.push(a);
    }
    for &(i, j) in pairs {
        let below = start.offsets[i] < start.offsets[j];
        values.push(f64::from(u8::from(below)));
        let b = program.binary();
        // Equations 7a and 7b with b = a(i, j) = 1 − b(i, j).
        let (si, sj) = (units(buffers[i].rounded()), units(buffers[j].rounded()));
        program.at_most(&[(1.0, address[i]), (-1.0, address[j]), (height, b)], height - si);
        program.at_most(&[(1.0, address[j]), (-1.0, address[i]), (-height, b)], -sj);
    }
    let answer = program.minimise(peak, &values, limits, &mut |_, _| {})?;
    let mut sequence: Vec<usize> = (0..buffers.len()).collect();
    sequence.sort_by(|&i, &j| answer.value(address[i]).total_cmp(&answer.value(address[j])));
    Ok(sequence)
}

/// The largest figure a row should hold.
const LARGEST: f64 = 1e5;

/// Bytes of one unit of the program: the greatest common divisor of all sizes, or more where
/// the height would be too large a figure.
fn unit(buffers: &[Buffer], height: u64) -> f64 {
    let divisor = buffers.iter().map(Buffer::rounded).fold(0, mip::gcd).max(1) as f64;
    divisor.max(height as f64 / LARGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The program alone, from the worst placement: each buffer above all others.
    #[test]
    fn the_program_finds_the_lowest_placement_from_the_highest() {
        let mut better = 0;
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let buffer = |_| {
                let lower = random.i64(0..6);
                let (upper, size) = (lower + random.i64(1..5), random.u64(1..20));
                Buffer { lower, upper, size, alignment: 1, ..Buffer::default() }
            };
            let p = Problem::new((0..6).map(buffer).collect()).unwrap();
            let mut top = 0;
            let above = |b: &Buffer| {
                top += b.size;
                top - b.size
            };
            let stacked = p.buffers().iter().map(above).collect();
            let highest = Solution::of(&p, stacked, "stacked", None);
            let budget = Search::default().budget(60.0);
            let limits = mip::Limits::new(&budget, 0);
            let pairs = coexisting(&p, usize::MAX).unwrap();
            let sequence = solve(&p, &[], &highest, &pairs, &limits).unwrap();
            let found = p.height(&stack(&p, &sequence));
            let lowest = Place::default().place(&p, &Wish::default());
            assert_eq!(found, lowest.height, "seed {seed}: {:?}", p.buffers());
            better += usize::from(found < highest.height);
        }
        assert!(better > 100, "{better}");
    }
}
