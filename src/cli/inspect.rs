//! `arenic inspect`

use super::search::CUT;
use super::{Failure, Json, Outcome, checked_target, failed, human_bytes, print};
use crate::artifact::{Artifact, Boundary, Target, Turn};
use crate::explain;
use arenic_ir::check::Footprint;
use arenic_ir::graph::{Def, Graph, ValueId};
use arenic_ir::text::Module;
use clap::Args;
use petgraph::dot::Dot;
use petgraph::graph::{DiGraph, NodeIndex};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::PathBuf;

/// Arguments of `arenic inspect`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The artifact
    artifact: PathBuf,
    /// The target to show [default: the first]
    #[arg(long)]
    target: Option<String>,
    /// The variant, where the artifact holds several [default: the first]
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    /// Statistics alone, without graph and program
    #[arg(long)]
    statistics: bool,
    /// The graph for Graphviz: operators, and the tensors between them
    #[arg(long, conflicts_with_all = ["statistics", "json"])]
    dot: bool,
    #[command(flatten)]
    json: Json,
}

pub(super) fn run(a: &Arguments) -> Outcome {
    let artifact = Artifact::read(&a.artifact).map_err(failed)?;
    let (target, footprint) = checked_target(&artifact, a.target.as_deref(), a.variant.as_deref())?;
    if a.dot {
        return print(Dot::new(&drawn(&target.graph)));
    }
    if a.json.json {
        return print(as_json(&artifact, target, &footprint)?);
    }
    let p = &artifact.provenance;
    print(format!("# {} from `{}`, target {}", p.compiler, p.model, target.name))?;
    let variants = artifact.variants(&target.name);
    if variants.len() > 1 {
        let arena = human_bytes(artifact.arenas(&target.name).device);
        print(format!("# variant {}, over one arena of {arena} for", target.variant))?;
        for t in variants {
            let arena = human_bytes(t.arena_bytes().device);
            print(format!("#   {:<22} arena {arena}", t.variant))?;
        }
    }
    print(format!("# passes: {}", p.passes.join(", ")))?;
    print(format!("# precision: {}", target.precision()))?;
    if p.is_cut {
        print(format!("# {CUT}"))?;
    }
    for (name, figure) in target.figures.named() {
        let human = if name.ends_with("_bytes") { human_bytes(figure) } else { figure.to_string() };
        print(format!("# {name:<24} {human}"))?;
    }
    if let Some(rounds) = &target.rounds {
        let names: Vec<&str> = rounds.by_rows.iter().map(String::as_str).collect();
        print(format!("# rounds: {}, by rows of {}", rounds.count, names.join(", ")))?;
        for Turn { name, graph, program, .. } in target.turns() {
            let (nodes, arena) = (graph.nodes.len(), human_bytes(program.sizes.device));
            print(format!("# {name:<24} {nodes} operators, arena {arena}"))?;
        }
    }
    if !a.statistics {
        for turn in target.turns() {
            if target.rounds.is_some() {
                print(format!("# {}", turn.name))?;
            }
            let (graph, program) = (turn.graph.clone(), Some(turn.program.clone()));
            print(Module { graph, plan: None, program })?;
        }
    }
    Ok(())
}

