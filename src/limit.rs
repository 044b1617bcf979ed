//! Limits on device memory as people say them.

use crate::size::parse_size;
use std::str::FromStr;
use sysinfo::{MemoryRefreshKind, RefreshKind, System};

/// A limit on device memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
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
impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Limit, String> {
        match (text.trim(), text.trim().strip_suffix('%')) {
            ("half", _) => Ok(Limit::Part(0.5)),
            ("fit", _) => Ok(Limit::Free),
            (_, Some(percent)) => parse_part(percent).map(Limit::Part),
            _ => {
                parse_size(text).map(Limit::Bytes).map_err(|e| format!("{e}, or 60%, half or fit"))
            }
        }
    }
}

impl From<u64> for Limit {
    fn from(bytes: u64) -> Limit {
        Limit::Bytes(bytes)
    }
}

/// Reads `2%`, as a part.
pub(crate) fn parse_percent(text: &str) -> Result<f64, String> {
    let percent = text.trim();
    parse_part(percent.strip_suffix('%').unwrap_or(percent))
}

fn parse_part(percent: &str) -> Result<f64, String> {
    let wrong = || format!("`{percent}` is no percentage above 0; write for example 60%");
    let part = percent.trim().parse::<f64>().map_err(|_| wrong())? / 100.0;
    if part > 0.0 && part.is_finite() { Ok(part) } else { Err(wrong()) }
}

/// Bytes that the machine has free, or the control group that it runs in, and these without a margin for
/// others; `None` if nothing is left of them.
pub(crate) fn free_bytes() -> (u64, Option<u64>) {
    let memory = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    let system = System::new_with_specifics(memory);
    let group = system.cgroup_limits().map_or(u64::MAX, |group| group.free_memory);
    let free = system.available_memory().min(group);
    (free, free.checked_sub(OWN + free / SHARED).filter(|&usable| usable > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_as_people_say_them() {
        assert_eq!("2GiB".parse(), Ok(Limit::Bytes(2 << 30)));
        assert_eq!(" 60% ".parse(), Ok(Limit::Part(0.6)));
        assert_eq!("half".parse(), Ok(Limit::Part(0.5)));
        assert_eq!("fit".parse(), Ok(Limit::Free));
        assert_eq!(parse_percent("2"), Ok(0.02));
    }

    #[test]
    fn not_other_texts() {
        for text in ["", "%", "-5%", "0%", "inf%", "nan%", "third"] {
            assert!(text.parse::<Limit>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_machine_has_something_free() {
        let (free, usable) = free_bytes();
        assert!(free < 1 << 60 && usable.is_some_and(|usable| usable > 0 && usable < free));
    }
}
