//! Problems of placement and of order, and recordings.

use crate::files::with_file;
use arenic::report::Report;
use arenic::trace::{Iterations, Needs, read as read_trace};
use arenic::{instance, placement};
use arenic_backends::CPU;
use arenic_baselines::place_smartpool::PlaceSmartpool;
use arenic_ir::graph::Graph;
use arenic_ir::plan::Plan;
use arenic_passes::certificate::certificate;
use arenic_passes::order::definition_order_peak;
use arenic_passes::place::{Fit, Place, Placer, Problem, Wish};
use arenic_passes::place_pyramid::PlacePyramid;
use arenic_passes::{Cx, Search};

/// Problems with more buffers take too long for a fuzzer.
const MOST_BUFFERS: usize = 300;

/// Places by every method that is quick, and proves that no two buffers collide.
fn place(problem: &Problem) {
    if problem.buffers().len() > MOST_BUFFERS {
        return;
    }
    let search = Search { effort: Some(2.5e-5), ..Search::default() };
    let wish = Wish { search, ..Wish::default() };
    let methods: [&dyn Placer; 4] = [
        &Place { effort: 0.05 },
        &PlaceSmartpool { fit: Fit::First },
        &PlaceSmartpool { fit: Fit::Best },
        &PlacePyramid {},
    ];
    for method in methods {
        let solution = method.place(problem, &wish);
        assert!(solution.offsets.len() == problem.buffers().len(), "{}", solution.method);
        assert!(solution.height >= problem.bound() || solution.impossible, "{}", solution.method);
        let placed =
            problem.buffers().iter().zip(&solution.offsets).map(|(b, &offset)| {
                arenic_passes::place::Buffer { offset: Some(offset), ..b.clone() }
            });
        // Fixed offsets that collide make no problem.
        if let Err(e) = Problem::new(placed.collect()) {
            panic!("{}: {e}", solution.method);
        }
    }
}

/// `arenic place`, and `arenic report` of its result.
pub(crate) fn placement(bytes: &[u8]) -> bool {
    with_file("a.csv", bytes, |path| {
        let Ok(instance) = placement::read(path, 1) else { return false };
        place(&instance.problem);
        if let Ok(report) = Report::of_placement("a".into(), &instance) {
            report.to_html().expect("a page");
        }
        true
    })
}

/// `arenic order`, without its search.
pub(crate) fn memory_graph(bytes: &[u8]) -> bool {
    // What is packed is larger than it looks.
    if bytes.starts_with(&[0x1f, 0x8b]) {
        return false;
    }
    with_file("a.json", bytes, |path| {
        instance::read(path).is_ok_and(|instance| order(&instance.graph))
    })
}

fn order(g: &Graph) -> bool {
    if g.nodes.len() > MOST_BUFFERS {
        return false;
    }
    let cx = Cx::new(CPU.target());
    if Plan::new(g, cx.target).is_err() {
        return false;
    }
    let peak = definition_order_peak(g, &cx).expect("the peak of an order");
    let certificate = certificate(g, g.nodes.keys(), None, &cx).expect("a bound");
    let bound = certificate.bound.bytes;
    assert!(bound <= peak, "{bound} above {peak}");
    true
}

/// `arenic trace`, for either format.
pub(crate) fn trace(bytes: &[u8]) -> bool {
    with_file("a", bytes, |path| {
        let Ok(trace) = read_trace(path, None) else { return false };
        if let Ok(found) = Iterations::find(&trace, 0..trace.events.len()) {
            let needs = Needs::of_iteration(&trace, &found, trace.alignment);
            let _ = needs.plan(planned);
        }
        let _ = Needs::of_all(&trace, 512).plan(planned);
        let _ = (trace.live(512), trace.span(0..trace.events.len()));
        true
    })
}

fn planned(problem: &Problem) -> arenic_passes::place::Solution {
    place(problem);
    PlaceSmartpool { fit: Fit::Best }.place(problem, &Wish::default())
}
