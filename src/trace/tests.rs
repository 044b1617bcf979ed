//! Synthetic traces whose iteration is known, and a replay of them in the planned pool.

use super::{By, Iterations, Kind, Needs, Reason, Trace, parse};
use arenic_passes::place::{Place, Placer, Wish};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A program that trains: mallocs with their sizes, and after how many mallocs each is freed.
#[derive(Clone, Debug, Default)]
struct Training {
    weights: Vec<u64>,
    step: Vec<(u64, usize)>,
    steps: usize,
    /// Steps in which a small block is made at this malloc, of so many bytes, and freed after
    /// the next.
    logs: BTreeMap<usize, (usize, u64)>,
    /// Steps in which this malloc's block is freed later, by so many mallocs.
    late: BTreeMap<usize, (usize, u64)>,
    /// Each malloc reads a weight, and writes its block.
    accesses: bool,
}

/// Writes a trace in CSV; names of freed blocks are used again, the last one first.
struct Writer {
    text: String,
    free: Vec<usize>,
    names: usize,
}

impl Writer {
    fn malloc(&mut self, size: u64) -> usize {
        let name = self.free.pop().unwrap_or(self.names);
        self.names = self.names.max(name + 1);
        writeln!(self.text, "malloc,{name},{size}").unwrap();
        name
    }

    fn free(&mut self, name: usize) {
        writeln!(self.text, "free,{name},").unwrap();
        self.free.push(name);
    }
}

impl Training {
    fn record(&self) -> Trace {
        let mut w = Writer { text: "event,block,size\n".into(), free: Vec::new(), names: 0 };
        let weights: Vec<usize> = self.weights.iter().map(|&size| w.malloc(size)).collect();
        // What is to be freed, by when: before the malloc of this number.
        let mut due: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        let n = self.step.len();
        for now in 0..self.steps * n {
            let (step, i) = (now / n, now % n);
            while due.first_key_value().is_some_and(|(&(when, _), _)| when <= now) {
                let (_, name) = due.pop_first().unwrap();
                w.free(name);
            }
            let (size, life) = self.step[i];
            let name = w.malloc(size);
            let here = |noise: &BTreeMap<usize, (usize, u64)>| {
                noise.get(&step).filter(|(at, _)| *at == i).map_or(0, |n| n.1)
            };
            due.insert((now + life + here(&self.late) as usize, now), name);
            if here(&self.logs) > 0 {
                let log = w.malloc(here(&self.logs));
                due.insert((now + 1, usize::MAX), log);
            }
            if self.accesses {
                let weight = weights.get(i % weights.len().max(1)).unwrap_or(&name);
                writeln!(w.text, "read,{weight},\nwrite,{name},").unwrap();
            }
        }
        // The end differs: what is left goes in another order.
        let left: Vec<usize> = due.into_values().chain(weights).collect();
        left.into_iter().rev().for_each(|name| w.free(name));
        parse(w.text.as_bytes(), None).unwrap()
    }
}

fn find(trace: &Trace) -> Result<Iterations, super::NothingRepeats> {
    Iterations::find(trace, 0..usize::MAX)
}

fn heuristics(needs: &Needs) -> super::Plan {
    needs.plan(|p| Place { effort: 0.0 }.place(p, &Wish::default())).unwrap()
}

