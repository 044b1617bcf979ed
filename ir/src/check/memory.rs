//! What one arena holds, byte range by byte range, and who used it last.

use crate::graph::ValueId;
use crate::program::Range;
use std::collections::BTreeMap;

/// Bytes of a root value from `offset` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) root: ValueId,
    pub(super) offset: u64,
}

/// A command's place in the vector clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) stream: usize,
    pub(super) sequence: u64,
}

/// A maximal run of bytes with one history.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    end: u64,
    pub(super) content: Option<Content>,
    pub(super) writer: Access,
    /// The last read of each stream since the write.
    pub(super) readers: Vec<Access>,
    /// `None` for bytes that were never written, or in an earlier step.
    occupancy: Option<usize>,
}

/// One arena: segments by first byte. Bytes in no segment were never used.
#[derive(Default)]
pub(super) struct Memory {
    segments: BTreeMap<u64, Segment>,
}

impl Memory {
    /// True where some segment of the range satisfies the predicate.
    pub(super) fn any(&self, range: &Range, predicate: impl Fn(&Segment) -> bool) -> bool {
        self.overlapping(range).any(|(_, s)| predicate(s))
    }

    fn overlapping(&self, range: &Range) -> impl Iterator<Item = (u64, &Segment)> {
        let before = self.segments.range(..=range.offset).next_back().map_or(0, |(&s, _)| s);
        let (offset, end) = (range.offset, range.end());
        self.segments
            .range(before..end.max(before))
            .map(|(&start, s)| (start, s))
            .filter(move |(start, s)| s.end > offset && *start < end)
    }

    /// The pieces of the range in order: length and content.
    pub(super) fn contents(&self, range: &Range) -> Vec<(u64, Option<Content>)> {
        let mut pieces = Vec::new();
        let mut at = range.offset;
        for (start, s) in self.overlapping(range) {
            if start > at {
                pieces.push((start - at, None));
                at = start;
            }
            let end = s.end.min(range.end());
            let content = s.content.map(|c| Content { offset: c.offset + (at - start), ..c });
            pieces.push((end - at, content));
            at = end;
        }
        if at < range.end() {
            pieces.push((range.end() - at, None));
        }
        pieces
    }

    /// Makes `at` a boundary between segments.
    fn split(&mut self, at: u64) {
        let Some((&start, segment)) = self.segments.range_mut(..at).next_back() else { return };
        if segment.end <= at {
            return;
        }
        let mut tail = segment.clone();
        segment.end = at;
        tail.content = tail.content.map(|c| Content { offset: c.offset + (at - start), ..c });
        self.segments.insert(at, tail);
    }

    /// Notes a read and tells which occupancies it read.
    pub(super) fn read(&mut self, range: &Range, access: Access, mut visit: impl FnMut(usize)) {
        if range.len == 0 {
            return;
        }
        self.split(range.offset);
        self.split(range.end());
        self.fill_gaps(range);
        for (_, s) in self.segments.range_mut(range.offset..range.end()) {
            s.occupancy.map(&mut visit);
            match s.readers.iter_mut().find(|r| r.stream == access.stream) {
                Some(r) => r.sequence = access.sequence,
                None => s.readers.push(access),
            }
        }
    }

    /// Makes segments of the range's bytes that were never used, so that they remember readers.
    fn fill_gaps(&mut self, range: &Range) {
        let writer = Access { stream: 0, sequence: 0 };
        let (mut at, mut gaps) = (range.offset, Vec::new());
        for (start, s) in self.overlapping(range) {
            if start > at {
                gaps.push((at, start));
            }
            at = s.end;
        }
        if at < range.end() {
            gaps.push((at, range.end()));
        }
        for (start, end) in gaps {
            let blank =
                Segment { end, content: None, writer, readers: Vec::new(), occupancy: None };
            self.segments.insert(start, blank);
        }
    }

    /// The occupancies of the range's bytes, each once for every segment.
    pub(super) fn occupancies(&self, range: &Range) -> Vec<usize> {
        self.overlapping(range).filter_map(|(_, s)| s.occupancy).collect()
    }

    /// Forgets what all bytes hold, but not who used them.
    pub(super) fn forget(&mut self) {
        for s in self.segments.values_mut() {
            (s.content, s.occupancy) = (None, None);
        }
    }

    /// Notes that a range, all of which was used, holds a value.
    pub(super) fn know(&mut self, range: &Range, root: ValueId) {
        self.split(range.offset);
        self.split(range.end());
        for (&start, s) in self.segments.range_mut(range.offset..range.end()) {
            s.content = Some(Content { root, offset: start - range.offset });
        }
    }

    /// Replaces whatever the range held.
    pub(super) fn write(
        &mut self,
        range: &Range,
        content: Option<Content>,
        writer: Access,
        occupancy: Option<usize>,
    ) {
        if range.len == 0 {
            return;
        }
        self.clear(range);
        let end = range.end();
        let segment = Segment { end, content, writer, readers: Vec::new(), occupancy };
        self.segments.insert(range.offset, segment);
    }

    fn clear(&mut self, range: &Range) {
        self.split(range.offset);
        self.split(range.end());
        let starts: Vec<u64> =
            self.segments.range(range.offset..range.end()).map(|(&s, _)| s).collect();
        for start in starts {
            self.segments.remove(&start);
        }
    }

    /// Gives a freshly written range the contents of another, piece by piece.
    pub(super) fn set_contents(&mut self, range: &Range, pieces: &[(u64, Option<Content>)]) {
        let mut at = range.offset;
        for &(len, content) in pieces {
            self.split(at);
            self.split(at + len);
            if let Some(s) = self.segments.get_mut(&at) {
                s.content = content;
            }
            at += len;
        }
    }
}
