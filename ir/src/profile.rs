//! Measured times of kernels, which go before the roofline.
//!
//! The file is JSON lines: the first says what was measured, each of the others has one
//! kernel's time, keyed by operator (with its attributes) and operands.

use crate::op::{Op, Rng};
use crate::text::TextError;
use crate::types::TensorType;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::HashMap;
use std::fmt::{self, Write};

/// What `arenic profile` found on a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Where.
    pub machine: Machine,
    /// Its kernels.
    pub kernels: Vec<KernelTime>,
}

/// The device that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// What its description calls it.
    pub device: String,
    /// Threads that kernels ran on.
    pub threads: usize,
    /// Bytes per second of a copy from the device to the host.
    pub to_host_bytes_per_second: f64,
    /// Bytes per second of a copy from the host to the device.
    pub to_device_bytes_per_second: f64,
    /// Bytes per second each way while copies run both ways.
    pub both_bytes_per_second: f64,
    /// Bytes of workspace that libraries used for one operator at most; `None` if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_bytes: Option<u64>,
}

/// The time of one kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelTime {
    /// The operator. The key of a random one's generator says nothing about its time.
    pub operator: Op,
    /// The types of its operands, in the file as in the text form: `f32[8,16]`.
    #[serde(serialize_with = "write_types", deserialize_with = "read_types")]
    pub operands: Vec<TensorType>,
    /// Seconds of a call, the median of several.
    pub seconds: f64,
}

/// A text that is no profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ProfileError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong.
    pub message: String,
}

/// A profile is used for a device that it was not measured on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is a profile of another device: of `{measured}`, and times are for `{wanted}`")]
pub struct OtherDevice {
    /// The profile's device.
    pub measured: String,
    /// The device that times are for.
    pub wanted: String,
}

impl Profile {
    /// Reads a profile.
    ///
    /// # Errors
    /// A line that is missing, is no JSON, or lacks a field or has one too many; a number
    /// that is not positive; operands that do not fit their operator; a kernel that was there before.
    pub fn parse(text: &str) -> Result<Profile, ProfileError> {
        let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let (at, first) = lines.next().unwrap_or((0, ""));
        let machine: Machine = read_line(at, first)?;
        let positive = |at, field: &str, x: f64| match x.is_finite() && x > 0.0 {
            true => Ok(()),
            false => wrong(at, format!("`{field}` is {x}; a positive number is needed")),
        };
        positive(at, "threads", machine.threads as f64)?;
        positive(at, "to_host_bytes_per_second", machine.to_host_bytes_per_second)?;
        positive(at, "to_device_bytes_per_second", machine.to_device_bytes_per_second)?;
        positive(at, "both_bytes_per_second", machine.both_bytes_per_second)?;
        let mut kernels = Vec::new();
        let mut times = KernelTimes::default();
        for (at, line) in lines {
            let kernel: KernelTime = read_line(at, line)?;
            positive(at, "seconds", kernel.seconds)?;
            let operands: Vec<&TensorType> = kernel.operands.iter().collect();
            if let Err(e) = kernel.operator.infer(&operands) {
                return wrong(at, format!("`{}`: {e}", kernel.operator.name()));
            }
            if !times.insert(&kernel) {
                return wrong(at, format!("this `{}` has a time already", kernel.operator.name()));
            }
            kernels.push(kernel);
        }
        Ok(Profile { machine, kernels })
    }
}

fn wrong<T>(at: usize, message: String) -> Result<T, ProfileError> {
    Err(ProfileError { line: at + 1, message })
}

fn read_line<'a, T: Deserialize<'a>>(at: usize, line: &'a str) -> Result<T, ProfileError> {
    serde_json::from_str(line).or_else(|e| wrong(at, e.to_string().replace("line 1 ", "")))
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let json = |line: Result<String, serde_json::Error>| line.map_err(|_| fmt::Error);
        writeln!(f, "{}", json(serde_json::to_string(&self.machine))?)?;
        for kernel in &self.kernels {
            writeln!(f, "{}", json(serde_json::to_string(kernel))?)?;
        }
        Ok(())
    }
}

fn write_types<S: Serializer>(types: &[TensorType], s: S) -> Result<S::Ok, S::Error> {
    s.collect_seq(types.iter().map(TensorType::to_string))
}

fn read_types<'a, D: Deserializer<'a>>(d: D) -> Result<Vec<TensorType>, D::Error> {
    let types = Vec::<String>::deserialize(d)?;
    let no_type = |text, e: TextError| Error::custom(format!("`{text}` is no type: {}", e.message));
    types.iter().map(|text| text.parse().map_err(|e| no_type(text, e))).collect()
}

/// The times of a profile, by what they are of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KernelTimes(HashMap<String, f64>);