/// Goes through the whole repetition with blocks at their planned addresses; gives how many
/// had one.
fn replay(trace: &Trace, iterations: &Iterations, needs: &Needs, alignment: u64) -> usize {
    let plan = heuristics(needs);
    assert!(plan.solution.offsets.iter().all(|o| o % alignment == 0));
    let addresses: BTreeMap<&str, u64> =
        needs.slots.iter().map(|s| s.id.as_str()).zip(plan.solution.offsets).collect();
    assert_eq!(addresses.len(), needs.slots.len(), "ids are unique");
    let n = iterations.mallocs() as i64;
    let mut address: BTreeMap<u32, u64> = BTreeMap::new();
    let mut live: BTreeMap<u64, u64> = BTreeMap::new();
    let mut planned = 0;
    for i in 0..iterations.run.end {
        let event = trace.events[i];
        let block = &trace.blocks[event.block as usize];
        if event.kind == Kind::Free
            && let Some(at) = address.remove(&event.block)
        {
            live.remove(&at);
        }
        if event.kind != Kind::Malloc {
            continue;
        }
        // The n-th malloc of the iteration has the address of the first iteration's; where
        // several take turns, that of the iteration's turn.
        let id = match iterations.mallocs.binary_search(&(i as u32)) {
            Ok(ordinal) if i >= iterations.run.start => {
                let since = ordinal as i64 - iterations.begin as i64;
                let first = iterations.begin + since.rem_euclid(n) as usize;
                let event = iterations.mallocs[first];
                let id = format!("{}@{event}", trace.block(event as usize).name);
                let turns = addresses.range(&*format!("{id}.")..&*format!("{id}/")).count() as i64;
                match turns {
                    0 => id,
                    turns => format!("{id}.{}", since.div_euclid(n).rem_euclid(turns)),
                }
            }
            _ => format!("{}@{i}", block.name),
        };
        let Some(&at) = addresses.get(id.as_str()) else { continue };
        planned += 1;
        if block.size > 0 {
            let below = live.range(..at + block.size).next_back();
            assert!(below.is_none_or(|(_, &top)| top <= at), "event {i}: {id} overlaps");
            live.insert(at, at + block.size);
            address.insert(event.block, at);
        }
        assert!(at + block.size <= plan.solution.height);
    }
    planned
}

/// Layers with sizes and lives, some times each, behind a malloc of a size of its own, so
/// that a step's smallest period is itself.
fn training() -> impl Strategy<Value = Training> {
    let layers = proptest::collection::vec((1u64..40, 1usize..30), 1..6);
    let weights = proptest::collection::vec(1u64..60, 0..5);
    (layers, 1usize..4, weights, 9usize..13, any::<bool>(), any::<bool>()).prop_map(
        |(layers, times, weights, steps, accesses, long)| {
            let mut step = vec![(777_777, 2)];
            step.extend(layers.repeat(times).iter().map(|&(size, life)| (10_000 * size, life)));
            let most = if long { 2 * step.len() + 1 } else { step.len() };
            step.iter_mut().for_each(|(_, life)| *life = (*life).min(most));
            let weights = weights.into_iter().map(|w| 1000 * w).collect();
            Training { weights, step, steps, accesses, ..Training::default() }
        },
    )
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 200, failure_persistence: None, ..<_>::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_step_is_found_and_the_plan_serves_all_steps(t in training(), unit in 1u64..700) {
        let trace = t.record();
        let found = find(&trace).unwrap();
        let looks = [By::Events, By::Mallocs { least: 0 }];
        prop_assert!(looks.contains(&found.by));
        prop_assert_eq!(found.mallocs(), t.step.len());
        // Until the first long life has ended, a step has fewer frees.
        let longest = t.step.iter().map(|s| s.1).max().unwrap().div_ceil(t.step.len());
prop_assert!(found.at.count + longest + 2 >= t.steps, "{:?}", found.at);
        let needs = Needs::of_iteration(&trace, &found, unit);
        prop_assert!(replay(&trace, &found, &needs, unit) >= found.at.count * t.step.len());
        prop_assert_eq!(needs.leaked, 0);
        let weights = t.weights.iter().map(|w| w.next_multiple_of(unit)).sum::<u64>();
        prop_assert_eq!(needs.persistent, weights);
        if longest == 1 && found.by == By::Events {
            // The bound is what is alive in the last step of the repetition.
            let last = found.run.end - found.at.events..found.run.end;
            let live = trace.live(unit)[last].iter().copied().max().unwrap();
            prop_assert_eq!(heuristics(&needs).bound, live);
        }
    }

    #[test]
    fn noise_in_some_steps_is_told_from_the_step(
        t in training(), at in any::<prop::sample::Index>(), late in any::<bool>(),
    ) {
        let at = at.index(t.step.len());
        // Never twice the same, and no repetition between covers half.
        let noise = [(2, 1), (4, 2), (5, 3), (8, 4)].map(|(step, n)| (step, (at, n))).into();
        let t = match late {
            true => Training { late: noise, ..t },
            false => Training { logs: noise, ..t },
        };
        let trace = t.record();
        let found = find(&trace).unwrap();
        prop_assert_eq!(found.mallocs(), t.step.len());
        prop_assert_eq!(found.by == By::Mallocs { least: 0 }, late, "{:?}", found.by);
        let needs = Needs::of_iteration(&trace, &found, 1);
        prop_assert!(replay(&trace, &found, &needs, 1) >= found.at.count * t.step.len());
        prop_assert!(needs.unplanned <= 4 * u64::from(!late));
        prop_assert!(2 * found.at.count + 2 >= t.steps);
    }

    #[test]
    fn the_whole_trace_can_be_planned(t in training()) {
        let trace = t.record();
        let needs = Needs::of_all(&trace, 1);
        let plan = heuristics(&needs);
        prop_assert_eq!(needs.slots.len(), trace.blocks.len());
        prop_assert_eq!(plan.bound, trace.live(1).into_iter().max().unwrap());
        prop_assert!(plan.solution.height >= plan.bound);
        prop_assert_eq!(plan.problem.height(&plan.solution.offsets), plan.solution.height);
    }
}

