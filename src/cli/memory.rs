//! Limits on device memory as people say them.

use super::size::parse_size;
use super::{Failure, human_bytes};
use miette::miette;
use sysinfo::{MemoryRefreshKind, RefreshKind, System};

/// A limit on device memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Limit {
    /// So many bytes.
    Bytes(u64),
    /// A part of the step's arena without a limit.
    Part(f64),
    /// What the machine has free.
    Free,
}

/// Of free memory one byte in so many is left to others, and so many bytes to the process.
const SHARED: u64 = 20;
const OWN: u64 = 64 << 20;

/// Reads `2GiB` or another size, `60%`, `half` or `fit`.
pub(super) fn parse_limit(text: &str) -> Result<Limit, String> {
    match (text.trim(), text.trim().strip_suffix('%')) {
        ("half", _) => Ok(Limit::Part(0.5)),
        ("fit", _) => Ok(Limit::Free),
        (_, Some(percent)) => parse_part(percent).map(Limit::Part),
        _ => parse_size(text).map(Limit::Bytes).map_err(|e| format!("{e}, or 60%, half or fit")),
    }
}

/// Reads `2%`, as a part.
pub(super) fn parse_percent(text: &str) -> Result<f64, String> {
    let percent = text.trim();
    parse_part(percent.strip_suffix('%').unwrap_or(percent))
}

fn parse_part(percent: &str) -> Result<f64, String> {
    let wrong = || format!("`{percent}` is no percentage above 0; write for example 60%");
    let part = percent.trim().parse::<f64>().map_err(|_| wrong())? / 100.0;
    if part > 0.0 && part.is_finite() { Ok(part) } else { Err(wrong()) }
}

/// Bytes that the machine has free, or the control group that it runs in, less a margin.
pub(super) fn free_bytes() -> Result<u64, Failure> {
    let memory = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    let system = System::new_with_specifics(memory);
    let group = system.cgroup_limits().map_or(u64::MAX, |group| group.free_memory);
    let free = system.available_memory().min(group);
    let margin = OWN + free / SHARED;
    if free <= margin {
        return Err(miette!("the machine has {} free, too little", human_bytes(free)).into());
    }
    tell!("{} are free; the step may take all but {}", human_bytes(free), human_bytes(margin));
    Ok(free - margin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_as_people_say_them() {
        assert_eq!(parse_limit("2GiB"), Ok(Limit::Bytes(2 << 30)));
        assert_eq!(parse_limit(" 60% "), Ok(Limit::Part(0.6)));
        assert_eq!(parse_limit("half"), Ok(Limit::Part(0.5)));
        assert_eq!(parse_limit("fit"), Ok(Limit::Free));
        assert_eq!(parse_percent("2"), Ok(0.02));
    }

    #[test]
    fn not_other_texts() {
        for text in ["", "%", "-5%", "0%", "inf%", "nan%", "third"] {
            assert!(parse_limit(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_machine_has_something_free() {
        assert!(free_bytes().is_ok_and(|free| free > 0 && free < 1 << 60));
    }
}
