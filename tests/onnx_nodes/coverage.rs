//! The page `OPERATORS.md`: what arenic does with each operator, read off its tables.
//!
//! What an ONNX operator becomes, and what is true of that, is seen from what the importer makes
//! of its node tests. arenic's own operators are those that come up there, in the passes' cases
//! and in the whole steps of `models/`, in the types that they have there.

use crate::bind;
use crate::case::Case;
use crate::place;
use crate::planned::Tensors;
use arenic::onnx::{ImportOptions, SupportedOp, import_bytes, import_file, supported_ops};
use arenic_backends::CUDA;
use arenic_backends::cuda::library::{LibraryCall, describe};
use arenic_ir::graph::{Graph, NodeId};
use arenic_ir::op::Family;
use arenic_ir::op::families::Collective;
use arenic_ir::text::Module;
use arenic_ir::{Op, TensorType};
use arenic_passes::differentiate::{Passage, passage};
use arenic_passes::explain;
use arenic_runtime::cuda;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

const PAGE: &str = "OPERATORS.md";

const HEAD: &str = "\
# Operators

Made by the test `operators page` of `tests/onnx_nodes` out of the importer's table, the operator
table, the gradient rules and ONNX's node tests; `UPDATE_PAGE=1 cargo test --test onnx_nodes page`
makes it anew.

";

const OF_ONNX: &str = "\
## Of ONNX

*Becomes*: the operators of arenic, listed below, that node tests of the operator are imported as,
without what is computed when they are compiled. *Gradient*: whether gradients pass all of these;
they stop where a result is no continuous function of operands. *In place*: whether a result may
take an operand's bytes. *Tests*: ONNX's node tests that have the operator and pass, all of them
on the CPU; left out are those of other element types, of other kinds of values, and beside
operators that arenic does not know. Operators without any are held against ONNX Runtime's or
PyTorch's results elsewhere in `tests/`.

| operator | since | becomes | gradient | in place | tests | asks |
|---|---|---|---|---|---|---|
";

const STAYS_OUT: &str = "
## What stays out

Operators of ONNX's node tests that arenic does not know, and why.

- Quantised arithmetic (`QuantizeLinear`, `DequantizeLinear`, `DynamicQuantizeLinear`, `QLinearConv`,
  `QLinearMatMul`, `ConvInteger`, `MatMulInteger`): rounding stops gradients, and ONNX has no word for
  one that passes them all the same.
- Bits of integers: `BitShift`, `BitCast`, `BitwiseAnd` and its kin.
- Text, encoded images, and models of other kinds: `StringConcat` and its kin, `RegexFullMatch`,
  `TfIdfVectorizer`, `ImageDecoder`, the domain `ai.onnx.ml`.
- Results whose sizes depend on what is fed, which no plan can place: `NonZero`, `Unique`,
  `NonMaxSuppression`. Values that may not be there: `Optional` and what reads it.
- `Scatter` and `Upsample` are of opsets before 13.

So do tests of operators that it knows, of types that it does not: `float16` and smaller floats (a file in them is refused with the
way to export it in `f32`), integers of four bits and two, text; and such whose inputs or results are sequences.

";

const OF_ARENIC: &str = "\
## Of arenic

Each has a kernel for the CPU. *In place*: operand → result, by number. *CUDA*: kernels of our own,
and the library that may take its place where operands are large enough; NCCL carries what ranks
exchange, and our kernels sum it.

| operator | gradient | in place | CPU | CUDA |
|---|---|---|---|---|
";

/// What is known of an operator of ONNX.
#[derive(Default)]
struct Row {
    tests: usize,
    becomes: BTreeMap<&'static str, Own>,
}

/// What is known of an operator of arenic.
#[derive(Default)]
struct Own {
    passages: BTreeSet<&'static str>,
    in_place: BTreeSet<(usize, usize)>,
    cuda: bool,
    library: BTreeSet<&'static str>,
}

