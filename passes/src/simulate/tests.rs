use super::*;
use arenic_ir::check::check;
use arenic_ir::cost::{BesideKernels, Link};
use arenic_ir::text::Module;
use arenic_programs::steps;

/// One byte a second each way, half of it both ways.
fn device(copy_engines: u8) -> Device {
    let device = steps::device(1.0);
    Device { link: Link { both: 0.5, copy_engines, ..device.link }, ..device }
}

/// `y = -exp(x)`, where x of 16 bytes waits in host memory, over the given commands.
fn step(commands: &str) -> Module {
    let host = if commands.contains("host[16+16]") { 32 } else { 16 };
    let text = format!(
        "graph \"g\" {{\n  input v0: f32[4] \"x\"\n  n0 unary {{\"f\":\"exp\"}} (v0) -> (v1: f32[4])\n  \
         n1 unary {{\"f\":\"neg\"}} (v1) -> (v2: f32[4] \"y\")\n  output \"y\" v2\n}}\n\
         program {{\n  align 4\n  device 32\n  host {host}\n  home v0 host[0+16]\n{commands}}}\n"
    );
    let module =
        Module::parse(&text, &arenic_backends::ALL).unwrap_or_else(|e| panic!("{e}\n{text}"));
    check(&module.graph, module.program.as_ref().unwrap()).unwrap();
    module
}

const SWAPPED_IN: &str = "  copy stream1 host[0+16] -> device[0+16]
  record stream1 event0
  wait stream0 event0
  run n0 stream0 (device[0+16]) -> (device[16+16])
  run n1 stream0 (device[16+16]) -> (device[0+16])
";

fn simulated(commands: &str, copy_engines: u8) -> (Module, Simulation) {
    let module = step(commands);
    let found = simulate(module.program.as_ref().unwrap(), &device(copy_engines), &|_| 10.0);
    (module, found)
}

#[test]
fn kernels_wait_for_what_is_copied_in() {
    let (_, found) = simulated(&format!("{SWAPPED_IN}  output device[0+16]\n"), 2);
    assert_eq!(found.seconds, 36.0);
    assert_eq!(found.kernel_seconds, 20.0);
    assert_eq!(
        found.stalls,
        Stalls { copies_in: 16.0, copies_out: 0.0, exchanges: 0.0, boundary: 0.0 }
    );
    assert_eq!(found.to_device, Traffic { bytes: 16, seconds: 16.0 });
    assert_eq!(found.commands[3], Span { start: 16.0, end: 26.0 });
}

#[test]
fn the_step_ends_when_its_copies_are_done() {
    let copied_out = format!(
        "{SWAPPED_IN}  record stream0 event1\n  wait stream2 event1\n  \
         copy stream2 device[0+16] -> host[16+16]\n  record stream2 event2\n  \
         wait stream0 event2\n  output host[16+16]\n"
    );
    let (_, found) = simulated(&copied_out, 2);
    assert_eq!((found.seconds, found.stalls.boundary), (52.0, 16.0));
    assert_eq!(found.to_host, Traffic { bytes: 16, seconds: 16.0 });
    assert_eq!(found.stalls.total() + found.kernel_seconds, found.seconds);
}

/// While both directions are busy each has the lower rate; one engine takes turns.
#[test]
fn the_link_is_shared() {
    let both = "  copy stream1 host[0+16] -> device[0+16]
  record stream1 event0
  wait stream0 event0
  run n0 stream0 (device[0+16]) -> (device[16+16])
  run n1 stream0 (device[16+16]) -> (device[0+16])
  record stream0 event1
  wait stream1 event1
  wait stream2 event1
  copy stream1 device[0+16] -> host[16+16]
  copy stream2 host[0+16] -> device[16+16]
  record stream1 event2
  wait stream0 event2
  record stream2 event3
  wait stream0 event3
  output host[16+16]
";
    // 36 s until both copies begin; then 16 bytes at half a byte a second, or in turn.
    assert_eq!(simulated(both, 2).1.seconds, 36.0 + 32.0);
    assert_eq!(simulated(both, 1).1.seconds, 36.0 + 32.0);
    let single = simulated(both, 1).1;
    assert_eq!(single.to_host.seconds, 16.0);
    assert_eq!(simulated(both, 2).1.to_host.seconds, 32.0);
}

/// Copies beside kernels have a part of their rate, kernels beside copies lose time, and so do those that waited
/// for one.
#[test]
fn copies_and_kernels_slow_each_other() {
    let stored_beside_a_kernel = format!(
        "{}  record stream0 event1\n  wait stream2 event1\n  \
         copy stream2 device[16+16] -> host[16+16]\n  run n1 stream0 (device[16+16]) -> (device[0+16])\n  \
         record stream2 event2\n  wait stream0 event2\n  output device[0+16]\n",
        SWAPPED_IN.rsplit_once("  run n1").unwrap().0
    );
    let module = step(&stored_beside_a_kernel);
    let mut device = device(2);
    device.link.beside_kernels = BesideKernels { rate: 0.5, drag: 0.25, join_seconds: 3.0 };
    let found = simulate(module.program.as_ref().unwrap(), &device, &|_| 10.0);
    let kernels: Vec<Span> = [3, 7].map(|i| found.commands[i]).into();
    assert_eq!(kernels[0], Span { start: 32.0, end: 45.0 });
    assert_eq!((kernels[1].start, kernels[1].end), (45.0, 45.0 + 10.0 / 0.75));
    assert_eq!((found.to_device.seconds, found.to_host.seconds), (32.0, 32.0));
    assert_eq!(found.seconds, 77.0);
}

#[test]
fn bytes_over_time_follow_the_commands() {
    let (module, found) = simulated(&format!("{SWAPPED_IN}  output device[0+16]\n"), 2);
    let footprint = check(&module.graph, module.program.as_ref().unwrap()).unwrap();
    let live = live_over_time(&footprint, 4, &found, Space::Device);
    assert_eq!(live, [(0.0, 16), (16.0, 32), (26.0, 32), (36.0, 0)]);
    assert_eq!(live_over_time(&footprint, 4, &found, Space::Host)[0], (0.0, 16));
}

#[test]
fn a_trace_has_a_row_for_each_stream() {
    let (module, found) = simulated(&format!("{SWAPPED_IN}  output device[0+16]\n"), 2);
    let trace =
        chrome_trace(&module.graph, module.program.as_ref().unwrap(), &found.commands, "simulated");
    assert_eq!(trace["otherData"]["times"], "simulated");
    let events = trace["traceEvents"].as_array().unwrap();
    let named = |name: &str| events.iter().find(|e| e["name"] == name).unwrap();
    assert_eq!(named("copy host to device")["dur"], 16.0 * 1e6);
    assert_eq!(named("unary y")["ts"], 26.0 * 1e6);
    let negated = &named("unary y")["args"];
    assert_eq!(
        (&negated["node"], &negated["flops"], &negated["bytes"]),
        (&"n1".into(), &4.into(), &32.into())
    );
    assert_eq!(events.iter().filter(|e| e["ph"] == "M").count(), 2);
}
