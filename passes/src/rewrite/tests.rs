//! The kit on a small graph.

use super::{Editor, GraphView};
use crate::Evaluate;
use arenic_ir::graph::{Graph, ValueId};
use arenic_ir::op::{Binary, Op, Unary};
use arenic_ir::text::Module;
use arenic_ir::types::TensorType;
use std::collections::BTreeSet;

const TEXT: &str = r#"
graph "a sum, read in another shape, and a number that is repeated" {
  input v0: f32[2,6] "x"
  const v1: f32[] = [2.0]
  n0 expand {"shape":[2,6]} (v1) -> (v2: f32[2,6])
  n1 binary {"f":"add"} (v2, v0) -> (v3: f32[2,6] "sum")
  n2 reshape {"shape":[1,12]} (v3) -> (v4: f32[1,12])
  n3 transpose {"perm":[1,0]} (v4) -> (v5: f32[12,1])
  n4 unary {"f":"exp"} (v5) -> (v6: f32[12,1] "e")
  n5 binary {"f":"mul"} (v3, v0) -> (v7: f32[2,6])
  n6 unary {"f":"neg"} (v7) -> (v8: f32[2,6])
  output "e" v6
  output "n" v8
}
"#;

fn graph() -> Graph {
    Module::parse(TEXT, &arenic_backends::ALL).unwrap().graph
}

fn value(g: &Graph, name: &str) -> ValueId {
    g.values.iter().find(|(_, v)| v.name == name).unwrap().0
}

#[test]
fn definitions_and_uses_go_through_changes_of_shape() {
    let g = graph();
    let v = GraphView::new(&g);
    let (x, sum, e) = (value(&g, "x"), value(&g, "sum"), value(&g, "e"));
    let of = v.unary(e, Unary::Exp).unwrap();
    assert!(of != sum && v.is(of, sum) && v.definition(of) == v.definition(sum));
    let names = |nodes: Vec<_>| nodes.into_iter().map(|n| g.nodes[n].op.name()).collect::<Vec<_>>();
    assert_eq!(names(v.uses(sum).unwrap()), ["unary", "binary"]);
    // An output outlives the step.
    assert_eq!(v.uses(e), None);
    let both: Vec<_> = v.commuted(sum, Binary::Add).collect();
    assert_eq!(both.len(), 2);
    assert_eq!(both.iter().filter(|[a, b]| v.number(*a) == Some(2.0) && *b == x).count(), 1);
}

#[test]
fn a_match_is_closed_where_nobody_else_reads_its_inside() {
    let g = graph();
    let v = GraphView::new(&g);
    let (sum, e) = (value(&g, "sum"), value(&g, "e"));
    let nodes = |of: &[ValueId]| of.iter().map(|&v_| v.definition(v_).unwrap()).collect();
    let inside: BTreeSet<_> = nodes(&[sum, e]);
    assert!(!v.is_closed(&inside, &[e]));
    assert!(v.is_closed(&inside, &[e, sum]));
    let product = v.uses(sum).unwrap()[1];
    let all: BTreeSet<_> = inside.into_iter().chain([product]).collect();
    assert!(v.is_closed(&all, &[e, g.result(product).unwrap()]));
}

/// An evaluator that knows one operator.
struct Repeats;

impl Evaluate for Repeats {
    fn evaluate(&self, op: &Op, x: &[(&TensorType, &[u8])]) -> Option<Vec<Vec<u8>>> {
        let Op::Expand { shape } = op else { return None };
        Some(vec![x[0].1.repeat(shape.iter().product())])
    }
}

#[test]
fn what_follows_from_constants_is_known() {
    let g = graph();
    let sum = value(&g, "sum");
    let v = GraphView::new(&g).evaluating(Some(&Repeats));
    let [repeated, x] = v.binary(sum, Binary::Add).unwrap();
    assert_eq!(v.numbers(repeated).unwrap().iter().collect::<Vec<_>>(), [2.0; 12]);
    assert!(v.numbers(x).is_none() && v.numbers(sum).is_none());
    assert!(GraphView::new(&g).numbers(repeated).is_none());
}

#[test]
fn what_takes_a_place_has_its_name_and_shape_and_the_rest_is_swept() {
    let mut g = graph();
    let (x, sum) = (value(&g, "x"), value(&g, "sum"));
    let at = GraphView::new(&g).definition(sum).unwrap();
    let mut e = Editor::new(&mut g);
    let flat = e.reshaped(at, x, &[12]).unwrap();
    let new = e.value(at, Op::Unary { f: Unary::Tanh }, vec![flat]).unwrap();
    e.replace(at, sum, new).unwrap();
    e.finish();
    arenic_ir::verify::verify(&g).unwrap();
    let sum = value(&g, "sum");
    assert_eq!(g.ty(sum).shape, [2, 6]);
    let ops: Vec<_> = g.nodes.values().map(|n| n.op.name()).collect();
    assert_eq!(ops[..3], ["reshape", "unary", "reshape"]);
    assert!(!ops.contains(&"expand"));
}
