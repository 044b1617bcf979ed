//! Runs the command-line tool as a user would.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// A folder of its own to run arenic in.
pub(crate) struct Shell {
    pub(crate) folder: TempDir,
}

/// What a program has written.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Shell {
    /// An empty one.
    pub(crate) fn new() -> Shell {
        Shell { folder: tempfile::tempdir().unwrap() }
    }

    /// A file of the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs arenic in the folder; `@NAME` stands for a file of the repository.
    pub(crate) fn arenic(&self, arguments: &str) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// The same, not run yet.
    pub(crate) fn command(&self, arguments: &str) -> Command {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let arguments = arguments.split_whitespace().map(|a| match a.strip_prefix('@') {
            Some(file) => root.join(file).into_os_string(),
            None => a.into(),
        });
        let mut command = Command::new(env!("CARGO_BIN_EXE_arenic"));
        command.args(arguments).current_dir(self.folder.path()).env("NO_COLOR", "1");
        command
    }

    /// The command succeeds; gives the JSON that it prints.
    pub(crate) fn succeeds(&self, arguments: &str) -> Vec<Value> {
        let output = self.arenic(arguments);
        assert!(output.status.success(), "{arguments}: {}", text(&output.stderr));
        let lines = text(&output.stdout);
        lines.lines().filter_map(|l| serde_json::from_str(l).ok()).collect()
    }

    /// The command exits with the code and says all of these.
    pub(crate) fn fails(&self, arguments: &str, code: i32, says: &[&str]) {
        let output = self.arenic(arguments);
        // Reports are wrapped to the width of a terminal.
        let report = text(&output.stderr);
        let words: Vec<&str> = report.split_whitespace().filter(|w| *w != "│").collect();
        let said = words.join(" ");
        assert_eq!(output.status.code(), Some(code), "{arguments}: {said}");
        for part in says {
            assert!(said.contains(part), "{arguments}: {said}");
        }
        assert!(!said.contains("panicked"), "{said}");
    }
}
