//! A window: some decisions as a problem of its own, everything else as it is.
//!
//! *Spans* are the gaps to decide, and those that stay dropped but need what is decided.
//! *Stages* are the positions at which spans end: there tensors are needed, and before their
//! task a chain of tasks may be repeated. Between stages nothing changes but by itself.

use super::sites::{Judge, Site, made, runs_again, stays};
use crate::residency::{Choice, Gap, Timeline};
use std::collections::BTreeSet;

/// A gap of the window.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) site: Site,
    pub(super) bytes: u64,
    /// The position of the task that makes its tensor.
    pub(super) made: u32,
    /// What becomes of it now.
    pub(super) now: Gap,
    /// It is the window's to decide.
    pub(super) decided: bool,
    /// The stages at which it may be away, the last of which needs it.
    pub(super) stages: std::ops::Range<usize>,
}

/// A tensor that a repeat reads and that may be away then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    pub(super) x: usize,
    pub(super) bytes: u64,
    /// The span that says whether it is there; without one it is away.
    pub(super) span: Option<usize>,
    /// The link of the chain that makes it again.
    pub(super) maker: Option<usize>,
}

/// A task that may be repeated at a stage.
#[derive(Clone, Debug)]
pub(super) struct Link {
    /// Its position in the order.
    pub(super) task: u32,
    pub(super) seconds: f64,
    /// Bytes that it writes, scratch included, less what it writes over an operand.
    pub(super) made: u64,
    /// What it reads of what may be away.
    pub(super) reads: Vec<Read>,
}

/// A position that needs what may be away.
#[derive(Clone, Debug)]
pub(super) struct Stage {
    /// The tasks that may be repeated before it, in order.
    pub(super) chain: Vec<Link>,
    /// Live bytes meanwhile, without spans and repeats.
    pub(super) base: u64,
}

/// Positions between which no span begins or ends.
#[derive(Clone, Debug)]
pub(super) struct Quiet {
    /// The stage that follows.
    pub(super) stage: usize,
    /// The spans that may be away.
    pub(super) idle: Vec<usize>,
    /// The most live bytes of these positions, without spans.
    pub(super) base: u64,
}

/// Decisions of a part of an order, everything else as it is.
pub(super) struct Window {
    pub(super) spans: Vec<Span>,
    pub(super) stages: Vec<Stage>,
    pub(super) quiet: Vec<Quiet>,
}

impl Window {
    /// The decisions at `decided` under a choice; `None` where more than `most` spans or tasks
    /// of a chain would be in it.
    pub(super) fn new(
        judge: &mut Judge,
        sites: &[Site],
        choice: &Choice,
        decided: &[Site],
        most: usize,
    ) -> Option<Window> {
        let t = judge.t;
        let is_decided = |gap: usize| decided.iter().any(|s| s.gap == gap);
        let open = |gap: usize| choice.gaps[gap] != Gap::Keep || is_decided(gap);
        // What stays dropped belongs to the window where its chain and a decision meet.
        let mut tasks: BTreeSet<u32> = decided.iter().filter_map(|s| made(t, s.x)).collect();
        let mut inside: Vec<Site> = decided.to_vec();
        let dropped = |s: &&Site| choice.gaps[s.gap] != Gap::Keep && !is_decided(s.gap);
        let mut others: Vec<&Site> = sites.iter().filter(dropped).collect();
        loop {
            let before = inside.len();
            for s in &inside {
                tasks.extend(chain(t, s, open));
            }
            others.retain(|s| {
                let meets = chain(t, s, open).iter().any(|task| tasks.contains(task));
                if meets {
                    inside.push(**s);
                }
                !meets
            });
            if inside.len() > most || tasks.len() > most {
                return None;
            }
            if inside.len() == before {
                break;
            }
        }
        let mut kept = choice.clone();
        inside.iter().for_each(|s| kept.gaps[s.gap] = Gap::Keep);
        let load = judge.load(&kept)?;
        let positions: BTreeSet<u32> = inside.iter().map(|s| s.before).collect();
        let positions: Vec<u32> = positions.into_iter().collect();
        let stage_after = |p: u32| positions.partition_point(|&q| q <= p);
        let spans: Vec<Span> = inside
            .iter()
            .map(|s| Span {
                site: *s,
                bytes: t.tensors[s.x].bytes,
                made: made(t, s.x).unwrap_or(s.after),
                now: choice.gaps[s.gap],
                decided: is_decided(s.gap),
                stages: stage_after(s.after)..stage_after(s.before),
            })
            .collect();
        let idle = |p: u32, end: u32| {
            let at = move |s: &Span| s.site.after < p && p < s.site.before + end;
            spans.iter().enumerate().filter(move |(_, s)| at(s)).map(|(i, _)| i)
        };
        let bytes =
            |idle: &mut dyn Iterator<Item = usize>| idle.map(|i| spans[i].bytes).sum::<u64>();
        let stages = positions
            .iter()
            .map(|&p| {
                let live = t.live[p as usize];
                let others = i128::from(load[p as usize].task) - i128::from(live);
                let passing = i128::from(t.passing[p as usize]) + others;
                let base = passing - i128::from(bytes(&mut idle(p, 1)));
                Stage { chain: links(t, &spans, p, open), base: base.max(0) as u64 }
            })
            .collect();
        let mut quiet: Vec<Quiet> = Vec::new();
        let first = spans.iter().map(|s| s.site.after + 1).min()?;
        for p in first..*positions.last()? {
            let (stage, idle): (_, Vec<usize>) = (stage_after(p), idle(p, 0).collect());
            let base = load[p as usize].most().saturating_sub(bytes(&mut idle.iter().copied()));
            match quiet.last_mut() {
                Some(last) if last.stage == stage && last.idle == idle => {
                    last.base = last.base.max(base);
                }
                _ => quiet.push(Quiet { stage, idle, base }),
            }
        }
        Some(Window { spans, stages, quiet })
    }
}

