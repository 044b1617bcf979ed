//! Random small problems against all their orders.

use super::branch::branch;
use super::improve::CERTIFIED;
use super::limits::Meter;
use super::search::{Branch, SearchResult, within};
use super::window::window;
use super::*;
use crate::flow::Network;
use crate::mip;
use crate::search::{Budget, Deadline};
use arenic_backends::CPU;
use arenic_ir::TargetInfo;
use arenic_programs::steps::{in_definition_order, there_and_back};
use arenic_programs::{CELL, Random};
use petgraph::algo::dominators::simple_fast;
use petgraph::algo::tred::{dag_to_toposorted_adjacency_list, dag_transitive_reduction_closure};
use petgraph::algo::{kosaraju_scc, toposort};
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::IntoNeighbors;

fn random_problem(random: &mut Random, n: usize, in_place: bool) -> Problem {
    let mut tensors = Vec::new();
    let mut pairs = Vec::new();
    for v in 0..n {
        for _ in 0..1 + random.below(2) {
            let readers = (v + 1..n).filter(|_| random.below(4) == 0).collect();
            let kind = [Kind::Transient, Kind::Transient, Kind::Pinned][random.below(3)];
            let bytes = 1 + random.below(30) as u64;
            tensors.push(Tensor { bytes, producer: Some(v), readers, kind });
        }
    }
    for _ in 0..random.below(3) {
        let readers = (0..n).filter(|_| random.below(3) == 0).collect();
        let kind = [Kind::Input, Kind::Resident][random.below(2)];
        tensors.push(Tensor { bytes: random.below(30) as u64, producer: None, readers, kind });
    }
    for (y, output) in tensors.iter().enumerate().filter(|_| in_place) {
        for (x, input) in tensors.iter().enumerate() {
            if let Some(v) = output.producer
                && input.readers.contains(&v)
                && input.kind != Kind::Pinned
                && random.below(2) == 0
            {
                pairs.push((v, x, y));
            }
        }
    }
    let dependences: Vec<_> = (1..n).map(|v| (random.below(v), v)).skip(n / 2).collect();
    Problem::new(n, tensors, &dependences, &pairs).unwrap()
}

fn all_orders(p: &Problem) -> Vec<Vec<usize>> {
    let mut orders: Vec<Vec<usize>> = vec![Vec::new()];
    for _ in 0..p.len() {
        let longer = |order: &Vec<usize>| {
            let ready = (0..p.len())
                .filter(|v| !order.contains(v) && p.before[*v].iter().all(|b| order.contains(b)));
            ready.map(|v| [&order[..], &[v]].concat()).collect::<Vec<_>>()
        };
        orders = orders.iter().flat_map(longer).collect();
    }
    orders
}

/// The peak by the definition of each kind, tensor by tensor; without pairs.
fn naive_peak(p: &Problem, order: &[usize]) -> u64 {
    let mut position = vec![0; p.len()];
    order.iter().enumerate().for_each(|(i, &v)| position[v] = i);
    let alive = |i: usize| {
        let counts = |t: &&Tensor| {
            let last = t.readers.iter().map(|&r| position[r]).max();
            match (t.kind, t.producer.map(|w| position[w])) {
                (Kind::Resident, _) | (Kind::Pinned, None) => true,
                (Kind::Input, _) | (_, None) => last.is_none_or(|l| i <= l),
                (Kind::Transient, Some(w)) => w <= i && i <= last.unwrap_or(w),
                (Kind::Pinned, Some(w)) => w <= i,
            }
        };
        p.tensors.iter().filter(counts).map(|t| t.bytes).sum::<u64>()
    };
    (0..order.len()).map(alive).max().unwrap_or(0)
}

/// A random problem with all its orders and their least peak.
fn small(seed: u64) -> (Problem, Vec<Vec<usize>>, u64) {
    let mut random = Random::new(seed);
    let n = 2 + random.below(6);
    let p = random_problem(&mut random, n, seed.is_multiple_of(2));
    let orders = all_orders(&p);
    let optimum = orders.iter().map(|o| p.peak(o)).min().unwrap();
    (p, orders, optimum)
}

fn quiet(_: &Progress) {}

fn meter(steps: u64) -> Meter<'static> {
    Meter::new(Limits { steps, deadline: Deadline::default(), seed: 0 })
}

