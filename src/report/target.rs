//! The report of an artifact's target.

use super::{Arena, Rectangle, Report};
use crate::artifact::{Provenance, Target};
use crate::explain::Lives;
use crate::kinds::{Kind, Kinds};
use arenic_ir::Graph;
use arenic_ir::check::{Footprint, Occupancy, OccupancyKind};
use arenic_ir::program::{Command, Space};

impl Report {
    /// Of a target whose program the checker found to have this footprint.
    pub fn of_target(target: &Target, provenance: &Provenance, footprint: &Footprint) -> Report {
        let (g, p) = (&target.graph, &target.program);
        let lives = Lives::new(g, p);
        let turns: Vec<&Graph> = target.turns().iter().map(|turn| turn.graph).collect();
        let kinds = Kinds::new(&turns, target.main_turn());
        let end = p.commands.len().max(1) as i64;
        let arena = |space: Space| {
            let inside = footprint.occupancies.iter().filter(|o| o.range.space == space);
            let seen = inside.filter(|o| o.range.len > 0 && o.first < o.end);
            let rectangle = |o: &Occupancy| Rectangle {
                name: lives.name(o),
                kind: kind(target, &lives, &kinds, o).name().into(),
                ty: o.value.map_or(String::new(), |v| g.ty(v).to_string()),
                offset: o.range.offset,
                bytes: o.range.len,
                counted: o.counted_bytes,
                span: (o.first as i64, o.end as i64),
                reason: lives.reason(o).into(),
            };
            let rectangles: Vec<Rectangle> = seen.map(rectangle).collect();
            let bound = Some(target.figures.lower_bound_bytes).filter(|&bytes| bytes > 0);
            Arena {
                name: space.name(),
                bytes: footprint.arena_bytes[space],
                lower_bound: bound.filter(|_| space == Space::Device),
                span: (0, end),
                tensors: rectangles.len(),
                rectangles,
            }
        };
        let rounds =
            target.rounds.as_ref().map(|r| format!(" in each of {} micro-batches", r.count));
        let used = |space: &Space| *space == Space::Device || footprint.arena_bytes[*space] > 0;
        Report {
            title: match (provenance.model.as_str(), g.name.as_str()) {
                ("", name) => name.to_owned(),
                (model, _) => model.to_owned(),
            },
            about: format!(
                "target {}, {} operators{}, compiled by {}{}",
                target.name,
                g.nodes.len(),
                rounds.unwrap_or_default(),
                provenance.compiler,
                times(target).unwrap_or_default()
            ),
            tasks: (0..p.commands.len()).map(|i| lives.task(i)).collect(),
            arenas: Space::ALL.into_iter().filter(used).map(arena).collect(),
        }
    }
}

/// What a byte limit is predicted to cost, of a target that was compiled under one.
fn times(target: &Target) -> Option<String> {
    let seconds = |nanoseconds: Option<u64>| Some(nanoseconds? as f64 / 1e9);
    let figures = &target.figures;
    let step = seconds(figures.step_nanoseconds)?;
    let unlimited = seconds(figures.unlimited_step_nanoseconds)?;
    let percent = |seconds: f64| (seconds / unlimited - 1.0) * 100.0;
    let least = seconds(figures.step_nanoseconds_bound).filter(|_| step > unlimited);
    let least = least.map_or(String::new(), |s| format!(", at least {:+.1} %", percent(s)));
    let (ms, overhead) = (step * 1e3, percent(step));
    Some(format!("; a step is predicted to take {ms:.3} ms, overhead {overhead:+.1} %{least}"))
}

fn kind(target: &Target, lives: &Lives, kinds: &Kinds, o: &Occupancy) -> Kind {
    let copied = matches!(target.program.commands.get(o.first), Some(Command::Copy { .. }));
    match (o.kind, o.value) {
        (OccupancyKind::Value, _) if copied && lives.home(&o.range).is_some() => Kind::Update,
        (OccupancyKind::Value, _) if copied => Kind::Copy,
        (OccupancyKind::Scratch, _) | (_, None) => Kind::Scratch,
        (_, Some(v)) => kinds.of(target.graph.resolve(v).root),
    }
}
