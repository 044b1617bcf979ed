//! What can be wrong with a data file.

use arenic_ir::types::TensorType;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

/// A data file, or an argument that stands for one, cannot be used. Every text says what
/// is wrong, where, and how to mend it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The system refused an operation on a file.
    #[error("cannot {action} {}: {cause}", .path.display())]
    Io {
        /// What was tried, for example `open`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        cause: io::Error,
    },
    /// No file can be made in a folder.
    #[error("cannot write {}: no file can be made in {}: {cause}; {}", .path.display(), .folder.display(), mend(.cause))]
    NoFile {
        /// The file to write.
        path: PathBuf,
        /// The folder it would be in.
        folder: PathBuf,
        /// The system's answer.
        cause: io::Error,
    },
    /// The path names something else than a regular file.
    #[error("{} is not a regular file; name a file", .0.display())]
    NotAFile(PathBuf),
    /// The file's container is damaged or of another format.
    #[error("cannot read {} as {format}: {detail}; {mend}", .path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The format it was read as.
        format: &'static str,
        /// What is wrong.
        detail: String,
        /// What to do.
        mend: &'static str,
    },
    /// One array of a file cannot be used.
    #[error("array \"{array}\" in {}: {problem}", .path.display())]
    Array {
        /// The file.
        path: PathBuf,
        /// The array.
        array: String,
        /// What is wrong with it.
        problem: ArrayProblem,
    },
    /// Names that are not inputs.
    #[error("{given_by} names tensors that are no inputs: {}; the inputs are: {}", list(.names), list(.known))]
    UnknownInputs {
        /// Where the names come from.
        given_by: &'static str,
        /// The names.
        names: Vec<String>,
        /// What could have been named.
        known: Vec<String>,
    },
    /// Inputs that nothing gives a value.
    #[error(
        "no value for {}; add an array of that name to --data, or --set NAME=VALUE for a single \
         number",
        list(.0)
    )]
    MissingInputs(
        /// Names and types.
        Vec<String>,
    ),
    /// Inputs that have two values.
    #[error("given both in --data and by --set: {}; remove one of them", list(.0))]
    GivenTwice(Vec<String>),
    /// One name in two `--set` arguments.
    #[error("--set {0} is given more than once; keep one")]
    SetTwice(String),
    /// A `--set` value that its input cannot hold.
    #[error("--set {name}={value}: input \"{name}\" is {ty} and {reason}")]
    SetValue {
        /// The input.
        name: String,
        /// The text given.
        value: String,
        /// The input's type.
        ty: TensorType,
        /// Why the value does not fit.
        reason: String,
    },
    /// An array that does not fit its input.
    #[error("array \"{name}\" is {found}, its input takes {expected} per batch: {reason}")]
    Mismatch {
        /// Input and array.
        name: String,
        /// The type of the array.
        found: TensorType,
        /// The type of the input.
        expected: TensorType,
        /// What differs and what to do.
        reason: &'static str,
    },
    /// A file whose arrays no variant takes.
    #[error("{} fits no variant: {}", .path.display(), list(.why))]
    NoVariant {
        /// The file.
        path: PathBuf,
        /// Why not, by variant.
        why: Vec<String>,
    },
    /// A `--pad` value that its input cannot hold.
    #[error("--pad {name}={value}: input \"{name}\" is {ty} and {reason}")]
    PadValue {
        /// The input.
        name: String,
        /// The text given.
        value: String,
        /// The input's type.
        ty: TensorType,
        /// Why the value does not fit.
        reason: String,
    },
    /// How variants are to share steps contradicts itself.
    #[error("{0}")]
    Mixing(String),
    /// Arrays that hold different numbers of batches.
    #[error(
        "the arrays hold different numbers of batches: {}; cut them to one number of batches",
        list(.0)
    )]
    BatchCounts(
        /// One entry per array: rows, rows per batch, batches.
        Vec<String>,
    ),
    /// More rows than a permutation can hold.
    #[error(
        "--shuffle permutes at most 4294967295 rows, the data has {0}; shuffle the file itself"
    )]
    TooManyRows(u64),
    /// A file that cannot be written as asked.
    #[error("cannot write {}: {detail}", .path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// What is wrong and how to mend it.
        detail: String,
    },
}

/// Why one array cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArrayProblem {
    /// The member is no `.npy` file.
    #[error("not a NumPy array; keep only arrays in the file (numpy.savez)")]
    NotNpy,
    /// A version of the `.npy` format that did not exist when this was written.
    #[error("npy format {0}.{1} is not supported; write it with numpy.savez of NumPy 1 or 2")]
    Version(u8, u8),
    /// The header is malformed.
    #[error("malformed npy header ({0}); the file is damaged, write it again")]
    Header(&'static str),
    /// An element type that arenic does not have.
    #[error(
        "element type {0} is not supported; convert it with .astype to bool, an 8- to 64-bit \
         integer, float32 or float64, little-endian"
    )]
    DType(String),
    /// Column-major order.
    #[error(
        "{0} is stored in Fortran order; store it with numpy.ascontiguousarray or \
         order=\"C\""
    )]
    Fortran(TensorType),
    /// A shape whose size no machine can hold.
    #[error("the shape {0:?} is too large")]
    TooLarge(Vec<usize>),
    /// Fewer or more bytes than the shape takes.
    #[error(
        "{ty} takes {expected} bytes, the file holds {found}; the file is damaged, write it again"
    )]
    Length {
        /// Type of the array.
        ty: TensorType,
        /// Bytes that the type takes.
        expected: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// The member could not be read.
    #[error("{0}; the file is damaged or of an unusual kind, write it again (numpy.savez)")]
    Unreadable(String),
    /// A truth value other than 0 and 1.
    #[error("a bool array holds bytes other than 0 and 1; write it with .astype(bool)")]
    BoolValue,
    /// Another array has the same name.
    #[error("the name occurs twice; keep one")]
    Duplicate,
}

impl DataError {
    pub(crate) fn io(action: &'static str, path: &Path, cause: io::Error) -> Self {
        DataError::Io { action, path: path.to_owned(), cause }
    }

    pub(crate) fn array(path: &Path, array: &str, problem: ArrayProblem) -> Self {
        DataError::Array { path: path.to_owned(), array: array.to_owned(), problem }
    }
}

/// What to do where no file can be made in a folder.
fn mend(cause: &io::Error) -> &'static str {
    use io::ErrorKind::*;
    match cause.kind() {
        NotFound | NotADirectory => "make the folder first, or name another path",
        PermissionDenied | ReadOnlyFilesystem => "make the folder writable, or name another path",
        StorageFull | QuotaExceeded => "make space there, or name another path",
        _ => "name another path",
    }
}

/// Names for a message: all of a few, the first of many.
fn list(names: &[String]) -> String {
    const SHOWN: usize = 24;
    if names.is_empty() {
        return "(none)".to_owned();
    }
    let mut text = names[..names.len().min(SHOWN)].join(", ");
    if names.len() > SHOWN {
        let _ = write!(text, " and {} more", names.len() - SHOWN);
    }
    text
}
