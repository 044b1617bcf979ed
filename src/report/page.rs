//! The page: its parts, and the report as data in it.

use super::{Arena, Report};
use serde::{Serialize, Serializer};
use std::collections::HashMap;

/// Parts in between `@` stand for something else.
const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = concat!(
    include_str!("page/data.js"),
    include_str!("page/view.js"),
    include_str!("page/map.js"),
    include_str!("page/curve.js"),
    include_str!("page/panel.js"),
    include_str!("page/page.js"),
);

impl Report {
    /// One page that needs nothing else, and whose policy forbids it to ask for anything.
    /// The same report gives the same page.
    ///
    /// # Errors
    /// The JSON writer fails, for which the data give no reason.
    pub fn to_html(&self) -> serde_json::Result<String> {
        let arenas = self.arenas.iter().map(Columns::of).collect();
        let data = Data { title: &self.title, about: &self.about, tasks: &self.tasks, arenas };
        // In JSON `<` is only ever part of a string. Without it nothing in there can end the
        // element or open a comment.
        let data = serde_json::to_string(&data)?.replace('<', "\\u003c");
        // Scripts run if they know this digest. Names, which the digest covers, cannot.
        let nonce = blake3::hash(data.as_bytes()).to_hex();
        let mut page = String::with_capacity(data.len() + (1 << 16));
        for part in PAGE.split('@') {
            page.push_str(match part {
                "NONCE" => &nonce,
                "STYLE" => STYLE,
                "DATA" => &data,
                "SCRIPT" => SCRIPT,
                text => text,
            });
        }
        Ok(page)
    }
}

#[derive(Serialize)]
struct Data<'a> {
    title: &'a str,
    about: &'a str,
    tasks: &'a [String],
    arenas: Vec<Columns<'a>>,
}

/// An arena by columns, which is smaller and sooner read than an object for each rectangle.
/// Kinds, types and reasons, which come again and again, are numbers of entries in tables.
#[derive(Serialize)]
struct Columns<'a> {
    name: &'a str,
    bytes: Exact,
    lower_bound: Option<Exact>,
    /// The first position; all others are counted from there, so that drawing is exact.
    first: Exact,
    length: Exact,
    tensors: usize,
    kinds: Vec<&'a str>,
    types: Vec<&'a str>,
    reasons: Vec<&'a str>,
    names: Vec<&'a str>,
    kind: Vec<usize>,
    ty: Vec<usize>,
    reason: Vec<usize>,
    offset: Vec<Exact>,
    size: Vec<Exact>,
    counted: Vec<Exact>,
    start: Vec<Exact>,
    stop: Vec<Exact>,
    live_at: Vec<Exact>,
    live: Vec<Exact>,
}

impl<'a> Columns<'a> {
    fn of(arena: &'a Arena) -> Columns<'a> {
        let all = &arena.rectangles;
        let (kinds, kind) = table(all.iter().map(|r| &*r.kind));
        let (types, ty) = table(all.iter().map(|r| r.ty.as_str()));
        let (reasons, reason) = table(all.iter().map(|r| &*r.reason));
        let live = arena.live();
        let since = |at: i64| Exact(i128::from(at) - i128::from(arena.span.0));
        Columns {
            name: arena.name,
            bytes: arena.bytes.into(),
            lower_bound: arena.lower_bound.map(Exact::from),
            first: arena.span.0.into(),
            length: since(arena.span.1),
            tensors: arena.tensors,
            kinds,
            types,
            reasons,
            names: all.iter().map(|r| r.name.as_str()).collect(),
            kind,
            ty,
            reason,
            offset: all.iter().map(|r| r.offset.into()).collect(),
            size: all.iter().map(|r| r.bytes.into()).collect(),
            counted: all.iter().map(|r| r.counted.into()).collect(),
            start: all.iter().map(|r| since(r.span.0)).collect(),
            stop: all.iter().map(|r| since(r.span.1)).collect(),
            live_at: live.iter().map(|&(at, _)| since(at)).collect(),
            live: live.iter().map(|&(_, bytes)| bytes.into()).collect(),
        }
    }
}

/// The distinct texts in order of appearance, and which each one is.
fn table<'a>(texts: impl Iterator<Item = &'a str>) -> (Vec<&'a str>, Vec<usize>) {
    let mut index: HashMap<&str, usize> = HashMap::new();
    let mut distinct = Vec::new();
    let number = |text: &'a str| {
        *index.entry(text).or_insert_with(|| {
            distinct.push(text);
            distinct.len() - 1
        })
    };
    let numbers = texts.map(number).collect();
    (distinct, numbers)
}

/// An integer that keeps all its digits: where JavaScript's numbers cannot hold it, a string.
#[derive(Clone, Copy, Debug)]
struct Exact(i128);

const MAX_SAFE: i128 = (1 << 53) - 1;

impl<N: Into<i128>> From<N> for Exact {
    fn from(n: N) -> Exact {
        Exact(n.into())
    }
}

impl Serialize for Exact {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if (-MAX_SAFE..=MAX_SAFE).contains(&self.0) {
            s.serialize_i64(self.0 as i64)
        } else {
            s.collect_str(&self.0)
        }
    }
}
