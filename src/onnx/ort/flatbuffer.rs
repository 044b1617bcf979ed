//! Reading flatbuffers: tables, vectors and strings of a file that may be anything.
//!
//! A table begins with the signed distance to its vtable, whose 16-bit entries say where each field
//! is in the table; vectors and strings begin with their length; whatever refers to one of these
//! holds the distance to it. Every access is checked against the file's end.

/// Why a file is no flatbuffer of the kind that is looked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Damaged(pub(super) &'static str);

const OUT: Damaged = Damaged("an offset leads out of the file");

/// A whole file.
#[derive(Clone, Copy)]
struct Buffer<'a>(&'a [u8]);

impl<'a> Buffer<'a> {
    fn bytes<const N: usize>(self, at: usize) -> Result<[u8; N], Damaged> {
        let end = at.checked_add(N).ok_or(OUT)?;
        self.0.get(at..end).and_then(|b| b.try_into().ok()).ok_or(OUT)
    }

    fn word(self, at: usize) -> Result<usize, Damaged> {
        Ok(u32::from_le_bytes(self.bytes(at)?) as usize)
    }

    /// What the offset at `at` leads to.
    fn target(self, at: usize) -> Result<usize, Damaged> {
        at.checked_add(self.word(at)?).filter(|&t| t < self.0.len()).ok_or(OUT)
    }

    /// The bytes of a vector of `count` elements of `size` bytes, which stands at `at`.
    fn vector(self, at: usize, size: usize) -> Result<&'a [u8], Damaged> {
        let first = at.checked_add(4).ok_or(OUT)?;
        let len = self.word(at)?.checked_mul(size).ok_or(OUT)?;
        let end = first.checked_add(len).ok_or(OUT)?;
        self.0.get(first..end).ok_or(OUT)
    }
}

/// A table.
#[derive(Clone, Copy)]
pub(super) struct Table<'a> {
    buffer: Buffer<'a>,
    at: usize,
    /// Where its vtable is, and how long.
    vtable: usize,
    vtable_bytes: usize,
}

impl<'a> Table<'a> {
    /// The root of a file that begins with this identifier.
    pub(super) fn root(bytes: &'a [u8], identifier: &[u8; 4]) -> Result<Self, Damaged> {
        if bytes.get(4..8) != Some(identifier) {
            return Err(Damaged("it does not begin as a checkpoint does"));
        }
        let buffer = Buffer(bytes);
        Table::at(buffer, buffer.target(0)?)
    }

    fn at(buffer: Buffer<'a>, at: usize) -> Result<Self, Damaged> {
        let distance = i32::from_le_bytes(buffer.bytes(at)?);
        let vtable = (at as i64).checked_sub(distance.into()).and_then(|v| usize::try_from(v).ok());
        let vtable = vtable.ok_or(OUT)?;
        let vtable_bytes = usize::from(u16::from_le_bytes(buffer.bytes(vtable)?));
        Ok(Table { buffer, at, vtable, vtable_bytes })
    }

    /// Where a field is; `None` if it is left out.
    fn field(self, i: usize) -> Result<Option<usize>, Damaged> {
        let entry = 4 + 2 * i;
        if entry + 2 > self.vtable_bytes {
            return Ok(None);
        }
        match u16::from_le_bytes(self.buffer.bytes(self.vtable.checked_add(entry).ok_or(OUT)?)?) {
            0 => Ok(None),
            offset => Ok(Some(self.at.checked_add(offset.into()).ok_or(OUT)?)),
        }
    }

    pub(super) fn int32(self, i: usize) -> Result<i32, Damaged> {
        let at = self.field(i)?;
        at.map_or(Ok(0), |at| Ok(i32::from_le_bytes(self.buffer.bytes(at)?)))
    }

    pub(super) fn int64(self, i: usize) -> Result<i64, Damaged> {
        let at = self.field(i)?;
        at.map_or(Ok(0), |at| Ok(i64::from_le_bytes(self.buffer.bytes(at)?)))
    }

    pub(super) fn flag(self, i: usize) -> Result<bool, Damaged> {
        let at = self.field(i)?;
        at.map_or(Ok(false), |at| Ok(self.buffer.bytes::<1>(at)? != [0]))
    }

    pub(super) fn text(self, i: usize) -> Result<&'a str, Damaged> {
        let text = self.raw(i)?.unwrap_or_default();
        std::str::from_utf8(text).map_err(|_| Damaged("a name is no UTF-8 text"))
    }

    pub(super) fn table(self, i: usize) -> Result<Option<Table<'a>>, Damaged> {
        let Some(at) = self.field(i)? else { return Ok(None) };
        Table::at(self.buffer, self.buffer.target(at)?).map(Some)
    }

    /// A vector of bytes.
    pub(super) fn raw(self, i: usize) -> Result<Option<&'a [u8]>, Damaged> {
        let Some(at) = self.field(i)? else { return Ok(None) };
        self.buffer.vector(self.buffer.target(at)?, 1).map(Some)
    }

    /// A vector of at most so many integers.
    pub(super) fn int64s(self, i: usize, most: usize) -> Result<Vec<i64>, Damaged> {
        let Some(at) = self.field(i)? else { return Ok(Vec::new()) };
        let bytes = self.buffer.vector(self.buffer.target(at)?, 8)?;
        if bytes.len() / 8 > most {
            return Err(Damaged("a tensor has too many dimensions"));
        }
        Ok(bytes.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect())
    }

    /// A vector of tables, which are taken off `left`: vectors may share tables, and a small file
    /// could hold exponentially many.
    pub(super) fn tables(self, i: usize, left: &mut usize) -> Result<Vec<Table<'a>>, Damaged> {
        let Some(at) = self.field(i)? else { return Ok(Vec::new()) };
        let at = self.buffer.target(at)?;
        let count = self.buffer.vector(at, 4)?.len() / 4;
        *left = left.checked_sub(count).ok_or(Damaged("it holds more tables than bytes"))?;
        (0..count).map(|k| Table::at(self.buffer, self.buffer.target(at + 4 + 4 * k)?)).collect()
    }
}