#[test]
fn cuts_are_exact_for_their_operator_and_below_every_peak() {
    let mut proved = 0;
    for seed in 0..3000 {
        let (p, orders, optimum) = small(seed);
        for v in 0..p.len() {
            let at_v = |o: &Vec<usize>| p.profile(o)[o.iter().position(|&w| w == v).unwrap()];
            let least = orders.iter().map(at_v).min().unwrap();
            let cut = Network::default().cut(&p, v, &vec![0; p.len()], &mut u64::MAX.clone());
            assert!(cut.bound <= least, "seed {seed}");
            if !seed.is_multiple_of(2) {
                assert_eq!(cut.bound, least, "seed {seed}, operator {v}");
                orders.iter().for_each(|o| assert_eq!(p.peak(o), naive_peak(&p, o)));
            }
            let tensors = p.bytes(&cut.tensors);
            assert_eq!(cut.bound, p.resident + p.own(v) + tensors, "seed {seed}");
        }
        let candidates = portfolio(&p);
        for OrderCandidate { method, order, peak } in &candidates {
            assert!(orders.contains(order), "seed {seed}: {method} gives no order");
            assert_eq!(p.peak(order), *peak);
            // Whatever order points the way, the certificate holds.
            let certificate = certify(&p, order);
            assert!(certificate.bound <= optimum, "seed {seed}");
            let own = certificate.operator.map_or(0, |v| p.own(v));
            if certificate.operator.is_some() {
                let cut = p.bytes(&certificate.tensors);
                assert_eq!(certificate.bound, p.resident + own + cut, "seed {seed}");
            }
        }
        let at_once = solve(&p, &candidates, &Limits::new(0.0, 0, Deadline::default()), &quiet);
        assert!(at_once.certificate.bound <= optimum && optimum <= at_once.peak);
        proved += usize::from(at_once.is_optimal());
    }
    assert!(proved > 1500, "{proved} of 3000 proved by cuts alone");
}

#[test]
fn the_search_finds_the_optimum_and_proves_it() {
    for seed in 0..3000 {
        let (p, orders, optimum) = small(seed);
        let solution =
            solve(&p, &portfolio(&p), &Limits::new(1.0, seed, Deadline::default()), &quiet);
        assert!(orders.contains(&solution.order), "seed {seed}");
        assert_eq!(p.peak(&solution.order), solution.peak);
        assert_eq!((solution.peak, solution.certificate.bound), (optimum, optimum), "seed {seed}");
    }
}

#[test]
fn budgets_are_met_exactly_where_they_can_be() {
    for seed in 0..3000 {
        let (p, orders, optimum) = small(seed);
        let rank: Vec<usize> = (0..p.len()).collect();
        for branch in [Branch::Gain, Branch::Rank, Branch::Allocation] {
            match within(&p, optimum, branch, &rank, u64::MAX / 2, &mut meter(u64::MAX)) {
                SearchResult::Order(o) => assert!(orders.contains(&o) && p.peak(&o) == optimum),
                found => panic!("seed {seed}: {found:?}"),
            }
            let below = within(&p, optimum - 1, branch, &rank, u64::MAX / 2, &mut meter(u64::MAX));
            assert_eq!(below, SearchResult::Nothing, "seed {seed}");
        }
    }
}

#[test]
fn branching_ends_at_the_optimum_or_keeps_a_bound() {
    let mut closed = 0;
    for seed in 0..3000 {
        let (p, orders, optimum) = small(seed);
        let order = schedule(&p, Rule::Definition, false, &vec![0; p.len()]);
        let bound = certify(&p, &order).bound;
        let found = branch(&p, &order, bound, u64::MAX / 2, &mut meter(u64::MAX));
        assert!(bound <= found.bound && found.bound <= optimum, "seed {seed}");
        if let Some((peak, better)) = found.better {
            assert!(orders.contains(&better) && p.peak(&better) == peak && peak < p.peak(&order));
            closed += usize::from(peak == found.bound);
        } else {
            closed += usize::from(p.peak(&order) == found.bound);
        }
    }
    assert!(closed > 2800, "{closed} of 3000 closed");
}

#[test]
fn windows_are_measured_as_the_whole() {
    for seed in 0..2000 {
        let (p, orders, _) = small(seed);
        let order = &orders[seed as usize % orders.len()];
        let profile = p.profile(order);
        for start in 0..p.len() {
            for end in start + 1..=p.len() {
                let sub = window(&p, order, &(start..end)).unwrap();
                let identity: Vec<usize> = (0..sub.len()).collect();
                assert_eq!(sub.profile(&identity), profile[start..end], "seed {seed}");
                for inner in all_orders(&sub) {
                    let moved = inner.iter().map(|&i| order[start + i]);
                    let whole: Vec<usize> = order[..start]
                        .iter()
                        .copied()
                        .chain(moved)
                        .chain(order[end..].iter().copied())
                        .collect();
                    assert!(p.is_order(&whole));
                    assert_eq!(p.profile(&whole)[start..end], sub.profile(&inner), "seed {seed}");
                }
            }
        }
    }
}

