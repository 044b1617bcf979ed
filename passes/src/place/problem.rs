//! Placement as a plain problem (offline dynamic storage allocation): buffers with a
//! lifetime and a size. No graph, no plan.
//!
//! A buffer takes its size rounded up to its alignment, in every figure.

use std::collections::BTreeMap;

/// Nothing that is placed may reach beyond this many bytes, so that no sum overflows.
pub const MAX_HEIGHT: u64 = 1 << 60;

/// No alignment is larger.
pub const MAX_ALIGNMENT: u64 = 1 << 40;

/// A part of a buffer's lifetime in which its bytes are free for others, or all but some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// First instant of the gap.
    pub lower: i64,
    /// First instant after the gap.
    pub upper: i64,
    /// The bytes of the buffer that stay in use during the gap, half-open.
    pub window: Option<(u64, u64)>,
}

/// Bytes that are needed for some time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buffer {
    /// First instant of its life.
    pub lower: i64,
    /// First instant after its life.
    pub upper: i64,
    /// Bytes.
    pub size: u64,
    /// Its offset is a multiple of this; at least 1.
    pub alignment: u64,
    /// Where it must be.
    pub offset: Option<u64>,
    /// Where it should be, if that costs nothing.
    pub hint: Option<u64>,
    /// Instants at which it does not need all its bytes, in order and disjoint.
    pub gaps: Vec<Gap>,
}

impl Buffer {
    /// The bytes it takes: its size rounded up to its alignment.
    pub fn rounded(&self) -> u64 {
        self.size.next_multiple_of(self.alignment)
    }

    /// When it needs which of its bytes, in order of time: one use, but for gaps.
    pub fn uses(&self) -> impl Iterator<Item = Use> {
        let whole = (0, self.rounded());
        let end = Gap { lower: self.upper, upper: self.upper, window: None };
        let gaps = self.gaps.iter().copied().chain([end]);
        let mut after = self.lower;
        let uses = gaps.flat_map(move |gap| {
            let before = Use { lower: after, upper: gap.lower, bytes: whole };
            let within =
                Use { lower: gap.lower, upper: gap.upper, bytes: gap.window.unwrap_or_default() };
            after = gap.upper;
            [before, within]
        });
        uses.filter(|u| u.lower < u.upper && u.bytes.0 < u.bytes.1)
    }
}

/// Bytes of a buffer that are in use for a time without interruption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// First instant.
    pub lower: i64,
    /// First instant after it.
    pub upper: i64,
    /// Half-open range of the buffer's bytes.
    pub bytes: (u64, u64),
}

/// What makes a problem none. Figures are indices of buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// A lifetime that ends before it begins, or at once.
    #[error("buffer {0} has an empty lifetime: `upper` must be above `lower`")]
    Lifetime(usize),
    /// An alignment of zero or beyond [`MAX_ALIGNMENT`].
    #[error("buffer {0} has an alignment that is not between 1 and 2^40")]
    Alignment(usize),
    /// A gap outside the lifetime, an empty one, one before or across the last one, or a
    /// window that is no part of the buffer.
    #[error(
        "buffer {0} has a gap that is empty, beyond its lifetime or size, or not after the last"
    )]
    Gap(usize),
    /// A fixed offset that breaks the buffer's own alignment.
    #[error("buffer {0} has a fixed offset that is no multiple of its alignment")]
    Misaligned(usize),
    /// Two buffers that are alive at once were fixed onto each other.
    #[error("buffers {0} and {1} are alive at once and have fixed offsets that overlap")]
    Overlap(usize, usize),
    /// A buffer reaches beyond [`MAX_HEIGHT`], or all together do.
    #[error("the buffers reach beyond 2^60 bytes, at buffer {0}")]
    TooLarge(usize),
}

/// A [`Use`], by section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) buffer: u32,
    /// Half-open lifetime, in sections.
    pub(super) first: u32,
    pub(super) end: u32,
    /// Half-open range of the buffer's bytes.
    pub(super) low: u64,
    pub(super) high: u64,
}

