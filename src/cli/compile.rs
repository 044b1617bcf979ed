//! `arenic compile`

mod arguments;
mod request;
mod told;

use super::dims::Dimensions;
use super::interrupt;
use super::loss::parameters_json;
use super::search::CUT;
use super::{Failure, Outcome, can_write, failed, human_bytes, print, sweep, variants};
use crate::compile::CompileError;
use crate::compiler::{Variant, Watch};
use crate::largest::Largest;
use crate::recipe::RecordedOption;
use arenic_passes::Minimum;
use arenic_passes::pipeline::Report;
pub(super) use arguments::Arguments;
use miette::miette;
pub use request::{CommandError, Compilation, Request};
use serde_json::{Value, json};
use std::time::Instant;
use told::{figures, say_of_all, summary};

pub(super) fn run(a: &Arguments, options: Vec<RecordedOption>) -> Outcome {
    let start = Instant::now();
    can_write(&a.artifact)?;
    let compiler = a.recording(options)?;
    let one = if a.variants.is_empty() { Some(a.model()?) } else { None };
    let variants = variants::named(&a.variants, one, &Dimensions::new(&a.dims)?, &a.only)?;
    let timed = compiler.timed().map_err(failed)?;
    let progress = a.search.listener();
    let watch = Watch {
        stop: Some(interrupt::flag()),
        progress: Some(&progress),
        note: Some(&|text: &str| tell!("{text}")),
        after_pass: Some(&|report: &Report| a.dump(report)),
    };
    let ([Variant { model, .. }], true) = (&variants[..], a.loss.drop_layers.is_empty()) else {
        let about_one = [("--sweep", a.sweep.is_some()), ("--compare", a.compare)];
        if let Some((option, _)) = about_one.iter().find(|(_, is_given)| *is_given) {
            let help = "leave it out, or compile one step: one size of each dimension";
            let n = variants.len();
            return Err(miette!(help = help, "{option} is about one step, not {n} variants").into());
        }
        let compiled = compiler.compile_variants_watched(&variants, &watch);
        let (artifact, compiled) = compiled.map_err(|e| refused(a, e))?;
        a.remarks_of_all(&artifact, &compiled, &timed).iter().for_each(|line| tell!("{line}"));
        let Some(output) = &a.artifact else { return Ok(()) };
        artifact.write(output).map_err(failed)?;
        return say_of_all(a, &artifact, &compiled, output, start);
    };
    if let Some(sweep) = a.sweep {
        if let Some(name) = &compiler.largest {
            return Err(miette!("--sweep needs a size for {name}, not max").into());
        }
        let job = compiler.job(model, &watch).map_err(failed)?;
        let compile = |limit| job.compile(limit);
        return sweep::run(sweep, &timed, compile, interrupt::flag(), a.json);
    }
    let compiled = compiler.compile_watched(model, &watch).map_err(|e| refused(a, e))?;
    a.remarks(&compiled, &timed).iter().for_each(|line| tell!("{line}"));
    if a.stop_after.is_some() {
        return print(&compiled.module);
    }
    let target = compiled.target().map_err(failed)?;
    let (Some(artifact), Some(output)) = (&compiled.artifact, &a.artifact) else { return Ok(()) };
    artifact.write(output).map_err(failed)?;
    let is_cut = artifact.provenance.is_cut;
    let seconds = start.elapsed().as_secs_f64();
    let (step, unlimited) = compiled.seconds(&timed).map_err(failed)?;
    let largest = compiled.largest.as_ref();
    if a.json.json {
        let mut object = figures(target, compiled.report.minimum);
        object.insert("search_cut".into(), is_cut.into());
        object.insert("predicted_step_seconds".into(), step.into());
        object.insert("unlimited_step_seconds".into(), unlimited.into());
        if let Some(bound) = compiled.report.seconds_bound() {
            object.insert("step_seconds_bound".into(), bound.into());
        }
        if let Some(Largest { size, found: name, tried }) = largest {
            let largest = json!({"dimension": name, "size": size, "compilations": tried});
            object.insert("largest".into(), largest);
        }
        if a.loss.loss.is_some() {
            object.insert("parameters".into(), parameters_json(&compiled.weights));
        }
        if let Some(forward) = artifact.evaluation(&target.name).filter(|_| a.compare) {
            object.insert("inference".into(), Value::Object(figures(forward, None)));
        }
        object.insert("seconds".into(), seconds.into());
        return print(Value::Object(object));
    }
    if let Some(Largest { size, found: name, tried }) = largest {
        tell!("{name}={size} is the largest that fits, by {tried} compilations");
    }
    summary(&target.figures, output, seconds);
    if is_cut {
        tell!("note: {CUT}");
    }
    if let Some(forward) = artifact.evaluation(&target.name).filter(|_| a.compare) {
        let (forward, step) = (forward.figures.arena_bytes, target.figures.arena_bytes);
        let percent = forward as f64 / step.max(1) as f64 * 100.0;
        tell!("the forward pass alone takes {}, {percent:.1} % of that", human_bytes(forward));
    }
    if compiler.device.is_some() || compiled.limit.is_some() || a.overhead.is_some() {
        let percent = |seconds: f64| (seconds / unlimited - 1.0) * 100.0;
        let least = compiled.report.seconds_bound().filter(|_| step > unlimited);
        let least = least.map_or(String::new(), |s| format!(", at least {:+.1} %", percent(s)));
        let (name, ms, overhead) = (&timed.name, step * 1e3, percent(step));
        tell!("simulated on {name}: {ms:.3} ms a step, overhead {overhead:+.1} %{least}");
    }
    match compiled.report.minimum {
        Some(Minimum { bytes, is_exact: true, .. }) => tell!("the least limit is {bytes} bytes"),
        Some(Minimum { bytes, bound, .. }) => {
            tell!("the least limit is at most {bytes} bytes, and at least {bound}");
        }
        None => {}
    }
    Ok(())
}

/// Why nothing was compiled; for scripts after the least limit that can be kept.
fn refused(a: &Arguments, e: CompileError) -> Failure {
    print_minimum(a, &e).err().unwrap_or_else(|| a.refused(e))
}

impl Arguments {
    /// Why nothing was compiled, with what may keep a limit that cannot be kept.
    fn refused(&self, e: CompileError) -> Failure {
        if e.minimum().is_some() && self.loss.accumulate.is_none() {
            let help = "--accumulate auto may keep the limit: it runs the batch in parts";
            return miette!(help = help, "{e}").into();
        }
        Failure::of_compiling(e)
    }
}

/// For scripts, the least limit that can be kept.
fn print_minimum(a: &Arguments, e: &CompileError) -> Outcome {
    if !a.json.json || !e.is_of_limits() {
        return Ok(());
    }
    match e.minimum() {
        Some(minimum) => print(json!(minimum.figures())),
        None => print(json!({"minimum_device_bytes": null, "minimum_device_bytes_bound": null})),
    }
}