#[test]
fn fixed_positions_are_those_of_operators_comparable_with_all_others() {
    for seed in 0..2000 {
        let (p, orders, _) = small(seed);
        let fixed = p.fixed_positions();
        for at in 0..p.len() {
            let first: Vec<usize> = orders[0][..at].to_vec();
            let always = orders
                .iter()
                .all(|o| o[at] == orders[0][at] && o[..at].iter().all(|v| first.contains(v)));
            assert_eq!(fixed.contains(&at), always, "seed {seed}, position {at}");
        }
    }
}

/// The dependences as another library's graph, from tensors and pairs as they were given.
fn dependences(p: &Problem, pairs: &[(usize, usize)]) -> DiGraph<(), ()> {
    let mut graph = DiGraph::new();
    for _ in 0..p.len() {
        graph.add_node(());
    }
    let of_tensors = p
        .tensors
        .iter()
        .flat_map(|t| t.producer.into_iter().flat_map(|w| t.readers.iter().map(move |&r| (w, r))));
    for (a, b) in of_tensors.chain(pairs.iter().copied()) {
        graph.update_edge(NodeIndex::new(a), NodeIndex::new(b), ());
    }
    graph
}

/// A problem of more operators than have all their orders listed, with its dependences.
fn large(seed: u64) -> (Problem, DiGraph<(), ()>) {
    let mut random = Random::new(seed);
    let n = 8 + random.below(32);
    let mut tensors = Vec::new();
    for v in 0..n {
        // Few readers, so that there are bottlenecks.
        let readers = (v + 1..n.min(v + 4)).filter(|_| random.below(2) == 0).collect();
        let bytes = 1 + random.below(30) as u64;
        tensors.push(Tensor { bytes, producer: Some(v), readers, kind: Kind::Transient });
    }
    let pairs: Vec<_> = (1..n).filter(|_| random.below(2) == 0).map(|v| (v - 1, v)).collect();
    let p = Problem::new(n, tensors, &pairs, &[]).unwrap();
    let graph = dependences(&p, &pairs);
    (p, graph)
}

#[test]
fn orders_are_topological_by_another_library() {
    for seed in 0..300 {
        let (p, graph) = large(seed);
        let theirs: Vec<usize> =
            toposort(&graph, None).unwrap().iter().map(|v| v.index()).collect();
        assert!(p.is_order(&theirs), "seed {seed}");
        let solution =
            solve(&p, &portfolio(&p), &Limits::new(0.001, seed, Deadline::default()), &quiet);
        let ours = portfolio(&p).into_iter().map(|c| c.order).chain([solution.order]);
        for order in ours {
            let mut position = vec![usize::MAX; p.len()];
            order.iter().enumerate().for_each(|(i, &v)| position[v] = i);
            assert!(order.len() == p.len() && !position.contains(&usize::MAX), "seed {seed}");
            for edge in graph.raw_edges() {
                let (a, b) = (edge.source().index(), edge.target().index());
                assert!(position[a] < position[b], "seed {seed}: {a} before {b}");
                let mut wrong = order.clone();
                wrong.swap(position[a], position[b]);
                assert!(!p.is_order(&wrong), "seed {seed}: {b} before {a}");
            }
        }
    }
}

#[test]
fn cycles_are_those_of_another_library() {
    let mut cyclic = 0;
    for seed in 0..1000 {
        let mut random = Random::new(seed);
        let n = 2 + random.below(12);
        let pairs: Vec<_> =
            (0..=random.below(n)).map(|_| (random.below(n), random.below(n))).collect();
        let empty = Problem::new(n, Vec::new(), &[], &[]).unwrap();
        let graph = dependences(&empty, &pairs);
        match Problem::new(n, Vec::new(), &pairs, &[]) {
            Ok(_) => assert!(toposort(&graph, None).is_ok(), "seed {seed}"),
            Err(Invalid::Cycle(v)) => {
                let v = NodeIndex::new(v);
                let around = kosaraju_scc(&graph).into_iter().find(|c| c.contains(&v)).unwrap();
                assert!(around.len() > 1 || graph.contains_edge(v, v), "seed {seed}");
                cyclic += 1;
            }
            Err(Invalid::TooLarge) => panic!("seed {seed}"),
        }
    }
    assert!((100..900).contains(&cyclic), "{cyclic}");
}

