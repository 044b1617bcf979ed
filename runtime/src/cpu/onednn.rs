//! Products of `bf16` by oneDNN, where the processor multiplies `bf16` and the system has the library.
//!
//! All that it computes are blocks of one shape, padded with zeros: an element of a result has the bits that its row
//! and its column give it, wherever blocks begin and however many threads share a product. Blocks of the second
//! operand are packed once for all rows. The library computes on the calling thread, in memory that is lent to it.

use super::factor::{Bf16, Factor};
use super::isa::Isa;
use super::number::Number;
use super::product::{Mat, MatMut, plain, store};
use super::wide::wide;
use crate::kernel::Element;
use crate::memory::AlignedBytes;
use arenic_backends::cpu::sums::LIBRARY_DEPTH;
use arenic_ir::op::Extents;
use libloading::Library;
use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// The library, by the major version whose numbers and structures are those that are used here.
const LIBRARY: &str = "libdnnl.so.3";

/// Rows of a block of the result.
const ROWS: usize = 128;
/// Its columns.
const COLS: usize = 256;
/// Terms of its sums: what may be cut where, see [`LIBRARY_DEPTH`].
const DEPTH: usize = LIBRARY_DEPTH;

/// The most bytes that one of the library's computations may want of a thread.
const SCRATCHPAD: usize = 4 << 20;

/// The most bytes that a thread's blocks and what the library wants take.
pub(super) const BYTES: usize = (ROWS * DEPTH + 2 * DEPTH * COLS) * size_of::<f32>()
    + ROWS * COLS * size_of::<f32>()
    + 2 * SCRATCHPAD;

/// Numbers of the library's header (`dnnl_types.h`, `dnnl_common_types.h`, `dnnl_config.h`).
mod numbers {
    use super::{c_int, c_uint};

    pub(super) const ON_CPU: c_int = 1;
    pub(super) const IN_ORDER: c_uint = 1;
    pub(super) const OF_USER: c_int = 1;
    pub(super) const ANY: c_int = 1;
    pub(super) const BF16: c_int = 2;
    pub(super) const F32: c_int = 3;
    /// Queries: the descriptors of a product's second operand and of a scratchpad.
    pub(super) const OF_WEIGHTS: c_int = 131;
    pub(super) const OF_SCRATCHPAD: c_int = 136;
    /// Arguments: operands, the result and the scratchpad.
    pub(super) const SRC: c_int = 1;
    pub(super) const WEIGHTS: c_int = 33;
    pub(super) const DST: c_int = 17;
    pub(super) const ROOM: c_int = 80;
    /// How the library shares out work: it does not, or by OpenMP.
    pub(super) const SEQUENTIAL: c_uint = 1;
    pub(super) const OPEN_MP: c_uint = 2;
}

/// `dnnl_version_t`.
#[repr(C)]
struct Version {
    major: c_int,
    minor: c_int,
    patch: c_int,
    hash: *const c_char,
    cpu_runtime: c_uint,
    gpu_runtime: c_uint,
}

/// `dnnl_exec_arg_t`.
#[repr(C)]
struct Argument(c_int, *mut c_void);

/// An object of the library.
type Object = *mut c_void;

macro_rules! functions {
    ($($field:ident = $name:literal: fn($($of:ty),*) -> $result:ty;)*) => {
        /// All that is called here; it stays loaded.
        struct Functions {
            _library: Library,
            /// OpenMP's most threads of a region that this thread begins, where the library uses it.
            open_mp: Option<(unsafe extern "C" fn() -> c_int, unsafe extern "C" fn(c_int))>,
            $($field: unsafe extern "C" fn($($of),*) -> $result,)*
        }

        impl Functions {
            /// The library, if the system's loader finds it and it computes on one thread where it is told to.
            fn load() -> Option<Functions> {
                // SAFETY: oneDNN, whose functions have the types of its header.
                unsafe {
                    let library = Library::new(LIBRARY).ok()?;
                    let version =
                        *library.get::<unsafe extern "C" fn() -> *const Version>(b"dnnl_version").ok()?;
                    let open_mp = match (*version()).cpu_runtime {
                        numbers::SEQUENTIAL => None,
                        numbers::OPEN_MP => Some((
                            *library.get(b"omp_get_max_threads").ok()?,
                            *library.get(b"omp_set_num_threads").ok()?,
                        )),
                        _ => return None,
                    };
                    Some(Functions { $($field: *library.get($name).ok()?,)* open_mp, _library: library })
                }
            }
        }
    };
}

