//! Which way each product, convolution and attention goes, told node by node of a kind.

use super::super::choose::AlgorithmChoice;
use super::super::work::{Request, Work};
use crate::ways::{Refused, Way};
use arenic_backends::cuda::library::{self, LibraryCall, NoCall};
use arenic_ir::TargetInfo;
use arenic_ir::backend::Unit;
use arenic_ir::graph::{Graph, NodeId};
use arenic_ir::op::{Family, families::Wrapping};
use arenic_ir::program::{Command, Program};
use std::collections::HashMap;

/// The ways of a program's nodes, in the order in which a step comes to them.
pub(super) fn ways(
    g: &Graph,
    program: &Program,
    work: &HashMap<NodeId, Vec<Work>>,
    choices: &[AlgorithmChoice],
) -> Vec<Way> {
    let mut ways: Vec<Way> = Vec::new();
    for command in &program.commands {
        let Command::Run { node, .. } = command else { continue };
        let Some(way) = way(g, *node, program.target, &work[node], choices) else { continue };
        let is_same = |known: &&mut Way| {
            known.op == way.op && known.operands == way.operands && known.taken == way.taken
        };
        match ways.iter_mut().find(is_same) {
            Some(known) => known.runs += 1,
            None => ways.push(way),
        }
    }
    ways
}

/// `None` for operators that are no products.
fn way(
    g: &Graph,
    n: NodeId,
    target: TargetInfo,
    works: &[Work],
    choices: &[AlgorithmChoice],
) -> Option<Way> {
    let op = &g.nodes[n].op;
    let wrapped = match op.family() {
        Family::Wrapping(Wrapping::ChannelsLast { of } | Wrapping::ForEach { of, .. }) => {
            of.family()
        }
        family => family,
    };
    let is_product =
        matches!(wrapped, Family::Product(_) | Family::Convolution(_) | Family::Attention(_));
    if !is_product {
        return None;
    }
    let (x, y) = (g.input_types(n), g.output_types(n).unwrap_or_default());
    let read = y.iter().zip(&g.nodes[n].outputs).map_while(|(ty, v)| v.is_some().then_some(ty));
    let y: Vec<_> = read.collect();
    let mut way = Way {
        op: op.name().to_owned(),
        operands: x.iter().map(ToString::to_string).collect(),
        runs: 1,
        taken: match op.unit(target, &x, &y) {
            Unit::TensorCores => "kernels, by tensor cores".into(),
            Unit::Library | Unit::Lanes => KERNELS.into(),
        },
        by_library: false,
        seconds: None,
        refused: Vec::new(),
    };
    if !follow(works, choices, &mut way) {
        let why = match library::call(op, target.math, &x, &y) {
            Err(why) => why,
            // There is a call, but nobody was asked.
            Ok(_) => NoCall::Alignment,
        };
        way.refused.push(Refused { way: "a library".into(), why: why.to_string() });
    }
    Some(way)
}

/// What our own kernels are called.
const KERNELS: &str = "kernels";

/// Adds what was chosen; false where no library was asked.
fn follow(works: &[Work], choices: &[AlgorithmChoice], way: &mut Way) -> bool {
    let asked = works.iter().find_map(|work| match work {
        Work::Library(asked) => Some((&asked.request, &asked.instead)),
        Work::Launch(_) | Work::Copy { .. } | Work::Exchange { .. } => None,
    });
    let Some((request, instead)) = asked else { return false };
    let Some(choice) = choices.iter().find(|choice| choice.request == *request) else {
        return false;
    };
    let taken = choice.way();
    let refused = |name: &str, why: String| Refused { way: name.to_owned(), why };
    if let Some(e) = &choice.refused {
        way.refused.push(refused(library_of(request), e.to_string()));
    } else if !choice.tried.iter().any(|t| t.is_by_library()) {
        let why = match choice.others {
            0 => format!("no algorithm in {} bytes of workspace", request.workspace),
            n => format!("none of {n} algorithms always gives the same bits"),
        };
        way.refused.push(refused(library_of(request), why));
    }
    for trial in &choice.tried {
        let slower = (trial.seconds, taken.seconds);
        match (&trial.refused, slower) {
            (Some(e), _) => way.refused.push(refused(&trial.name, e.to_string())),
            (None, (Some(its), Some(best))) if !std::ptr::eq(trial, taken) => {
                let why = format!("takes {:.3} ms, not {:.3}", its * 1e3, best * 1e3);
                way.refused.push(refused(&trial.name, why));
            }
            _ => {}
        }
    }
    way.seconds = taken.seconds;
    if taken.is_by_library() {
        let pass = if works.len() > 1 { ", and a pass" } else { "" };
        way.taken = format!("{}{pass}", taken.name);
        way.by_library = true;
    } else {
        follow(instead, choices, way);
    }
    true
}

fn library_of(request: &Request) -> &'static str {
    match request.call {
        LibraryCall::Product(_) => "cuBLASLt",
        LibraryCall::Convolution(_) | LibraryCall::Attention(_) => "cuDNN",
    }
}
