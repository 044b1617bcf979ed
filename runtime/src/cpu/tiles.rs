//! How results of products are cut, into tiles that threads compute one after the other. An element sums over
//! the whole inner extent wherever its tile ends, so that a cut changes no bits.

use crate::workers;
use arenic_ir::op::Extents;

/// Multiplications of one tile: enough to be worth a task and the packing of its operands, few enough to
/// share out.
const TILE: usize = 1 << 19;

/// Tiles for each of several threads. More would only pack the operands more often.
const TILES: usize = 2;

/// Pieces of each of the last tiles, if those are large, so that all threads end at about the same time.
const PIECES: usize = 4;

/// Multiplications of a piece, at least: with fewer, the packing of its operands costs what threads wait less.
const PIECE: usize = 1 << 24;

/// Rows and columns of whole vectors of the library's kernels: cuts fall between them.
const VECTOR: usize = 16;

/// A part of a product's result.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) row: usize,
    pub(super) col: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

impl Part {
    /// The `i`-th piece. Pieces of a few rows or columns may be empty.
    fn piece(self, i: usize, cut: Cut) -> Part {
        let part = |side: usize| {
            let end = |i: usize| (side.div_ceil(VECTOR) * i / PIECES * VECTOR).min(side);
            (end(i), end(i + 1) - end(i))
        };
        if cut.rows_of(self.rows, self.cols) {
            let (from, rows) = part(self.rows);
            Part { row: self.row + from, rows, ..self }
        } else {
            let (from, cols) = part(self.cols);
            Part { col: self.col + from, cols, ..self }
        }
    }
}

/// Which side of a tile is cut. Tiles with the same columns each bring the elements of the second factor, tiles
/// with the same rows those of the first: the cut should have the fewest brought twice.
#[derive(Clone, Copy)]
struct Cut {
    /// As many elements of the first factor cost as much as one of the second.
    second: usize,
}

impl Cut {
    /// For a first factor whose rows are dense or not: the library reads dense rows where they lie, and packs
    /// what it takes of the second factor for each tile.
    fn new(dense: bool) -> Cut {
        Cut { second: if dense { 3 } else { 1 } }
    }

    /// True for a cut between rows, false for one between columns.
    fn rows_of(self, rows: usize, cols: usize) -> bool {
        rows >= self.second * cols
    }
}

/// The tiles of a batch of results.
pub(super) struct Tiles {
    /// Extents of a result and, but at its ends, of a tile.
    result: [usize; 2],
    tile: [usize; 2],
    /// Tiles of a row of them, and of a result.
    across: usize,
    each: usize,
    /// Tiles that come first and are whole; the others come in pieces.
    whole: usize,
    pieces: usize,
    cut: Cut,
}

impl Tiles {
    /// Tiles for the threads that there are. The rows of the first factor are dense or not.
    pub(super) fn new(batch: usize, e: Extents, dense: bool) -> Tiles {
        let (threads, cut) = (workers::count(), Cut::new(dense));
        Tiles::of(batch, e, threads, cut, tile(batch, e, threads, cut))
    }

    /// Tiles of one result, each of at most `elements` elements, or 1024 if that is more.
    pub(super) fn of_at_most(elements: usize, e: Extents, dense: bool) -> Tiles {
        let (threads, cut) = (workers::count(), Cut::new(dense));
        let [rows, cols] = tile(1, e, threads, cut);
        Tiles::of(1, e, threads, cut, within(rows, cols, elements))
    }

    fn of(batch: usize, e: Extents, threads: usize, cut: Cut, tile: [usize; 2]) -> Tiles {
        let across = e.n.div_ceil(tile[1]);
        let each = e.m.div_ceil(tile[0]) * across;
        let tiles = batch * each;
        let large = tile[0] * e.k * tile[1] >= PIECES * PIECE;
        let last = if large && threads > 1 { threads.min(tiles / 2) } else { 0 };
        let (whole, pieces) = (tiles - last, last * PIECES);
        Tiles { result: [e.m, e.n], tile, across, each, whole, pieces, cut }
    }

    /// How many tiles and pieces there are.
    pub(super) fn len(&self) -> usize {
        self.whole + self.pieces
    }

    /// True if the first tiles are larger than the last.
    pub(super) fn come_in_pieces(&self) -> bool {
        self.pieces > 0
    }

    /// A tile, or a piece of one, and whose result's it is. `None` for a piece without elements.
    pub(super) fn get(&self, i: usize) -> Option<(usize, Part)> {
        let piece = i.checked_sub(self.whole);
        let i = piece.map_or(i, |piece| self.whole + piece / PIECES);
        let (result, i) = (i / self.each, i % self.each);
        let at = [i / self.across * self.tile[0], i % self.across * self.tile[1]];
        let [rows, cols] = [0, 1].map(|side| self.tile[side].min(self.result[side] - at[side]));
        let tile = Part { row: at[0], col: at[1], rows, cols };
        let part = piece.map_or(tile, |piece| tile.piece(piece % PIECES, self.cut));
        (part.rows * part.cols > 0).then_some((result, part))
    }

