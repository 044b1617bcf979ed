//! Streams on threads: the bits of issue order under every delay, wrong ones where an event
//! is missing, and an end to every step.

use super::*;
use arenic_ir::text::Module;

/// A value goes to host memory on one stream and comes back, to other bytes, on another.
const SWAP: &str = r#"graph "swap" {
  input v0: f32[1024] "x"
  state s0 "w": v1: f32[1024] -> v6 = ...
  n0 unary {"f":"exp"} (v0) -> (v2: f32[1024])
  n1 binary {"f":"add"} (v2, v1) -> (v3: f32[1024])
  n2 binary {"f":"mul"} (v3, v3) -> (v4: f32[1024])
  n3 binary {"f":"sub"} (v4, v2) -> (v5: f32[1024])
  n4 binary {"f":"max"} (v5, v1) -> (v6: f32[1024])
  output "y" v5
}
program {
  align 64
  device 16384
  host 4096
  home v0 device[0+4096]
  home v1 device[4096+4096]
  run n0 stream0 (device[0+4096]) -> (device[8192+4096])
  record stream0 event7
  wait stream1 event7
  copy stream1 device[8192+4096] -> host[0+4096]
  record stream1 event1
  run n1 stream0 (device[8192+4096], device[4096+4096]) -> (device[12288+4096])
  wait stream0 event1
  run n2 stream0 (device[12288+4096], device[12288+4096]) -> (device[8192+4096])
  record stream0 event3
  wait stream2 event3
  copy stream2 host[0+4096] -> device[12288+4096]
  record stream2 event4
  wait stream0 event4
  run n3 stream0 (device[8192+4096], device[12288+4096]) -> (device[8192+4096])
  run n4 stream0 (device[8192+4096], device[4096+4096]) -> (device[4096+4096])
  output device[8192+4096]
}
"#;

/// A kernel that refuses zeros, and one on another stream that needs its result.
const QUOTIENT: &str = r#"graph "quotient" {
  input v0: i64[64] "x"
  n0 binary {"f":"div"} (v0, v0) -> (v1: i64[64])
  n1 binary {"f":"add"} (v1, v1) -> (v2: i64[64])
  output "y" v2
}
program {
  align 64
  device 1024
  host 0
  home v0 device[0+512]
  run n0 streamA (device[0+512], device[0+512]) -> (device[512+512])
  record streamA event0
  wait streamB event0
  run n1 streamB (device[512+512], device[512+512]) -> (device[0+512])
  record streamB event1
  wait streamA event1
  output device[0+512]
}
"#;

/// A state that is renewed before a kernel that refuses zeros, and one that is renewed by it.
const COUNTERS: &str = r#"graph "counters" {
  input v0: i64[8] "x"
  state s0 "before": v1: i64[8] -> v3 = ...
  state s1 "after": v2: i64[8] -> v4 = ...
  n0 binary {"f":"add"} (v1, v0) -> (v3: i64[8])
  n1 binary {"f":"div"} (v2, v0) -> (v5: i64[8])
  n2 binary {"f":"add"} (v2, v5) -> (v4: i64[8])
}
program {
  align 64
  device 256
  host 0
  home v0 device[0+64]
  home v1 device[64+64]
  home v2 device[128+64]
  run n0 stream0 (device[64+64], device[0+64]) -> (device[64+64])
  run n1 stream0 (device[128+64], device[0+64]) -> (device[192+64])
  run n2 stream0 (device[128+64], device[192+64]) -> (device[128+64])
}
"#;

fn parse(text: &str) -> (Graph, Program) {
    let module = Module::parse(text, &arenic_backends::ALL).unwrap();
    (module.graph, module.program.unwrap())
}

/// The outputs and states of some steps.
fn bits(executor: &mut Executor) -> Vec<Vec<u8>> {
    let inputs: Vec<ValueId> = executor.graph.inputs().collect();
    let states = executor.graph.states.values();
    states.for_each(|s| executor.carried_mut(s.enter).unwrap().fill(0));
    let mut seen = Vec::new();
    for step in 0..4 {
        for &v in &inputs {
            let elements = executor.input_mut(v).unwrap().chunks_exact_mut(4).enumerate();
            elements.for_each(|(i, x)| {
                x.copy_from_slice(&((i as f32 * 0.01 + step as f32).sin()).to_le_bytes());
            });
        }
        executor.step(Draw { seed: 0, step, round: 0 }).unwrap();
        seen.push(executor.output(0).to_vec());
        seen.extend(executor.graph.states.keys().map(|s| executor.state(s).to_vec()));
    }
    seen
}

