//! From arrays and `--set` values to the inputs of each step.

mod mixed;
mod plan;
mod scalar;
mod shuffle;

pub(crate) use scalar::parse as parse_scalar;
#[cfg(test)]
mod tests;

use super::error::DataError;
use super::mapped::Array;
use super::npz::Npz;
use arenic_ir::types::{DType, TensorType};
pub use mixed::{Mix, Mixed, Mixing, Structure, Wanted};
use shuffle::Shuffle;
use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

/// Something the user should know that is no error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The last rows of an array do not fill a batch.
    PartialBatchDropped {
        /// The array.
        name: String,
        /// Its rows.
        rows: u64,
        /// How many of them are left out, at the end.
        dropped: u64,
        /// Rows of one batch.
        batch_rows: u64,
    },
    /// Rows cannot be permuted, since the inputs have different numbers of rows per batch.
    WholeBatchesShuffled {
        /// Inputs with their rows per batch.
        inputs: Vec<(String, u64)>,
    },
    /// Rows that fill no batch are filled up to one.
    Padded {
        /// The file.
        path: PathBuf,
        /// Rows that there are.
        rows: u64,
        /// Rows of the batch.
        batch_rows: u64,
    },
    /// The rows of a file cannot be permuted, since its inputs have different numbers of rows per batch.
    RowsKept {
        /// Inputs with their rows per batch.
        inputs: Vec<(String, u64)>,
    },
    /// There is nothing to permute: no array holds more than one row or batch.
    NothingToShuffle,
    /// States cannot be saved now, which is tried again.
    WaitsToSave {
        /// Why not.
        error: String,
    },
    /// States that had to wait are saved.
    SavedAtLast {
        /// The file.
        path: PathBuf,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::PartialBatchDropped { name, rows, dropped, batch_rows } => write!(
                f,
                "the last {dropped} of {rows} rows of \"{name}\" are left out: a batch has \
                 {batch_rows}"
            ),
            Notice::WholeBatchesShuffled { inputs } => {
                f.write_str("--shuffle permutes whole batches, since rows per batch differ:")?;
                for (i, (name, rows)) in inputs.iter().enumerate() {
                    write!(f, "{} \"{name}\" has {rows}", if i > 0 { "," } else { "" })?;
                }
                Ok(())
            }
            Notice::RowsKept { inputs } => {
                f.write_str("--shuffle leaves rows in order, since rows per batch differ:")?;
                for (i, (name, rows)) in inputs.iter().enumerate() {
                    write!(f, "{} \"{name}\" has {rows}", if i > 0 { "," } else { "" })?;
                }
                f.write_str("; --mix shuffled:SEED permutes batches")
            }
            Notice::Padded { path, rows, batch_rows } => write!(
                f,
                "the last batch of {} has {rows} rows, which --pad fills up to {batch_rows}",
                path.display()
            ),
            Notice::WaitsToSave { error } => write!(
                f,
                "the states are not saved yet: {error}; the run waits until they can be (Ctrl-C \
                 saves them elsewhere and ends it)"
            ),
            Notice::SavedAtLast { path } => {
                write!(f, "the states are saved in {}; the run goes on", path.display())
            }
            Notice::NothingToShuffle => f.write_str("--shuffle finds nothing to permute"),
        }
    }
}

/// Which rows of each batch a rank takes.
#[derive(Clone, Debug)]
pub struct Share {
    /// The rank, from 0: of inputs that hold the batch it takes the rank's part.
    pub rank: usize,
    /// How many ranks share each batch.
    pub ranks: usize,
    /// Names of the inputs that hold the batch.
    pub by_rows: BTreeSet<String>,
}

impl Share {
    /// All rows, for one process.
    pub const WHOLE: Share = Share { rank: 0, ranks: 1, by_rows: BTreeSet::new() };

    /// True for an input of which each rank takes rows of its own.
    fn divides(&self, input: &str) -> bool {
        self.ranks > 1 && self.by_rows.contains(input)
    }
}

/// Where an input's value comes from.
#[derive(Debug)]
enum Source {
    /// A `--set` value, the same in every step.
    Value(Vec<u8>),
    /// An array of exactly the input's shape, the same in every step.
    Whole(Array),
    /// An array of rows, the same number for each batch.
    Rows(Array),
}

#[derive(Debug)]
struct Input {
    ty: TensorType,
    /// The array holds `i32`, the input takes `i64`.
    widens: bool,
    /// Which of how many equal parts of a batch's rows it takes.
    part: (usize, usize),
    source: Source,
}