functions! {
    engine_create = b"dnnl_engine_create": fn(*mut Object, c_int, usize) -> c_int;
    stream_create = b"dnnl_stream_create": fn(*mut Object, Object, c_uint) -> c_int;
    stream_destroy = b"dnnl_stream_destroy": fn(Object) -> c_int;
    with_strides = b"dnnl_memory_desc_create_with_strides":
        fn(*mut Object, c_int, *const i64, c_int, *const i64) -> c_int;
    with_tag = b"dnnl_memory_desc_create_with_tag": fn(*mut Object, c_int, *const i64, c_int, c_int) -> c_int;
    size_of = b"dnnl_memory_desc_get_size": fn(Object) -> usize;
    attributes_create = b"dnnl_primitive_attr_create": fn(*mut Object) -> c_int;
    set_scratchpad = b"dnnl_primitive_attr_set_scratchpad_mode": fn(Object, c_int) -> c_int;
    matmul = b"dnnl_matmul_primitive_desc_create":
        fn(*mut Object, Object, Object, Object, Object, Object, Object) -> c_int;
    reorder = b"dnnl_reorder_primitive_desc_create":
        fn(*mut Object, Object, Object, Object, Object, Object) -> c_int;
    descriptor = b"dnnl_primitive_desc_query_md": fn(Object, c_int, c_int) -> Object;
    primitive_create = b"dnnl_primitive_create": fn(*mut Object, Object) -> c_int;
    memory_create = b"dnnl_memory_create": fn(*mut Object, Object, Object, *mut c_void) -> c_int;
    memory_destroy = b"dnnl_memory_destroy": fn(Object) -> c_int;
    execute = b"dnnl_primitive_execute": fn(Object, Object, c_int, *const Argument) -> c_int;
}

/// True where the processor multiplies `bf16` and the system has oneDNN, which multiplies it then.
pub fn multiplies_bf16() -> bool {
    Kernel::of_bf16().is_some()
}

/// Ends the making of a kernel where the library answers with an error.
fn made(status: c_int) -> Option<()> {
    (status == 0).then_some(())
}

/// The product of blocks: the library's primitives for one type of elements.
pub(super) struct Kernel {
    f: &'static Functions,
    engine: Object,
    /// Packs a block of the second operand.
    pack: Object,
    multiply: Object,
    /// Descriptors of the blocks: of the first operand, the second, that packed, the result; of the
    /// scratchpads of packing and multiplying.
    blocks: [Object; 6],
    /// Their bytes.
    bytes: [usize; 6],
}