/// Compares the page with what the tables say of these tests, or writes it where that is asked
/// for.
pub(crate) fn check(cases: &[Case]) -> Result<(), String> {
    let page = page(cases)?;
    let path = place::file(PAGE);
    if std::env::var("UPDATE_PAGE").is_ok_and(|v| v == "1") {
        return std::fs::write(&path, page).map_err(|e| e.to_string());
    }
    let stored = std::fs::read_to_string(&path).map_err(|e| format!("{PAGE}: {e}"))?;
    let first = page.lines().zip(stored.lines()).find(|(now, then)| now != then);
    match first {
        _ if page == stored => Ok(()),
        Some((now, then)) => Err(format!("{PAGE} says\n{then}\nwhere the tables say\n{now}")),
        None => Err(format!("{PAGE} is not as long as what the tables say")),
    }
}

fn page(cases: &[Case]) -> Result<String, String> {
    let mut rows: BTreeMap<(&str, &str), Row> = BTreeMap::new();
    let mut own: BTreeMap<&'static str, Own> = BTreeMap::new();
    for case in cases {
        let g = imported(case)?;
        note(&g, &mut own);
        let all: BTreeSet<(&str, &str)> = case.graph().node.iter().map(name_of).collect();
        for &op in &all {
            let row = rows.entry(op).or_default();
            row.tests += 1;
            // What several operators became says nothing of one of them.
            if all.len() == 1 {
                note(&g, &mut row.becomes);
            }
        }
    }
    for g in graphs()? {
        note(&g, &mut own);
    }
    let mut out = HEAD.to_owned() + OF_ONNX;
    for op in supported_ops() {
        let row = rows.remove(&(op.domain, op.name)).unwrap_or_default();
        of_onnx(&mut out, op, &row);
    }
    let mut named = STAYS_OUT.split('`').skip(1).step_by(2);
    if let Some(name) = named.find(|name| supported_ops().any(|op| op.name == *name)) {
        return Err(format!("{PAGE} says that {name} stays out, which the importer knows"));
    }
    out += STAYS_OUT;
    out += OF_ARENIC;
    for (name, op) in &own {
        let pairs = op.in_place.iter().map(|(i, o)| format!("{i}→{o}"));
        let cuda = match op.cuda {
            true => std::iter::once("own").chain(op.library.iter().copied()).collect(),
            false => vec!["–"],
        };
        let _ = writeln!(
            out,
            "| `{name}` | {} | {} | own | {} |",
            joined(op.passages.iter().copied()),
            dash(pairs.collect::<Vec<_>>().join(", ")),
            cuda.join(", ")
        );
    }
    Ok(out)
}

