//! What pipelines accept, and what the driver does with steps.

use super::*;
use crate::Standard;
use arenic_backends::{CPU, CUDA};
use arenic_ir::TargetInfo;
use arenic_programs::CELL;
use arenic_programs::steps::{device, there_and_back};

#[test]
fn every_named_pipeline_reads() {
    for (name, yaml) in NAMED {
        let pipeline =
            Pipeline::from_yaml(yaml, &Standard).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(pipeline.unread(), [], "{name}");
    }
}

fn message(yaml: &str) -> String {
    Pipeline::from_yaml(yaml, &Standard).err().map_or("accepted".into(), |e| e.message)
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
    assert!(Pipeline::from_yaml("- order: {effort: 0}\n", &Standard).is_ok());
}

#[test]
fn not_facts_before_they_are_given() {
    assert!(message("- place\n").contains("`place` needs slots"));
    assert!(message("- order\n- share_in_place\n- order\n- lower\n").contains("needs slots"));
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
        let outcome = Pipeline::from_yaml(yaml, &Standard).unwrap().run(
            g,
            &Cx::new(target),
            RunOptions::default(),
        );
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
fn passes_for_a_loss_are_run_with_one() {
    let yaml = |loss: &str| {
        format!("- differentiate: {{{loss}}}\n  when: loss\n- dead_code:\n  when: loss\n")
    };
    let of = |loss: &str| Pipeline::from_yaml(&yaml(loss), &Standard).unwrap();
    let run = |pipeline: &Pipeline| {
        let cx = Cx::new(CPU.target());
        pipeline.steps.iter().filter(|step| step.applies(&cx)).count()
    };
    let (without, with) = (of(""), of("loss: mse"));
    assert!(without.differentiation().is_none() && run(&without) == 0);
    assert!(with.differentiation().is_some() && run(&with) == 2);
    let pass = Differentiate { loss: "mse".into(), ..Differentiate::default() };
    assert_eq!(run(&without.differentiating(pass.clone()).unwrap()), 2);
    assert!(with.differentiating(pass).is_err());
    // One before the pipeline's own takes its place.
    let twice = format!("- differentiate: {{loss: mse}}\n{}", yaml(""));
    assert_eq!(run(&Pipeline::from_yaml(&twice, &Standard).unwrap()), 2);
}

#[test]
fn facts_that_no_pass_reads_are_told() {
    let unread = |yaml: &str| -> Vec<(String, Fact)> {
        let pipeline = Pipeline::from_yaml(yaml, &Standard).unwrap();
        pipeline.unread().into_iter().map(|(name, fact)| (name.to_owned(), fact)).collect()
    };
    let rest = "- share_in_place\n- place\n- lower\n- sync\n";
    let twice = unread(&format!("- order: {{method: definition}}\n- order\n{rest}"));
    assert_eq!(twice, [("order".to_owned(), Fact::Order)]);
    assert_eq!(unread(&format!("- order\n- budget\n{rest}")), []);
    assert_eq!(unread("- order\n"), []);
}

/// What is made a step by the pipeline is no step before.
#[test]
fn rounds_are_of_whole_steps() {
    for (name, yaml) in NAMED {
        let pipeline = Pipeline::from_yaml(yaml, &Standard).unwrap();
        let pipeline = pipeline.in_micro_batches(Accumulate::default());
        let names: Vec<&str> = pipeline.names().collect();
        let at = |pass| names.iter().rposition(|n| *n == pass);
        assert!(at("accumulate") > at("differentiate"), "{name}: {names:?}");
        // Gradients of max pools that a file has as scatters take a batch's rows apart only as pools.
        assert!(at("accumulate") > at("pool_taps"), "{name}: {names:?}");
    }
}

/// A graph that does not fit without moving anything, under 60 % of what it takes, on a slow device.
fn under_limit(yaml: &str, options: RunOptions) -> Result<PipelineOutcome, RunError> {
    let text = there_and_back(&mut fastrand::Rng::with_seed(2), 6);
    let g = Module::parse(&text, &arenic_backends::ALL).unwrap().graph;
    let (pipeline, device) = (Pipeline::from_yaml(yaml, &Standard).unwrap(), device(0.5));
    let cx = Cx { device: Some(&device), ..Cx::new(TargetInfo { align: CELL, ..CPU.target() }) };
    let whole = pipeline.run(g.clone(), &cx, RunOptions::default())?.arena_bytes().device;
    let limits = PerSpace { device: Some(whole * 3 / 5), host: None };
    pipeline.run(g, &Cx { limits, ..cx }, options)
}

/// A strategy carries out what follows it; who stops before that sees no more than he asked for.
#[test]
fn a_pipeline_that_stops_at_a_strategy_has_no_later_facts() {
    let yaml = "- order\n- budget\n- share_in_place\n- place\n- lower\n- sync\n";
    let all = ["order", "budget", "share_in_place", "place", "lower", "sync"];
    let facts = |plan: &Plan| Fact::ALL.into_iter().filter(|&f| plan.has(f)).collect::<Vec<_>>();
    let (order, slots) = (vec![Fact::Order], vec![Fact::Order, Fact::Slots]);
    let placed = vec![Fact::Order, Fact::Slots, Fact::Placement];
    for (i, (stop, expected)) in
        all.into_iter().zip([&order, &order, &slots, &placed, &placed, &placed]).enumerate()
    {
        let mut seen = Vec::new();
        let mut after_pass = |report: &Report| seen.push(report.pass.to_owned());
        let options = RunOptions { stop_after: Some(stop), after_pass: Some(&mut after_pass) };
        let outcome = under_limit(yaml, options).unwrap();
        assert_eq!(&facts(outcome.module.plan.as_ref().unwrap()), expected, "{stop}");
        assert_eq!(outcome.module.program.is_some(), i > 3, "{stop}");
        assert_eq!(outcome.footprint.is_some(), stop == "sync");
        assert_eq!(seen, &all[..=i]);
    }
}

#[test]
fn nothing_orders_anew_what_a_strategy_planned() {
    let rest = "- share_in_place\n- place\n- lower\n- sync\n";
    for second in ["order", "budget"] {
        let found = message(&format!("- order\n- budget\n- {second}\n{rest}"));
        assert!(found.contains(&format!("`{second}` comes after `budget`")), "{found}");
    }
}
