//! Kernels of one operator, from its text.

use arenic_backends::CUDA;
use arenic_ir::text::Module as Text;
use arenic_ir::{Math, Op, TargetInfo, TensorType};
use arenic_runtime::cuda::{Module, Work, lower};

/// An operator and what the device does for it by our own kernels.
#[allow(dead_code, reason = "not every test launches the kernels")]
pub(crate) struct Lowered {
    pub(crate) inputs: Vec<TensorType>,
    pub(crate) results: Vec<TensorType>,
    pub(crate) scratch_bytes: u64,
    pub(crate) work: Vec<Work>,
}

/// Lowers `OPERATOR (v0: TYPE, v1: TYPE, …)`, whose results are what the operator infers; kernels go to
/// the module.
pub(crate) fn lowered(text: &str, math: Math, module: &mut Module) -> Lowered {
    let (op, inputs) = parsed(text);
    let x: Vec<&TensorType> = inputs.iter().collect();
    let results = op.infer(&x).unwrap_or_else(|e| panic!("{text}: {e}"));
    let target = TargetInfo { math, ..CUDA.target() };
    let wanted: Vec<Option<&TensorType>> = results.iter().map(Some).collect();
    let alignments = vec![target.align; x.len()];
    let work = lower(&op, &x, &alignments, &wanted, target, module);
    let work = work.unwrap_or_else(|e| panic!("{text}: {e}"));
    let scratch_bytes = op.scratch_bytes(target, &x, &results.iter().collect::<Vec<_>>());
    Lowered { work, scratch_bytes, inputs, results }
}

/// The operator and the types of its operands.
fn parsed(text: &str) -> (Op, Vec<TensorType>) {
    let (operator, operands) = text.split_once(" (").expect("operands");
    let (mut graph, mut names) = ("graph \"one\" {\n".to_owned(), Vec::new());
    for operand in operands.trim_end_matches(')').split(", ") {
        let (name, _) = operand.split_once(": ").expect("a type");
        graph += &format!("  input {operand} \"{name}\"\n");
        names.push(name);
    }
    graph += &format!("  n0 {operator} ({}) -> ()\n}}\n", names.join(", "));
    let parsed = Text::parse(&graph, &arenic_backends::ALL);
    let g = parsed.unwrap_or_else(|e| panic!("{e}\n{graph}")).graph;
    let (n, node) = g.nodes.iter().next().expect("a node");
    (node.op.clone(), g.input_types(n).into_iter().cloned().collect())
}