fn of_onnx(out: &mut String, op: SupportedOp, row: &Row) {
    let passages: BTreeSet<&str> =
        row.becomes.values().flat_map(|o| &o.passages).copied().collect();
    let gradient = ["none", "passes", "stops"].into_iter().find(|p| passages.contains(p));
    let in_place = match row.becomes.values().any(|o| !o.in_place.is_empty()) {
        _ if row.becomes.is_empty() => "–",
        true => "yes",
        false => "no",
    };
    let name = match op.domain {
        "ai.onnx" => op.name.to_owned(),
        domain => format!("{domain}.{}", op.name),
    };
    let _ = writeln!(
        out,
        "| {name} | {} | {} | {} | {in_place} | {} | {} |",
        op.since,
        dash(row.becomes.keys().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ")),
        gradient.unwrap_or("–"),
        row.tests,
        op.note
    );
}

/// What the graph's nodes say of their operators.
fn note(g: &Graph, own: &mut BTreeMap<&'static str, Own>) {
    for (n, node) in g.nodes.iter().filter(|(_, n)| !matches!(n.op, Op::Opaque { .. })) {
        let entry = own.entry(node.op.name()).or_default();
        let floats = node.outputs.iter().flatten().any(|&v| g.ty(v).dtype.is_float());
        entry.passages.insert(match passage(&node.op) {
            Passage::Passes if !floats => "stops",
            Passage::Passes => "passes",
            Passage::Stops => "stops",
            Passage::None => "none",
        });
        let (x, y) = (g.input_types(n), g.output_types(n).unwrap_or_default());
        let y: Vec<&TensorType> = y.iter().collect();
        entry.in_place.extend(node.op.in_place_pairs(&x, &y));
        entry.cuda |= has_kernel(g, n);
        let call = describe(&node.op, CUDA.target().math, &x, &y);
        entry.library.extend(call.map(|call| match call {
            LibraryCall::Product(_) => "cuBLASLt",
            LibraryCall::Convolution(_) | LibraryCall::Attention(_) => "cuDNN",
        }));
        let exchanges = match node.op.family() {
            Family::Collective(op) => !matches!(op, Collective::OwnPart { .. }),
            _ => false,
        };
        entry.library.extend(exchanges.then_some("NCCL"));
    }
}

fn has_kernel(g: &Graph, n: NodeId) -> bool {
    let (x, y) = (g.input_types(n), g.output_types(n).unwrap_or_default());
    let asked = y.iter().zip(&g.nodes[n].outputs).map(|(ty, v)| v.is_some().then_some(ty));
    let outputs: Vec<Option<&TensorType>> = asked.collect();
    let alignments = vec![CUDA.target().align; x.len()];
    let mut module = cuda::Module::default();
    cuda::lower(&g.nodes[n].op, &x, &alignments, &outputs, CUDA.target(), &mut module).is_ok()
}

fn imported(case: &Case) -> Result<Graph, String> {
    let fixed = bind::inputs(case.graph());
    let inputs = case.inputs()?.into_iter().filter(|t| fixed.contains(t.name.as_str()));
    let bind: Tensors = inputs.map(|t| (t.name, (t.ty, t.bytes))).collect();
    let options = ImportOptions { bind, ..ImportOptions::default() };
    let imported = import_bytes(case.bytes.clone(), None, &options);
    Ok(imported.map_err(|e| format!("{}: {e}", case.name))?.graph)
}

/// Whole steps, and the graphs of the passes' cases before and after.
fn graphs() -> Result<Vec<Graph>, String> {
    let mut all = Vec::new();
    for path in files(&place::file("models/step"), "onnx")? {
        all.extend(import_file(&path, &ImportOptions::default()).map(|i| i.graph));
    }
    let kept = ["tests", "passes/cases", "baselines/cases"].map(place::file);
    for folder in kept.iter().map(|of| folders(of)).collect::<Result<Vec<_>, _>>()?.concat() {
        for path in files(&folder, "ir")? {
            let text = std::fs::read_to_string(&path).map_err(|e| e.to_string())?;
            let case = explain::Case::read(&text);
            let modules = [Some(case.module), case.gives].into_iter().flatten();
            let parsed = modules.flat_map(|text| Module::parse(text, &arenic_backends::ALL));
            all.extend(parsed.map(|module| module.graph));
        }
    }
    Ok(all)
}

fn folders(of: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(of).map_err(|e| format!("{}: {e}", of.display()))?;
    let paths = entries.filter_map(|e| e.ok().map(|e| e.path()));
    Ok(paths.filter(|p| p.is_dir()).collect())
}

fn files(of: &Path, extension: &str) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(of).map_err(|e| format!("{}: {e}", of.display()))?;
    let paths = entries.filter_map(|e| e.ok().map(|e| e.path()));
    Ok(paths.filter(|p| p.extension().is_some_and(|e| e == extension)).collect())
}

fn name_of(node: &arenic::onnx::proto::NodeProto) -> (&str, &str) {
    let domain = node.domain.as_deref().filter(|d| !d.is_empty()).unwrap_or("ai.onnx");
    (domain, node.op_type.as_deref().unwrap_or(""))
}

fn joined<'a>(all: impl Iterator<Item = &'a str>) -> String {
    all.collect::<Vec<_>>().join(" or ")
}

fn dash(text: String) -> String {
    if text.is_empty() { "–".into() } else { text }
}
