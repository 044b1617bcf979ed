//! Which instructions kernels use.

use std::fmt;
use std::sync::OnceLock;

/// Instruction sets that kernels are compiled for, each beyond those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// What every machine of the target has: SSE2 on x86-64, NEON on AArch64.
    Baseline,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 with its instructions for bytes, words, quadwords and short vectors (F, BW, DQ, VL).
    Avx512,
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Isa::Baseline => "baseline",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        })
    }
}

/// The environment variable that chooses instructions.
const CHOICE: &str = "ARENIC_CPU";

/// The environment variable that chooses instructions names none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{CHOICE} is `{0}`; `baseline`, `avx2` and `avx512` can be chosen")]
pub struct UnknownIsa(String);

impl Isa {
    /// The instructions of this machine, or fewer where the environment variable `ARENIC_CPU` says
    /// `baseline` or `avx2`. It is read once.
    pub fn of_machine() -> Isa {
        static ISA: OnceLock<Isa> = OnceLock::new();
        *ISA.get_or_init(|| Isa::chosen().unwrap_or(Isa::Avx512).min(Isa::detected()))
    }

    /// The most that the environment variable lets kernels use.
    ///
    /// # Errors
    /// It names no instructions.
    pub fn chosen() -> Result<Isa, UnknownIsa> {
        let chosen = std::env::var_os(CHOICE).unwrap_or_default();
        let names = [Isa::Baseline, Isa::Avx2, Isa::Avx512];
        match names.into_iter().find(|isa| chosen == *isa.to_string()) {
            None if chosen.is_empty() => Ok(Isa::Avx512),
            isa => isa.ok_or_else(|| UnknownIsa(chosen.to_string_lossy().into_owned())),
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn detected() -> Isa {
        let wide = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        if !is_x86_feature_detected!("avx2") || !is_x86_feature_detected!("fma") {
            Isa::Baseline
        } else if wide {
            Isa::Avx512
        } else {
            Isa::Avx2
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn detected() -> Isa {
        Isa::Baseline
    }
}