#[test]
fn sections_of_a_step_are_not_the_step() {
    // Eight micro steps and an update, twice: the micro steps alone repeat eight times.
    let mut step = [(30_000, 3), (20_000, 1), (10_000, 1)].repeat(8);
    step.extend([(90_000, 1), (70_000, 1)]);
    let mut t = Training { weights: vec![5000; 40], step, steps: 3, ..Training::default() };
    let found = find(&t.record()).unwrap();
    assert_eq!((found.mallocs(), found.at.count), (26, 3));
    // Once is not enough; then the micro steps are all that repeats.
    t.steps = 1;
    let found = Iterations::find(&t.record(), 40..usize::MAX).unwrap();
    assert_eq!((found.mallocs(), found.at.count), (3, 8));
}

#[test]
fn an_iteration_begins_where_least_is_alive() {
    let step = vec![(100, 4), (50, 1), (60, 1), (70, 1)];
    let trace = Training { weights: vec![8], step, steps: 5, ..Training::default() }.record();
    let found = find(&trace).unwrap();
    assert_eq!(found.at, super::Repetition { first: 1, events: 8, count: 5 });
    let needs = Needs::of_iteration(&trace, &found, 1);
    assert!(needs.slots.iter().all(|s| s.buffer.gaps.is_empty()));
    assert_eq!(heuristics(&needs).solution.height, 178);
}

#[test]
fn not_a_weight_that_has_the_size_of_a_block() {
    let step = vec![(777, 2), (20, 4)];
    let trace = Training { weights: vec![20], step, steps: 9, ..Training::default() }.record();
    let found = find(&trace).unwrap();
    let needs = Needs::of_iteration(&trace, &found, 1);
    assert_eq!((needs.persistent, needs.leaked), (20, 0));
    assert_eq!(heuristics(&needs).solution.height, 777 + 3 * 20);
}

#[test]
fn what_a_step_leaves_is_planned_and_told() {
    let mut text = "event,block,size\n".to_owned();
    for k in 0..6 {
        writeln!(text, "malloc,a,100\nmalloc,loss{k},4\nfree,a,").unwrap();
    }
    let trace = parse(text.as_bytes(), None).unwrap();
    let found = find(&trace).unwrap();
    let needs = Needs::of_iteration(&trace, &found, 1);
    assert_eq!((found.at.count, needs.leaked), (6, 4));
    assert_eq!(heuristics(&needs).solution.height, 124);
    replay(&trace, &found, &needs, 1);
}

