//! What a checked program uses: which bytes hold what for how long, and the peaks of that.

use crate::graph::ValueId;
use crate::program::{Program, Range};
use crate::space::{PerSpace, Space};

/// What kind of bytes an occupancy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OccupancyKind {
    /// A fed input.
    Input,
    /// A constant.
    Const,
    /// A state's home.
    State,
    /// A node's result or a copy.
    Value,
    /// Scratch.
    Scratch,
}

impl OccupancyKind {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            OccupancyKind::Input => "input",
            OccupancyKind::Const => "const",
            OccupancyKind::State => "state",
            OccupancyKind::Value => "value",
            OccupancyKind::Scratch => "scratch",
        }
    }
}

/// A range that holds one value from its write to its last read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// The value; `None` for scratch.
    pub value: Option<ValueId>,
    /// What kind it is.
    pub kind: OccupancyKind,
    /// The bytes.
    pub range: Range,
    /// First command, in issue order.
    pub first: usize,
    /// One past the last command that needs it.
    pub end: usize,
    /// What it adds to the live bytes while it lives: its bytes, rounded up to the alignment,
    /// or where it lies in a home, which counts throughout, those outside.
    pub counted_bytes: u64,
}

/// What a checked program uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Arena sizes in bytes: one past the last byte that any command touches.
    pub arena_bytes: PerSpace<u64>,
    /// Largest sum of live bytes over positions in issue order, each root rounded up to
    /// the alignment; states and constants count throughout.
    pub live_peak_bytes: PerSpace<u64>,
    /// Every occupancy, in order of first use.
    pub occupancies: Vec<Occupancy>,
}

impl Footprint {
    /// Makes arenas and peaks at least those of another program that takes turns with this one.
    pub fn cover(&mut self, other: &Footprint) {
        self.arena_bytes = self.arena_bytes.largest(other.arena_bytes);
        self.live_peak_bytes = self.live_peak_bytes.largest(other.live_peak_bytes);
    }
}

/// The occupancies of a program, as they are found.
#[derive(Debug, Default)]
pub(super) struct Occupancies {
    all: Vec<Occupancy>,
    /// In issue order: bytes of an occupancy that others take, and the command from which on.
    losses: Vec<Loss>,
}

/// Bytes of an occupancy that another one takes.
#[derive(Clone, Copy, Debug)]
struct Loss {
    occupancy: usize,
    command: usize,
    range: Range,
}

/// True for homes that live throughout the step.
fn is_carried(o: &Occupancy) -> bool {
    matches!(o.kind, OccupancyKind::Const | OccupancyKind::State)
}

impl Occupancies {
    /// Begins an occupancy, which its writing command alone needs so far.
    pub(super) fn begin(
        &mut self,
        value: Option<ValueId>,
        kind: OccupancyKind,
        range: Range,
        first: usize,
    ) -> usize {
        let end = first + 1;
        self.all.push(Occupancy { value, kind, range, first, end, counted_bytes: 0 });
        self.all.len() - 1
    }

    /// Nobody has read the last occupancy yet.
    pub(super) fn unread(&mut self) {
        if let Some(occupancy) = self.all.last_mut() {
            occupancy.end = 0;
        }
    }

    /// Commands before `end` need the occupancy.
    pub(super) fn needed_until(&mut self, occupancy: usize, end: usize) {
        let o = &mut self.all[occupancy];
        o.end = o.end.max(end);
    }

    /// The command writes into the range, which holds bytes of the occupancy.
    pub(super) fn overwritten(
        &mut self,
        occupancy: usize,
        range: &Range,
        command: usize,
        align: u64,
    ) {
        let o = &self.all[occupancy];
        let is_whole = range.offset <= o.range.offset && o.range.end() <= range.end();
        if !is_whole && !is_carried(o) {
            // The bytes up to the next boundary count as the writer's.
            let len = range.end().next_multiple_of(align) - range.offset;
            self.losses.push(Loss { occupancy, command, range: Range { len, ..*range } });
        }
    }

