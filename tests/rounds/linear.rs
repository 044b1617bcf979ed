//! A linear model with dropout, trained by gradient descent in four rounds of two rows.

use arenic::artifact::{Certificate, Figures, Part, Target};
use arenic::data::OutputSpool;
use arenic_ir::graph::Data;
use arenic_ir::text::Module;
use arenic_ir::{DType, Rounds, TensorType};
use std::path::Path;

const COUNT: u32 = 4;
pub(crate) const LR: f32 = 0.5;

fn part(text: &str) -> Part {
    let module = Module::parse(text, &arenic_backends::ALL).unwrap();
    Part { graph: module.graph, program: module.program.unwrap(), kernels: None }
}

/// The step in rounds.
pub(crate) fn linear() -> Target {
    let mut main = part(include_str!("main.ir"));
    let w: Vec<u8> = [0.5f32, -1.0, 0.25, 2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    let state = main.graph.states.values_mut().next().unwrap();
    state.init = Some(Data::Bytes(w.into()));
    let rounds = Rounds {
        count: COUNT,
        by_rows: ["x", "target", "y"].map(str::to_owned).into(),
        before: part(include_str!("before.ir")),
        after: part(include_str!("after.ir")),
    };
    Target {
        variant: String::new(),
        structure: String::new(),
        name: "cpu".into(),
        graph: main.graph,
        program: main.program,
        figures: Figures { arena_bytes: 5376, ..Figures::default() },
        certificate: Certificate::default(),
        bound: Vec::new(),
        fed: Default::default(),
        kernels: None,
        rounds: Some(Box::new(rounds)),
        file: arenic::mapping::Mapping::default(),
    }
}

/// What an input is fed in a step.
pub(crate) fn data(name: &str, step: u64) -> Vec<u8> {
    let (n, phase) = match name {
        "x" => (32, 0.3),
        "target" => (8, 1.7),
        _ => return LR.to_le_bytes().to_vec(),
    };
    let x = |i: u64| ((i + 40 * step) as f32 * 0.7 + phase).sin();
    (0..n).flat_map(|i| x(i).to_le_bytes()).collect()
}

/// The data of some steps as a file.
pub(crate) fn write_data(path: &Path, steps: u64) {
    // Row after row.
    let named = |name: &str, row| (name.to_owned(), TensorType::new(DType::F32, [row]));
    let inputs = [named("x", 4), named("target", 1)];
    let mut file = OutputSpool::new(path, &inputs).unwrap();
    for step in 0..steps {
        for (i, (name, row)) in inputs.iter().enumerate() {
            let rows = data(name, step);
            rows.chunks(row.bytes() as usize).for_each(|row| file.append(i, row).unwrap());
        }
    }
    file.finish().unwrap();
}
