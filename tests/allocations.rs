//! Once steps run, no tensor memory is allocated: an allocator counts.

use arenic::evaluator::Kernels;
use arenic_backends::CPU;
use arenic_ir::program::{PerSpace, Space};
use arenic_ir::text::Module;
use arenic_ir::{Graph, Program};
use arenic_passes::pipeline::{Pipeline, RunOptions};
use arenic_passes::{Cx, Standard};
use arenic_runtime::executor::{Executor, ExecutorOptions};
use arenic_runtime::kernel::Draw;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes allocated at present, the most of these, and the largest single allocation.
static PRESENT: AtomicU64 = AtomicU64::new(0);
static MOST: AtomicU64 = AtomicU64::new(0);
static LARGEST: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: forwards to the system allocator and counts beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let present = PRESENT.fetch_add(layout.size() as u64, Relaxed) + layout.size() as u64;
        MOST.fetch_max(present, Relaxed);
        LARGEST.fetch_max(layout.size() as u64, Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        PRESENT.fetch_sub(layout.size() as u64, Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The counters are shared, so tests take turns.
static TURN: Mutex<()> = Mutex::new(());

fn plan(text: &str, limit: Option<u64>) -> (Graph, Program) {
    let graph = Module::parse(text, &arenic_backends::ALL).unwrap().graph;
    let limits = PerSpace { device: limit, host: None };
    let cx = Cx { evaluate: Some(&Kernels), limits, ..Cx::new(CPU.target()) };
    let pipeline = Pipeline::named("default", &Standard).unwrap();
    let outcome = pipeline.run(graph, &cx, RunOptions::default()).unwrap();
    (outcome.module.graph, outcome.module.program.unwrap())
}

/// Growth of the heap and its largest single allocation during nine later steps.
fn measure((g, p): (Graph, Program), threads: usize) -> (u64, u64, u64) {
    let mut executor =
        Executor::new(&g, &p, ExecutorOptions { threads, ..ExecutorOptions::default() }).unwrap();
    let inputs: Vec<_> = g.inputs().collect();
    // The step may reuse an input's bytes, so inputs are fed before every step.
    let mut step = |step| {
        for &v in &inputs {
            executor.input_mut(v).unwrap().fill(0);
        }
        executor.step(Draw { seed: 0, step, round: 0 }).unwrap();
    };
    step(0);
    let before = PRESENT.load(Relaxed);
    MOST.store(before, Relaxed);
    LARGEST.store(0, Relaxed);
    (1..10).for_each(&mut step);
    let grown = MOST.load(Relaxed).saturating_sub(before);
    (grown, LARGEST.load(Relaxed), executor.library_bytes())
}

/// Every kind of kernel but products, on tensors of megabytes.
const NO_PRODUCTS: &str = r#"graph "no products" {
  input v0: f32[8,16,64,64] "x"
  const v1: f32[] "ratio" = [0.25]
  input v2: i64[8,16,32,64] "rows"
  n0 unary {"f":"exp"} (v0) -> (v3: f32[8,16,64,64])
  n1 dropout {"rng":{"stream":1}} (v3, v1) -> (v4: f32[8,16,64,64], v5: bool[8,16,64,64])
  n2 transpose {"perm":[0,2,3,1]} (v4) -> (v6: f32[8,64,64,16])
  n3 softmax {"axis":3} (v6) -> (v7: f32[8,64,64,16])
  n4 reduce {"f":"sum","axes":[0,1,2],"keep":false} (v7) -> (v8: f32[16])
  n5 max_pool {"window":{"kernel":[2,2],"strides":[2,2],"dilations":[1,1],"pads_begin":[0,0],"pads_end":[0,0]}} (v4) -> (v9: f32[8,16,32,32], v10: i64[8,16,32,32])
  n6 gather_elements {"axis":2} (v4, v2) -> (v11: f32[8,16,32,64])
  n7 scatter_elements {"axis":2,"reduction":"add"} (v4, v2, v11) -> (v12: f32[8,16,64,64])
  n8 concat {"axis":1} (v12, v0) -> (v13: f32[8,32,64,64])
  n9 reduce {"f":"mean","axes":[0,1,2,3],"keep":false} (v13) -> (v14: f32[])
  n10 log_softmax {"axis":1} (v13) -> (v15: f32[8,32,64,64])
  n11 where (v5, v4, v0) -> (v16: f32[8,16,64,64])
  output "a" v8
  output "b" v9
  output "c" v10
  output "d" v14
  output "e" v15
  output "f" v16
}
"#;

/// Convolutions and products, whose library packs operands in buffers of its own.
const PRODUCTS: &str = r#"graph "products" {
  input v0: f32[8,16,64,64] "x"
  state s0 "w": v1: f32[32,16,3,3] -> v4 = ...
  state s1 "fc": v2: f32[1024,512] -> v2 = ...
  n0 conv {"window":{"kernel":[3,3],"strides":[1,1],"dilations":[1,1],"pads_begin":[1,1],"pads_end":[1,1]},"group":1} (v0, v1) -> (v3: f32[8,32,64,64])
  n1 binary {"f":"add"} (v1, v1) -> (v4: f32[32,16,3,3])
  view v5: f32[1024,1024] = v3+0
  n2 mat_mul {"trans_a":true} (v5, v2) -> (v6: f32[1024,512])
  n3 conv_transpose {"window":{"kernel":[3,3],"strides":[1,1],"dilations":[1,1],"pads_begin":[1,1],"pads_end":[1,1]},"group":1,"output_padding":[0,0]} (v3, v1) -> (v7: f32[8,16,64,64])
  output "a" v6
  output "b" v7
}
"#;

