//! A thread for several neighbouring elements, which are loaded and stored at once.
//!
//! What reads and writes element by element is limited by how many bytes are on their way, and a
//! load brings up to 16 of them: four floats, eight `bf16`. Each element is computed by the text that
//! computes it alone, so that its bits are the same. All operands are read before a result is
//! written, so that results may take their places.

use super::index::constant;
use super::site::{LaunchSite, Parameter, THREADS};
use arenic_backends::CUDA;
use arenic_ir::TensorType;
use std::fmt::Write;

/// Bytes of a load.
pub(super) const LOAD: usize = 16;

/// Elements of a thread at most.
pub(super) const MOST_LANES: usize = 8;

/// Elements from which on there are threads enough when each has several.
pub(super) const MANY: usize = 1 << 17;

/// Groups of elements of one thread where operands are read again and again: it loads those once.
const ROUNDS: usize = 4;

/// Blocks that fill a large device, two on each of its processors.
const BLOCKS: usize = 264;

/// Elements up to which the last round of a thread has an index of 32 bits.
const SHORT: usize = 1 << 31;

/// What of which element `i` of a result reads element `i % period` and no other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Read {
    /// Its parameter.
    name: String,
    /// Bytes of an element.
    size: usize,
    /// Bytes that it begins at a multiple of.
    alignment: u64,
    /// Its elements: as many as the result's, or fewer, which are read again and again.
    period: usize,
}

impl Read {
    /// An operand that is read so.
    pub(super) fn operand(site: &LaunchSite, k: usize) -> Read {
        let x = site.inputs[k];
        let (size, period) = (x.dtype.size() as usize, x.elements());
        Read { name: format!("x{k}"), size, alignment: site.alignments[k], period }
    }

    /// So many elements of scratch, of so many bytes each, from some byte of it on.
    pub(super) fn scratch(name: &str, offset: u64, size: usize, period: usize) -> Read {
        let alignment = match offset {
            0 => CUDA.align,
            _ => CUDA.align.min(1 << offset.trailing_zeros()),
        };
        Read { name: name.into(), size, alignment, period }
    }

    /// How a result of this type reads an operand that is broadcast to it: so where it is broadcast
    /// along its first axes alone.
    pub(super) fn of(site: &LaunchSite, k: usize, y: &TensorType) -> Option<Read> {
        let x = site.inputs[k];
        let own: Vec<usize> = x.shape.iter().copied().skip_while(|&d| d == 1).collect();
        let is_so = y.shape.ends_with(&own) && x.elements() > 1;
        is_so.then(|| Read::operand(site, k))
    }

    /// True where so many elements are loaded at once.
    fn is_packed(&self, lanes: usize) -> bool {
        let bytes = (lanes * self.size) as u64;
        self.period.is_multiple_of(lanes) && self.alignment.is_multiple_of(bytes)
    }
}

/// What is computed for each of many elements.
pub(super) struct Elements<'a> {
    /// How many.
    pub(super) count: usize,
    /// The type of an index.
    pub(super) index: &'static str,
    /// What the body reads by the index of the element alone.
    pub(super) reads: &'a [Read],
    /// Statements for a thread's elements together, of which `first` is the first: what they have in common.
    pub(super) common: &'a str,
    /// Results of which the body writes `y[i]`.
    pub(super) results: &'a [usize],
    /// Statements for element `i`.
    pub(super) body: &'a str,
}

impl LaunchSite<'_> {
    /// Launches a kernel with a thread for each element, or for several where there are many.
    pub(super) fn for_elements(
        &mut self,
        parameters: impl IntoIterator<Item = Parameter>,
        e: &Elements,
    ) {
        let &Elements { count, index, results, body, common, .. } = e;
        let lanes = lanes(self, e);
        if lanes == 1 {
            let common = match common {
                "" => String::new(),
                _ => format!("    const {index} first = i;\n{common}"),
            };
            return self.for_each(count, index, parameters, &(common + body));
        }
        let packed = || e.reads.iter().filter(|read| read.is_packed(lanes));
        let again = || packed().filter(|read| read.period < count);
        let of_thread = THREADS as usize * lanes;
        let rounds = rounds(count, of_thread, again().map(|read| read.period));
        let blocks = count.div_ceil(of_thread * rounds);
        let mut text = String::new();
        // Writing to a string does not fail.
        let begin = if rounds > 1 { "begin" } else { "first" };
        let _ = writeln!(
            text,
            "    const {index} {begin} = ({index}(blockIdx.x) * {THREADS}u + threadIdx.x) * {lanes}u;
    if ({begin} >= {}) return;",
            constant(count)
        );
        let load = |Read { name, .. }: &Read, from: &str| {
            format!("    const auto {name}_read = load_pack<{lanes}>({name} + {from});\n")
        };
        for read in again() {
            text += &load(read, &format!("{begin} % {}", constant(read.period)));
        }
        if rounds > 1 {
            // From one round to the next is a multiple of what is read again.
            let _ = writeln!(
                text,
                "    for (u32 round = 0; round < {rounds}u; round++) {{
    const {index} first = begin + round * {};
    if (first >= {}) return;",
                constant(blocks * of_thread),
                constant(count)
            );
        }
        for read in packed().filter(|read| read.period == count) {
            text += &load(read, "first");
        }
        for o in results {
            let _ = writeln!(text, "    auto made{o} = pack_of<{lanes}>(y{o});");
        }
        let _ = write!(
            text,
            "{common}#pragma unroll
    for (u32 lane = 0; lane < {lanes}u; lane++) [&](const {index} i) {{
"
        );
        for Read { name, .. } in packed() {
            let _ = writeln!(text, "    const auto {name} = lane_of({name}_read, lane);");
        }
        for o in results {
            let _ = writeln!(text, "    const auto y{o} = lane_of(made{o}, lane);");
        }
        let _ = writeln!(text, "{body}    }}(first + lane);");
        for o in results {
            let _ = writeln!(text, "    store_pack(y{o} + first, made{o});");
        }
        if rounds > 1 {
            text += "    }\n";
        }
        self.launch([blocks, 1, 1], THREADS, parameters, text);
    }
}

/// Groups of elements of a thread, `of_thread` elements of a block: several where something is read again and
/// again, and where from one to the next is a multiple of all that.
fn rounds(
    count: usize,
    of_thread: usize,
    mut periods: impl Iterator<Item = usize> + Clone,
) -> usize {
    let blocks = count.div_ceil(of_thread * ROUNDS);
    let is_repeated = periods.clone().next().is_some();
    let meets = periods.all(|period| (blocks * of_thread).is_multiple_of(period));
    let is_many = blocks >= BLOCKS && count <= SHORT;
    if is_repeated && meets && is_many { ROUNDS } else { 1 }
}

/// Elements of a thread: a power of two that divides all, of which no tensor that is walked
/// has more than a load's bytes, and at whose multiples each begins.
fn lanes(site: &LaunchSite, e: &Elements) -> usize {
    if e.count < MANY {
        return 1;
    }
    let walked = || e.reads.iter().filter(|read| read.period == e.count);
    let size = |ty: &TensorType| ty.dtype.size() as usize;
    let written = e.results.iter().filter_map(|&o| site.outputs[o].map(size));
    let widest = walked().map(|read| read.size).chain(written).max().unwrap_or(LOAD);
    let fits =
        |lanes: usize| e.count.is_multiple_of(lanes) && walked().all(|read| read.is_packed(lanes));
    [MOST_LANES, 4, 2].into_iter().find(|&l| l * widest <= LOAD && fits(l)).unwrap_or(1)
}
