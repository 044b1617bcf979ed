//! What pipelines accept, and what the driver does with steps.

use super::*;
use arenic_backends::{CPU, CUDA};

#[test]
fn every_named_pipeline_reads() {
    for (name, yaml) in NAMED {
        let pipeline = Pipeline::from_yaml(yaml).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(pipeline.unread(), [], "{name}");
    }
}

fn message(yaml: &str) -> String {
    Pipeline::from_yaml(yaml).err().map_or("accepted".into(), |e| e.message)
}

#[test]
fn not_unknown_passes_fields_or_values() {
    let known = message("- dead_code\n- colour\n");
    assert!(known.contains("no pass is called `colour`") && known.contains("line 2"), "{known}");
    let field = message("- order: {methud: best}\n");
    assert!(field.contains("methud") && field.contains("line 1"), "{field}");
    let value = message("- order:\n    method: bets\n");
    assert!(value.contains("bets") && value.contains("line 2"), "{value}");
    assert!(message("- order: {method: best}\n  place: {}\n").contains("begin a new entry"));
}

#[test]
fn not_values_out_of_range() {
    for effort in ["-1", ".nan", ".inf"] {
        let found = message(&format!("- dead_code\n- order: {{effort: {effort}}}\n"));
        assert!(found.contains("`effort` must be at least 0"), "{effort}: {found}");
    }
    let window = message("- order_ilp: {window: 1}\n");
    assert!(window.contains("at least 2 and at most 500"), "{window}");
    assert!(Pipeline::from_yaml("- order: {effort: 0}\n").is_ok());
}

#[test]
fn not_facts_before_they_are_given() {
    assert!(message("- place\n").contains("`place` needs slots"));
    assert!(message("- order\n- share_in_place\n- spans\n- lower\n").contains("needs order"));
    assert!(message("- order\n- views\n").contains("`views` comes after `order`"));
}

#[test]
fn a_pass_for_one_backend_is_run_for_it_alone() {
    let text = r#"graph "g" {
  input v0: f32[16] "x"
  n0 unary {"f":"exp"} (v0) -> (v1: f32[16])
  n1 unary {"f":"neg"} (v0) -> (v2: f32[16])
  output "y" v2
}"#;
    let nodes = |yaml: &str, target| {
        let g = Module::parse(text, &[]).unwrap().graph;
        let outcome =
            Pipeline::from_yaml(yaml).unwrap().run(g, &Cx::new(target), RunOptions::default());
        outcome.map(|outcome| outcome.module.graph.nodes.len())
    };
    for yaml in ["- dead_code:\n  when: cuda\n", "- {dead_code: {}, when: cuda}\n"] {
        assert_eq!(nodes(yaml, CPU.target()).unwrap(), 2);
        assert_eq!(nodes(yaml, CUDA.target()).unwrap(), 1);
    }
    let order = "- order:\n  when: cuda\n- share_in_place\n";
    assert!(nodes(order, CUDA.target()).is_ok());
    let missing = nodes(order, CPU.target()).unwrap_err().to_string();
    assert!(missing.contains("`share_in_place` needs order"), "{missing}");
}

#[test]
fn facts_that_no_pass_reads_are_told() {
    let unread = |yaml: &str| -> Vec<(String, Fact)> {
        let pipeline = Pipeline::from_yaml(yaml).unwrap();
        pipeline.unread().into_iter().map(|(name, fact)| (name.to_owned(), fact)).collect()
    };
    let rest = "- share_in_place\n- place\n- lower\n- sync\n";
    let spans = unread(&format!("- spans\n- order\n{rest}"));
    assert_eq!(spans, [("spans".to_owned(), Fact::Spans)]);
    let twice = unread(&format!("- order: {{method: definition}}\n- order_ilp\n{rest}"));
    assert_eq!(twice, [("order".to_owned(), Fact::Order)]);
    assert_eq!(unread(&format!("- order\n- budget\n{rest}")), []);
    assert_eq!(unread("- order\n"), []);
}

/// What is made a step by the pipeline is no step before.
#[test]
fn rounds_are_of_whole_steps() {
    for (name, yaml) in NAMED {
        let pipeline = Pipeline::from_yaml(yaml).unwrap();
        let pipeline = pipeline.in_micro_batches(Accumulate::default());
        let names: Vec<&str> = pipeline.names().collect();
        let at = |pass| names.iter().rposition(|n| *n == pass);
        assert!(at("accumulate") > at("differentiate"), "{name}: {names:?}");
    }
}
