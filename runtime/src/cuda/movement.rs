//! Elements moved and none computed: slices, transposes, broadcasts and concatenations.
//!
//! Each is a box of elements that is read with some strides and written with others. Elements
//! that stay neighbours travel as one word of up to 16 bytes, as far as the operand is aligned;
//! results are aligned to more. Boxes that are contiguous along different axes on either side go
//! through tiles of shared memory, so that both sides are coalesced.

use super::index::{broadcast_strides, constant, offset};
use super::pad;
use super::site::{LaunchSite, THREADS};
use arenic_ir::op::families::Movement;
use arenic_ir::types::dense_strides;

/// The widest word that a thread moves, in bytes.
const WIDEST: usize = 16;

/// Elements of a tile; four for each thread.
const TILE: usize = 1024;

/// Least and usual edge of a tile.
const EDGES: (usize, usize) = (4, 32);

/// The copies and kernels of a movement.
pub(super) fn lower(site: &mut LaunchSite, op: Movement) {
    let Some(y) = site.outputs[0] else { return };
    let x = site.inputs[0];
    let dense = strides(&x.shape);
    match op {
        Movement::Reshape { .. } | Movement::Copy => site.copy(0, 0),
        Movement::Pad { starts, steps, shape, value } => {
            pad::lower(site, starts, steps, shape, *value);
        }
        Movement::Slice { starts, steps, .. } => {
            let walked: Vec<i64> = dense.iter().zip(steps).map(|(&s, &step)| s * step).collect();
            let mut cut = Walk::to_dense(&y.shape, &walked);
            cut.first_read = starts.iter().zip(&dense).map(|(&i, &s)| i * s as usize).sum();
            cut.launch(site, 0);
        }
        Movement::Expand { .. } => {
            Walk::to_dense(&y.shape, &broadcast_strides(&x.shape, y.rank())).launch(site, 0);
        }
        Movement::Transpose { perm } => {
            let walked: Vec<i64> = perm.iter().map(|&p| dense[p]).collect();
            let walk = Walk::to_dense(&y.shape, &walked);
            match walk.exchanged() {
                Some(axis) => walk.exchange(site, axis),
                None => walk.launch(site, 0),
            }
        }
        Movement::Concat { axis } => {
            let to = strides(&y.shape);
            let mut begin = 0;
            for (i, part) in site.inputs.iter().enumerate() {
                let mut walk = Walk::new(&part.shape, &strides(&part.shape), &to);
                walk.first_written = begin * to[*axis] as usize;
                begin += part.shape[*axis];
                if part.elements() > 0 {
                    walk.launch(site, i);
                }
            }
        }
    }
}

fn strides(shape: &[usize]) -> Vec<i64> {
    dense_strides(shape).into_iter().map(|s| s as i64).collect()
}

/// The type of a word of operand `input` and how many elements it has: as many as divide all of
/// `lengths`, which are in elements, and what the operand's address is aligned to.
pub(super) fn widest(
    site: &LaunchSite,
    input: usize,
    lengths: impl IntoIterator<Item = usize>,
) -> (&'static str, usize) {
    let size = site.inputs[input].dtype.size() as usize;
    let aligned = (site.alignments[input] as usize / size).max(1);
    // The lowest bit that is set in any of them.
    let all = lengths.into_iter().fold((WIDEST / size) | aligned, |all, n| all | n);
    let together = all & all.wrapping_neg();
    let word = match size * together {
        1 => "uint8_t",
        2 => "uint16_t",
        4 => "uint32_t",
        8 => "uint64_t",
        _ => "Quad",
    };
    (word, together)
}

/// Elements of a box, in order, with their strides where they are read and written. Axes that
/// are walked as one are one.
struct Walk {
    extents: Vec<usize>,
    read: Vec<i64>,
    written: Vec<i64>,
    first_read: usize,
    first_written: usize,
}

impl Walk {
    fn new(shape: &[usize], read: &[i64], written: &[i64]) -> Walk {
        let mut walk = Walk {
            extents: Vec::new(),
            read: Vec::new(),
            written: Vec::new(),
            first_read: 0,
            first_written: 0,
        };
        for ((&n, &r), &w) in shape.iter().zip(read).zip(written).filter(|((n, _), _)| **n != 1) {
            let follows = |outer: &Vec<i64>, s: i64| outer.last() == Some(&(s * n as i64));
            if follows(&walk.read, r) && follows(&walk.written, w) {
                let last = walk.extents.len() - 1;
                walk.extents[last] *= n;
                (walk.read[last], walk.written[last]) = (r, w);
            } else {
                walk.extents.push(n);
                walk.read.push(r);
                walk.written.push(w);
            }
        }
        walk
    }

