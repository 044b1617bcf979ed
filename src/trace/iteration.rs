//! The iteration that repeats in a trace, from sizes and order alone.
//!
//! Two events are the same if they are of one kind, and if mallocs have one size and other
//! events come equally long after the last event of their block: addresses play no part.
//! Of all repetitions in the sequence of events ([`runs`]) that free at least half of what
//! they allocate, the one that covers most is taken, with its smallest period; so neither
//! layers within an iteration nor weights that are allocated one by one are mistaken for it.
//!
//! Iterations may differ somewhere: the sequence of all mallocs is looked at as well, and
//! those of large ones alone, larger and larger. What is then not looked at (when blocks are
//! freed, small blocks) may differ. The strictest look is taken that covers half of the
//! trace, and not much less than a looser one.
//!
//! An iteration begins at that malloc before which the fewest bytes are alive that some
//! iteration allocated.

use super::runs::{Run, runs};
use super::{Block, Kind, Trace};
use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Range;

/// What the iterations have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// All events.
    Events,
    /// The mallocs of at least so many bytes.
    Mallocs {
        /// Bytes.
        least: u64,
    },
}

/// A stretch of a trace that repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repetition {
    /// Its first event.
    pub first: usize,
    /// Events of a period; of the first one, where periods differ.
    pub events: usize,
    /// Periods; of an iteration's, those whose mallocs are all there.
    pub count: usize,
}

impl Repetition {
    /// The options that have it looked at alone.
    pub fn options(&self) -> String {
        format!("--from {} --to {}", self.first, self.first + self.count * self.events)
    }
}

/// The iteration of a trace, and where it is.
#[derive(Clone, Debug)]
pub struct Iterations {
    /// What the iterations have in common.
    pub by: By,
    /// Which events they are.
    pub at: Repetition,
    /// Part of the events, from 0 to 1, that lie in the repetition.
    pub covers: f64,
    /// Other repetitions that cover at least a tenth of the events, the longest first.
    pub others: Vec<Repetition>,
    /// How long the block of each malloc lives at most, counted in mallocs: 1 if it is freed
    /// before the next. As far as the repetition reaches.
    pub(super) lives: Vec<usize>,
    /// Mallocs whose blocks the repetition never frees.
    pub(super) kept: Vec<bool>,
    /// The mallocs of the trace that are looked at: their events.
    pub(super) mallocs: Vec<u32>,
    /// The first iteration's first one among `mallocs`.
    pub(super) begin: usize,
    /// The events from the first iteration to the repetition's last malloc; part of an
    /// iteration may come after the whole ones.
    pub(super) run: Range<usize>,
}

/// No iteration was found.
#[derive(Debug, thiserror::Error)]
#[error("nothing repeats over half of the events{}; --whole plans the whole trace as one", .longest.map(hint).unwrap_or_default())]
pub struct NothingRepeats {
    /// The longest repetition there is.
    pub longest: Option<Repetition>,
}

fn hint(r: Repetition) -> String {
    format!(
        ", at most {} times {} events from event {} on; {} looks at them alone",
        r.count,
        r.events,
        r.first,
        r.options()
    )
}

/// Parts of the peak of live bytes, as powers of two, from which on mallocs are large.
const LARGE: [u32; 5] = [24, 20, 16, 12, 8];

/// Other repetitions are told of from this part of the events on.
const TOLD: f64 = 0.1;

/// Part of the events that an iteration covers at least.
const HALF: f64 = 0.5;

/// A look is good enough that covers this part of what a looser one does.
const MUCH: f64 = 0.8;

/// What repeats, looked at in one way.
struct Look {
    by: By,
    text: Text,
    /// As [`Text::repetitions`] gives them; at least one.
    found: Vec<(Run, usize)>,
    covers: f64,
}

impl Iterations {
    /// Finds the iteration among these events.
    ///
    /// # Errors
    /// No repetition covers half of them.
    pub fn find(trace: &Trace, events: Range<usize>) -> Result<Iterations, NothingRepeats> {
        let events = events.start..events.end.min(trace.events.len());
        let peak = trace.live(1).into_iter().max().unwrap_or(0);
        let mut levels = vec![By::Events, By::Mallocs { least: 0 }];
        levels.extend(LARGE.map(|power| By::Mallocs { least: (peak >> power).max(1) }));
        levels.dedup();
        let balance = Balance::new(trace);
        let mut looks = Vec::new();
        for by in levels {
            let text = Text::new(trace, by, &events);
            let found = text.repetitions(&balance);
            let Some(&(_, covered)) = found.first() else { continue };
            let covers = covered as f64 / events.len().max(1) as f64;
            looks.push(Look { by, text, found, covers });
            if covers >= MUCH {
                break;
            }
        }
        let most = looks.iter().map(|l| l.covers).fold(0.0, f64::max);
        let enough = |l: &&Look| l.covers >= HALF && l.covers >= MUCH * most;
        match looks.iter().find(enough) {
            Some(look) => Ok(Iterations::new(trace, look)),
            None => {
                let longest = looks.iter().find(|l| l.covers == most);
                Err(NothingRepeats { longest: longest.map(|l| l.text.repetition(&l.found[0].0)) })
            }
        }
    }

