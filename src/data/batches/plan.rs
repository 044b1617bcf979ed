//! Matching arrays and `--set` values with inputs.

use super::shuffle::Shuffle;
use super::{Batches, Input, Notice, Share, Source, scalar};
use crate::data::error::DataError;
use crate::data::mapped::Array;
use crate::data::npz::Npz;
use arenic_ir::types::{DType, TensorType};
use std::collections::{BTreeMap, HashSet};

pub(super) fn batches(
    inputs: &[(String, TensorType)],
    npz: Option<&Npz>,
    set: &[(String, String)],
    shuffle: Option<u64>,
    share: &Share,
) -> Result<(Batches, Vec<Notice>), DataError> {
    let values = check_names(inputs, npz, set)?;
    let mut notices = Vec::new();
    let mut counts = Vec::new();
    let mut list = Vec::with_capacity(inputs.len());
    for (name, ty) in inputs {
        let fits = |array: &Array| trimmed(&array.ty().shape) == trimmed(&ty.shape);
        let for_each_rank = npz.and_then(|npz| npz.array(name)).is_some_and(fits);
        if !share.divides(name) || for_each_rank || values.contains_key(name.as_str()) {
            list.push(input(name, ty, &values, npz, Short::Refused, &mut counts)?);
            continue;
        }
        let rows = ty.shape.first().map_or(1, |&rows| rows.saturating_mul(share.ranks));
        let all = ty.with_extent(0, rows);
        let of_all = input(name, &all, &values, npz, Short::Refused, &mut counts)?;
        list.push(Input { ty: ty.clone(), part: (share.rank, share.ranks), ..of_all });
    }
    let count = common_count(&counts)?;
    for rows in &counts {
        let dropped = rows.total - rows.batches * rows.per_batch;
        if dropped > 0 {
            notices.push(Notice::PartialBatchDropped {
                name: rows.name.clone(),
                rows: rows.total,
                dropped,
                batch_rows: rows.per_batch,
            });
        }
    }
    let shuffle = match shuffle {
        Some(seed) => permutation(seed, count, &counts, &mut notices)?,
        None => None,
    };
    Ok((Batches { inputs: list, count, shuffle }, notices))
}

/// Where an input's value comes from.
pub(super) fn input(
    name: &str,
    ty: &TensorType,
    values: &BTreeMap<&str, &str>,
    npz: Option<&Npz>,
    short: Short,
    counts: &mut Vec<Rows>,
) -> Result<Input, DataError> {
    let mut widens = false;
    let source = if let Some(&text) = values.get(name) {
        Source::Value(set_value(name, ty, text)?)
    } else if let Some(array) = npz.and_then(|npz| npz.array(name)) {
        widens = (array.ty().dtype, ty.dtype) == (DType::I32, DType::I64);
        match_array(ty, array, short, counts)?
    } else {
        return Err(DataError::MissingInputs(vec![format!("{name} {ty}")]));
    };
    Ok(Input { ty: ty.clone(), widens, part: (0, 1), source })
}

/// Checks that every name is an input's and every input has one value; returns the `--set`
/// values by name.
fn check_names<'a>(
    inputs: &[(String, TensorType)],
    npz: Option<&Npz>,
    set: &'a [(String, String)],
) -> Result<BTreeMap<&'a str, &'a str>, DataError> {
    let values = set_values(inputs, npz.as_slice(), set)?;
    let in_data = |name: &str| npz.is_some_and(|npz| npz.array(name).is_some());
    let missing: Vec<String> = inputs
        .iter()
        .filter(|(name, _)| !values.contains_key(name.as_str()) && !in_data(name))
        .map(|(name, ty)| format!("{name} {ty}"))
        .collect();
    if missing.is_empty() { Ok(values) } else { Err(DataError::MissingInputs(missing)) }
}

/// Checks that every name in files and `--set` is an input's and none has two values; returns the
/// `--set` values by name.
pub(super) fn set_values<'a>(
    inputs: &[(String, TensorType)],
    files: &[&Npz],
    set: &'a [(String, String)],
) -> Result<BTreeMap<&'a str, &'a str>, DataError> {
    refuse_unknown("--data", files.iter().flat_map(|npz| npz.names()), inputs)?;
    refuse_unknown("--set", set.iter().map(|(name, _)| name.as_str()), inputs)?;
    let mut values = BTreeMap::new();
    for (name, text) in set {
        if values.insert(name.as_str(), text.as_str()).is_some() {
            return Err(DataError::SetTwice(name.clone()));
        }
    }
    let in_data = |name: &str| files.iter().any(|npz| npz.array(name).is_some());
    let twice: Vec<String> = values.keys().filter(|n| in_data(n)).map(|&n| n.to_owned()).collect();
    if twice.is_empty() { Ok(values) } else { Err(DataError::GivenTwice(twice)) }
}

