//! `arenic report`

use super::{Failure, Outcome, can_write, chosen, failed, note_rounds};
use crate::artifact::Artifact;
use crate::data::AtomicFile;
use crate::placement;
use crate::report::Report;
use clap::Args;
use miette::{IntoDiagnostic, miette};
use std::path::{Path, PathBuf};

/// Arguments of `arenic report`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// An artifact, or a CSV file of buffers with offsets as `arenic place -o` writes it; a
    /// column `kind` gives the colours
    file: PathBuf,
    /// The artifact's target to show [default: the first]
    #[arg(long)]
    target: Option<String>,
    /// The variant, where the artifact holds several [default: the first]
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    /// The page to write
    #[arg(short, long, value_name = "OUT.html")]
    output: PathBuf,
}

pub(super) fn run(a: &Arguments) -> Outcome {
    if is_same_file(&a.file, &a.output) {
        let path = a.output.display();
        return Err(miette!("`{path}` is what the report is made of; name another output").into());
    }
    can_write([&a.output])?;
    let report = match a.file.extension() {
        Some(csv) if csv.eq_ignore_ascii_case("csv") => of_placement(&a.file)?,
        _ => of_artifact(&a.file, a.target.as_deref(), a.variant.as_deref())?,
    };
    let page = report.to_html().into_diagnostic()?;
    let mut file = AtomicFile::create(&a.output).map_err(failed)?;
    file.put(page.as_bytes()).map_err(failed)?;
    file.commit().map_err(failed)?;
    let tensors: usize = report.arenas.iter().map(|arena| arena.tensors).sum();
    tell!("{tensors} tensors: {}", a.output.display());
    Ok(())
}

fn of_artifact(
    path: &Path,
    target: Option<&str>,
    variant: Option<&str>,
) -> Result<Report, Failure> {
    let artifact = Artifact::read(path).map_err(failed)?;
    let target = chosen(&artifact, target, variant)?;
    let footprint = target
        .check_main()
        .map_err(|_| miette!("the program does not implement its graph; see `arenic check`"))?;
    note_rounds(target);
    Ok(Report::of_target(target, &artifact.provenance, &footprint))
}

fn of_placement(path: &Path) -> Result<Report, Failure> {
    let instance = placement::read(path, 1).map_err(failed)?;
    let title = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let report = Report::of_placement(title, &instance);
    report.map_err(|e| miette!("{}: {e}", path.display()).into())
}

/// True where both are there and one, through whatever links.
pub(super) fn is_same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}
