//! The report of a placement.

use super::{Arena, Rectangle, Report};
use crate::placement::Instance;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// Why a placement cannot be shown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unplaced {
    /// The file is no placement, but a problem.
    #[error("has no column `offset`; `arenic place` finds offsets and writes them with -o")]
    NoOffsets,
    /// One buffer has no offset.
    #[error(
        "line {line}: buffer `{id}` has no offset; `arenic place` finds the missing ones and \
         writes them with -o"
    )]
    NoOffset {
        /// Line, from 1.
        line: u64,
        /// The buffer.
        id: String,
    },
}

/// More kinds than this are summed up as [`OTHER`], those with the fewest buffers first.
const MAX_KINDS: usize = 12;
const OTHER: &str = "other";

impl Report {
    /// Of buffers that all have offsets. A column `kind` says what they are for.
    ///
    /// # Errors
    /// See [`Unplaced`].
    pub fn of_placement(title: String, instance: &Instance) -> Result<Report, Unplaced> {
        if instance.column("offset").is_none() {
            return Err(Unplaced::NoOffsets);
        }
        let kinds = kinds(instance);
        let ids = instance.column("id").into_iter().flatten();
        let mut rectangles = Vec::new();
        for (i, (b, id)) in instance.problem.buffers().iter().zip(ids).enumerate() {
            let no_offset = || Unplaced::NoOffset { line: instance.line(i), id: id.to_owned() };
            let offset = b.offset.ok_or_else(no_offset)?;
            let reason = match b.gaps.len() {
                0 => Cow::Borrowed("As the file says."),
                _ => format!("As the file says: [{}, {}) with gaps.", b.lower, b.upper).into(),
            };
            rectangles.extend(b.uses().map(|used| {
                // What a buffer takes beyond its size is alignment.
                let (low, high) = used.bytes;
                Rectangle {
                    name: id.to_owned(),
                    kind: kinds.get(i).cloned().unwrap_or(Cow::Borrowed("buffer")),
                    ty: String::new(),
                    offset: offset + low,
                    bytes: high.min(b.size) - low,
                    counted: high - low,
                    span: (used.lower, used.upper),
                    reason: reason.clone(),
                }
            }));
        }
        let buffers = instance.problem.buffers();
        let offsets: Vec<u64> = buffers.iter().map(|b| b.offset.unwrap_or_default()).collect();
        let first = buffers.iter().map(|b| b.lower).min().unwrap_or(0);
        let last = buffers.iter().map(|b| b.upper).max().unwrap_or(1);
        let mut arena = Arena {
            name: "arena",
            bytes: instance.problem.height(&offsets),
            lower_bound: None,
            span: (first, last),
            tensors: buffers.len(),
            rectangles,
        };
        // No placement is lower than what is alive at once.
        arena.lower_bound = Some(arena.peak().1);
        let about = "buffers with lifetimes, placed".into();
        Ok(Report { title, about, tasks: Vec::new(), arenas: vec![arena] })
    }
}

/// The kind of each buffer, where there is a column of that name.
fn kinds(instance: &Instance) -> Vec<Cow<'static, str>> {
    let Some(column) = instance.column("kind") else { return Vec::new() };
    let column: Vec<&str> = column.map(|k| if k.is_empty() { "buffer" } else { k }).collect();
    let mut count: HashMap<&str, usize> = HashMap::new();
    column.iter().for_each(|k| *count.entry(k).or_default() += 1);
    let mut names: Vec<&str> = count.keys().copied().collect();
    names.sort_unstable_by_key(|k| (std::cmp::Reverse(count[k]), *k));
    if names.len() > MAX_KINDS {
        names.truncate(MAX_KINDS - 1);
    }
    let shown: HashSet<&str> = names.into_iter().collect();
    let name = |k: &str| if shown.contains(k) { k.to_owned().into() } else { OTHER.into() };
    column.into_iter().map(name).collect()
}