// SAFETY: the library's primitives and descriptors may be used by any number of threads; nothing changes them.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// The kernel for `bf16`, where the processor multiplies it and kernels may use its vectors.
    pub(super) fn of_bf16() -> Option<&'static Kernel> {
        static KERNEL: OnceLock<Option<Kernel>> = OnceLock::new();
        static IS_RIGHT: OnceLock<bool> = OnceLock::new();
        #[cfg(target_arch = "x86_64")]
        let multiplies = is_x86_feature_detected!("avx512bf16") && Isa::of_machine() == Isa::Avx512;
        #[cfg(not(target_arch = "x86_64"))]
        let multiplies = false;
        let made = || multiplies.then(|| Kernel::new(numbers::BF16)).flatten();
        let kernel = KERNEL.get_or_init(made).as_ref()?;
        IS_RIGHT.get_or_init(|| kernel.is_right()).then_some(kernel)
    }

    /// True if a block of small whole numbers has the product that plain loops give it.
    ///
    /// A virtual machine may hide some of a processor's instructions, and the library then chooses kernels that
    /// were not meant for the others: version 3.2 gave wrong products where an emulator showed AMX without
    /// AVX512-VNNI.
    fn is_right(&'static self) -> bool {
        let e = Extents { m: ROWS, k: DEPTH, n: COLS };
        let numbers = |n: usize, step: usize| -> Vec<Bf16> {
            (0..n).map(|i| Bf16::nearest((i * step % 13) as f32)).collect()
        };
        let (a, b) = (numbers(e.m * e.k, 7), numbers(e.k * e.n, 11));
        let (a, b) = (Mat::new(a.as_ptr(), e.k, 1), Mat::new(b.as_ptr(), e.n, 1));
        let mut results = [vec![0.0; e.m * e.n], vec![0.0; e.m * e.n]];
        let [made, expected] = results.each_mut().map(|c| MatMut::new(c.as_mut_ptr(), e.n, 1));
        // SAFETY: operands and results of those extents, which lie apart.
        unsafe {
            self.product(e, 1.0, (a, b), false, made);
            plain(e, 1.0, a, b, false, expected);
        }
        results[0] == results[1]
    }

    /// A kernel for elements of this type; `None` without a library that has one.
    fn new(dtype: c_int) -> Option<Kernel> {
        static FUNCTIONS: OnceLock<Option<Functions>> = OnceLock::new();
        let f = FUNCTIONS.get_or_init(Functions::load).as_ref()?;
        let _alone = Alone::new(f);
        // SAFETY: oneDNN's functions as its manual says: objects are those that it has just made.
        unsafe {
            let mut engine = null_mut();
            made((f.engine_create)(&mut engine, numbers::ON_CPU, 0))?;
            let dense = |rows: usize, cols: usize, dtype| {
                let mut block = null_mut();
                let (extents, strides) = ([rows as i64, cols as i64], [cols as i64, 1]);
                made((f.with_strides)(&mut block, 2, extents.as_ptr(), dtype, strides.as_ptr()))?;
                Some(block)
            };
            let a = dense(ROWS, DEPTH, dtype)?;
            let b = dense(DEPTH, COLS, dtype)?;
            let c = dense(ROWS, COLS, numbers::F32)?;
            let mut any = null_mut();
            let extents = [DEPTH as i64, COLS as i64];
            made((f.with_tag)(&mut any, 2, extents.as_ptr(), dtype, numbers::ANY))?;
            let mut attributes = null_mut();
            made((f.attributes_create)(&mut attributes))?;
            made((f.set_scratchpad)(attributes, numbers::OF_USER))?;
            let (mut product, mut packing) = (null_mut(), null_mut());
            made((f.matmul)(&mut product, engine, a, any, null_mut(), c, attributes))?;
            let packed = (f.descriptor)(product, numbers::OF_WEIGHTS, 0);
            made((f.reorder)(&mut packing, b, engine, packed, engine, attributes))?;
            let (mut pack, mut multiply) = (null_mut(), null_mut());
            made((f.primitive_create)(&mut pack, packing))?;
            made((f.primitive_create)(&mut multiply, product))?;
            let scratchpad = |of| (f.descriptor)(of, numbers::OF_SCRATCHPAD, 0);
            let blocks = [a, b, packed, c, scratchpad(packing), scratchpad(product)];
            let bytes = blocks.map(|block| (f.size_of)(block));
            let fits = bytes[4].max(bytes[5]) <= SCRATCHPAD && bytes.iter().sum::<usize>() <= BYTES;
            fits.then_some(Kernel { f, engine, pack, multiply, blocks, bytes })
        }
    }

    /// `c = alpha · a b`, or `c += alpha · a b`, on this thread.
    ///
    /// # Safety
    /// As for [`products`](super::product::products).
    pub(super) unsafe fn product<A: Factor<Sum = f32>>(
        &'static self,
        e: Extents,
        alpha: f32,
        (a, b): (Mat<A>, Mat<A>),
        add: bool,
        c: MatMut<f32>,
    ) {
        ROOMS.with_borrow_mut(|rooms| {
            let at = rooms.iter().position(|room| std::ptr::eq(room.kernel, self));
            let at = at.unwrap_or_else(|| {
                rooms.push(Room::new(self));
                rooms.len() - 1
            });
            let room = &mut rooms[at];
            let _alone = Alone::new(self.f);
            for j in (0..e.n).step_by(COLS) {
                // A sum of no terms is written, too.
                for p in (0..e.k.max(1)).step_by(DEPTH) {
                    let (k, n) = (DEPTH.min(e.k - p), COLS.min(e.n - j));
                    // SAFETY: the caller's promise, of a block, here and below.
                    unsafe { gathered(b.at(p, j), [k, n], COLS, room.block::<A>(SECOND)) };
                    room.pack();
                    for i in (0..e.m).step_by(ROWS) {
                        let m = ROWS.min(e.m - i);
                        // SAFETY: as above.
                        unsafe { gathered(a.at(i, p), [m, k], DEPTH, room.block::<A>(FIRST)) };
                        room.multiply();
                        let made = room.block::<f32>(RESULT);
                        // SAFETY: as above.
                        unsafe { scattered(made, alpha, add || p > 0, [m, n], c.at(i, j)) };
                    }
                }
            }
        });
    }
}

/// Positions of blocks and of scratchpads.
const FIRST: usize = 0;
const SECOND: usize = 1;
const PACKED: usize = 2;
const RESULT: usize = 3;
const TO_PACK: usize = 4;
const TO_MULTIPLY: usize = 5;

thread_local! {
    /// A thread's memory for each kernel that it has used.
    static ROOMS: RefCell<Vec<Room>> = const { RefCell::new(Vec::new()) };
}