    /// The result is written as it lies.
    fn to_dense(shape: &[usize], read: &[i64]) -> Walk {
        Walk::new(shape, read, &strides(shape))
    }

    /// A thread for each word of operand `input`.
    fn launch(mut self, site: &mut LaunchSite, input: usize) {
        let (mut word, mut together) = widest(site, input, [1]);
        if let (Some(1), Some(1), Some((&n, outer))) =
            (self.read.last(), self.written.last(), self.extents.split_last())
        {
            let outer = outer.len();
            let steps = self.read[..outer].iter().chain(&self.written[..outer]);
            let lengths = steps.map(|s| s.unsigned_abs() as usize);
            (word, together) =
                widest(site, input, lengths.chain([n, self.first_read, self.first_written]));
            self.extents[outer] /= together;
            let steps = self.read[..outer].iter_mut().chain(&mut self.written[..outer]);
            steps.for_each(|s| *s /= together as i64);
        }
        let at = |strides: &[i64], first: usize| match (first / together, strides) {
            (0, _) => offset(&self.extents, strides, "i"),
            (first, []) => constant(first),
            (first, _) => format!("{} + {}", constant(first), offset(&self.extents, strides, "i")),
        };
        let (to, from) = (at(&self.written, self.first_written), at(&self.read, self.first_read));
        let body = format!("    y0[{to}] = x{input}[{from}];\n");
        let words = self.extents.iter().product();
        let parameters = [Some(site.input_as(input, word)), site.output_as(0, word)];
        let index = site.index();
        site.for_each(words, index, parameters.into_iter().flatten(), &body);
    }

    /// The axis to be exchanged with the last one: operand and result are contiguous along
    /// different axes, and a tile of the two is not all edge.
    fn exchanged(&self) -> Option<usize> {
        let axis = self.read.iter().position(|&s| s == 1)?;
        let (a, b) = (self.extents[axis], *self.extents.last()?);
        let pays = axis + 1 < self.extents.len() && a.max(b) >= EDGES.1 && a.min(b) >= EDGES.0 - 1;
        pays.then_some(axis)
    }

    /// A block for each tile of the last axis, along which the result is contiguous, and
    /// `axis`, along which the operand is.
    fn exchange(mut self, site: &mut LaunchSite, axis: usize) {
        let (word, _) = widest(site, 0, [1]);
        let index = site.index();
        let take = |list: &mut Vec<i64>| (list.remove(axis), list.pop().unwrap_or(1));
        let ((_, x_pitch), (y_pitch, _)) = (take(&mut self.read), take(&mut self.written));
        let a = self.extents.remove(axis);
        let b = self.extents.pop().unwrap_or(1);
        // A short axis leaves the tile to the other one.
        let edge = |n: usize| n.next_power_of_two().clamp(EDGES.0, EDGES.1);
        let [wide, tall] =
            if edge(a) < edge(b) { [edge(a), TILE / edge(a)] } else { [TILE / edge(b), edge(b)] };
        let [across, down] = [a.div_ceil(wide), b.div_ceil(tall)];
        let matrices: usize = self.extents.iter().product();
        let at = |strides: &[i64]| offset(&self.extents, strides, "matrix");
        let [n_across, n_down] = [across, down].map(constant);
        let [a, b, x_pitch, y_pitch] = [a, b, x_pitch as usize, y_pitch as usize].map(constant);
        let body = format!(
            "    const {index} tile = blockIdx.x;\n    \
             const {index} matrix = tile / {per_matrix};\n    \
             exchange<{wide}, {tall}, {word}, {index}>(\n        \
             x0 + ({from}), y0 + ({to}),\n        \
             tile % {n_across} * {wide}u, tile / {n_across} % {n_down} * {tall}u,\n        \
             {a}, {b}, {x_pitch}, {y_pitch});\n",
            per_matrix = constant(across * down),
            from = at(&self.read),
            to = at(&self.written),
        );
        let parameters = [Some(site.input_as(0, word)), site.output_as(0, word)];
        let grid = [across * down * matrices, 1, 1];
        site.launch(grid, THREADS, parameters.into_iter().flatten(), body);
    }
}