/// Buffers to place.
///
/// Time is counted in *sections*: the largest sets of buffers that are alive at once, in
/// order. Two buffers are alive at once if and only if they share a section.
#[derive(Clone, Debug, Default)]
pub struct Problem {
    buffers: Vec<Buffer>,
    /// Every buffer's pieces, by buffer; one, but for gaps. None for an empty buffer.
    pieces: Vec<Piece>,
    /// Where each buffer's pieces begin in `pieces`.
    start: Vec<u32>,
    bound: u64,
}

impl Problem {
    /// A problem of these buffers.
    ///
    /// # Errors
    /// See [`Invalid`].
    pub fn new(buffers: Vec<Buffer>) -> Result<Problem, Invalid> {
        let mut total = 0u64;
        for (i, b) in buffers.iter().enumerate() {
            if b.lower >= b.upper {
                return Err(Invalid::Lifetime(i));
            }
            if b.alignment == 0 || b.alignment > MAX_ALIGNMENT {
                return Err(Invalid::Alignment(i));
            }
            if b.size > MAX_HEIGHT || b.offset.is_some_and(|o| o > MAX_HEIGHT - b.size) {
                return Err(Invalid::TooLarge(i));
            }
            // One on top of the other, each aligned: no method needs more.
            total = total.saturating_add(b.rounded()).saturating_add(b.alignment - 1);
            if total > MAX_HEIGHT {
                return Err(Invalid::TooLarge(i));
            }
            if b.offset.is_some_and(|o| o % b.alignment != 0) {
                return Err(Invalid::Misaligned(i));
            }
            let mut after = b.lower;
            for gap in &b.gaps {
                let window = gap.window.is_none_or(|(low, high)| low < high && high <= b.size);
                if gap.lower < after || gap.lower >= gap.upper || gap.upper > b.upper || !window {
                    return Err(Invalid::Gap(i));
                }
                after = gap.upper;
            }
        }
        let (pieces, start) = sections(&buffers);
        let mut problem = Problem { buffers, pieces, start, bound: 0 };
        problem.refuse_overlaps()?;
        let live = problem.live().into_iter().max().unwrap_or(0);
        problem.bound = live.max(problem.fixed_top());
        Ok(problem)
    }

    /// The buffers.
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    /// What no placement is lower than, in bytes: the largest sum of live bytes (or the
    /// top of a fixed buffer).
    pub fn bound(&self) -> u64 {
        self.bound
    }

    /// Height of a placement in bytes.
    pub fn height(&self, offsets: &[u64]) -> u64 {
        let tops = self.buffers.iter().zip(offsets).map(|(b, o)| match b.size {
            0 => 0,
            _ => o + b.rounded(),
        });
        tops.max().unwrap_or(0)
    }

    /// Where what is fixed ends.
    pub(super) fn fixed_top(&self) -> u64 {
        let fixed = self.buffers.iter().filter(|b| b.size > 0);
        fixed.filter_map(|b| Some(b.offset? + b.rounded())).max().unwrap_or(0)
    }

    /// Cuts the problem where no lifetime crosses: the parts with their buffers' indices.
    /// Empty buffers are in none.
    pub(super) fn parts(&self) -> Vec<(Vec<u32>, Problem)> {
        let span = |i: u32| self.span(i as usize).map(|(first, end)| (first, end, i));
        let mut spans: Vec<_> = (0..self.buffers.len() as u32).filter_map(span).collect();
        spans.sort_unstable();
        let mut parts: Vec<Vec<u32>> = Vec::new();
        let mut reach = 0;
        for (first, end, i) in spans {
            match parts.last_mut() {
                Some(part) if first < reach => part.push(i),
                _ => parts.push(vec![i]),
            }
            reach = reach.max(end);
        }
        let cut = |mut part: Vec<u32>| {
            part.sort_unstable();
            let buffers = part.iter().map(|&i| self.buffers[i as usize].clone()).collect();
            // A part of a valid problem is valid.
            (part, Problem::new(buffers).unwrap_or_default())
        };
        parts.into_iter().map(cut).collect()
    }