/// A thread's memory for a kernel.
struct Room {
    kernel: &'static Kernel,
    stream: Object,
    /// Of each block and scratchpad: its bytes, and the library's object for them.
    bytes: [AlignedBytes; 6],
    memories: [Object; 6],
}

impl Room {
    fn new(kernel: &'static Kernel) -> Room {
        let f = kernel.f;
        let bytes =
            kernel.bytes.map(|n| AlignedBytes::zeroed(n as u64).expect("memory for blocks"));
        let mut stream = null_mut();
        // SAFETY: the kernel's objects, and memory that lives as long as what is made of it.
        let memories = unsafe {
            assert_eq!((f.stream_create)(&mut stream, kernel.engine, numbers::IN_ORDER), 0);
            std::array::from_fn(|i| {
                let (mut memory, at) = (null_mut(), bytes[i].as_ptr().cast());
                let made = (f.memory_create)(&mut memory, kernel.blocks[i], kernel.engine, at);
                assert_eq!(made, 0, "oneDNN makes no memory");
                memory
            })
        };
        Room { kernel, stream, bytes, memories }
    }

    /// A block's elements.
    fn block<T: Element>(&mut self, block: usize) -> &mut [T] {
        let elements = self.kernel.bytes[block] / size_of::<T>();
        // SAFETY: the block's own bytes, aligned, of which any are numbers.
        unsafe { std::slice::from_raw_parts_mut(self.bytes[block].as_ptr().cast(), elements) }
    }

    /// Packs the second operand's block.
    fn pack(&mut self) {
        let blocks = [(numbers::SRC, SECOND), (numbers::DST, PACKED), (numbers::ROOM, TO_PACK)];
        self.execute(self.kernel.pack, blocks);
    }

    /// Multiplies the first operand's block by the packed one.
    fn multiply(&mut self) {
        let (first, second) = ((numbers::SRC, FIRST), (numbers::WEIGHTS, PACKED));
        let blocks = [first, second, (numbers::DST, RESULT), (numbers::ROOM, TO_MULTIPLY)];
        self.execute(self.kernel.multiply, blocks);
    }

    fn execute<const N: usize>(&mut self, primitive: Object, blocks: [(c_int, usize); N]) {
        let arguments = blocks.map(|(number, block)| Argument(number, self.memories[block]));
        // SAFETY: the primitive's operands, which no one else uses; a stream on the CPU computes before it returns.
        let status = unsafe {
            (self.kernel.f.execute)(primitive, self.stream, N as c_int, arguments.as_ptr())
        };
        assert_eq!(status, 0, "oneDNN does not compute");
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: the room's own objects.
        unsafe {
            for memory in self.memories {
                (self.kernel.f.memory_destroy)(memory);
            }
            (self.kernel.f.stream_destroy)(self.stream);
        }
    }
}

/// While it lives, regions of OpenMP that this thread begins have no other threads.
struct Alone<'a>(&'a Functions, c_int);

impl Alone<'_> {
    fn new(functions: &Functions) -> Alone<'_> {
        // SAFETY: OpenMP's functions.
        let before = functions.open_mp.map_or(0, |(get, set)| unsafe {
            let before = get();
            set(1);
            before
        });
        Alone(functions, before)
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        if let Some((_, set)) = self.0.open_mp {
            // SAFETY: as above.
            unsafe { set(self.1) };
        }
    }
}

wide! {
    /// Copies a matrix into a block whose rows have so many elements, and fills the block up with zeros.
    ///
    /// # Safety
    /// The elements may be read.
    unsafe fn gathered<A: Factor>(x: Mat<A>, extents: [usize; 2], width: usize, block: &mut [A]) {
        let [rows, cols] = extents;
        for (i, to) in block.chunks_exact_mut(width).enumerate() {
            let (to, rest) = to.split_at_mut(if i < rows { cols } else { 0 });
            // SAFETY: the caller's promise.
            unsafe {
                if x.cols == 1 && !to.is_empty() {
                    to.copy_from_slice(std::slice::from_raw_parts(x.at(i, 0).ptr, cols));
                } else {
                    for (j, to) in to.iter_mut().enumerate() {
                        *to = *x.at(i, j).ptr;
                    }
                }
            }
            rest.fill(A::PADDING);
        }
    }
}

