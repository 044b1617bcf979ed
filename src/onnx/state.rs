//! Which tensors are carried from step to step.

use super::error::ImportError;
use super::flatten::{Names, Tensor};
use super::proto::StringStringEntryProto;
use std::collections::HashSet;

/// The metadata property that lists pairs, one `X=Y` per line.
const PROPERTY: &str = "arenic.state";
/// The result `out_X` is the next value of `X`.
pub(super) const PREFIX: &str = "out_";

/// A tensor and the tensor that holds its value for the next step.
pub(super) struct Pair {
    pub(super) enter: Tensor,
    pub(super) exit: Tensor,
}

/// Finds all pairs: those asked for, those the model lists, those that names suggest.
/// Where sources differ about a tensor, the first one that mentions it counts.
pub(super) fn find(
    asked: &[(String, String)],
    metadata: &[StringStringEntryProto],
    outputs: &[&str],
    names: &Names,
    may_enter: impl Fn(Tensor) -> bool,
) -> Result<Vec<Pair>, ImportError> {
    let asked: Vec<(&str, &str)> = asked.iter().map(|(x, y)| (&x[..], &y[..])).collect();
    let mut listed = Vec::new();
    for entry in metadata.iter().filter(|e| e.key.as_deref() == Some(PROPERTY)) {
        for line in entry.value.as_deref().unwrap_or("").lines().map(str::trim) {
            match line.split_once('=') {
                Some((x, y)) => listed.push((x.trim(), y.trim())),
                None if line.is_empty() => {}
                None => {
                    return Err(ImportError::Model(format!(
                        "metadata property {PROPERTY}: line `{line}` is not of the form X=Y"
                    )));
                }
            }
        }
    }
    let suggested: Vec<(&str, &str)> = outputs
        .iter()
        .filter_map(|&y| Some((y.strip_prefix(PREFIX)?, y)))
        .filter(|(x, _)| names.find(x).is_some_and(&may_enter))
        .collect();

    let mut pairs = Vec::new();
    let (mut enters, mut exits) = (HashSet::new(), HashSet::new());
    for source in [asked, listed, suggested] {
        let (mut new_enters, mut new_exits) = (HashSet::new(), HashSet::new());
        for (x, y) in source {
            if enters.contains(x) || exits.contains(y) {
                continue;
            }
            let error = |reason: &str| ImportError::State {
                enter: x.to_owned(),
                exit: y.to_owned(),
                reason: reason.to_owned(),
            };
            let Some(enter) = names.find(x).filter(|&t| may_enter(t)) else {
                return Err(error(&format!("the model has no input or initializer `{x}`")));
            };
            let exit =
                names.find(y).ok_or_else(|| error(&format!("the model has no tensor `{y}`")))?;
            if !new_enters.insert(x) {
                return Err(error(&format!("`{x}` is in two pairs")));
            }
            if !new_exits.insert(y) {
                return Err(error(&format!("`{y}` is in two pairs")));
            }
            pairs.push(Pair { enter, exit });
        }
        enters.extend(new_enters);
        exits.extend(new_exits);
    }
    Ok(pairs)
}