/// Operators, and what is fed or kept, with an edge for each operand and output.
fn drawn(g: &Graph) -> DiGraph<String, String> {
    let mut drawing = DiGraph::new();
    let mut made: HashMap<ValueId, NodeIndex> = HashMap::new();
    for (v, value) in &g.values {
        let kind = match value.def {
            Def::Input => "input",
            Def::Const(_) => "constant",
            Def::State(_) => "state",
            Def::Node { .. } | Def::View { .. } => continue,
        };
        made.insert(v, drawing.add_node(format!("{kind} {}", value.name).trim_end().to_owned()));
    }
    for (n, node) in &g.nodes {
        let at = drawing.add_node(format!("{n} {} {}", node.op.name(), node.name));
        for &v in &node.inputs {
            if let Some(&from) = made.get(&g.resolve(v).root) {
                drawing.add_edge(from, at, g.ty(v).to_string());
            }
        }
        made.extend(node.outputs.iter().flatten().map(|&v| (v, at)));
    }
    let outputs = g.outputs.iter().map(|o| (o.value, format!("output {}", o.name)));
    let exits = g.states.values().filter(|s| s.exit != s.enter);
    let exits = exits.map(|s| (s.exit, format!("next {}", s.name)));
    for (v, label) in outputs.chain(exits).collect::<Vec<_>>() {
        let at = drawing.add_node(label);
        if let Some(&from) = made.get(&g.resolve(v).root) {
            drawing.add_edge(from, at, g.ty(v).to_string());
        }
    }
    drawing
}

fn as_json(artifact: &Artifact, target: &Target, footprint: &Footprint) -> Result<Value, Failure> {
    let whole = target.whole_step().map_err(failed)?;
    let g = &target.graph;
    let p = &artifact.provenance;
    let name = |v| match g.values[v].name.as_str() {
        "" => format!("{v}"),
        name => name.to_owned(),
    };
    let buffers: Vec<Value> = footprint
        .occupancies
        .iter()
        .filter(|o| o.range.len > 0 && o.first < o.end)
        .map(|o| {
            json!({
                "name": o.value.map_or("scratch".to_owned(), name),
                "bytes": o.range.len,
                "offset": o.range.offset,
                "first": o.first,
                "last": o.end - 1,
                "space": o.range.space.name(),
                "kind": o.kind.name(),
            })
        })
        .collect();
    // What is fed and given are those of all rounds.
    let g = whole.as_ref().map_or(g, |whole| whole.graph());
    let typed = |v, name: &str| json!({"name": name, "type": g.ty(v).to_string()});
    let inputs: Vec<Value> = g.inputs().map(|v| typed(v, &g.values[v].name)).collect();
    let states: Vec<Value> = g
        .states
        .iter()
        .filter(|(_, state)| state.rows.is_none_or(|rows| rows.first == 0))
        .map(|(s, state)| {
            let ty = g.saved_type(s).to_string();
            json!({"name": state.name, "type": ty, "initialized": state.init.is_some()})
        })
        .collect();
    let outputs: Vec<Value> = g.outputs.iter().map(|o| typed(o.value, &o.name)).collect();
    Ok(json!({
        "compiler": p.compiler,
        "model": p.model,
        "passes": p.passes,
        "search_cut": p.is_cut,
        "target": target.name,
        "math": target.program.target.math.name(),
        "precision": target.precision(),
        "targets": artifact.target_names(),
        "variant": target.variant,
        "variants": artifact.variants(&target.name).iter().map(|t| &t.variant).collect::<Vec<_>>(),
        "runnable": artifact.runnable,
        "boundary": Boundary::Joined.name(),
        "statistics": target.figures.named(),
        "certificate": explain::stored_to_json(target),
        "inputs": inputs,
        "states": states,
        "outputs": outputs,
        "commands": target.program.commands.len(),
        "buffers": buffers,
        "rounds": rounds_to_json(target),
    }))
}

/// How a step runs in rounds; null where it has none.
fn rounds_to_json(target: &Target) -> Value {
    let Some(rounds) = &target.rounds else { return Value::Null };
    let part = |turn: &Turn| {
        json!({
            "runs": turn.name,
            "times": turn.times,
            "nodes": turn.graph.nodes.len(),
            "commands": turn.program.commands.len(),
            "arena_bytes": turn.program.sizes.device,
            "host_arena_bytes": turn.program.sizes.host,
        })
    };
    let parts: Vec<Value> = target.turns().iter().map(part).collect();
    json!({"count": rounds.count, "by_rows": rounds.by_rows, "parts": parts})
}
