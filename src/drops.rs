//! What an artifact says of residual branches that steps leave out: which there are, how probable that is, and
//! which structures have a program of their own.

use arenic_passes::drop_layers::{Branch, Structure};
use std::collections::{BTreeSet, BinaryHeap};

/// Branches that steps leave out, and the structures that there are programs for.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Drops {
    /// The branches.
    #[prost(message, repeated, tag = "1")]
    pub branches: Vec<DroppedBranch>,
    /// The structures, the most probable first.
    #[prost(message, repeated, tag = "2")]
    pub structures: Vec<DroppedStructure>,
}

/// A branch.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DroppedBranch {
    /// What its parameters' names have in common.
    #[prost(string, tag = "1")]
    pub name: String,
    /// How probable it is that a step leaves it out.
    #[prost(double, tag = "2")]
    pub probability: f64,
    /// The input of a masked step that is 1 where it is kept, else 0.
    #[prost(string, tag = "3")]
    pub input: String,
}

/// A structure that has a program of its own.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DroppedStructure {
    /// Its name among the variants.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The places of the branches that it lacks; none where it has all of them as inputs say.
    #[prost(uint32, repeated, tag = "2")]
    pub without: Vec<u32>,
    /// It has all of them, each times an input.
    #[prost(bool, tag = "3")]
    pub masked: bool,
}

/// The name of the structure that has all branches as inputs say.
const MASKED: &str = "masked";

impl Drops {
    /// At most so many structures of these branches: the most probable ones and, where there are more, one that can
    /// be any of them.
    pub(crate) fn new(branches: &[Branch], most: usize) -> Drops {
        let named = |branch: &Branch| DroppedBranch {
            name: branch.name.clone(),
            probability: branch.probability,
            input: branch.input(),
        };
        let all = u32::try_from(branches.len()).ok().and_then(|n| 2usize.checked_pow(n));
        let covers_all = all.is_some_and(|all| all <= most);
        let own = if covers_all { most } else { most.saturating_sub(1) };
        let mut structures: Vec<DroppedStructure> = probable(branches, own)
            .into_iter()
            .map(|without| {
                let names = without.iter().map(|&i| branches[i].name.as_str());
                let name = match without.is_empty() {
                    true => "all".to_owned(),
                    false => format!("without-{}", names.collect::<Vec<_>>().join("+")),
                };
                let without = without.into_iter().map(|i| i as u32).collect();
                DroppedStructure { name, without, masked: false }
            })
            .collect();
        if !covers_all {
            let (name, without) = (MASKED.to_owned(), Vec::new());
            structures.push(DroppedStructure { name, without, masked: true });
        }
        Drops { branches: branches.iter().map(named).collect(), structures }
    }

    /// The structure where a step leaves out these branches: its own program, or the one that can be any.
    pub(crate) fn structure(&self, left_out: &BTreeSet<usize>) -> Option<&str> {
        let is_it = |s: &&DroppedStructure| {
            !s.masked && s.without.iter().map(|&i| i as usize).eq(left_out.iter().copied())
        };
        let found = self.structures.iter().find(is_it);
        let found = found.or_else(|| self.structures.iter().find(|s| s.masked));
        found.map(|structure| structure.name.as_str())
    }
}

impl DroppedStructure {
    /// As the passes have it.
    pub(crate) fn structure(&self) -> Structure {
        match self.masked {
            true => Structure::Masked,
            false => Structure::Without(self.without.iter().map(|&i| i as usize).collect()),
        }
    }
}

/// The most probable sets of branches that are left out, at most so many, the most probable first; branches are left
/// out independently of one another.
fn probable(branches: &[Branch], most: usize) -> Vec<BTreeSet<usize>> {
    // In the most probable set each branch is as it is more often; the price of having one otherwise.
    let usual: Vec<bool> = branches.iter().map(|b| b.probability > 0.5).collect();
    let price = |i: usize| {
        let p = branches[i].probability;
        ((1.0 - p) / p).ln().abs()
    };
    let mut order: Vec<usize> = (0..branches.len()).filter(|&i| price(i).is_finite()).collect();
    order.sort_by(|&a, &b| price(a).total_cmp(&price(b)).then(a.cmp(&b)));
    let set = |changed: &[usize]| {
        let is_changed = |i: usize| changed.iter().any(|&k| order[k] == i);
        (0..branches.len()).filter(|&i| usual[i] != is_changed(i)).collect::<BTreeSet<usize>>()
    };
    let total = |changed: &[usize]| changed.iter().map(|&k| price(order[k])).sum::<f64>();
    let mut sets = Vec::new();
    let mut open = BinaryHeap::from([Candidate(0.0, Vec::new())]);
    while let Some(Candidate(_, changed)) = open.pop()
        && sets.len() < most
    {
        // From each set, one with a further change, and one with the last change put off.
        let next = changed.last().map_or(0, |last| last + 1);
        if next < order.len() {
            let further = [&changed[..], &[next]].concat();
            open.push(Candidate(total(&further), further));
            if let Some((_, before)) = changed.split_last() {
                let other = [before, &[next]].concat();
                open.push(Candidate(total(&other), other));
            }
        }
        sets.push(set(&changed));
    }
    sets
}

/// A set of changes with its price; the cheapest is the greatest.
#[derive(PartialEq)]
struct Candidate(f64, Vec<usize>);

impl Eq for Candidate {}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.0.total_cmp(&self.0).then_with(|| other.1.cmp(&self.1))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