#[test]
fn phases_that_repeat_in_other_ways_are_told() {
    let steps = |text: &mut String, sizes: &[u64], times: usize| {
        for size in sizes.repeat(times) {
            writeln!(text, "malloc,a,{size}\nfree,a,").unwrap();
        }
    };
    let mut text = "event,block,size\n".to_owned();
    steps(&mut text, &[10, 20, 30], 20);
    steps(&mut text, &[7, 70], 12);
    let trace = parse(text.as_bytes(), None).unwrap();
    let found = find(&trace).unwrap();
    assert_eq!(found.at, super::Repetition { first: 0, events: 6, count: 20 });
    assert_eq!(found.others, [super::Repetition { first: 119, events: 4, count: 12 }]);
    let later = Iterations::find(&trace, 119..usize::MAX).unwrap();
    assert_eq!(later.at, super::Repetition { first: 120, events: 4, count: 12 });
}

#[test]
fn not_what_never_repeats() {
    let mut text = "event,block,size\n".to_owned();
    for size in 1..200 {
        writeln!(text, "malloc,a,{}\nfree,a,", size * size).unwrap();
    }
    // A loop that is a small part is no iteration, but said.
    text.push_str(&"malloc,a,5\nfree,a,\n".repeat(40));
    let trace = parse(text.as_bytes(), None).unwrap();
    let said = find(&trace).unwrap_err().to_string();
    assert!(said.contains("40 times 2 events from event 397 on"), "{said}");
    assert!(said.contains("--whole") && said.contains("--from 397 --to 477"), "{said}");
    assert_eq!(Iterations::find(&trace, 397..500).unwrap().at.count, 40);
    assert!(Iterations::find(&trace, usize::MAX..usize::MAX).is_err());
    // Weights, one like the other.
    let weights: String = (0..100).map(|i| format!("malloc,{i},64\n")).collect();
    let trace = parse(format!("event,block,size\n{weights}").as_bytes(), None).unwrap();
    assert!(find(&trace).unwrap_err().longest.is_none());
}

#[test]
fn csv_may_name_things_in_other_ways() {
    let text = "time,address,reserved,size,block,event\n\
                0,0x100,,16,x,alloc\n1,,4096,,x,WRITE\n2,,,,x,dealloc\n3,512,8192,32,x,Malloc\n";
    let trace = parse(text.as_bytes(), None).unwrap();
    assert_eq!(trace.blocks.len(), 2);
    assert_eq!(trace.reserved, Some(vec![4096, 4096, 4096, 8192]));
    assert_eq!(trace.live(1), [16, 16, 0, 32]);
    assert_eq!(trace.span(0..4), Some(512 + 32 - 256));
    assert_eq!(trace.span(3..4), Some(32));
}

/// A device's history as JSON, with segments of 1000 bytes at the end.
fn snapshot(events: &str, blocks: &str) -> String {
    format!(
        r#"{{"segments": [{{"device": 0, "address": 4096, "total_size": 1000, "stream": 0,
            "segment_type": "small", "blocks": [{blocks}]}}],
            "device_traces": [[{events}], []],
            "allocator_settings": {{"garbage_collection_threshold": 0.0}}}}"#
    )
}

fn entry(action: &str, addr: u64, size: u64) -> String {
    format!(
        r#"{{"action": "{action}", "addr": {addr}, "size": {size}, "stream": 0, "time_us": 1,
            "frames": [{{"name": "f", "filename": "a.py", "line": 3}}]}}"#
    )
}