/// Positions of the tasks that a site's tensor may take to come back, where everything open is
/// away.
fn chain(t: &Timeline, site: &Site, open: impl Fn(usize) -> bool) -> BTreeSet<u32> {
    let mut tasks = BTreeSet::new();
    reach(t, site.x, site.before, &open, &mut tasks);
    tasks
}

fn reach(t: &Timeline, x: usize, p: u32, open: &impl Fn(usize) -> bool, tasks: &mut BTreeSet<u32>) {
    let mut wanted = vec![x];
    while let Some(x) = wanted.pop() {
        let Some(task) = made(t, x).filter(|_| runs_again(t, x, p)) else { continue };
        if !tasks.insert(task) {
            continue;
        }
        let away = |&&(y, _): &&(usize, bool)| !stays(t, y, p, open);
        wanted.extend(t.reads.row(task as usize).iter().filter(away).map(|&(y, _)| y));
    }
}

/// The chain of a stage.
fn links(t: &Timeline, spans: &[Span], p: u32, open: impl Fn(usize) -> bool) -> Vec<Link> {
    let mut tasks = BTreeSet::new();
    for span in spans.iter().filter(|s| s.site.before == p) {
        reach(t, span.site.x, p, &open, &mut tasks);
    }
    let tasks: Vec<u32> = tasks.into_iter().collect();
    let read = |x: usize| {
        let across = |s: &Span| s.site.x == x && s.site.after < p && p <= s.site.before;
        let span = spans.iter().position(across);
        let maker = made(t, x).and_then(|m| tasks.binary_search(&m).ok());
        let away = span.is_some() || !stays(t, x, p, &open);
        away.then_some(Read { x, bytes: t.tensors[x].bytes, span, maker })
    };
    let reads = |&task: &u32| {
        let mut reads: Vec<usize> = t.reads.row(task as usize).iter().map(|r| r.0).collect();
        reads.sort_unstable();
        reads.dedup();
        reads.into_iter().filter_map(read).collect()
    };
    let mut chain: Vec<Link> = tasks
        .iter()
        .map(|task| {
            let made: u64 = t.writes.row(*task as usize).iter().map(|&x| t.tensors[x].bytes).sum();
            let made = made + t.scratch[*task as usize];
            Link { task: *task, seconds: t.seconds(*task), made, reads: reads(task) }
        })
        .collect();
    // What nobody else in the chain reads later may be written over.
    for i in 0..chain.len() {
        let task = t.order[chain[i].task as usize];
        let dies = |r: &&Read| {
            let read_later = |l: &Link| l.reads.iter().any(|later| later.x == r.x);
            r.span.is_none() && !chain[i + 1..].iter().any(read_later)
        };
        let written = t.writes.row(chain[i].task as usize);
        let shares = |r: &&Read| written.iter().any(|&y| t.may_share(task, r.x, y));
        let over = chain[i].reads.iter().filter(dies).filter(shares).map(|r| r.bytes).max();
        chain[i].made = chain[i].made.saturating_sub(over.unwrap_or(0));
    }
    chain
}