impl Input {
    /// Reads bytes of the input's type from an array, from a byte of that type on.
    fn read(&self, array: &Array, at: usize, dst: &mut [u8]) -> Result<(), DataError> {
        if !self.widens {
            return array.read(at, dst);
        }
        // In the second half of the bytes, whose elements are read before wider ones get there.
        let half = dst.len() / 2;
        array.read(at / 2, &mut dst[half..])?;
        for i in 0..half / 4 {
            let from = half + 4 * i;
            let word = [dst[from], dst[from + 1], dst[from + 2], dst[from + 3]];
            let wide = i64::from(i32::from_le_bytes(word)).to_le_bytes();
            dst[8 * i..8 * i + 8].copy_from_slice(&wide);
        }
        Ok(())
    }
}

/// The values of the graph's inputs, step by step.
///
/// Of an array whose first axis is k times that of its input, batch b is rows b·r to
/// (b+1)·r. An array of exactly its input's shape serves every batch, as does a `--set`
/// value. An input without axes takes one number for every batch, or a vector of k.
///
/// Step s reads position s mod k of epoch s div k, so nothing but the step's number is
/// needed to go on. With `--shuffle` each epoch has a permutation of its own that follows
/// from seed and epoch alone: of all rows where every array has the same number of rows per
/// batch, else of whole batches. Rows that do not fill a batch are left out before.
#[derive(Debug)]
pub struct Batches {
    inputs: Vec<Input>,
    count: u64,
    shuffle: Option<Shuffle>,
}

impl Batches {
    /// Matches arrays and `--set` values with the inputs.
    ///
    /// # Errors
    /// A name is unknown or given twice, an input has no value, or a value does not fit its
    /// input; see [`DataError`].
    pub fn new(
        inputs: &[(String, TensorType)],
        npz: Option<&Npz>,
        set: &[(String, String)],
        shuffle: Option<u64>,
    ) -> Result<(Batches, Vec<Notice>), DataError> {
        Batches::of_rank(inputs, npz, set, shuffle, &Share::WHOLE)
    }

    /// As [`Batches::new`] for one of several ranks. A batch has the rows of all ranks; types are a rank's. An array of
    /// exactly an input's shape goes to every rank.
    ///
    /// # Errors
    /// As for [`Batches::new`].
    pub fn of_rank(
        inputs: &[(String, TensorType)],
        npz: Option<&Npz>,
        set: &[(String, String)],
        shuffle: Option<u64>,
        share: &Share,
    ) -> Result<(Batches, Vec<Notice>), DataError> {
        plan::batches(inputs, npz, set, shuffle, share)
    }

    /// Batches of one epoch: k, or 1 where every value serves all batches.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// False where the input has the same value in every step.
    pub fn varies(&self, input: usize) -> bool {
        matches!(self.inputs[input].source, Source::Rows(_))
    }

    /// Copies the value of an input at a step (counted from 0, through all epochs) to `dst`.
    /// Bytes of bool inputs become 0 or 1. The heap is not used.
    ///
    /// # Errors
    /// The file can no longer be read.
    ///
    /// # Panics
    /// There is no such input, or `dst` is not as long as its type says.
    pub fn fill(&mut self, step: u64, input: usize, dst: &mut [u8]) -> Result<(), DataError> {
        let of = &self.inputs[input];
        let Input { ty, source, part: (part, parts), .. } = of;
        let (part, parts) = (*part, *parts);
        assert_eq!(dst.len() as u64, ty.bytes(), "input {input} has another size");
        let (epoch, position) = (step / self.count, step % self.count);
        match (source, &mut self.shuffle) {
            (Source::Value(bytes), _) => dst.copy_from_slice(bytes),
            (Source::Whole(array), _) => of.read(array, part * dst.len(), dst)?,
            (Source::Rows(array), None) => {
                of.read(array, (position as usize * parts + part) * dst.len(), dst)?;
            }
            (Source::Rows(array), Some(shuffle)) => {
                let pieces = shuffle.pieces(epoch, position);
                if let [batch] = *pieces {
                    of.read(array, (batch as usize * parts + part) * dst.len(), dst)?;
                    as_bools(ty, dst);
                    return Ok(());
                }
                let own = pieces.len() / parts;
                let pieces = &pieces[part * own..][..own];
                let len = dst.len() / pieces.len();
                for (to, &from) in dst.chunks_exact_mut(len.max(1)).zip(pieces) {
                    of.read(array, from as usize * len, to)?;
                }
            }
        }
        as_bools(ty, dst);
        Ok(())
    }
}

/// Makes 0 or 1 of the bytes of a bool input.
fn as_bools(ty: &TensorType, dst: &mut [u8]) {
    if ty.dtype == DType::Bool {
        dst.iter_mut().for_each(|b| *b = u8::from(*b != 0));
    }
}