/// Checks that every name is an input's.
pub(super) fn refuse_unknown<'n>(
    given_by: &'static str,
    names: impl Iterator<Item = &'n str>,
    inputs: &[(String, TensorType)],
) -> Result<(), DataError> {
    let known: HashSet<&str> = inputs.iter().map(|(name, _)| name.as_str()).collect();
    let names: Vec<String> = names.filter(|n| !known.contains(n)).map(str::to_owned).collect();
    if names.is_empty() {
        return Ok(());
    }
    let mut known: Vec<String> = Vec::new();
    for (name, ty) in inputs {
        let text = format!("{name} {ty}");
        if !known.contains(&text) {
            known.push(text);
        }
    }
    Err(DataError::UnknownInputs { given_by, names, known })
}

/// Whether an array may have fewer rows than a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Short {
    Refused,
    Allowed,
}

fn set_value(name: &str, ty: &TensorType, text: &str) -> Result<Vec<u8>, DataError> {
    let value = if ty.shape.iter().all(|&d| d == 1) {
        scalar::parse(ty.dtype, text)
    } else {
        Err("has not exactly one element; give it as an array in --data".to_owned())
    };
    value.map_err(|reason| DataError::SetValue {
        name: name.to_owned(),
        value: text.to_owned(),
        ty: ty.clone(),
        reason,
    })
}

/// The rows of one array that differs from batch to batch.
pub(super) struct Rows {
    name: String,
    total: u64,
    pub(super) per_batch: u64,
    batches: u64,
}

/// A shape without axes of one element at its end.
fn trimmed(shape: &[usize]) -> &[usize] {
    let end = shape.iter().rposition(|&d| d != 1).map_or(0, |last| last + 1);
    &shape[..end]
}

fn match_array(
    ty: &TensorType,
    array: &Array,
    short: Short,
    counts: &mut Vec<Rows>,
) -> Result<Source, DataError> {
    let found = array.ty();
    let mismatch = |reason| {
        Err(DataError::Mismatch {
            name: array.name().to_owned(),
            found: found.clone(),
            expected: ty.clone(),
            reason,
        })
    };
    let rank = |shape: &[usize]| trimmed(shape).len();
    if ty.dtype == DType::I64 && rank(&found.shape) == rank(&ty.shape).max(1) + 1 {
        return mismatch(
            "it takes the number of a class, not a row for each; numpy.argmax(array, axis) makes one of \
             the other",
        );
    }
    let widens = (found.dtype, ty.dtype) == (DType::I32, DType::I64);
    if found.dtype != ty.dtype && !widens {
        return mismatch("convert the array to the input's element type with .astype");
    }
    // Axes of one element at the end hold nothing.
    if trimmed(&found.shape) == trimmed(&ty.shape) {
        return Ok(Source::Whole(array.clone()));
    }
    // A number per batch is a row per batch.
    let per_batch = ty.shape.first().copied().unwrap_or(1);
    let Some((&total, row)) = found.shape.split_first() else {
        return mismatch("the array has fewer axes than the input");
    };
    if trimmed(row) != trimmed(ty.shape.get(1..).unwrap_or(&[])) {
        return mismatch(match array.name() {
            "target" => {
                "all axes but the first must agree; --class-axis of `arenic compile` says along \
                 which axis of the output the classes are"
            }
            _ => "all axes but the first must agree",
        });
    }
    if per_batch == 0 {
        return mismatch("the input has no rows, so the array may have none");
    }
    if total < per_batch && short == Short::Refused {
        return mismatch("the array has fewer rows than one batch; compile with a smaller batch");
    }
    counts.push(Rows {
        name: array.name().to_owned(),
        total: total as u64,
        per_batch: per_batch as u64,
        batches: (total / per_batch) as u64,
    });
    Ok(Source::Rows(array.clone()))
}

fn common_count(counts: &[Rows]) -> Result<u64, DataError> {
    let count = counts.first().map_or(1, |rows| rows.batches);
    if counts.iter().all(|rows| rows.batches == count) {
        return Ok(count);
    }
    let text = |r: &Rows| {
        format!("\"{}\" has {} rows, {} per batch: {}", r.name, r.total, r.per_batch, r.batches)
    };
    Err(DataError::BatchCounts(counts.iter().map(text).collect()))
}

fn permutation(
    seed: u64,
    count: u64,
    counts: &[Rows],
    notices: &mut Vec<Notice>,
) -> Result<Option<Shuffle>, DataError> {
    let per_batch = counts.first().map_or(0, |rows| rows.per_batch);
    // With equal rows per batch all arrays can follow one permutation of rows.
    let pieces = if counts.iter().all(|rows| rows.per_batch == per_batch) {
        per_batch
    } else {
        let inputs = counts.iter().map(|r| (r.name.clone(), r.per_batch)).collect();
        notices.push(Notice::WholeBatchesShuffled { inputs });
        1
    };
    let len = count * pieces;
    if len < 2 {
        notices.push(Notice::NothingToShuffle);
        return Ok(None);
    }
    let len = u32::try_from(len).map_err(|_| DataError::TooManyRows(len))?;
    Ok(Some(Shuffle::new(seed, len, pieces as usize)))
}