    /// Elements of the largest tile.
    pub(super) fn elements(&self) -> usize {
        self.tile[0].min(self.result[0]) * self.tile[1].min(self.result[1])
    }
}

/// Extents of a tile: sides are halved until a batch of products has enough tiles for the threads.
fn tile(batch: usize, e: Extents, threads: usize, cut: Cut) -> [usize; 2] {
    /// What is not cut in two.
    const LEAST: usize = 2 * VECTOR;
    let enough = if threads == 1 { 1 } else { TILES * threads };
    let (mut m, mut n) = (e.m, e.n);
    loop {
        let tiles = batch * e.m.div_ceil(m) * e.n.div_ceil(n);
        if tiles >= enough || m * e.k * n < 2 * TILE || m.max(n) <= LEAST {
            return [m, n];
        }
        if n <= LEAST || (m > LEAST && cut.rows_of(m, n)) {
            m = m.div_ceil(2).next_multiple_of(VECTOR);
        } else {
            n = n.div_ceil(2).next_multiple_of(VECTOR);
        }
    }
}

/// Extents of at most `elements` elements, 1024 or more: wider than high, since long rows please the memory, but
/// not by much, since each tile packs its own share of the operands.
fn within(rows: usize, cols: usize, elements: usize) -> [usize; 2] {
    if rows * cols <= elements {
        return [rows, cols];
    }
    let whole = |n: usize, unit: usize| n / unit * unit;
    let widest = whole((4 * elements).isqrt(), 64).max(whole(elements / rows, VECTOR));
    let cols = cols.min(widest);
    [rows.min(whole(elements / cols, VECTOR).max(VECTOR)), cols]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often each element of a batch of results is in a tile.
    fn covered(tiles: &Tiles, batch: usize, e: Extents) -> Vec<u32> {
        let mut times = vec![0; batch * e.m * e.n];
        for (result, part) in (0..tiles.len()).filter_map(|i| tiles.get(i)) {
            assert!(part.rows * part.cols <= tiles.elements());
            for row in part.row..part.row + part.rows {
                let from = (result * e.m + row) * e.n + part.col;
                times[from..from + part.cols].iter_mut().for_each(|times| *times += 1);
            }
        }
        times
    }

    #[test]
    fn tiles_cover_every_element_once() {
        let sides = [1, 15, 16, 33, 47, 100, 394, 768];
        let extents = sides.into_iter().flat_map(|m| sides.map(|n| (m, n)));
        let many =
            [(1, 1, 2), (1, 3072, 1), (1, 3072, 2), (3, 700, 2), (2, 3072, 7), (1, 3072, 16)];
        for ((m, n), (batch, k, threads)) in extents.flat_map(|e| many.map(|many| (e, many))) {
            let e = Extents { m, k, n };
            for cut in [true, false].map(Cut::new) {
                let tiles = Tiles::of(batch, e, threads, cut, tile(batch, e, threads, cut));
                assert!(covered(&tiles, batch, e).iter().all(|&times| times == 1), "{e:?}");
                for elements in [1024, 100_000] {
                    let [rows, cols] = tile(1, e, threads, cut);
                    let tiles = Tiles::of(1, e, threads, cut, within(rows, cols, elements));
                    assert!(tiles.elements() <= elements);
                    assert!(covered(&tiles, 1, e).iter().all(|&times| times == 1), "{e:?}");
                }
            }
        }
    }

    /// Rows and columns of all tiles.
    fn sizes(e: Extents, threads: usize, dense: bool) -> Vec<[usize; 2]> {
        let cut = Cut::new(dense);
        let tiles = Tiles::of(1, e, threads, cut, tile(1, e, threads, cut));
        let parts = (0..tiles.len()).filter_map(|i| tiles.get(i));
        parts.map(|(_, part)| [part.rows, part.cols]).collect()
    }

    #[test]
    fn the_last_tiles_of_several_threads_come_in_pieces() {
        let e = Extents { m: 394, k: 768, n: 3072 };
        assert_eq!(sizes(e, 1, true), [[394, 3072]]);
        assert_eq!(sizes(e, 2, true), [vec![[394, 768]; 2], vec![[394, 192]; 8]].concat());
    }

    #[test]
    fn tiles_bring_few_elements_twice() {
        let e = Extents { m: 384, k: 768, n: 768 };
        assert_eq!(sizes(e, 2, true), [[384, 192]; 4]);
        assert_eq!(sizes(e, 2, false), [[192, 384]; 4]);
    }
}
