//! Kernels chosen by element type.

/// Evaluates `$body` with `$T` standing for the number type of `$dtype`; bool is `u8`.
macro_rules! for_number {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            DType::Bool | DType::U8 => $crate::cpu::dispatch::with!($T = u8, $body),
            DType::I8 => $crate::cpu::dispatch::with!($T = i8, $body),
            DType::U16 => $crate::cpu::dispatch::with!($T = u16, $body),
            DType::I16 => $crate::cpu::dispatch::with!($T = i16, $body),
            DType::U32 => $crate::cpu::dispatch::with!($T = u32, $body),
            DType::I32 => $crate::cpu::dispatch::with!($T = i32, $body),
            DType::U64 => $crate::cpu::dispatch::with!($T = u64, $body),
            DType::I64 => $crate::cpu::dispatch::with!($T = i64, $body),
            // Its kernels are those of `f32`: see `narrow`.
            DType::F32 | DType::Bf16 => $crate::cpu::dispatch::with!($T = f32, $body),
            DType::F64 => $crate::cpu::dispatch::with!($T = f64, $body),
        }
    };
}

/// As `for_number`, for what signed and unsigned integers do alike.
macro_rules! for_signless {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            DType::F32 => $crate::cpu::dispatch::with!($T = f32, $body),
            DType::F64 => $crate::cpu::dispatch::with!($T = f64, $body),
            d => $crate::cpu::dispatch::for_size!(d, $T => $body),
        }
    };
}

/// As `for_number`, by size alone.
macro_rules! for_size {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype.size() {
            1 => $crate::cpu::dispatch::with!($T = u8, $body),
            2 => $crate::cpu::dispatch::with!($T = u16, $body),
            4 => $crate::cpu::dispatch::with!($T = u32, $body),
            _ => $crate::cpu::dispatch::with!($T = u64, $body),
        }
    };
}

/// As `for_number`, where inference admits floats alone.
macro_rules! for_float {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            DType::F64 => $crate::cpu::dispatch::with!($T = f64, $body),
            _ => $crate::cpu::dispatch::with!($T = f32, $body),
        }
    };
}

/// As `for_number`, where inference admits signed numbers alone.
macro_rules! for_signed {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            DType::I8 => $crate::cpu::dispatch::with!($T = i8, $body),
            DType::I16 => $crate::cpu::dispatch::with!($T = i16, $body),
            DType::I32 => $crate::cpu::dispatch::with!($T = i32, $body),
            DType::I64 => $crate::cpu::dispatch::with!($T = i64, $body),
            d => $crate::cpu::dispatch::for_float!(d, $T => $body),
        }
    };
}

/// `$body` with `$T` standing for a type.
macro_rules! with {
    ($T:ident = $t:ty, $body:expr) => {{
        type $T = $t;
        $body
    }};
}

pub(super) use {for_float, for_number, for_signed, for_signless, for_size, with};
