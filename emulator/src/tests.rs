//! The emulator's promises: barriers, shuffles, and what happens without them.

use super::{EmulationError, Module};
use std::path::Path;

fn module(text: &str) -> Result<Module, EmulationError> {
    let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/emulated");
    Module::compile(&format!("#include \"emulate.h\"\n{text}"), &[], &cache)
}

fn run(
    m: &Module,
    kernel: &str,
    threads: u32,
    seed: u64,
    data: &mut [u32],
) -> Result<(), EmulationError> {
    // SAFETY: the kernels here take one pointer to as many words as threads.
    unsafe { m.launch(kernel, [1; 3], [threads, 1, 1], seed, &[data.as_mut_ptr() as u64]) }
}

#[test]
fn barriers_hold_threads_together_in_any_order() {
    let m = module(
        "KERNEL(reverse, 64, unsigned* x) {
            __shared__ unsigned all[64];
            all[threadIdx.x] = x[threadIdx.x];
            __syncthreads();
            x[threadIdx.x] = all[63 - threadIdx.x];
        }",
    )
    .unwrap();
    for seed in [0, 1, 7] {
        let mut x: Vec<u32> = (0..64).collect();
        run(&m, "reverse", 64, seed, &mut x).unwrap();
        assert!(x.iter().copied().eq((0..64).rev()));
    }
}

#[test]
fn a_missing_barrier_shows_in_some_order() {
    let m = module(
        "KERNEL(reverse, 64, unsigned* x) {
            __shared__ unsigned all[64];
            all[threadIdx.x] = x[threadIdx.x];
            x[threadIdx.x] = all[63 - threadIdx.x];
        }",
    )
    .unwrap();
    let wrong = |&seed: &u64| {
        let mut x: Vec<u32> = (1..65).collect();
        run(&m, "reverse", 64, seed, &mut x).unwrap();
        !x.iter().copied().eq((1..65).rev())
    };
    assert!([0, 1].iter().any(wrong));
}

#[test]
fn a_barrier_that_some_never_reach_is_told() {
    let m = module(
        "KERNEL(diverge, 64, unsigned* x) {
            if (threadIdx.x < 32) __syncthreads();
            else __syncwarp(0xff);
            x[threadIdx.x] = 1;
        }",
    )
    .unwrap();
    let e = run(&m, "diverge", 64, 0, &mut [0; 64]).unwrap_err();
    assert!(matches!(e, EmulationError::Deadlock { .. }), "{e}");
}

#[test]
fn lanes_exchange_values() {
    let m = module(
        "KERNEL(lanes, 64, unsigned* x) {
            unsigned i = threadIdx.x, lane = i % 32;
            unsigned sum = i;
            for (unsigned d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
            unsigned down = __shfl_down_sync(~0u, i, 1u);
            unsigned odd = __ballot_sync(~0u, lane % 2 == 1);
            unsigned same = __match_any_sync(~0u, lane / 4);
            bool right = sum == (i < 32 ? 496u : 1520u) && down == (lane == 31 ? i : i + 1)
                && odd == 0xaaaaaaaau && same == 0xfu << lane / 4 * 4;
            x[i] = right;
        }",
    )
    .unwrap();
    let mut x = [0; 64];
    run(&m, "lanes", 64, 3, &mut x).unwrap();
    assert_eq!(x, [1; 64]);
}

/// What lanes get of matrices is where PTX has it for `ldmatrix`, written out here once more.
#[test]
fn warps_load_matrices() {
    let m = module(
        "KERNEL(matrices, 32, unsigned* x) {
            alignas(16) __shared__ unsigned short of[4 * 64];
            const unsigned lane = threadIdx.x, near = lane % 4 * 2, far = lane / 4;
            for (unsigned i = lane; i < 4 * 64; i += 32) of[i] = (unsigned short)(i * 257);
            __syncthreads();
            const unsigned short* row = of + lane / 8 * 64 + lane % 8 * 8;
            unsigned rows[4], columns[4];
            load_matrices<false>(rows, row);
            load_matrices<true>(columns, row);
            bool all = true;
            for (unsigned i = 0; i < 4; i++) {
                auto at = [&](unsigned r, unsigned c) { return unsigned(of[i * 64 + r * 8 + c]); };
                all = all && rows[i] == (at(far, near) | at(far, near + 1) << 16);
                all = all && columns[i] == (at(near, far) | at(near + 1, far) << 16);
            }
            x[lane] = all;
        }",
    )
    .unwrap();
    for seed in [0, 1, 3] {
        let mut x = [0; 32];
        run(&m, "matrices", 32, seed, &mut x).unwrap();
        assert_eq!(x, [1; 32]);
    }
}

/// Operands and sums lie in lanes as PTX has them for `mma.sync`, written out here once more.
#[test]
fn warps_multiply_matrices() {
    let m = module(
        "KERNEL(products, 32, unsigned* x) {
            unsigned g = threadIdx.x / 4, t = threadIdx.x % 4;
            auto a = [](unsigned row, unsigned k) { return float(row + 3 * k); };
            auto b = [](unsigned k, unsigned column) { return float(2 * k + 5 * column); };
            auto pair = [](float low, float high) {
                unsigned words[2];
                memcpy(words, &low, 4);
                memcpy(words + 1, &high, 4);
                return words[0] >> 16 | (words[1] & 0xffff0000u);
            };
            float of_8[4] = {1, 1, 1, 1}, of_16[4] = {1, 1, 1, 1};
            float left[4] = {a(g, t), a(g + 8, t), a(g, t + 4), a(g + 8, t + 4)};
            float right[2] = {b(t, g), b(t + 4, g)};
            multiply_tf32(of_8, left, right);
            unsigned k = 2 * t;
            unsigned lefts[4] = {pair(a(g, k), a(g, k + 1)), pair(a(g + 8, k), a(g + 8, k + 1)),
                                 pair(a(g, k + 8), a(g, k + 9)), pair(a(g + 8, k + 8), a(g + 8, k + 9))};
            unsigned rights[2] = {pair(b(k, g), b(k + 1, g)), pair(b(k + 8, g), b(k + 9, g))};
            multiply_bf16(of_16, lefts, rights);
            bool right_all = true;
            for (unsigned e = 0; e < 4; e++) {
                unsigned row = g + e / 2 * 8, column = 2 * t + e % 2;
                float want = 1;
                for (unsigned i = 0; i < 16; i++) {
                    want += a(row, i) * b(i, column);
                    if (i == 7) right_all = right_all && of_8[e] == want;
                }
                right_all = right_all && of_16[e] == want;
            }
            x[threadIdx.x] = right_all && to_tf32(1 + 0x1p-11f) == 1 + 0x1p-10f
                && to_tf32(1 + 0x1p-12f) == 1 && to_tf32(-INFINITY) == -INFINITY;
        }",
    )
    .unwrap();
    for seed in [0, 1, 3] {
        let mut x = [0; 32];
        run(&m, "products", 32, seed, &mut x).unwrap();
        assert_eq!(x, [1; 32]);
    }
}

#[test]
fn text_that_is_no_kernel_is_refused() {
    let Err(EmulationError::Compile(message)) = module("KERNEL(k, 32, float* x) { x = y; }") else {
        panic!("it compiled");
    };
    assert!(message.contains('y'), "{message}");
}