#[test]
fn delays_change_no_bits() {
    let (g, p) = parse(SWAP);
    let run = |options| bits(&mut Executor::new(&g, &p, options).unwrap());
    let issued = run(ExecutorOptions { poison: true, ..ExecutorOptions::default() });
    assert!(issued == run(ExecutorOptions::default()));
    for seed in 0..60 {
        let options =
            ExecutorOptions { threads: 1 + seed % 3, stress: Some(seed as u64), poison: false };
        assert!(issued == run(options), "seed {seed}");
    }
}

#[test]
fn delays_show_a_missing_event() {
    let (g, p) = parse(SWAP);
    let expected = bits(&mut Executor::new(&g, &p, ExecutorOptions::default()).unwrap());
    let is_wait = |&i: &usize| matches!(p.commands[i], Command::Wait { .. });
    for wait in (0..p.commands.len()).filter(is_wait) {
        let mut racy = p.clone();
        racy.commands.remove(wait);
        assert!(check(&g, &racy).is_err());
        let footprint = check(&g, &p).unwrap();
        let shown = (0..60).any(|seed| {
            let options = ExecutorOptions { threads: 1, stress: Some(seed), poison: false };
            let (arenas, workers) =
                (allocate(racy.sizes, options).unwrap(), workers(options).unwrap());
            // SAFETY: all ranges are those of the checked program. Accesses do race, and a
            // kernel of plain numbers, or a copy, then sees some of the bytes of either.
            let executor = unsafe {
                Executor::in_arenas(&g, &racy, footprint.clone(), arenas, workers, options)
            };
            bits(&mut executor.unwrap()) != expected
        });
        assert!(shown, "nothing shows that command {wait} is missing");
    }
}

#[test]
fn a_refusal_ends_the_step_of_every_stream() {
    for (a, b) in [("0", "1"), ("1", "0"), ("3", "2")] {
        let (g, p) = parse(
            &QUOTIENT
                .replace("streamA", &format!("stream{a}"))
                .replace("streamB", &format!("stream{b}")),
        );
        for seed in 0..8 {
            // Two streams of kernels and one thread for them.
            let options = ExecutorOptions { threads: 1, stress: Some(seed), poison: false };
            let mut executor = Executor::new(&g, &p, options).unwrap();
            let x = g.inputs().next().unwrap();
            for step in 0..6 {
                let byte = (step % 2) as u8;
                executor.input_mut(x).unwrap().fill(byte);
                let done = executor.step(Draw { seed: 0, step, round: 0 });
                match byte {
                    0 => assert_eq!(done.unwrap_err().error, KernelError::DivisionByZero),
                    _ => assert_eq!(executor.output(0)[..8], 2i64.to_le_bytes()),
                }
            }
        }
    }
}

#[test]
fn states_that_a_refused_step_has_written_are_known() {
    let (g, p) = parse(COUNTERS);
    for poison in [false, true] {
        let options = ExecutorOptions { threads: 1, poison, stress: None };
        let mut executor = Executor::new(&g, &p, options).unwrap();
        for state in g.states.values() {
            executor.carried_mut(state.enter).unwrap().fill(0);
        }
        let x = g.inputs().next().unwrap();
        executor.input_mut(x).unwrap().fill(0);
        executor.step(Draw { seed: 0, step: 0, round: 0 }).unwrap_err();
        let written: Vec<&str> =
            executor.written_states().iter().map(|&s| g.states[s].name.as_str()).collect();
        assert_eq!(written, ["before"]);
        // Every state, once a step has come to its end.
        executor.input_mut(x).unwrap().fill(1);
        executor.step(Draw { seed: 0, step: 1, round: 0 }).unwrap();
        assert_eq!(executor.written_states().len(), 2);
    }
}
