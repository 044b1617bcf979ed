//! Several programs that take turns over the same arenas.
//!
//! Each is judged by itself. What one of them leaves is what another begins with if all have the
//! same states in the same homes, and nobody writes over another's constants. Inputs are fed again
//! before every turn, and nothing else lasts beyond a turn, so that any sequence of turns is safe.

use super::{Footprint, Invariant, Violation, check};
use crate::graph::{Def, Graph};
use crate::program::{Command, Program, Range};

/// Judges programs that take turns: each against its graph, and all against one another.
///
/// # Errors
/// Every violation found in the first program that has some, up to 64; if none has, those between
/// them. Messages begin with the part's place in `parts`.
pub fn check_rounds(parts: &[(&Graph, &Program)]) -> Result<Vec<Footprint>, Vec<Violation>> {
    let judged = parts.iter().enumerate().map(|(i, (g, p))| {
        check(g, p).map_err(|mut violations| {
            let name = |v: &mut Violation| v.message.insert_str(0, &format!("part {i}: "));
            violations.iter_mut().for_each(name);
            violations
        })
    });
    let footprints = judged.collect::<Result<Vec<_>, _>>()?;
    check_turns(parts)?;
    Ok(footprints)
}

/// Judges against one another programs that [`check`] has accepted: whether they may take turns.
///
/// # Errors
/// Every violation. Messages begin with the part's place in `parts`.
pub fn check_turns(parts: &[(&Graph, &Program)]) -> Result<(), Vec<Violation>> {
    let mut violations = Vec::new();
    let mut fail = |message: String| {
        violations.push(Violation { command: None, invariant: Invariant::Closing, message });
    };
    for (i, &(g, p)) in parts.iter().enumerate() {
        if let Some(difference) = parts.first().and_then(|&first| differ(first, (g, p))) {
            fail(format!("part {i}: {difference}"));
        }
        let constants: Vec<Range> = homes(g, p, |def| matches!(def, Def::Const(_))).collect();
        for (j, &(other, q)) in parts.iter().enumerate().filter(|&(j, _)| j != i) {
            let fed = homes(other, q, |def| !matches!(def, Def::State(_)));
            let written = q.commands.iter().flat_map(Command::written).chain(fed);
            let spoilt = |w: &Range| constants.iter().any(|c| c.overlaps(w));
            if let Some(w) = written.into_iter().find(spoilt) {
                fail(format!("part {j} uses {w}, where part {i} has a constant"));
            }
        }
    }
    if violations.is_empty() { Ok(()) } else { Err(violations) }
}

/// The homes of values of some definition.
fn homes<'a>(
    g: &'a Graph,
    p: &'a Program,
    of: impl Fn(&Def) -> bool + 'a,
) -> impl Iterator<Item = Range> + 'a {
    let defined = move |def: &Def| of(def);
    p.homes.iter().filter(move |h| defined(&g.values[h.value].def)).map(|h| h.range)
}

/// In what targets, states or homes of states differ, if they do.
fn differ(a: (&Graph, &Program), b: (&Graph, &Program)) -> Option<String> {
    if a.1.target != b.1.target {
        return Some("it is for another target than part 0".into());
    }
    if a.0.states.len() != b.0.states.len() {
        return Some(format!("{} states, part 0 has {}", b.0.states.len(), a.0.states.len()));
    }
    let home = |(g, p): (&Graph, &Program), s| {
        let enter = g.states[s].enter;
        p.homes.iter().find(|h| h.value == enter).map(|h| h.range)
    };
    a.0.states.keys().find_map(|s| {
        let (x, y) = (&a.0.states[s], &b.0.states[s]);
        let same = (&x.name, x.rows, x.carried, a.0.ty(x.enter))
            == (&y.name, y.rows, y.carried, b.0.ty(y.enter));
        if !same {
            return Some(format!("{s} is `{}`, in part 0 `{}`", y.name, x.name));
        }
        let (x, y) = (home(a, s), home(b, s));
        (x != y).then(|| format!("{s} has another home than in part 0"))
    })
}