wide! {
    /// Writes or adds `alpha` times the first rows and columns of a block.
    ///
    /// # Safety
    /// The elements of `c` may be read and written.
    unsafe fn scattered<T: Number>(block: &[T], alpha: T, add: bool, extents: [usize; 2], c: MatMut<T>) {
        let [rows, cols] = extents;
        for (i, from) in block.chunks_exact(COLS).take(rows).enumerate() {
            for (j, &sum) in from[..cols].iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { store(c.at(i, j), alpha.mul(sum), add) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Set where the library must be there.
    const REQUIRED: &str = "ARENIC_REQUIRE_ONEDNN";

    fn strides(rows: usize, cols: usize, across: bool) -> (usize, usize) {
        if across { (1, rows) } else { (cols, 1) }
    }

    /// Half of a product of matrices that lie row by row or column by column, perhaps added to what was there; of its
    /// rows and columns a part, and what they are but for rounding.
    fn product<A: Factor<Sum = f32>>(
        (kernel, number): (&'static Kernel, fn(f32) -> A),
        e: Extents,
        [across_a, across_b, across_c, add]: [bool; 4],
        [[top, bottom], [left, right]]: [[usize; 2]; 2],
    ) -> Vec<f32> {
        let value = |i: usize| (i * 2_654_435_761 % 1000) as f32 / 1000.0 - 0.5;
        let numbers = |n: usize| (0..n).map(|i| number(value(i))).collect::<Vec<A>>();
        let (a, b) = (numbers(e.m * e.k), numbers(e.k * e.n));
        let mut c: Vec<f32> = (0..e.m * e.n).map(value).collect();
        let (rows, cols) = strides(e.m, e.k, across_a);
        let a = Mat::new(a.as_ptr(), rows, cols);
        let (rows, cols) = strides(e.k, e.n, across_b);
        let b = Mat::new(b.as_ptr(), rows, cols);
        let (rows, cols) = strides(e.m, e.n, across_c);
        let to = MatMut::new(c.as_mut_ptr(), rows, cols).at(top, left);
        let part = Extents { m: bottom - top, k: e.k, n: right - left };
        // SAFETY: a part of three matrices that lie apart.
        unsafe { kernel.product(part, 0.5, (a.at(top, 0), b.at(0, left)), add, to) };
        let elements = (top..bottom).flat_map(|i| (left..right).map(move |j| (i, j)));
        elements.map(|(i, j)| c[i * rows + j * cols]).collect()
    }

    fn holds<A: Factor<Sum = f32>>(of: (&'static Kernel, fn(f32) -> A)) {
        for [m, k, n] in [[140, 300, 270], [9, 2, 40], [3, 520, 5], [4, 0, 3]] {
            let e = Extents { m, k, n };
            let part = [[0, m], [0, n]];
            let whole = product(of, e, [false, false, false, true], part);
            for (at, &made) in whole.iter().enumerate().step_by(7) {
                let value = |i: usize| (i * 2_654_435_761 % 1000) as f32 / 1000.0 - 0.5;
                let number = |i: usize| f64::from((of.1)(value(i)).read());
                let (i, j) = (at / n, at % n);
                let sum: f64 = (0..k).map(|p| number(i * k + p) * number(p * n + j)).sum();
                let expected = f64::from(value(at)) + 0.5 * sum;
                assert!(
                    (f64::from(made) - expected).abs() < 1e-4,
                    "{e:?} {i} {j}: {made}, not {expected}"
                );
            }
            for case in 0..16 {
                let case = [0, 1, 2, 3].map(|bit| case >> bit & 1 == 1);
                let whole = product(of, e, case, part);
                for part in
                    [[[0, 1], [0, n]], [[1, m], [0, n]], [[0, m], [n - 1, n]], [[m - 1, m], [1, 2]]]
                {
                    let [[top, bottom], [left, right]] = part;
                    let rows = (top..bottom).flat_map(|i| &whole[i * n + left..i * n + right]);
                    assert!(product(of, e, case, part).iter().eq(rows), "{e:?} {case:?} {part:?}");
                }
            }
        }
    }

    /// Of `f32`, which the library multiplies on every processor, and of `bf16` where the processor does.
    #[test]
    fn products_are_right_and_parts_have_their_bits() {
        let Some(kernel) = Kernel::new(numbers::F32) else {
            assert!(std::env::var_os(REQUIRED).is_none(), "there is no {LIBRARY}");
            eprintln!("left out: there is no {LIBRARY}, and {REQUIRED} is not set");
            return;
        };
        holds((Box::leak(Box::new(kernel)), |x| x));
        match Kernel::of_bf16() {
            Some(kernel) => holds((kernel, Bf16::nearest)),
            None => eprintln!("bf16 left out: this processor does not multiply it"),
        }
    }
}
