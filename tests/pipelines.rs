//! Whole pipelines on small models: graph, plan and program, with what planning learned, as snapshots in
//! `snapshots/`. `INSTA_UPDATE=always` writes them.

use arenic::Model;
use arenic::compile::{Compiled, Constraints, compile};
use arenic::onnx::{ImportOptions, Mode, Training};
use arenic_baselines::WithBaselines;
use arenic_ir::program::PerSpace;
use arenic_passes::Search;
use arenic_passes::differentiate::{Differentiate, Optimizer};
use arenic_passes::pipeline::{Pipeline, RunOptions};
use std::fmt::Write;
use std::path::Path;

fn compiled(
    model: &str,
    pipeline: &Pipeline,
    import: &ImportOptions,
    limit: Option<u64>,
) -> Compiled {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models").join(model);
    let limits = PerSpace { device: limit, host: None };
    let constraints = Constraints { limits, ..Constraints::default() };
    let model = Model::open(path).unwrap();
    compile(&model, import, pipeline, constraints, Search::default(), RunOptions::default())
        .unwrap_or_else(|e| panic!("{e}"))
}

/// What came of it, as text.
fn text(compiled: &Compiled) -> String {
    let mut text = String::new();
    for (name, figure) in compiled.target().unwrap().figures.named() {
        writeln!(text, "# {name} {figure}").unwrap();
    }
    let report = &compiled.report;
    let bound = report.peak_bound.as_ref().map(|bound| bound.bytes);
    writeln!(text, "# peak bound {bound:?}, {:?}", report.minimum).unwrap();
    write!(text, "{}", compiled.module).unwrap();
    text
}

#[test]
fn what_pipelines_make_of_small_models() {
    let (step, import) = ("step/ref_mlp_b4_sgdm.onnx", ImportOptions::default());
    let named = |name: &str| Pipeline::named(name, &WithBaselines).unwrap();
    let mut cases = Vec::new();
    for name in ["default", "as_exported", "definition", "smartpool", "mxnet"] {
        cases.push((name, text(&compiled(step, &named(name), &import, None))));
    }
    // The least limit that can be kept.
    let limited = compiled(step, &named("default"), &import, Some(17_728));
    cases.push(("default_within_17728_bytes", text(&limited)));
    let pass = Differentiate {
        loss: "cross_entropy".into(),
        optimizer: Optimizer::Adamw,
        ..Differentiate::default()
    };
    let training = named("default").differentiating(pass).unwrap();
    let import = ImportOptions {
        mode: Mode::Training(Training::default()),
        dims: [("batch".to_owned(), 4)].into(),
        ..ImportOptions::default()
    };
    cases.push((
        "default_of_forward_model",
        text(&compiled("forward/mlp.onnx", &training, &import, None)),
    ));
    insta::with_settings!({
        snapshot_path => "../snapshots",
        prepend_module_to_snapshot => false,
        omit_expression => true,
    }, {
        for (name, text) in cases {
            insta::assert_snapshot!(name, text);
        }
    });
}
