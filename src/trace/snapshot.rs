//! The JSON of a PyTorch memory snapshot, `json.dump(torch.cuda.memory._snapshot(), f)`:
//! per device the last events of its caching allocator (`device_traces`), and the segments
//! and blocks at the end (`segments`). Stacks are passed over while reading.
//!
//! An event's `size` is what was asked for; the allocator rounds it up to 512 bytes at least.

use super::{Block, Kind, Reason, Trace};
use serde::Deserialize;
use serde_json::Number;
use std::collections::{HashMap, HashSet};

/// What PyTorch's allocator rounds sizes up to, in bytes.
const ALIGNMENT: u64 = 512;

#[derive(Deserialize)]
struct Snapshot {
    #[serde(default)]
    device_traces: Vec<Vec<Entry>>,
    #[serde(default)]
    segments: Vec<Segment>,
}

#[derive(Deserialize)]
struct Entry {
    action: Action,
    addr: Option<u64>,
    size: Option<u64>,
    stream: Option<Number>,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Action {
    Alloc,
    FreeCompleted,
    SegmentAlloc,
    SegmentMap,
    SegmentFree,
    SegmentUnmap,
    /// `free_requested`, after which another stream may still use the block, `oom`,
    /// `snapshot`, and what newer versions add.
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Segment {
    #[serde(default)]
    device: usize,
    #[serde(default)]
    address: u64,
    total_size: u64,
    #[serde(default)]
    blocks: Vec<Part>,
}

#[derive(Deserialize)]
struct Part {
    address: Option<u64>,
    size: u64,
    requested_size: Option<u64>,
    state: String,
}

pub(super) fn parse(bytes: &[u8], device: Option<usize>) -> Result<Trace, Reason> {
    let Snapshot { device_traces, segments } = serde_json::from_slice(bytes)?;
    let (device, known) = choose(&device_traces, device)?;
    let entries = &device_traces[device];
    let segments: Vec<&Segment> = segments.iter().filter(|s| s.device == device).collect();
    let mut trace = Trace { alignment: ALIGNMENT, ..Trace::default() };
    if known.len() > 1 {
        trace.notes.push(format!(
            "device {device} of {known:?} is taken, which --device chooses; each has a history"
        ));
    }
    let sources = replay(&mut trace, entries, &segments)?;
    let reserved = reserved(entries, &segments);
    trace.reserved = reserved.map(|level| sources.into_iter().map(|i| level[i]).collect());
    Ok(trace)
}

/// The device to take, and all that have a history.
fn choose(traces: &[Vec<Entry>], asked: Option<usize>) -> Result<(usize, Vec<usize>), Reason> {
    let events = |d: usize| traces[d].iter().filter(|e| kind(e.action).is_some()).count();
    let known: Vec<usize> = (0..traces.len()).filter(|&d| events(d) > 0).collect();
    // The first of those with the most.
    let most = known.iter().copied().rev().max_by_key(|&d| events(d)).ok_or(Reason::NoHistory)?;
    match asked {
        Some(asked) if !known.contains(&asked) => {
            let known: Vec<String> = known.iter().map(usize::to_string).collect();
            Err(Reason::Device { asked, known: known.join(", ") })
        }
        _ => Ok((asked.unwrap_or(most), known)),
    }
}

fn kind(action: Action) -> Option<Kind> {
    match action {
        Action::Alloc => Some(Kind::Malloc),
        Action::FreeCompleted => Some(Kind::Free),
        _ => None,
    }
}

/// Lifetimes; gives the entry that each event comes from. A block that is freed or there at
/// the end, but was not allocated in the recording, was there before it.
fn replay(
    trace: &mut Trace,
    entries: &[Entry],
    segments: &[&Segment],
) -> Result<Vec<usize>, Reason> {
    let block =
        |address: u64, size: u64| Block { name: format!("{address:#x}"), size, ..Block::default() };
    let mut live: HashMap<u64, u32> = HashMap::new();
    let (mut sources, mut lost, mut streams) = (Vec::new(), 0usize, HashSet::new());
    for (i, e) in entries.iter().enumerate() {
        let Some(kind) = kind(e.action) else { continue };
        let (Some(address), Some(size)) = (e.addr, e.size) else {
            return Err(Reason::Incomplete(i));
        };
        if kind == Kind::Malloc {
            streams.extend(e.stream.clone());
            if let Some(old) = live.remove(&address) {
                lost += 1;
                trace.push(Kind::Free, old)?;
                sources.push(i);
            }
            let new = trace.add(block(address, size))?;
            live.insert(address, new);
            trace.push(kind, new)?;
        } else {
            let old = match live.remove(&address) {
                Some(old) => old,
                None => trace.add(block(address, size))?,
            };
            trace.push(kind, old)?;
        }
        sources.push(i);
    }
    for segment in segments {
        let mut next = segment.address;
        for part in &segment.blocks {
            let address = part.address.unwrap_or(next);
            next = address.saturating_add(part.size);
            if part.state.starts_with("active") && !live.contains_key(&address) {
                let size = part.requested_size.unwrap_or(part.size);
                trace.add(block(address, size))?;
            }
        }
    }
    if lost > 0 {
        trace.notes.push(format!(
            "{lost} blocks were allocated where the recording has one alive: their frees are \
             missing, and taken to come just before"
        ));
    }
    if streams.len() > 1 {
        trace.notes.push(format!(
            "blocks belong to {} streams; one pool for all needs events between streams where \
             one takes over bytes of another",
            streams.len()
        ));
    }
    Ok(sources)
}

/// The most bytes in segments at each entry, and since the last allocation or free before
/// it. Counted from what there was at the end: the recording may begin after segments were
/// made.
fn reserved(entries: &[Entry], segments: &[&Segment]) -> Option<Vec<u64>> {
    let change = |e: &Entry| match (e.action, i128::from(e.size.unwrap_or(0))) {
        (Action::SegmentAlloc | Action::SegmentMap, size) => size,
        (Action::SegmentFree | Action::SegmentUnmap, size) => -size,
        _ => 0,
    };
    if segments.is_empty() && entries.iter().all(|e| change(e) == 0) {
        return None;
    }
    let end: i128 = segments.iter().map(|s| i128::from(s.total_size)).sum();
    let mut now = end - entries.iter().map(change).sum::<i128>();
    let mut lowest = now.min(0);
    let mut grown = i128::MIN;
    let mut levels = Vec::with_capacity(entries.len());
    for e in entries {
        now += change(e);
        lowest = lowest.min(now);
        if change(e) > 0 {
            grown = now.max(grown);
        }
        levels.push(now.max(grown));
        if kind(e.action).is_some() {
            grown = i128::MIN;
        }
    }
    // Less than nothing was never there: then some segments are missing from the list.
    let bytes = |level: i128| u64::try_from(level - lowest).unwrap_or(u64::MAX);
    Some(levels.into_iter().map(bytes).collect())
}
