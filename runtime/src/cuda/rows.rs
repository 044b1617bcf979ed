//! Rows (or columns) of a tensor, each shared by neighbouring threads: a few of a warp for
//! short rows, a block for long ones, one for a column, whose neighbours have columns beside it.
//!
//! Where rows consist of groups of neighbouring elements, a thread has whole groups, which it loads and stores at
//! once. Which elements it has, and so the order of sums, follows from shapes alone; where an operand begins between
//! two groups, its elements are loaded one by one.

use super::index::{constant, index_type};
use super::packs::LOAD;
use super::site::{LaunchSite, Parameter, THREADS, c_type};
use arenic_backends::cuda::tiling::row_lanes;
use arenic_ir::{DType, TensorType};

/// Bytes of rows that a thread keeps in registers at most.
const HELD: usize = 128;

/// The same of rows in groups, of which all loads are on their way at once.
const HELD_IN_GROUPS: usize = 256;

/// Elements of a group.
const GROUP: usize = 4;

/// Rows of `n` elements that lie `stride` apart.
pub(super) struct StridedRows {
    pub(super) index: &'static str,
    rows: usize,
    n: usize,
    stride: usize,
    lanes: usize,
    size: usize,
    ty: &'static str,
    /// What is read beside the rows, if anything.
    other: Option<Other>,
    /// Elements of a group that a thread has whole.
    group: usize,
    /// Rows that are not held are read once, by groups.
    is_streamed: bool,
}

/// Rows that are read beside those of the first operand.
enum Other {
    /// Those of the second one.
    Second,
    /// Expressions of their elements `i`, and the operands of which these read the element at their place.
    Computed(String, Vec<usize>),
}

/// What is done with each element `i` of a row, in the end.
pub(super) struct Each<'a> {
    /// Operands that are read at its place in the tensor.
    pub(super) whole: Vec<usize>,
    /// Operands that are read at its place in the row.
    pub(super) of_row: Vec<usize>,
    /// Results that are written at its place in the tensor.
    pub(super) results: Vec<usize>,
    /// Statements that know the element as `x`, and the one of the other row as `dy`.
    pub(super) body: &'a str,
}

impl StridedRows {
    /// The rows along `axes`, neighbours, of a tensor.
    pub(super) fn new(x: &TensorType, axes: std::ops::Range<usize>) -> StridedRows {
        let stride = x.shape[axes.end..].iter().product();
        let rows = x.shape[..axes.start].iter().product::<usize>() * stride;
        let lanes = row_lanes(x, axes.clone());
        let n = x.shape[axes].iter().product();
        let index = index_type(x.elements());
        let (size, ty) = (x.dtype.accumulated().size() as usize, c_type(x.dtype));
        StridedRows {
            index,
            rows,
            n,
            stride,
            lanes,
            size,
            ty,
            other: None,
            group: 1,
            is_streamed: false,
        }
    }

    /// The rows and, as `other`, those of the second operand, of equal shape.
    pub(super) fn and_second(self) -> StridedRows {
        StridedRows { other: Some(Other::Second), ..self }
    }

    /// The rows and, as `other`, rows of which this expression is element `i`; it reads these operands at the
    /// element's place.
    pub(super) fn and_computed(self, element: String, reads: Vec<usize>) -> StridedRows {
        StridedRows { other: Some(Other::Computed(element, reads)), ..self }
    }

    /// The same, of which a thread has groups where rows that it keeps consist of such.
    pub(super) fn in_groups(self) -> StridedRows {
        self.by_groups_of(GROUP)
    }

    /// Rows that are read once from the first element to the last, by groups where they consist of such.
    pub(super) fn streamed(self, dtype: DType) -> StridedRows {
        let rows = self.by_groups_of(LOAD / dtype.size() as usize);
        StridedRows { is_streamed: rows.group > 1, ..rows }
    }

    fn by_groups_of(self, group: usize) -> StridedRows {
        let is_whole = self.stride == 1 && self.n.is_multiple_of(group);
        StridedRows { group: if is_whole { group } else { 1 }, ..self }
    }

    /// True where a thread keeps its elements in registers.
    fn is_held(&self) -> bool {
        let operands = if self.other.is_some() { 2 } else { 1 };
        let most = if self.group > 1 { HELD_IN_GROUPS } else { HELD };
        self.n.div_ceil(self.lanes) * self.size * operands <= most
    }

    /// Elements that are loaded and stored at once.
    fn width(&self) -> usize {
        if self.is_held() || self.is_streamed { self.group } else { 1 }
    }

