//! A page that shows what lies where in an arena, and when: `arenic report`.
//!
//! [`Report::of_target`] and [`Report::of_placement`] collect it, [`Report::to_html`] makes one
//! self-contained page of it. Of an artifact, `kinds` says what tensors are for, `explain::life` why they are
//! alive, and the checker how many bytes that is.

mod page;
mod placed;
mod target;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

pub use placed::Unplaced;

/// What a page shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Of what: the model, or the file.
    pub title: String,
    /// How it came about, in words.
    pub about: String,
    /// What happens at each position from 0 on; empty where nobody knows.
    pub tasks: Vec<String>,
    /// One arena for each memory space that is used.
    pub arenas: Vec<Arena>,
}

/// One arena over the time of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arena {
    /// The memory space.
    pub name: &'static str,
    /// Size in bytes.
    pub bytes: u64,
    /// What no order of the graph (or no placement) takes less than, where that is known.
    pub lower_bound: Option<u64>,
    /// First position, and one past the last.
    pub span: (i64, i64),
    /// Number of tensors; one may need several rectangles.
    pub tensors: usize,
    /// Later ones are drawn over earlier ones.
    pub rectangles: Vec<Rectangle>,
}

/// Bytes in use for a time without interruption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rectangle {
    /// Name of the tensor.
    pub name: String,
    /// What it is for.
    pub kind: Cow<'static, str>,
    /// Its type; empty where nobody knows.
    pub ty: String,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// What it adds to the live bytes: more than its bytes where these are rounded up, less
    /// where they are counted already.
    pub counted: u64,
    /// First position, and one past the last.
    pub span: (i64, i64),
    /// Why it is alive.
    pub reason: Cow<'static, str>,
}

impl Arena {
    /// The live bytes: positions at which something begins or ends, from the first position
    /// on, with the sum from there on.
    pub fn live(&self) -> Vec<(i64, u64)> {
        let mut changes: Vec<(i64, i64)> = vec![(self.span.0, 0), (self.span.1, 0)];
        for r in &self.rectangles {
            changes.extend([(r.span.0, r.counted as i64), (r.span.1, -(r.counted as i64))]);
        }
        changes.sort_unstable();
        let mut live = 0;
        let sum = |at: &[(i64, i64)]| {
            live += at.iter().map(|(_, change)| change).sum::<i64>();
            (at[0].0, live as u64)
        };
        changes.chunk_by(|a, b| a.0 == b.0).map(sum).collect()
    }

    /// The most live bytes, and where they are first reached.
    pub fn peak(&self) -> (i64, u64) {
        let first = (self.span.0, 0);
        self.live().into_iter().fold(first, |peak, at| if at.1 > peak.1 { at } else { peak })
    }
}