#[test]
fn a_snapshot_is_walked_back_from_its_end() {
    let events = [
        entry("free_completed", 8192, 100), // from before the recording
        entry("segment_free", 8192, 500),
        entry("segment_alloc", 16384, 700),
        entry("alloc", 16384, 600),
        entry("free_requested", 16384, 600),
        r#"{"action": "oom", "device_free": 12, "size": 5, "stream": 0}"#.into(),
        entry("free_completed", 16384, 600),
        entry("segment_free", 16384, 700),
        entry("something_new", 0, 0),
        entry("alloc", 4200, 50),
    ];
    let blocks = r#"{"size": 104, "requested_size": 90, "state": "active_allocated"},
                    {"size": 60, "state": "active_allocated", "address": 4200},
                    {"size": 40, "state": "inactive"}"#;
    let trace = parse(snapshot(&events.join(","), blocks).as_bytes(), None).unwrap();
    assert_eq!(trace.alignment, 512);
    assert_eq!(trace.live(1), [90, 690, 90, 140]);
    assert_eq!(trace.reserved, Some(vec![1500, 1700, 1700, 1000]));
    let sizes: Vec<u64> = trace.blocks.iter().map(|b| b.size).collect();
    assert_eq!(sizes, [100, 600, 50, 90]);
    assert!(trace.notes.is_empty(), "{:?}", trace.notes);
    // Where the list of segments is missing, what events say is all there is.
    let text = snapshot(&events.join(","), "").replace(r#""device": 0"#, r#""device": 1"#);
    let trace = parse(text.as_bytes(), None).unwrap();
    assert_eq!(trace.reserved, Some(vec![500, 700, 700, 0]));
}

#[test]
fn gaps_in_a_snapshot_are_told() {
    let other = entry("alloc", 12288, 7).replace(r#""stream": 0"#, r#""stream": 9"#);
    let events = [entry("alloc", 4096, 10), entry("alloc", 4096, 20), other];
    let text = snapshot(&events.join(","), "").replace("[]]", &format!("[{}]]", events[0]));
    let trace = parse(text.as_bytes(), None).unwrap();
    assert_eq!(trace.live(1), [10, 0, 20, 27]);
    assert_eq!(trace.reserved.map(|r| r.len()), Some(4));
    let notes = trace.notes.join("\n");
    for part in ["device 0 of [0, 1]", "1 blocks were allocated where", "2 streams"] {
        assert!(notes.contains(part), "{notes}");
    }
    assert_eq!(parse(text.as_bytes(), Some(1)).unwrap().live(1), [10]);
    let refused = parse(text.as_bytes(), Some(2)).unwrap_err().to_string();
    assert!(refused.contains("no history of device 2, only of: 0, 1"), "{refused}");
}

#[test]
fn not_snapshots_without_what_is_needed() {
    let no_size = r#"{"action": "alloc", "addr": 1}"#;
    let cases = [
        (snapshot("", ""), "_record_memory_history"),
        (snapshot(&entry("snapshot", 0, 0), ""), "_record_memory_history"),
        (snapshot(no_size, ""), "event 0 of `device_traces` has no `addr` or no `size`"),
        ("{}".into(), "_record_memory_history"),
        ("[]".into(), "_record_memory_history"),
        ("[1]".into(), "no memory snapshot"),
        (snapshot(&entry("alloc", 1, 5).replace("5", "-5"), ""), "no memory snapshot"),
        (snapshot(&entry("alloc", 1, 1 << 61), ""), "more than 2^60 bytes"),
    ];
    for (text, says) in cases {
        let said = parse(text.as_bytes(), None).map(drop).unwrap_err().to_string();
        assert!(said.contains(says), "{text}: {said}");
    }
    assert!(matches!(parse(b"\x80\x04}.", None), Err(Reason::Pickle)));
    assert!(matches!(parse(b"PK\x03\x04", None), Err(Reason::Pickle)));
    assert!(matches!(parse(b" \n", None), Err(Reason::Empty)));
    assert!(matches!(parse(b"event,block,size\n", None), Err(Reason::Empty)));
}

proptest! {
    #![proptest_config(config())]

    /// Whatever a file holds is read or refused, and planned or refused.
    #[test]
    fn no_input_is_fatal(
        rows in proptest::collection::vec(("malloc|free|read|fre", 0..4u8, 0..9u64), 0..60),
        shift in 0u32..58,
    ) {
        let mut text = "event,block,size,address,reserved\n".to_owned();
        for (event, block, size) in rows {
            let size = size << shift;
            writeln!(text, "{event},{block},{size},{size},{size}").unwrap();
        }
        let Ok(trace) = parse(text.as_bytes(), None) else { return Ok(()) };
        let place = |needs: &Needs| {
            needs.plan(|p| Place { effort: 0.0 }.place(p, &Wish::default())).is_ok()
        };
        for alignment in [1, 512, 1 << 40] {
            if let Ok(found) = find(&trace) {
                place(&Needs::of_iteration(&trace, &found, alignment));
            }
            place(&Needs::of_all(&trace, alignment));
            trace.live(alignment);
        }
    }
}