/// A product whose operands are widened block by block.
const PRODUCT_OF_BF16: &str = r#"graph "product of bf16" {
  input v0: bf16[1024,1024] "x"
  input v1: bf16[1024,512] "w"
  n0 mat_mul {"trans_a":true} (v0, v1) -> (v2: bf16[1024,512])
  output "a" v2
}
"#;

/// Under a limit of 8 MiB `v1` waits in host memory while `v4` is made.
const SWAPPED: &str = r#"graph "swapped" {
  input v0: f32[1048576] "x"
  n0 unary {"f":"exp"} (v0) -> (v1: f32[1048576])
  n1 slice {"starts":[0],"steps":[1],"shape":[16]} (v1) -> (v2: f32[16])
  n2 expand {"shape":[65536,16]} (v2) -> (v3: f32[65536,16])
  n3 transpose {"perm":[1,0]} (v3) -> (v4: f32[16,65536])
  n4 reduce {"f":"sum","axes":[1],"keep":false} (v4) -> (v5: f32[16])
  n5 slice {"starts":[0],"steps":[1],"shape":[16]} (v1) -> (v6: f32[16])
  n6 binary {"f":"add"} (v5, v6) -> (v7: f32[16])
  output "y" v7
}
"#;

#[test]
fn swaps_on_threads_of_their_own_allocate_nothing() {
    let _turn = TURN.lock();
    let (g, p) = plan(SWAPPED, Some(8 << 20));
    assert_eq!(p.sizes[Space::Host], 4 << 20);
    let (grown, largest, _) = measure((g, p), 2);
    assert!(largest <= 4096 && grown <= 16384, "{largest} {grown}");
}

#[test]
fn no_tensor_memory_is_allocated_after_the_first_step() {
    let _turn = TURN.lock();
    for threads in [1, 3] {
        let (grown, largest, _) = measure(plan(NO_PRODUCTS, None), threads);
        // What is left are the pool's job queues; tensors here have megabytes.
        assert!(largest <= 4096 && grown <= 16384, "{threads} threads: {largest} {grown}");
    }
}

#[test]
fn products_allocate_no_more_than_library_bytes() {
    let _turn = TURN.lock();
    for (threads, graph) in
        [(1, PRODUCTS), (3, PRODUCTS), (1, PRODUCT_OF_BF16), (3, PRODUCT_OF_BF16)]
    {
        let (grown, _, library_bytes) = measure(plan(graph, None), threads);
        assert!(grown <= library_bytes + 16384, "{threads} threads: {grown} {library_bytes}");
        assert!(grown > 0, "the counter counts");
    }
}
