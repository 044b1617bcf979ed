// The tensor cores' instructions by which a warp multiplies 16 × k by k × 8 and adds to 16 × 8;
// lanes hold operands and sums as PTX has it for `mma.sync`. Those by which operands get to shared
// memory and from there to lanes. The emulator has them, too.
#pragma once
#include "arenic.cuh"

#ifdef __CUDACC_RTC__
// k = 8, of floats that were rounded.
__device__ inline void multiply_tf32(float (&sums)[4], const float (&a)[4], const float (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
          "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}

// k = 16, of two elements in each word, the lower one first.
__device__ inline void multiply_bf16(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four matrices of 8 × 8 elements of two bytes, each row of which begins at a multiple of 16 bytes: `row` is that of
// matrix lane / 8, row lane % 8. Of each a lane gets the two elements that it has as an operand: of row lane / 4 those
// of columns 2 (lane % 4) and one more, or, transposed, of column lane / 4 those of such rows.
template <bool TRANSPOSED>
__device__ inline void load_matrices(u32 (&words)[4], const Bf16* row) {
    const u32 at = u32(__cvta_generic_to_shared(row));
    if constexpr (TRANSPOSED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "r"(at) : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "r"(at) : "memory");
    }
}

// Has 16 bytes copied to shared memory, or zeros, while the thread goes on. Both addresses are multiples of 16.
__device__ inline void copy_later(void* to, const void* from, bool is_copied) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(u32(__cvta_generic_to_shared(to))), "l"(from),
                 "r"(is_copied ? 16 : 0)
                 : "memory");
}

// Waits for what this thread has copied later; other threads' copies are there after a barrier.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// 2^x but for its last two bits; what is below the normal numbers is zero.
__device__ inline float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Two floats rounded to one word, the first one in its lower half.
__device__ inline u32 to_bf16s(float lower, float upper) {
    u32 word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(upper), "f"(lower));
    return word;
}

// To 10 bits behind the point, of two as near to the one that is further from zero.
__device__ inline float to_tf32(float x) {
    u32 bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return __uint_as_float(bits);
}
#endif