    /// What the program uses whose occupancies these are. `top` is one past the last byte of each
    /// arena that is touched.
    pub(super) fn footprint(mut self, p: &Program, top: PerSpace<u64>) -> Footprint {
        self.cut();
        let end = p.commands.len().max(1);
        for o in self.all.iter_mut().filter(|o| is_carried(o)) {
            (o.first, o.end) = (0, end);
        }
        let mut live_peak_bytes = PerSpace::default();
        for space in Space::ALL {
            self.count(space, p.target.align);
            live_peak_bytes[space] = self.live_peak(space, end);
        }
        Footprint { arena_bytes: top, live_peak_bytes, occupancies: self.all }
    }

    /// Cuts occupancies of which a part is needed for longer than the rest, whose bytes others
    /// take: from then on the part is an occupancy of its own.
    fn cut(&mut self) {
        let mut losses = std::mem::take(&mut self.losses);
        losses.retain(|loss| loss.command < self.all[loss.occupancy].end);
        losses.sort_by_key(|loss| loss.occupancy);
        if losses.is_empty() {
            return;
        }
        for of_one in losses.chunk_by(|a, b| a.occupancy == b.occupancy) {
            let whole = &mut self.all[of_one[0].occupancy];
            let (original, end) = (whole.clone(), whole.end);
            whole.end = of_one[0].command;
            let mut left = vec![(original.first, original.range)];
            for loss in of_one {
                let (taken, others): (Vec<_>, Vec<_>) =
                    left.into_iter().partition(|(_, range)| range.overlaps(&loss.range));
                left = others;
                for (first, range) in taken {
                    if first > original.first && first < loss.command {
                        let end = loss.command;
                        self.all.push(Occupancy { first, range, end, ..original.clone() });
                    }
                    let before = loss.range.offset.saturating_sub(range.offset);
                    let behind = range.end().saturating_sub(loss.range.end());
                    let parts = [(range.offset, before), (loss.range.end(), behind)];
                    let parts = parts.into_iter().filter(|&(_, len)| len > 0);
                    left.extend(
                        parts.map(|(offset, len)| (loss.command, Range { offset, len, ..range })),
                    );
                }
            }
            for (first, range) in left {
                self.all.push(Occupancy { first, range, end, ..original.clone() });
            }
        }
        self.all.sort_by_key(|o| o.first);
    }

    /// Sets what each occupancy of the space adds to the live bytes. Homes are counted
    /// throughout, so what lives inside one counts no second time.
    fn count(&mut self, space: Space, align: u64) {
        let inside = |o: &Occupancy| o.range.space == space;
        let aligned = |r: &Range| r.offset..r.end().next_multiple_of(align);
        let homes = self.all.iter().filter(|o| inside(o) && is_carried(o) && o.range.len > 0);
        let mut homes: Vec<_> = homes.map(|o| aligned(&o.range)).collect();
        homes.sort_unstable_by_key(|home| home.start);
        for o in self.all.iter_mut().filter(|o| inside(o)) {
            let own = aligned(&o.range);
            let next = homes.partition_point(|home| home.end <= own.start);
            let others = if is_carried(o) { &[] } else { &homes[next..] };
            let shared: u64 = others
                .iter()
                .take_while(|home| home.start < own.end)
                .map(|home| home.end.min(own.end) - home.start.max(own.start))
                .sum();
            o.counted_bytes = own.end - own.start - shared;
        }
    }

    fn live_peak(&self, space: Space, end: usize) -> u64 {
        let mut change = vec![0i64; end + 1];
        for o in self.all.iter().filter(|o| o.range.space == space && o.first < o.end) {
            change[o.first.min(end)] += o.counted_bytes as i64;
            change[o.end.min(end)] -= o.counted_bytes as i64;
        }
        let (mut live, mut peak) = (0, 0);
        for c in change {
            live += c;
            peak = peak.max(live);
        }
        peak as u64
    }
}