impl KernelTimes {
    /// Adds a time; false where its kernel has one already.
    pub fn insert(&mut self, kernel: &KernelTime) -> bool {
        let operands: Vec<&TensorType> = kernel.operands.iter().collect();
        let kept = self.0.entry(key(&kernel.operator, &operands));
        let is_new = matches!(kept, std::collections::hash_map::Entry::Vacant(_));
        kept.or_insert(kernel.seconds);
        is_new
    }

    /// Seconds of the operator on operands of these types.
    pub fn seconds(&self, op: &Op, operands: &[&TensorType]) -> Option<f64> {
        if self.0.is_empty() { None } else { self.0.get(&key(op, operands)).copied() }
    }
}

/// An operator has attributes of floats, which are no key; its text is.
fn key(op: &Op, operands: &[&TensorType]) -> String {
    let mut op = op.clone();
    if let Some(rng) = op.rng_mut() {
        *rng = Rng { stream: 0, seed: None };
    }
    let mut key = serde_json::to_string(&op).unwrap_or_default();
    for ty in operands {
        // Writing to a string does not fail.
        let _ = write!(key, " {ty}");
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"device":"slow","threads":2,"to_host_bytes_per_second":1e9,"to_device_bytes_per_second":2000000000.0,"both_bytes_per_second":500000000.0}
{"operator":{"mat_mul":{"trans_a":true}},"operands":["f32[8,4]","f32[8,2]"],"seconds":0.00025}
{"operator":{"dropout":{"rng":{"stream":7}}},"operands":["f32[8]","f32[]"],"seconds":1e-6}
{"operator":"copy","operands":["i64[3]"],"seconds":2e-7}
"#;

    #[test]
    fn printing_and_parsing_are_inverse() {
        let profile = Profile::parse(TEXT).unwrap();
        assert_eq!(profile.kernels.len(), 3);
        assert_eq!(Profile::parse(&profile.to_string()).unwrap(), profile);
    }

    #[test]
    fn generators_keys_do_not_matter_but_attributes_and_operands_do() {
        let profile = Profile::parse(TEXT).unwrap();
        let mut times = KernelTimes::default();
        assert!(profile.kernels.iter().all(|kernel| times.insert(kernel)));
        let types: Vec<TensorType> =
            ["f32[8,4]", "f32[8,2]", "f32[8]", "f32[]"].map(|text| text.parse().unwrap()).into();
        let [a, b, x, ratio] = [0, 1, 2, 3].map(|i| &types[i]);
        let product = |trans_a| Op::MatMul { trans_a, trans_b: false };
        assert_eq!(times.seconds(&product(true), &[a, b]), Some(0.00025));
        assert_eq!(times.seconds(&product(false), &[a, b]), None);
        assert_eq!(times.seconds(&product(true), &[b, a]), None);
        let dropout = Op::Dropout { rng: Rng { stream: 1, seed: Some(3) } };
        assert_eq!(times.seconds(&dropout, &[x, ratio]), Some(1e-6));
    }

    #[test]
    fn what_is_no_profile_is_refused_with_its_line() {
        let refusal = |from: &str, to: &str| {
            assert!(TEXT.contains(from), "{from}");
            let refused = Profile::parse(&TEXT.replacen(from, to, 1)).unwrap_err();
            (refused.line, refused.message)
        };
        for (from, to, line, says) in [
            ("0.00025", "-0.00025", 2, "-0.00025"),
            ("0.00025", "0", 2, "positive"),
            ("0.00025", "1e999", 2, "number"),
            (r#","seconds":1e-6"#, "", 3, "seconds"),
            (r#""threads":2"#, r#""threads":0"#, 1, "threads"),
            ("1e9", "-1e9", 1, "to_host"),
            (r#""device":"slow","#, "", 1, "device"),
            (r#""operator":"copy""#, r#""operator":"cpy""#, 4, "cpy"),
            ("i64[3]", "i64[3", 4, "i64"),
            ("i64[3]", "q64[3]", 4, "element type"),
            ("f32[8,2]", "f32[9,2]", 2, "mat_mul"),
            (r#""seconds":2e-7"#, r#""seconds":2e-7,"hours":1"#, 4, "hours"),
            ("\n{\"operator\":\"copy\"", "\n[", 4, ""),
        ] {
            let (at, message) = refusal(from, to);
            assert!(at == line && message.contains(says), "{to}: line {at}: {message}");
        }
        let twice = TEXT.lines().chain(TEXT.lines().last()).collect::<Vec<_>>().join("\n");
        assert!(Profile::parse(&twice).unwrap_err().message.contains("already"));
        assert_eq!(Profile::parse("").unwrap_err().line, 1);
    }
}
