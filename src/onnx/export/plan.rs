//! A compiled step as an ONNX file that says where its plan puts everything.
//!
//! Nodes come in the order in which the program first runs them. Each says, as metadata,
//!
//! - `arenic.order`: which one it is;
//! - `arenic.stream`: the stream it runs on;
//! - `arenic.recomputed`: how often it runs again;
//! - `arenic.offset`, `arenic.bytes`, `arenic.lifetime`: of its first result, the bytes in the
//!   device's arena, and the commands `first..last` between which they are taken; several where it
//!   is made again or brought back. Further results have numbers, as in `arenic.offset.1`;
//! - `arenic.swap`: the commands that copy its first result out and back.

use super::super::proto::ModelProto;
use super::{ExportError, ExportOptions, Notes, with_notes};
use crate::artifact::{Provenance, Target};
use arenic_ir::check::{Footprint, Occupancy};
use arenic_ir::graph::{NodeId, ValueId};
use arenic_ir::program::{Command, Space};
use cranelift_entity::SecondaryMap;

/// A target's graph, annotated; `footprint` is what the checker says of its program.
///
/// # Errors
/// As [`export`](super::export).
pub fn annotated(
    target: &Target,
    provenance: &Provenance,
    footprint: &Footprint,
    options: ExportOptions,
) -> Result<ModelProto, ExportError> {
    let model = vec![
        ("arenic.target", target.name.clone()),
        ("arenic.compiler", provenance.compiler.clone()),
        ("arenic.model", provenance.model.clone()),
        ("arenic.passes", provenance.passes.join(", ")),
        ("arenic.arena_bytes", footprint.arena_bytes.device.to_string()),
        ("arenic.host_arena_bytes", footprint.arena_bytes.host.to_string()),
        ("arenic.live_peak_bytes", footprint.live_peak_bytes.device.to_string()),
        ("arenic.lower_bound_bytes", target.figures.lower_bound_bytes.to_string()),
    ];
    with_notes(&target.graph, options, &Notes { model, nodes: nodes(target, footprint) })
}

fn nodes(target: &Target, footprint: &Footprint) -> Vec<(NodeId, Vec<(String, String)>)> {
    let g = &target.graph;
    let mut runs: SecondaryMap<NodeId, usize> = SecondaryMap::new();
    let mut order = Vec::with_capacity(g.nodes.len());
    for command in &target.program.commands {
        if let Command::Run { node, stream, .. } = command {
            if runs[*node] == 0 {
                order.push((*node, *stream));
            }
            runs[*node] += 1;
        }
    }
    let mut taken: SecondaryMap<ValueId, Vec<&Occupancy>> = SecondaryMap::new();
    for o in footprint.occupancies.iter().filter(|o| o.range.len > 0 && o.first < o.end) {
        if let Some(v) = o.value {
            taken[v].push(o);
        }
    }
    let about = |(i, (n, stream)): (usize, (NodeId, _))| {
        let mut said = vec![
            ("arenic.order".to_owned(), i.to_string()),
            ("arenic.stream".to_owned(), format!("{stream}")),
        ];
        if runs[n] > 1 {
            said.push(("arenic.recomputed".to_owned(), (runs[n] - 1).to_string()));
        }
        for (k, v) in g.nodes[n].outputs.iter().enumerate() {
            let Some(v) = *v else { continue };
            result(&mut said, k, &taken[v]);
        }
        (n, said)
    };
    order.into_iter().enumerate().map(about).collect()
}

/// What there is to say of result `k` of a node.
fn result(said: &mut Vec<(String, String)>, k: usize, taken: &[&Occupancy]) {
    let key = |what: &str| match k {
        0 => format!("arenic.{what}"),
        k => format!("arenic.{what}.{k}"),
    };
    let each = |space: Space, text: &dyn Fn(&Occupancy) -> String| {
        let there = taken.iter().filter(|o| o.range.space == space);
        there.map(|o| text(o)).collect::<Vec<_>>().join(", ")
    };
    let rows = [
        ("offset", each(Space::Device, &|o| o.range.offset.to_string())),
        ("bytes", each(Space::Device, &|o| o.range.len.to_string())),
        ("lifetime", each(Space::Device, &|o| format!("{}..{}", o.first, o.end - 1))),
        ("swap", each(Space::Host, &|o| format!("out {}, in {}", o.first, o.end - 1))),
    ];
    said.extend(rows.into_iter().filter(|row| !row.1.is_empty()).map(|(w, row)| (key(w), row)));
}
