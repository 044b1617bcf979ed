//! Where tensors lie in an artifact.

use arenic_ir::graph::Data;
use bytes::Bytes;
use std::collections::HashMap;

/// Sections begin at multiples of this, in bytes.
pub(super) const SECTION_ALIGN: u64 = 4096;
/// Entries begin at multiples of this, in bytes.
pub(super) const ENTRY_ALIGN: u64 = 64;

/// Bytes of a constant (by value id) or of a state's initial value (by state id), from
/// the start of the data that follow the header.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Entry {
    #[prost(uint32, tag = "1")]
    pub(super) id: u32,
    #[prost(uint64, tag = "2")]
    pub(super) offset: u64,
    #[prost(uint64, tag = "3")]
    pub(super) len: u64,
}

/// Places entries one after the other; those of equal contents are one.
#[derive(Default)]
pub(super) struct Layout<'a> {
    at: u64,
    /// Where each lies, from the start of the data that follow the header.
    pub(super) pieces: Vec<(u64, &'a Bytes)>,
    placed: HashMap<[u8; 32], u64>,
}

impl<'a> Layout<'a> {
    /// Begins a section.
    pub(super) fn section(&mut self) {
        self.at = self.at.next_multiple_of(SECTION_ALIGN);
    }

    /// Places an entry.
    pub(super) fn push(&mut self, id: usize, bytes: &'a Bytes) -> Entry {
        let digest = *blake3::hash(bytes).as_bytes();
        let offset = *self.placed.entry(digest).or_insert_with(|| {
            let offset = self.at.next_multiple_of(ENTRY_ALIGN);
            self.at = offset + bytes.len() as u64;
            self.pieces.push((offset, bytes));
            offset
        });
        Entry { id: id as u32, offset, len: bytes.len() as u64 }
    }
}

/// The bytes of an entry, where the file has them.
pub(super) fn piece(data: &Bytes, e: &Entry) -> Option<Data> {
    let first = usize::try_from(e.offset).ok()?;
    let end = first.checked_add(usize::try_from(e.len).ok()?)?;
    (end <= data.len()).then(|| Data::Bytes(data.slice(first..end)))
}
