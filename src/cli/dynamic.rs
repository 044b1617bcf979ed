//! `arenic run --dynamic`: steps of the sizes that data files need.

use super::recorded;
use super::{Failure, failed};
use crate::artifact::{Artifact, Target};
use crate::data::Npz;
use crate::dynamic::{DynamicError, Fitted};
use miette::miette;
use std::path::PathBuf;

/// Steps beside the variants of an artifact that data files need. What does not fit is told, and files of
/// which nothing fits are taken out of `data`.
///
/// # Errors
/// The artifact does not say how it was compiled; a step cannot be compiled; nothing fits.
pub(super) fn added(
    artifact: &Artifact,
    variants: &[&Target],
    data: &mut Vec<PathBuf>,
    pads: bool,
) -> Result<Vec<Target>, Failure> {
    let mut dynamic = recorded::dynamic(artifact).map_err(|e| match e.help {
        Some(help) => miette!(help = help, "{}", e.message),
        None => miette!("{}", e.message),
    })?;
    let files = data.iter().map(Npz::open).collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let Fitted { added, refused, left_out } =
        dynamic.fit(variants, &files, pads).map_err(failed)?;
    if !files.is_empty() && left_out.len() == files.len() {
        return Err(refused.into_iter().next().map_or_else(
            || miette!("no batch of the data fits").into(),
            |(_, error)| failed(error),
        ));
    }
    let mut told: Vec<&str> = Vec::new();
    for (file, error) in &refused {
        let DynamicError::Misfit { variant, .. } = error else { continue };
        if !told.contains(&variant.as_str()) {
            told.push(variant);
            tell!("note: {}: {error}", data[*file].display());
        }
    }
    for target in &added {
        tell!("note: `{}` is compiled within the arena", target.variant);
    }
    let mut place = 0..;
    data.retain(|_| !place.next().is_some_and(|i| left_out.contains(&i)));
    Ok(added)
}
