//! A step in the trace event format, which Chrome and Perfetto show.

use arenic_ir::Graph;
use arenic_ir::program::{Command, Program, Span};
use cranelift_entity::EntityRef;
use serde_json::{Value, json};

/// One row for each stream; times in microseconds. There is a span for each command of the
/// program, and `times` says where they come from. Kernels have the operations and the bytes of
/// their operators, see [`Work`](arenic_ir::op::Work).
pub fn chrome_trace(g: &Graph, p: &Program, spans: &[Span], times: &str) -> Value {
    let mut streams: Vec<usize> = p.commands.iter().map(|c| c.stream().index()).collect();
    streams.sort_unstable();
    streams.dedup();
    let mut events: Vec<Value> = streams
        .into_iter()
        .map(|s| {
            json!({"name": "thread_name", "ph": "M", "pid": 0, "tid": s,
                   "args": {"name": format!("stream {s}")}})
        })
        .collect();
    for (command, span) in p.commands.iter().zip(spans) {
        let (name, category, args) = match command {
            Command::Run { node, .. } => {
                let n = &g.nodes[*node];
                let result = n.outputs.iter().flatten().next();
                let result = result.map_or("", |&v| g.values[v].name.as_str());
                let name = if n.name.is_empty() { result } else { &n.name };
                let work = g.work(*node);
                let args =
                    json!({"node": node.to_string(), "flops": work.flops, "bytes": work.bytes});
                (format!("{} {name}", n.op.name()), "kernel", args)
            }
            Command::Copy { from, to, .. } => {
                let name = format!("copy {} to {}", from.space, to.space);
                (
                    name,
                    "copy",
                    json!({"bytes": from.len, "from": from.to_string(), "to": to.to_string()}),
                )
            }
            Command::Record { .. } | Command::Wait { .. } => continue,
        };
        events.push(json!({
            "name": name.trim_end(), "cat": category, "ph": "X", "pid": 0,
            "tid": command.stream().index(), "ts": span.start * 1e6,
            "dur": (span.end - span.start) * 1e6, "args": args,
        }));
    }
    json!({"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"times": times}})
}
