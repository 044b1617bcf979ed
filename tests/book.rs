//! The book, and the pages beside it. The reference of commands is what the parser says, and every link leads to a file.
//!
//! `UPDATE_PAGE=1 cargo test --workspace --locked --test book` writes the reference.

use std::fs;
use std::path::{Path, PathBuf};

/// Pages outside of the book that link to it or to one another.
const OTHERS: [&str; 6] = [
    "README.md",
    "ARCHITECTURE.md",
    "BENCHMARKS.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "python/README.md",
];

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The files that a page links to, and those that it includes, as paths from the page's folder.
fn linked(text: &str) -> Vec<&str> {
    let links = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    let included =
        text.split("{{#include ").skip(1).filter_map(|rest| rest.split([':', '}']).next());
    links.chain(included).filter(|path| !path.is_empty() && !path.contains("://")).collect()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The pages of the book, in its order.
fn pages() -> Vec<PathBuf> {
    let folder = root("docs/src");
    linked(&read(&folder.join("SUMMARY.md"))).into_iter().map(|page| folder.join(page)).collect()
}

#[test]
fn every_link_leads_to_a_file() {
    let mut seen = 0;
    for page in pages().into_iter().chain(OTHERS.map(root)) {
        for path in linked(&read(&page)) {
            let file = page.parent().unwrap().join(path);
            assert!(file.exists(), "{}: there is no {path}", page.display());
            seen += 1;
        }
    }
    assert!(seen > 40, "{seen} links");
}

#[test]
fn every_page_is_in_the_summary() {
    let listed = pages();
    for entry in fs::read_dir(root("docs/src")).unwrap() {
        let path = entry.unwrap().path();
        let is_page = path.extension().is_some_and(|e| e == "md") && !path.ends_with("SUMMARY.md");
        assert!(!is_page || listed.contains(&path), "{} is in no chapter", path.display());
    }
}

#[test]
fn the_reference_of_commands_is_what_the_parser_says() {
    let options = clap_markdown::MarkdownOptions::new()
        .title("Commands".into())
        .show_footer(false)
        .show_table_of_contents(false);
    let text = clap_markdown::help_markdown_command_custom(&arenic::cli::command(), &options);
    let page = root("docs/src/commands.md");
    if std::env::var_os("UPDATE_PAGE").is_some() {
        fs::write(&page, &text).unwrap();
    }
    assert!(read(&page) == text, "write {} anew, by UPDATE_PAGE=1", page.display());
}