    pub(super) fn pieces(&self, buffer: usize) -> &[Piece] {
        &self.pieces[self.piece_range(buffer)]
    }

    /// The indices of a buffer's pieces among all pieces.
    pub(super) fn piece_range(&self, buffer: usize) -> std::ops::Range<usize> {
        self.start[buffer] as usize..self.start[buffer + 1] as usize
    }

    /// The sections of a buffer from its first to its last; `None` for an empty buffer.
    pub(super) fn span(&self, buffer: usize) -> Option<(u32, u32)> {
        let pieces = self.pieces(buffer);
        Some((pieces.first()?.first, pieces.last()?.end))
    }

    /// Number of sections.
    pub(super) fn sections(&self) -> usize {
        self.pieces.iter().map(|p| p.end as usize).max().unwrap_or(0)
    }

    /// Live bytes in each section.
    fn live(&self) -> Vec<u64> {
        let mut live = vec![0u64; self.sections() + 1];
        for p in &self.pieces {
            live[p.first as usize] = live[p.first as usize].wrapping_add(p.high - p.low);
            live[p.end as usize] = live[p.end as usize].wrapping_sub(p.high - p.low);
        }
        let mut sum = 0u64;
        for l in &mut live {
            sum = sum.wrapping_add(*l);
            *l = sum;
        }
        live
    }

    /// Goes through time with the fixed pieces that are alive, by offset.
    fn refuse_overlaps(&self) -> Result<(), Invalid> {
        let fixed = |p: &Piece| self.buffers[p.buffer as usize].offset;
        let pieces: Vec<&Piece> = self.pieces.iter().filter(|p| fixed(p).is_some()).collect();
        let mut events: Vec<(u32, bool, usize)> = Vec::with_capacity(2 * pieces.len());
        for (i, p) in pieces.iter().enumerate() {
            events.extend([(p.first, true, i), (p.end, false, i)]);
        }
        events.sort_unstable();
        let mut live: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
        for (_, starts, i) in events {
            let p = pieces[i];
            let Some(offset) = fixed(p) else { continue };
            let (low, high) = (offset + p.low, offset + p.high);
            if !starts {
                live.remove(&low);
                continue;
            }
            if let Some((_, &(top, other))) = live.range(..high).next_back()
                && top > low
            {
                let (a, b) =
                    (p.buffer.min(pieces[other].buffer), p.buffer.max(pieces[other].buffer));
                return Err(Invalid::Overlap(a as usize, b as usize));
            }
            live.insert(low, (high, i));
        }
        Ok(())
    }
}

/// Cuts lifetimes at gaps and counts them in sections.
fn sections(buffers: &[Buffer]) -> (Vec<Piece>, Vec<u32>) {
    let mut pieces = Vec::with_capacity(buffers.len());
    let mut start = Vec::with_capacity(buffers.len() + 1);
    let mut times: Vec<(i64, i64)> = Vec::with_capacity(buffers.len());
    for (i, b) in buffers.iter().enumerate() {
        start.push(pieces.len() as u32);
        for used in b.uses() {
            let (low, high) = used.bytes;
            pieces.push(Piece { buffer: i as u32, first: 0, end: 0, low, high });
            times.push((used.lower, used.upper));
        }
    }
    start.push(pieces.len() as u32);
    // Ends come before starts of the same instant: lifetimes are half-open.
    let mut events: Vec<(i64, bool, u32)> = Vec::with_capacity(2 * pieces.len());
    for (i, &(lower, upper)) in times.iter().enumerate() {
        events.extend([(lower, true, i as u32), (upper, false, i as u32)]);
    }
    events.sort_unstable();
    // A section is complete where the first end follows a start.
    let (mut section, mut begun) = (0, false);
    for (_, starts, i) in events {
        if starts {
            begun = true;
            pieces[i as usize].first = section;
        } else {
            section += u32::from(begun);
            begun = false;
            pieces[i as usize].end = section;
        }
    }
    (pieces, start)
}
