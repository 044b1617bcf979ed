//! Placement problems in MiniMalloc's CSV: one buffer per line, with the columns `id`,
//! `lower`, `upper` and `size`, and if need be `alignment`, `gaps`, `offset` and `hint`,
//! in any order; columns of other names are carried along. Lifetimes are half-open. `gaps`
//! are separated by spaces, each `lower-upper`, or `lower-upper@low:high` where the bytes
//! `low..high` of the buffer stay in use.

use arenic_passes::place::{Buffer, Gap, Invalid, MAX_ALIGNMENT, Problem};
use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Why a file holds no placement problem.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct PlacementError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub reason: Reason,
}

/// What is wrong.
#[derive(Debug, thiserror::Error)]
pub enum Reason {
    /// The file cannot be read, or a line has more or fewer fields than the header.
    #[error("cannot be read: {0}")]
    Csv(#[from] csv::Error),
    /// A column that must be there is not.
    #[error("has no column `{0}`; the first line names the columns: id, lower, upper, size")]
    Column(&'static str),
    /// A column is there twice.
    #[error("has two columns `{0}`")]
    TwiceColumn(String),
    /// Two buffers have one id.
    #[error("line {0}: the id `{1}` is there twice")]
    TwiceId(u64, String),
    /// A field that cannot be read.
    #[error("line {line}: `{field}` is no {column}: {expected}")]
    Field {
        /// Line, from 1.
        line: u64,
        /// The column.
        column: &'static str,
        /// What it holds.
        field: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// Buffers that cannot be placed together.
    #[error("line {line}: {error}")]
    Invalid {
        /// Line of the buffer that the error names first, from 1.
        line: u64,
        /// What is wrong, in terms of ids.
        error: String,
    },
}

/// A placement problem as it was read.
#[derive(Debug)]
pub struct Instance {
    /// The buffers, in the order of the file.
    pub problem: Problem,
    header: csv::StringRecord,
    rows: Vec<csv::StringRecord>,
    /// Which column is `offset`.
    offset: Option<usize>,
}

const INTEGER: &str = "an integer of 64 bits";
const SIZE: &str = "an integer from 0 to 2^63";
const ALIGNMENT: &str = "an integer from 1 to 2^40";
const GAPS: &str = "pairs of times as in `3-5 7-9`, or `7-9@0:16` with the bytes in use";

/// Reads a problem; every alignment becomes a multiple of `alignment`, which is 1 or more.
///
/// # Errors
/// See [`PlacementError`].
pub fn read(path: &Path, alignment: u64) -> Result<Instance, PlacementError> {
    parse(path, alignment).map_err(|reason| PlacementError { path: path.to_owned(), reason })
}

fn parse(path: &Path, alignment: u64) -> Result<Instance, Reason> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_path(path)?;
    let header = reader.headers()?.clone();
    let mut names = HashSet::new();
    if let Some(twice) = header.iter().find(|name| !names.insert(*name)) {
        return Err(Reason::TwiceColumn(twice.to_owned()));
    }
    let column = |name: &str| header.iter().position(|h| h == name);
    let needed = |name: &'static str| column(name).ok_or(Reason::Column(name));
    let columns = Columns {
        lower: needed("lower")?,
        upper: needed("upper")?,
        size: needed("size")?,
        alignment: column("alignment"),
        gaps: column("gaps"),
        offset: column("offset"),
        hint: column("hint"),
    };
    let id = needed("id")?;
    let rows: Vec<csv::StringRecord> = reader.records().collect::<Result<_, _>>()?;
    let mut ids = HashSet::with_capacity(rows.len());
    for row in &rows {
        if !ids.insert(&row[id]) {
            return Err(Reason::TwiceId(line(row), row[id].to_owned()));
        }
    }
    let buffers = rows.iter().map(|row| columns.buffer(row, alignment));
    let buffers: Vec<Buffer> = buffers.collect::<Result<_, _>>()?;
    let problem = Problem::new(buffers).map_err(|error| {
        let name = |i: usize| rows.get(i).map_or("", |row| &row[id]).to_owned();
        let (at, error) = match error {
            Invalid::Lifetime(i) => (i, error.to_string()),
            Invalid::Alignment(i) | Invalid::Gap(i) | Invalid::Misaligned(i) => {
                (i, error.to_string())
            }
            Invalid::TooLarge(i) => (i, error.to_string()),
            Invalid::Overlap(a, b) => (b, format!(
                "buffers `{}` (line {}) and `{}` are alive at once and have fixed offsets that overlap",
                name(a), rows.get(a).map_or(0, line), name(b))),
        };
        let error = error.replacen(&format!("buffer {at}"), &format!("buffer `{}`", name(at)), 1);
        Reason::Invalid { line: rows.get(at).map_or(0, line), error }
    })?;
    let offset = columns.offset;
    Ok(Instance { problem, header, rows, offset })
}

fn line(row: &csv::StringRecord) -> u64 {
    row.position().map_or(0, csv::Position::line)
}

/// Where each column is.
struct Columns {
    lower: usize,
    upper: usize,
    size: usize,
    alignment: Option<usize>,
    gaps: Option<usize>,
    offset: Option<usize>,
    hint: Option<usize>,
}

impl Columns {
    fn buffer(&self, row: &csv::StringRecord, common: u64) -> Result<Buffer, Reason> {
        let bad = |column, field: &str, expected| Reason::Field {
            line: line(row),
            column,
            field: field.to_owned(),
            expected,
        };
        let time = |column, at: usize| row[at].parse().map_err(|_| bad(column, &row[at], INTEGER));
        // An empty optional field, or a negative offset as MiniMalloc writes it, says nothing.
        let optional = |column, at: Option<usize>| match at.map(|at| &row[at]) {
            None | Some("" | "-1") => Ok(None),
            Some(field) => field.parse().map(Some).map_err(|_| bad(column, field, SIZE)),
        };
        let field = self.alignment.map_or("", |at| &row[at]);
        let own = if field.is_empty() { Ok(1) } else { field.parse::<u64>() };
        let alignment = own.ok().and_then(|own| common_multiple(own, common));
        let gaps = self.gaps.map_or("", |at| &row[at]);
        Ok(Buffer {
            lower: time("lower", self.lower)?,
            upper: time("upper", self.upper)?,
            size: row[self.size].parse().map_err(|_| bad("size", &row[self.size], SIZE))?,
            alignment: alignment.ok_or_else(|| bad("alignment", field, ALIGNMENT))?,
            offset: optional("offset", self.offset)?,
            hint: optional("hint", self.hint)?,
            gaps: gaps
                .split_whitespace()
                .map(|text| gap(text).ok_or_else(|| bad("gaps", gaps, GAPS)))
                .collect::<Result<_, _>>()?,
        })
    }
}

/// The least common multiple, where it is a usable alignment.
fn common_multiple(a: u64, b: u64) -> Option<u64> {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    let multiple = (a.checked_div(x)?).checked_mul(b)?;
    (1..=MAX_ALIGNMENT).contains(&multiple).then_some(multiple)
}

fn gap(text: &str) -> Option<Gap> {
    let (times, window) = match text.split_once('@') {
        Some((times, window)) => (times, Some(window.split_once(':')?)),
        None => (text, None),
    };
    // A time may be negative: the dash between both is not the first character.
    let dash = times.char_indices().skip(1).find(|&(_, c)| c == '-')?.0;
    let window = match window {
        Some((low, high)) => Some((low.parse().ok()?, high.parse().ok()?)),
        None => None,
    };
    let (lower, upper) = (times[..dash].parse().ok()?, times[dash + 1..].parse().ok()?);
    Some(Gap { lower, upper, window })
}

/// As [`gap`] reads it.
fn gap_text(gap: &Gap) -> String {
    let window = gap.window.map_or(String::new(), |(low, high)| format!("@{low}:{high}"));
    format!("{}-{}{window}", gap.lower, gap.upper)
}

impl Instance {
    /// The fields of a column, in the order of the buffers, where there is one of that name.
    pub fn column(&self, name: &str) -> Option<impl Iterator<Item = &str>> {
        let at = self.header.iter().position(|h| h == name)?;
        // Every row has all columns.
        Some(self.rows.iter().map(move |row| row.get(at).unwrap_or_default()))
    }

    /// The line of a buffer, from 1.
    pub fn line(&self, buffer: usize) -> u64 {
        self.rows.get(buffer).map_or(0, line)
    }

    /// A problem that no file holds, with its buffers' ids.
    pub fn new(problem: Problem, ids: impl IntoIterator<Item = String>) -> Instance {
        let header = vec!["id", "lower", "upper", "size", "alignment", "gaps"].into();
        let row = |(id, b): (String, &Buffer)| {
            let gaps: Vec<String> = b.gaps.iter().map(gap_text).collect();
            let figures = [b.lower.to_string(), b.upper.to_string(), b.size.to_string()];
            let rest = [b.alignment.to_string(), gaps.join(" ")];
            [id].into_iter().chain(figures).chain(rest).collect()
        };
        let rows = ids.into_iter().zip(problem.buffers()).map(row).collect();
        Instance { header, rows, offset: None, problem }
    }

    /// Writes all columns with the offsets; as a new column, where there was none.
    ///
    /// # Errors
    /// The writer fails.
    pub fn write(&self, to: impl Write, offsets: &[u64]) -> Result<(), csv::Error> {
        let mut writer = csv::Writer::from_writer(to);
        let mut put = |row: &csv::StringRecord, offset: &str| {
            let at = self.offset.unwrap_or(row.len());
            let kept = row.iter().enumerate().map(|(i, f)| if i == at { offset } else { f });
            writer.write_record(kept.chain((at == row.len()).then_some(offset)))
        };
        put(&self.header, "offset")?;
        for (row, offset) in self.rows.iter().zip(offsets) {
            put(row, &offset.to_string())?;
        }
        writer.flush()?;
        Ok(())
    }
}
