//! Loops compiled for wide vectors.

/// Defines a function that is compiled for the vectors of each [`Isa`](super::Isa), and picks the widest that the machine
/// has when called. Bits do not depend on it: lanes are independent, and only [`mul_add`](f32::mul_add) is fused. What the function
/// calls in its loops must be `#[inline(always)]`: what is not inlined keeps the baseline's vectors, and nothing
/// makes the compiler inline a closure of some size. A constant comes last, behind a semicolon. Behind `where` stands a
/// constant condition on the types: for others there is one function, with the baseline's vectors.
macro_rules! wide {
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident<$($g:ident: $bound:path),+ $(; const $k:ident: usize)?>($($arg:ident: $ty:ty),* $(,)?)
        $(-> $ret:ty)? $(where $is_wide:expr;)? $body:block
    ) => {
        $(#[$meta])*
        #[inline]
        $vis fn $name<$($g: $bound),+ $(, const $k: usize)?>($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn any<$($g: $bound),+ $(, const $k: usize)?>($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn avx2<$($g: $bound),+ $(, const $k: usize)?>($($arg: $ty),*) $(-> $ret)? {
                    any::<$($g),+ $(, $k)?>($($arg),*)
                }
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
                fn avx512<$($g: $bound),+ $(, const $k: usize)?>($($arg: $ty),*) $(-> $ret)? {
                    any::<$($g),+ $(, $k)?>($($arg),*)
                }
                if const { true $(&& $is_wide)? } {
                    match $crate::cpu::Isa::of_machine() {
                        // SAFETY: the machine has the instructions.
                        $crate::cpu::Isa::Avx512 => return unsafe { avx512::<$($g),+ $(, $k)?>($($arg),*) },
                        // SAFETY: as above.
                        $crate::cpu::Isa::Avx2 => return unsafe { avx2::<$($g),+ $(, $k)?>($($arg),*) },
                        $crate::cpu::Isa::Baseline => {}
                    }
                }
            }
            any::<$($g),+ $(, $k)?>($($arg),*)
        }
    };
    (
        $(#[$meta:meta])*
        $vis:vis unsafe fn $name:ident<$($g:ident: $bound:path),+ $(; const $k:ident: usize)?>($($arg:ident: $ty:ty),* $(,)?)
        $(-> $ret:ty)? $(where $is_wide:expr;)? $body:block
    ) => {
        $(#[$meta])*
        #[inline]
        $vis unsafe fn $name<$($g: $bound),+ $(, const $k: usize)?>($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            unsafe fn any<$($g: $bound),+ $(, const $k: usize)?>($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                unsafe fn avx2<$($g: $bound),+ $(, const $k: usize)?>($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: the caller's promise.
                    unsafe { any::<$($g),+ $(, $k)?>($($arg),*) }
                }
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
                unsafe fn avx512<$($g: $bound),+ $(, const $k: usize)?>($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: the caller's promise.
                    unsafe { any::<$($g),+ $(, $k)?>($($arg),*) }
                }
                if const { true $(&& $is_wide)? } {
                    match $crate::cpu::Isa::of_machine() {
                        // SAFETY: the machine has the instructions; else the caller's promise.
                        $crate::cpu::Isa::Avx512 => return unsafe { avx512::<$($g),+ $(, $k)?>($($arg),*) },
                        // SAFETY: as above.
                        $crate::cpu::Isa::Avx2 => return unsafe { avx2::<$($g),+ $(, $k)?>($($arg),*) },
                        $crate::cpu::Isa::Baseline => {}
                    }
                }
            }
            // SAFETY: the caller's promise.
            unsafe { any::<$($g),+ $(, $k)?>($($arg),*) }
        }
    };
}
pub(super) use wide;