/// An operator is comparable with all others where every path from the first operators to the last
/// ones leads through it, if no edge stands for a longer path: it dominates the end.
#[test]
fn fixed_positions_are_dominators_by_another_library() {
    let mut found = 0;
    for seed in 0..1000 {
        let (p, graph) = large(seed);
        let sorted = toposort(&graph, None).unwrap();
        let (list, place) = dag_to_toposorted_adjacency_list::<_, u32>(&graph, &sorted);
        let (reduced, closure) = dag_transitive_reduction_closure(&list);
        let mut whole: DiGraph<(), ()> = DiGraph::new();
        for _ in 0..p.len() + 2 {
            whole.add_node(());
        }
        let (start, end) = (NodeIndex::new(p.len()), NodeIndex::new(p.len() + 1));
        let mut ends = vec![[true; 2]; p.len()];
        for a in reduced.node_indices() {
            for b in (&reduced).neighbors(a) {
                whole.add_edge(NodeIndex::new(a as usize), NodeIndex::new(b as usize), ());
                (ends[a as usize][1], ends[b as usize][0]) = (false, false);
            }
        }
        for (v, [first, last]) in ends.into_iter().enumerate() {
            if first {
                whole.add_edge(start, NodeIndex::new(v), ());
            }
            if last {
                whole.add_edge(NodeIndex::new(v), end, ());
            }
        }
        let all = simple_fast(&whole, start);
        let through = all.strict_dominators(end).unwrap().filter(|&v| v != start);
        // What reaches such an operator comes before it, and nothing else does.
        let mut wanted: Vec<usize> = through
            .map(|v| {
                let reaches = |&a: &u32| (&closure).neighbors(a).any(|b| b as usize == v.index());
                closure.node_indices().filter(reaches).count()
            })
            .collect();
        wanted.sort_unstable();
        let mut ours = p.fixed_positions();
        ours.sort_unstable();
        assert_eq!(ours, wanted, "seed {seed}");
        found += ours.len();
        // The integer programs let an operator run after all that reaches it, before all it reaches.
        let order: Vec<usize> = sorted.iter().map(|v| v.index()).collect();
        for (v, (first, last)) in lifetime::spans(&p, &order).into_iter().enumerate() {
            let at = place[v];
            let before =
                closure.node_indices().filter(|&a| (&closure).neighbors(a).any(|b| b == at));
            let after = (&closure).neighbors(at).count();
            assert_eq!((first, last), (before.count(), p.len() - 1 - after), "seed {seed}");
        }
    }
    assert!(found > 1000, "{found}");
}

/// Problems that the integer program is tried on.
const PROGRAMS: u64 = 2000;

#[test]
fn the_integer_program_finds_the_optimum() {
    for seed in 0..PROGRAMS {
        let (p, orders, optimum) = small(seed);
        // From a bad start, so that the program has something to do.
        let worst = orders.iter().max_by_key(|o| p.peak(o)).unwrap();
        let budget = Budget::new(60.0, Deadline::default());
        let limits = mip::Limits::new(&budget, seed);
        let found = lifetime::solve(&p, worst, &limits, &mut |_, _| {}).unwrap();
        assert!(orders.contains(&found.order), "seed {seed}");
        assert!(found.proved, "seed {seed}");
        assert_eq!((found.peak, p.peak(&found.order)), (optimum, optimum), "seed {seed}");
    }
}

/// A solution within the gap asked for is not called optimal unless it is.
#[test]
fn a_gap_proves_nothing() {
    for seed in 0..PROGRAMS / 4 {
        let (p, orders, optimum) = small(seed);
        let worst = orders.iter().max_by_key(|o| p.peak(o)).unwrap();
        let budget = Budget::new(60.0, Deadline::default());
        let loose = mip::Limits { gap: 10.0, ..mip::Limits::new(&budget, seed) };
        let found = lifetime::solve(&p, worst, &loose, &mut |_, _| {}).unwrap();
        assert!(found.bound <= optimum && optimum <= found.peak, "seed {seed}");
        assert!(!found.proved || found.peak == optimum, "seed {seed}");
    }
}

#[test]
fn a_stop_keeps_the_incumbent() {
    let stop = std::sync::atomic::AtomicBool::new(true);
    for seed in 0..200 {
        let (p, orders, optimum) = small(seed);
        let solution =
            solve(&p, &portfolio(&p), &Limits::new(10.0, 0, Deadline::at_stop(&stop)), &quiet);
        assert!(orders.contains(&solution.order) && solution.certificate.bound <= optimum);
    }
}

/// Two searches and the report have one certificate.
#[test]
fn an_order_is_certified_once() {
    let text = there_and_back(&mut fastrand::Rng::with_seed(3), 8);
    let (g, mut plan) = in_definition_order(&text);
    let cx = Cx::new(TargetInfo { align: CELL, ..CPU.target() });
    CERTIFIED.take();
    let outcome = Order::default().run(&g, &mut plan, &cx).unwrap();
    let whole = CERTIFIED.take().into_iter().filter(|&operators| operators == plan.tasks.len());
    assert_eq!(whole.count(), 1);
    let bound = outcome.bound.unwrap();
    let order = plan.order().unwrap().iter().filter_map(|&t| match plan.tasks[t].kind {
        TaskKind::Run(node) => Some(node),
        _ => None,
    });
    assert_eq!(bound.by_cut, crate::certificate::bound(&g, order, &cx).unwrap().by_cut);
}
