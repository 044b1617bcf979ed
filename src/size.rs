//! Sizes in bytes as people write them.

/// Names of units, the longer ones first, and their bytes.
const UNITS: [(&str, u64); 12] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("b", 1),
];

/// Most bytes that a limit may name.
const MOST: f64 = (1u64 << 60) as f64;

/// Reads `4GiB`, `500MB`, `1.5G` (binary, as in `ulimit`) or a plain number of bytes.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let unit = UNITS.iter().find_map(|(name, bytes)| Some((lower.strip_suffix(name)?, *bytes)));
    let (number, unit) = unit.unwrap_or((&lower, 1));
    let wrong = || format!("`{text}` is no size; write bytes, or for example 4GiB or 500MB");
    if unit == 1
        && let Ok(bytes) = number.trim().parse::<u64>()
    {
        return if bytes as f64 <= MOST { Ok(bytes) } else { Err(wrong()) };
    }
    let number: f64 = number.trim().parse().map_err(|_| wrong())?;
    let bytes = (number * unit as f64).floor();
    if bytes.is_finite() && (0.0..=MOST).contains(&bytes) { Ok(bytes as u64) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::parse_size;

    #[test]
    fn sizes_as_people_write_them() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("1.5 KiB"), Ok(1536));
        assert_eq!(parse_size("4GiB"), Ok(4 << 30));
        assert_eq!(parse_size("4g"), Ok(4 << 30));
        assert_eq!(parse_size("500MB"), Ok(500_000_000));
        assert_eq!(parse_size("7b"), Ok(7));
    }

    #[test]
    fn not_other_texts() {
        for text in ["", "GiB", "-1", "nan", "inf", "4 apples", "1e30", "99999999999TiB", "4GiBs"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
