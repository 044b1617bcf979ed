//! How a pass explains itself: the head of its source, its options, and a small case.
//!
//! A case is a text that is also a test (`cases/<pass>/<case>.ir`). What comes of it stands
//! below it:
//!
//! ```text
//! # run: raise
//! graph "…" { … }
//!
//! # gives
//! graph "…" { … }
//! ```

use crate::PassInfo;
use serde_json::Value;
use std::fmt::{self, Write};

/// The line between a case and what comes of it.
const GIVES: &str = "\n# gives\n";

/// A case of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case<'a> {
    /// The passes to run as entries of a pipeline, parted by `; `; `None` for the pass alone.
    pub run: Option<&'a str>,
    /// Limit on device memory in bytes.
    pub device_memory: Option<u64>,
    /// The backend; `None` for the CPU.
    pub target: Option<&'a str>,
    /// The device that times are for; `None` if there are none.
    pub device: Option<&'a str>,
    /// The module, as text.
    pub module: &'a str,
    /// What comes of it: a module, or an error; `None` if the file does not say.
    pub gives: Option<&'a str>,
}

impl<'a> Case<'a> {
    /// Reads a case off its file.
    pub fn read(text: &'a str) -> Case<'a> {
        let (given, gives) = match text.split_once(GIVES) {
            Some((given, gives)) => (given, Some(gives)),
            None => (text, None),
        };
        let said = |what| given.lines().find_map(|line| line.strip_prefix(what));
        Case {
            run: said("# run: "),
            device_memory: said("# device memory: ").and_then(|bytes| bytes.parse().ok()),
            target: said("# target: "),
            device: said("# device: "),
            module: given,
            gives,
        }
    }

    /// The file that says that `gives` comes of the case.
    pub fn with(&self, gives: &str) -> String {
        format!("{}\n{GIVES}{gives}", self.module.trim_end())
    }

    /// The module without the lines that say how it is run.
    fn bare(&self) -> &'a str {
        let is_comment = |line: &&str| line.starts_with('#');
        let comments = self.module.split_inclusive('\n').take_while(is_comment);
        self.module[comments.map(str::len).sum()..].trim_end()
    }
}

/// The lines of a source's head (`//!`), as many bytes as it has.
pub const fn head_len(source: &str) -> usize {
    let s = source.as_bytes();
    let mut at = 0;
    while at + 2 < s.len() && s[at] == b'/' && s[at + 1] == b'/' && s[at + 2] == b'!' {
        while at < s.len() && s[at] != b'\n' {
            at += 1;
        }
        at += 1;
    }
    if at < s.len() { at } else { s.len() }
}

/// The first bytes of a text, so that a program holds these and not the rest.
pub const fn first_bytes<const N: usize>(source: &str) -> [u8; N] {
    let mut bytes = [0; N];
    let mut at = 0;
    while at < N {
        bytes[at] = source.as_bytes()[at];
        at += 1;
    }
    bytes
}

impl PassInfo {
    /// What the pass does, why it is sound, and where it comes from.
    pub fn about(&self) -> String {
        let line = |line: &str| line.trim_start_matches("//!").trim().to_owned();
        let lines: Vec<String> = self.head.lines().map(line).collect();
        lines.join("\n").replace("[`", "`").replace("`]", "`")
    }

    /// The options, one a line: name, values, default, meaning.
    fn options(&self) -> Vec<String> {
        let properties = self.schema.get("properties").and_then(Value::as_object);
        properties.into_iter().flatten().map(|(name, schema)| option(name, schema)).collect()
    }
}

/// An option in a line.
fn option(name: &str, schema: &Value) -> String {
    let words = |key: &str| schema.get(key).and_then(Value::as_str);
    let meaning = words("description").unwrap_or_default().replace('\n', " ");
    let default = schema.get("default").filter(|default| !default.is_null());
    let default = default.map_or(String::new(), |default| format!(" [default: {default}]"));
    let values: Vec<&str> = schema
        .get("oneOf")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|one| one.get("const")?.as_str())
        .collect();
    let values = match &values[..] {
        [] => String::new(),
        values => format!(" ({})", values.join(", ")),
    };
    format!("{name}: {meaning}{values}{default}")
}

/// The explanation that `arenic pipeline explain` prints.
impl fmt::Display for PassInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut description = String::new();
        if let Some(text) = self.schema.get("description").and_then(Value::as_str) {
            write!(description, "{}", text.replace('\n', " "))?;
        }
        writeln!(f, "{} ({} pass)\n{description}\n\n{}\n", self.name, self.level, self.about())?;
        let options = self.options();
        if options.is_empty() {
            writeln!(f, "It has no options.\n")?;
        } else {
            writeln!(f, "Options:")?;
            options.iter().try_for_each(|option| writeln!(f, "  {option}"))?;
            writeln!(f)?;
        }
        let case = Case::read(self.example);
        let run = case.run.unwrap_or(self.name);
        let limit = case.device_memory;
        let limit = limit.map_or(String::new(), |n| format!(" within {n} bytes of device memory"));
        writeln!(f, "For example, `{run}`{limit} makes of\n\n{}\n", case.bare())?;
        write!(f, "this:\n\n{}", case.gives.unwrap_or_default().trim_end())
    }
}

#[cfg(test)]
mod tests {
    use super::{Case, first_bytes, head_len};
    use crate::{PassSet, Standard};

    #[test]
    fn a_case_is_read_and_written() {
        let text = "# run: a; b: {c: 1}\n# device memory: 64\ngraph \"g\" {\n}\n\n# gives\nerror\n";
        let case = Case::read(text);
        assert_eq!((case.run, case.device_memory), (Some("a; b: {c: 1}"), Some(64)));
        assert_eq!((case.bare(), case.gives), ("graph \"g\" {\n}", Some("error\n")));
        assert_eq!(case.with("error\n"), text);
        let bare = Case::read("graph \"g\" {\n}\n");
        assert_eq!((bare.run, bare.gives), (None, None));
        assert_eq!(Case::read(&bare.with("x\n")).gives, Some("x\n"));
    }

    #[test]
    fn the_head_of_a_source_ends_with_its_last_line() {
        const SOURCE: &str = "//! a\n//!\n//! b\n\nuse c;\n//! d\n";
        const LEN: usize = head_len(SOURCE);
        let head: [u8; LEN] = first_bytes(SOURCE);
        assert_eq!(&head, b"//! a\n//!\n//! b\n");
        assert_eq!((head_len(""), head_len("//! a"), head_len("use a;")), (0, 5, 0));
    }

    #[test]
    fn every_pass_says_why_it_is_sound_and_shows_a_case() {
        for pass in Standard.passes() {
            let about = pass.about();
            assert!(about.to_lowercase().contains("sound"), "{}: {about}", pass.name);
            let case = Case::read(pass.example);
            let gives = case.gives.unwrap_or_default();
            assert!(gives.starts_with("graph "), "{}: {gives}", pass.name);
            assert!(pass.to_string().contains(case.bare()), "{}", pass.name);
        }
    }
}