    fn new(trace: &Trace, look: &Look) -> Iterations {
        let &Look { by, ref text, ref found, covers } = look;
        let run = found[0].0;
        let least = if let By::Mallocs { least } = by { least } else { 0 };
        let mallocs = mallocs(trace, least);
        let ordinal = |event: usize| mallocs.partition_point(|&m| (m as usize) < event);
        let (start, end) = text.events(&run);
        let range = ordinal(start)..ordinal(end);
        let period = ordinal(text.event(run.start + run.period)) - range.start;
        let slot = |i: usize| (i - range.start) % period;
        let freed = |i: usize| {
            let free = trace.block(mallocs[i] as usize).free;
            free.map(|f| ordinal(f as usize)).filter(|&free| free < range.end)
        };
        // Complete lives alone; of a block that none frees, more than any.
        let (mut shortest, mut longest) = (vec![usize::MAX; period], vec![0; period]);
        for i in range.clone() {
            let Some(free) = freed(i) else { continue };
            shortest[slot(i)] = shortest[slot(i)].min(free - i);
            longest[slot(i)] = longest[slot(i)].max(free - i);
        }
        let first_size = |slot: usize| trace.block(mallocs[range.start + slot] as usize).size;
        let turn = quietest(&shortest, first_size);
        // Weights may come in front in the sizes of a step, but are kept.
        let weight = |i: usize| {
            freed(i).is_none() && longest[slot(i)] > 0 && range.end - i > longest[slot(i)]
        };
        let mut begin = range.start + turn;
        while begin + 2 * period <= range.end && (begin..begin + period).any(weight) {
            begin += period;
        }
        let (mut lives, mut kept) = (vec![1; period], vec![true; period]);
        for i in begin..range.end {
            let slot = (i - begin) % period;
            lives[slot] = lives[slot].max(freed(i).unwrap_or(range.end) - i);
            kept[slot] &= freed(i).is_none();
        }
        let first = mallocs[begin] as usize;
        let next = mallocs.get(begin + period).map_or(end, |&m| m as usize);
        let events = match by {
            By::Events => run.period,
            By::Mallocs { .. } => next - first,
        };
        let count = (range.end - begin) / period;
        let at = Repetition { first, events, count };
        // What is freed after the last malloc was there for all of them.
        let run = first..mallocs[range.end - 1] as usize + 1;
        let others = found[1..].iter().map(|(r, _)| text.repetition(r)).collect();
        Iterations { by, at, covers, others, lives, kept, mallocs, begin, run }
    }

    /// Mallocs of an iteration that have a place in the plan.
    pub fn mallocs(&self) -> usize {
        self.lives.len()
    }

    /// The events of all iterations. The last one may end in other events than the rest.
    pub fn events(&self) -> Range<usize> {
        let next = self.mallocs.get(self.begin + self.at.count * self.mallocs());
        let end = next.map_or(self.run.end, |&m| m as usize);
        self.at.first..end.min(self.run.end)
    }

    /// The block of a malloc of the first iteration.
    pub(super) fn block<'a>(&self, trace: &'a Trace, slot: usize) -> &'a Block {
        trace.block(self.mallocs[self.begin + slot] as usize)
    }

    /// When a malloc of the first iteration happens, in events from its beginning; for the
    /// number of mallocs, the iteration's length.
    pub(super) fn time(&self, slot: usize) -> usize {
        if slot == self.mallocs() {
            return self.at.events;
        }
        self.mallocs[self.begin + slot] as usize - self.at.first
    }
}

/// Events of the mallocs of at least so many bytes.
fn mallocs(trace: &Trace, least: u64) -> Vec<u32> {
    let large = |b: &&Block| b.size >= least;
    let mut events: Vec<u32> = trace.blocks.iter().filter(large).filter_map(|b| b.malloc).collect();
    events.sort_unstable();
    events
}

/// The malloc before which the fewest bytes are alive: bytes that live on from before it.
fn quietest(lives: &[usize], size: impl Fn(usize) -> u64) -> usize {
    let n = lives.len();
    let mut change = vec![0i128; n + 1];
    for (slot, &life) in lives.iter().enumerate() {
        let bytes = i128::from(size(slot));
        // From the malloc after its own to the last one before its free, around the end; of
        // what lives longer than a period, all.
        let end = slot + life.min(n + 1);
        for (low, high) in [(slot + 1, end.min(n)), (0, end.saturating_sub(n))] {
            if low < high {
                change[low] += bytes;
                change[high] -= bytes;
            }
        }
    }
    let mut crossing = 0;
    let crossing = change[..n].iter().map(|c| {
        crossing += c;
        crossing
    });
    crossing.enumerate().min_by_key(|&(_, bytes)| bytes).map_or(0, |(slot, _)| slot)
}

