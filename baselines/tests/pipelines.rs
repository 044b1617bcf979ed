//! Pipelines with the planners of single papers.

use arenic_backends::CPU;
use arenic_baselines::WithBaselines;
use arenic_ir::TargetInfo;
use arenic_ir::plan::Fact;
use arenic_ir::program::PerSpace;
use arenic_ir::text::Module;
use arenic_passes::explain::Case;
use arenic_passes::pipeline::{Pipeline, PipelineOutcome, RunError, RunOptions};
use arenic_passes::simulate::{roofline, simulate};
use arenic_passes::{Cx, PassSet};
use arenic_programs::CELL;
use arenic_programs::steps::{device, there_and_back};

#[test]
fn every_named_pipeline_reads() {
    for (name, yaml) in WithBaselines.pipelines() {
        let pipeline = Pipeline::from_yaml(yaml, &WithBaselines);
        let pipeline = pipeline.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(pipeline.unread(), [], "{name}");
    }
}

#[test]
fn no_name_stands_for_two_things() {
    let passes = WithBaselines.passes();
    let names = [
        passes.iter().map(|pass| pass.name).collect::<Vec<_>>(),
        WithBaselines.pipelines().iter().map(|(name, _)| *name).collect(),
    ];
    for mut names in names {
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}

#[test]
fn every_pass_says_why_it_is_sound_and_shows_a_case() {
    for pass in WithBaselines.passes() {
        let about = pass.about();
        assert!(about.to_lowercase().contains("sound"), "{}: {about}", pass.name);
        let gives = Case::read(pass.example).gives.unwrap_or_default();
        assert!(gives.starts_with("graph "), "{}: {gives}", pass.name);
    }
}

fn message(yaml: &str) -> String {
    let pipeline = Pipeline::from_yaml(yaml, &WithBaselines);
    pipeline.err().map_or("accepted".into(), |e| e.message)
}

#[test]
fn not_values_out_of_range() {
    let window = message("- order_ilp: {window: 1}\n");
    assert!(window.contains("at least 2 and at most 500"), "{window}");
}

#[test]
fn not_facts_before_they_are_given() {
    assert!(message("- order\n- share_in_place\n- spans\n- lower\n").contains("needs order"));
}

#[test]
fn facts_that_no_pass_reads_are_told() {
    let unread = |yaml: &str| -> Vec<(String, Fact)> {
        let pipeline = Pipeline::from_yaml(yaml, &WithBaselines).unwrap();
        pipeline.unread().into_iter().map(|(name, fact)| (name.to_owned(), fact)).collect()
    };
    let rest = "- share_in_place\n- place\n- lower\n- sync\n";
    let spans = unread(&format!("- spans\n- order\n{rest}"));
    assert_eq!(spans, [("spans".to_owned(), Fact::Spans)]);
    let twice = unread(&format!("- order: {{method: definition}}\n- order_ilp\n{rest}"));
    assert_eq!(twice, [("order".to_owned(), Fact::Order)]);
}

#[test]
fn nothing_orders_anew_what_a_strategy_planned() {
    let rest = "- share_in_place\n- place\n- lower\n- sync\n";
    for second in ["order_ilp", "recompute", "spans"] {
        let found = message(&format!("- order\n- budget\n- {second}\n{rest}"));
        assert!(found.contains(&format!("`{second}` comes after `budget`")), "{found}");
    }
}

/// A graph that does not fit without moving anything, under 60 % of what it takes, on a slow device.
fn under_limit(yaml: &str) -> Result<PipelineOutcome, RunError> {
    let text = there_and_back(&mut fastrand::Rng::with_seed(2), 6);
    let g = Module::parse(&text, &arenic_backends::ALL).unwrap().graph;
    let pipeline = Pipeline::from_yaml(yaml, &WithBaselines).unwrap();
    let device = device(0.5);
    let cx = Cx { device: Some(&device), ..Cx::new(TargetInfo { align: CELL, ..CPU.target() }) };
    let whole = pipeline.run(g.clone(), &cx, RunOptions::default())?.arena_bytes().device;
    let limits = PerSpace { device: Some(whole * 3 / 5), host: None };
    pipeline.run(g, &Cx { limits, ..cx }, RunOptions::default())
}

/// Whatever the pipeline shares and places with, a strategy is judged by it, and its plan is the outcome.
#[test]
fn what_a_strategy_finds_is_what_is_written() {
    for strategy in
        ["budget", "recompute", "swap_ilp: {effort: 0}", "swap_autoswap: {min_bytes: 8}"]
    {
        for after in [
            "- share_in_place\n- place\n",
            "- share_in_place: {enabled: false}\n- place_smartpool\n",
            "- share_parallel\n- place_pyramid\n",
        ] {
            let yaml =
                format!("- order: {{method: definition}}\n- {strategy}\n{after}- lower\n- sync\n");
            let outcome = match under_limit(&yaml) {
                Ok(outcome) => outcome,
                Err(RunError::Pass { error, .. }) if error.is_of_limits() => {
                    assert_ne!(strategy, "budget", "{yaml}: {error}");
                    continue;
                }
                Err(e) => panic!("{yaml}: {e}"),
            };
            let program = outcome.module.program.as_ref().unwrap();
            let device = device(0.5);
            let kernel = roofline(&outcome.module.graph, &device);
            let times = outcome.report.times.unwrap();
            assert_eq!(times.seconds, simulate(program, &device, &kernel).seconds, "{yaml}");
            assert!(times.seconds >= times.unlimited * (1.0 - 1e-9), "{yaml}");
            let minimum = outcome.report.minimum;
            assert_eq!(minimum.is_some(), strategy == "budget", "{yaml}");
        }
    }
}
