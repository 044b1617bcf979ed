//! Reading `.npz`: a zip archive of `.npy` members.

use super::error::{ArrayProblem, DataError};
use super::mapped::{Array, Arrays, MappedFile};
use super::npy;
use arenic_ir::types::TensorType;
use std::fs::File;
use std::io::{BufWriter, Cursor, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zip::{CompressionMethod, ZipArchive};

/// An open `.npz`.
///
/// A stored member is mapped where it lies; its checksum is not verified, since that would
/// read all of it. Deflated members are inflated when the file is opened, with their
/// checksums verified, into one temporary file that is mapped too. That file has no name,
/// so that it vanishes with the process, and lies in the system's temporary folder
/// (`TMPDIR`), which needs room for the inflated data.
#[derive(Debug)]
pub struct Npz {
    arrays: Arrays,
}

/// A member's header, and where its data lies.
struct Member {
    name: String,
    ty: TensorType,
    inflated: bool,
    range: Range<usize>,
}

impl Npz {
    /// Opens the file and reads all headers.
    ///
    /// # Errors
    /// The file cannot be read, is no zip archive, or holds a member that is not an array
    /// of a supported type in row-major order.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DataError> {
        let path = path.as_ref();
        Self::from_file(path, &MappedFile::open(path)?)
    }

    pub(super) fn from_file(path: &Path, file: &Arc<MappedFile>) -> Result<Self, DataError> {
        let mut archive =
            ZipArchive::new(Cursor::new(file.bytes())).map_err(|e| bad_zip(path, &e))?;
        if archive.has_duplicate_names() {
            return Err(bad_zip(path, &"a name occurs twice"));
        }
        let mut spool = Spool { writer: None, len: 0 };
        let members = (0..archive.len())
            .map(|i| read_member(path, file.bytes(), &mut archive, i, &mut spool))
            .collect::<Result<Vec<_>, _>>()?;
        let inflated = spool.map()?.unwrap_or_else(|| file.clone());
        let mut arrays = Arrays::new(path);
        for Member { name, ty, inflated: was_deflated, range } in members {
            let home = if was_deflated { &inflated } else { file };
            arrays.push(Array::new(path, name, ty, home, range)?)?;
        }
        Ok(Npz { arrays })
    }

    /// The names of the arrays, in file order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.arrays.list().iter().map(Array::name)
    }

    /// The array of this name.
    pub fn array(&self, name: &str) -> Option<&Array> {
        self.arrays.get(name)
    }

    /// All arrays, in file order.
    pub fn arrays(&self) -> &[Array] {
        self.arrays.list()
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        self.arrays.path()
    }

    pub(super) fn into_arrays(self) -> Arrays {
        self.arrays
    }
}

fn read_member(
    path: &Path,
    file: &[u8],
    archive: &mut ZipArchive<Cursor<&[u8]>>,
    i: usize,
    spool: &mut Spool,
) -> Result<Member, DataError> {
    let raw = archive.by_index_data(i).map_err(|e| bad_zip(path, &e))?;
    let full = String::from_utf8_lossy(raw.name_raw()).into_owned();
    let name = full.strip_suffix(".npy").unwrap_or(&full).to_owned();
    let problem = |p: ArrayProblem| DataError::array(path, &name, p);
    let unreadable = |e: &dyn ToString| problem(ArrayProblem::Unreadable(e.to_string()));
    let mut entry = archive.by_index(i).map_err(|e| unreadable(&e))?;
    let size = entry.size();
    let check = |ty: &TensorType, header: u64| {
        let found = size.saturating_sub(header);
        let expected = ty.bytes();
        if found == expected && size >= header {
            return Ok(());
        }
        Err(problem(ArrayProblem::Length { ty: ty.clone(), expected, found }))
    };
    match entry.compression() {
        CompressionMethod::Stored => {
            let range = entry
                .data_start()
                .and_then(|start| Some(start..start.checked_add(size)?))
                .and_then(|r| Some(usize::try_from(r.start).ok()?..usize::try_from(r.end).ok()?));
            let place = range.and_then(|r| Some((r.clone(), file.get(r)?)));
            let Some((range, mut bytes)) = place else {
                return Err(unreadable(&"the member reaches past the end of the file"));
            };
            let (ty, header) = npy::read_header(&mut bytes).map_err(&problem)?;
            check(&ty, header)?;
            // `bytes` now starts after the header.
            let data = range.end - bytes.len()..range.end;
            Ok(Member { name, ty, inflated: false, range: data })
        }
        CompressionMethod::Deflated => {
            let (ty, header) = npy::read_header(&mut entry).map_err(&problem)?;
            check(&ty, header)?;
            let start = spool.len;
            let mut buf = [0u8; 1 << 14];
            // Reading up to the end makes the reader verify the checksum; it refuses bytes
            // beyond the declared size.
            loop {
                match entry.read(&mut buf) {
                    Ok(0) => break,
                    Ok(n) => spool.write(&buf[..n])?,
                    Err(e) => return Err(unreadable(&e)),
                }
            }
            Ok(Member { name, ty, inflated: true, range: start..spool.len })
        }
        other => Err(unreadable(&format!("compression method {other} is not supported"))),
    }
}

/// The temporary file that deflated members are inflated into, made when needed.
struct Spool {
    writer: Option<BufWriter<File>>,
    len: usize,
}

impl Spool {
    fn write(&mut self, bytes: &[u8]) -> Result<(), DataError> {
        let writer = match &mut self.writer {
            Some(writer) => writer,
            none => {
                let file = tempfile::tempfile().map_err(|e| spool_error("create", e))?;
                none.insert(BufWriter::with_capacity(1 << 18, file))
            }
        };
        writer.write_all(bytes).map_err(|e| spool_error("write", e))?;
        self.len += bytes.len();
        Ok(())
    }

    fn map(self) -> Result<Option<Arc<MappedFile>>, DataError> {
        let Some(writer) = self.writer else { return Ok(None) };
        let file = writer.into_inner().map_err(|e| spool_error("write", e.into_error()))?;
        MappedFile::new(file, &spool_name()).map(Some)
    }
}

/// The mend for a full temporary folder is another folder, so the text names the folder.
fn spool_error(action: &'static str, cause: std::io::Error) -> DataError {
    DataError::io(action, &spool_name(), cause)
}

fn spool_name() -> PathBuf {
    std::env::temp_dir().join("(file for inflated arrays; TMPDIR names its folder)")
}

fn bad_zip(path: &Path, detail: &dyn ToString) -> DataError {
    DataError::Format {
        path: path.to_owned(),
        format: "npz",
        detail: detail.to_string(),
        mend: "write it with numpy.savez or numpy.savez_compressed",
    }
}