/// Events as symbols, the same for events that are the same.
struct Text {
    symbols: Vec<u32>,
    /// The event of each symbol, and the first after those that are looked at.
    at: Vec<u32>,
}

impl Text {
    fn new(trace: &Trace, by: By, events: &Range<usize>) -> Text {
        let mut at: Vec<u32> = match by {
            By::Events => (0..trace.events.len() as u32).collect(),
            By::Mallocs { least } => mallocs(trace, least),
        };
        let mut symbols = match by {
            By::Events => all_events(trace),
            By::Mallocs { .. } => numbered(at.iter().map(|&e| trace.block(e as usize).size)),
        };
        let inside = |&e: &u32| events.contains(&(e as usize));
        let mut here = at.iter().map(inside);
        symbols.retain(|_| here.next().unwrap_or(false));
        at.retain(inside);
        at.push(events.end as u32);
        Text { symbols, at }
    }

    fn event(&self, symbol: usize) -> usize {
        self.at[symbol] as usize
    }

    fn events(&self, run: &Run) -> (usize, usize) {
        (self.event(run.start), self.event(run.end))
    }

    fn repetition(&self, run: &Run) -> Repetition {
        let first = self.event(run.start);
        Repetition {
            first,
            events: self.event(run.start + run.period) - first,
            count: (run.end - run.start) / run.period,
        }
    }

    /// Repetitions that may be iterations, none mostly within another, with the number of
    /// events that they cover: most first, and first the one of the smallest period.
    fn repetitions(&self, balance: &Balance) -> Vec<(Run, usize)> {
        let length = |r: &Run| self.event(r.end) - self.event(r.start);
        let mut found = runs(&self.symbols);
        found.retain(|r| balance.returns(self.events(r)));
        found.sort_by_key(|r| (usize::MAX - length(r), r.period));
        let mut kept: Vec<(Run, usize)> = Vec::new();
        for run in found {
            // Where one ends, the next may have begun by chance.
            let apart = |&(k, _): &(Run, usize)| {
                let common = run.end.min(k.end).saturating_sub(run.start.max(k.start));
                2 * common < run.end - run.start
            };
            // Of many short ones nobody is told.
            let events = self.event(self.symbols.len()) - self.event(0);
            if !kept.is_empty() && (length(&run) as f64) < TOLD * events as f64 {
                break;
            }
            if kept.iter().all(apart) && run.holds(&self.symbols) {
                kept.push((run, length(&run)));
            }
        }
        kept
    }
}

/// Symbols of all events: mallocs by size, others by how long ago their block was touched.
fn all_events(trace: &Trace) -> Vec<u32> {
    let mut last: Vec<Option<usize>> = vec![None; trace.blocks.len()];
    let same = trace.events.iter().enumerate().map(|(i, e)| {
        let block = e.block as usize;
        let before = last[block].replace(i);
        match (e.kind, before) {
            (Kind::Malloc, _) => (e.kind, true, trace.blocks[block].size),
            (kind, Some(before)) => (kind, true, (i - before) as u64),
            // The first event of a block from before the recording is like no other.
            (kind, None) => (kind, false, block as u64),
        }
    });
    numbered(same)
}

/// Numbers equal items equally, from 0.
fn numbered<T: Eq + Hash>(items: impl Iterator<Item = T>) -> Vec<u32> {
    let mut numbers = HashMap::new();
    let number = |item| {
        let new = numbers.len() as u32;
        *numbers.entry(item).or_insert(new)
    };
    items.map(number).collect()
}

/// Bytes that were allocated and freed before each event.
struct Balance {
    allocated: Vec<u128>,
    freed: Vec<u128>,
}

impl Balance {
    fn new(trace: &Trace) -> Balance {
        let sums = |kind: Kind| {
            let mut sums = vec![0];
            let mut sum = 0;
            for (i, e) in trace.events.iter().enumerate() {
                if e.kind == kind {
                    sum += u128::from(trace.block(i).size);
                }
                sums.push(sum);
            }
            sums
        };
        Balance { allocated: sums(Kind::Malloc), freed: sums(Kind::Free) }
    }

    /// Whether these events free at least half of the bytes that they allocate.
    fn returns(&self, (start, end): (usize, usize)) -> bool {
        let allocated = self.allocated[end] - self.allocated[start];
        allocated > 0 && 2 * (self.freed[end] - self.freed[start]) >= allocated
    }
}