    /// Launches a kernel whose body knows its row's number `row`, the place `base` of its first
    /// element, what is read of it, `x` (and `other`), its own place `lane` among the row's threads, and
    /// whether the row is there, `live`. All threads run the body; `x0` (and `x1`) is a parameter.
    pub(super) fn launch(
        &self,
        site: &mut LaunchSite,
        parameters: impl IntoIterator<Item = Parameter>,
        body: &str,
    ) {
        let &StridedRows { index, rows, n, stride, lanes, ty, ref other, .. } = self;
        let narrow = site.inputs[0].dtype == DType::Bf16;
        let (per_block, width) = (THREADS as usize / lanes, self.width());
        let blocks = rows.div_ceil(per_block);
        let base = match stride {
            1 => format!("row * {}", constant(n)),
            _ => {
                let [group, stride] = [n * stride, stride].map(constant);
                format!("row / {stride} * {group} + row % {stride}")
            }
        };
        let [rows, n, stride] = [rows, n, stride].map(constant);
        let read = |name: &str, row: &str, ty_of_row: &str| {
            if self.is_streamed && !self.is_held() {
                let kind = format!("streamed<{ty}, {index}, {lanes}, {n}, {width}>");
                return format!("    const auto {name} = {kind}({row}, lane, live);\n");
            }
            let (kind, last) = match self.is_held() {
                true => ("Held", format!(", {width}")),
                false => ("Reread", ty_of_row.to_owned()),
            };
            let kind = format!("{kind}<{ty}, {index}, {lanes}, {n}, {stride}{last}>");
            format!("    const {kind} {name}({row}, lane, live);\n")
        };
        let ty_of_operand = if narrow { ", Narrow" } else { "" };
        let operand = |k: usize| match width > 1 && is_packed(site, k, width) {
            true => format!("packed(x{k} + base)"),
            false => format!("x{k} + base"),
        };
        let mut held = read("x", &operand(0), ty_of_operand);
        match other {
            Some(Other::Second) => held.push_str(&read("other", &operand(1), ty_of_operand)),
            Some(Other::Computed(element, _)) if width == 1 => {
                let made =
                    format!("const auto made = row_of([=]({index} i) {{ return {element}; }});");
                held.push_str(&format!("    {made}\n"));
                held.push_str(&read("other", "made", ", decltype(made)"));
            }
            Some(Other::Computed(element, reads)) => {
                let lane = format!(
                    "group[j] = [&](const {index} i) {{\n{}    return {element};\n    }}(first + j);",
                    lanes_of(site, reads, &[])
                );
                held.push_str(&format!(
                    "    const auto made = row_of_groups([=]({index} first, {ty}* group) {{\n{}{}    }});\n",
                    loads(site, reads, "base + first"),
                    each_of_group(&lane)
                ));
                held.push_str(&read("other", "made", ""));
            }
            None => {}
        }
        let text = format!(
            "    const u32 lane = threadIdx.x % {lanes}u;
    const {index} row = {index}(blockIdx.x) * {per_block}u + threadIdx.x / {lanes}u;
    const bool live = row < {rows};
    const {index} base = {base};
{held}{body}"
        );
        site.launch([blocks, 1, 1], THREADS, parameters, text);
    }

    /// Statements that do something with each element of a thread.
    pub(super) fn each(&self, site: &LaunchSite, each: &Each) -> String {
        let (ty, index, body) = (self.ty, self.index, each.body);
        let (row, held, dy) = match &self.other {
            Some(_) => ("other, ", ", other.x[at + j]", format!(", const {ty} dy")),
            None => ("", "", String::new()),
        };
        if self.width() == 1 {
            return format!("    x.each({row}[&]({index} i, {ty} x{dy}) {{\n{body}    }});\n");
        }
        let (whole, results) = (&each.whole, &each.results);
        let reads: Vec<usize> = whole.iter().chain(&each.of_row).copied().collect();
        let made = |o: &usize| format!("    auto made{o} = pack_of<{GROUP}>(y{o});\n");
        let store = |o: &usize| format!("    store_pack(y{o} + (base + first), made{o});\n");
        let lane = format!(
            "[&](const {index} i, const {ty} x{dy}) {{\n{}{body}    }}(first + j, x.x[at + j]{held});",
            lanes_of(site, &reads, results)
        );
        format!(
            "    x.each_group([&]({index} first, u32 at) {{\n{}{}{}{}{}    }});\n",
            loads(site, whole, "base + first"),
            loads(site, &each.of_row, "first"),
            results.iter().map(made).collect::<String>(),
            each_of_group(&lane),
            results.iter().map(store).collect::<String>()
        )
    }

    /// The place of element `i`.
    pub(super) fn element(&self) -> String {
        match self.stride {
            1 => "base + i".into(),
            stride => format!("base + i * {}", constant(stride)),
        }
    }

    /// The C++ text that combines a sum over all threads of a row.
    pub(super) fn sum(&self, sum: &str) -> String {
        format!("combine_lanes<Sum<{}>, {}>({sum})", self.ty, self.lanes)
    }

    /// The same for two sums at once.
    pub(super) fn sums(&self, sums: &str) -> String {
        format!("combine_lanes<Sums<{}>, {}>({sums})", self.ty, self.lanes)
    }
}

/// True where groups of so many elements of an operand are loaded at once.
fn is_packed(site: &LaunchSite, k: usize, group: usize) -> bool {
    site.alignments[k].is_multiple_of(group as u64 * site.inputs[k].dtype.size())
}

/// Loads the group of each operand that can be, at this place.
fn loads(site: &LaunchSite, operands: &[usize], place: &str) -> String {
    let packed = operands.iter().filter(|&&k| is_packed(site, k, GROUP));
    let load = |k| format!("    const auto x{k}_read = load_pack<{GROUP}>(x{k} + ({place}));\n");
    packed.map(load).collect()
}

/// The elements `j` of what was loaded and of results, under the names of their tensors.
fn lanes_of(site: &LaunchSite, operands: &[usize], results: &[usize]) -> String {
    let packed = operands.iter().filter(|&&k| is_packed(site, k, GROUP));
    let reads = packed.map(|k| format!("    const auto x{k} = lane_of(x{k}_read, j);\n"));
    let made = results.iter().map(|o| format!("    const auto y{o} = lane_of(made{o}, j);\n"));
    reads.chain(made).collect()
}

/// A statement for each element `j` of a group.
fn each_of_group(statement: &str) -> String {
    format!("#pragma unroll\n    for (u32 j = 0; j < {GROUP}u; j++) {statement}\n")
}
