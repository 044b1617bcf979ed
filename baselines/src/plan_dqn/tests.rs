use super::actions::World;
use super::episode::{Episode, NOTHING, State};
use super::events::{EventKind, Events};
use super::learner::{Learner, Network, Programs};
use super::network::Shape;
use super::train::Agent;
use super::*;
use arenic_backends::CPU;
use arenic_ir::TargetInfo;
use arenic_ir::cost::Device;
use arenic_passes::limit::keep_limit;
use arenic_passes::residency::{Gap, Idle, Timeline};
use arenic_passes::share_in_place::ShareInPlace;
use arenic_passes::tail::Tail;
use arenic_passes::{Cx, PlanPass, Search};
use arenic_programs::CELL;
use arenic_programs::steps::{device, in_definition_order, there_and_back};

/// v1 lies idle while v2 is made and read: unary operators take 32 seconds, the binary one 48.
const NESTED: &str = r#"graph "nested" {
  input v0: f32[4] "x"
  n0 unary {"f":"exp"} (v0) -> (v1: f32[4])
  n1 unary {"f":"exp"} (v1) -> (v2: f32[4])
  n2 unary {"f":"exp"} (v2) -> (v3: f32[4])
  n3 binary {"f":"mul"} (v3, v1) -> (v4: f32[4] "y")
  output "y" v4
}
"#;

/// v1 lies idle while v3, twice as large, is made and read; x stays.
const WIDE: &str = r#"graph "wide" {
  input v0: f32[4] "x"
  n0 unary {"f":"exp"} (v0) -> (v1: f32[4])
  n1 slice {"starts":[0],"steps":[1],"shape":[1]} (v1) -> (v2: f32[1])
  n2 expand {"shape":[8]} (v2) -> (v3: f32[8])
  n3 reduce {"f":"sum","axes":[0],"keep":true} (v3) -> (v4: f32[1])
  n4 binary {"f":"mul"} (v4, v1) -> (v5: f32[4] "y")
  output "y" v5
  output "x again" v0
}
"#;

fn with_timeline(text: &str, device: &Device, judge: impl FnOnce(&Timeline)) {
    let (g, mut plan) = in_definition_order(text);
    ShareInPlace { enabled: true }
        .run(&g, &mut plan, &Cx::new(TargetInfo { align: 4, ..CPU.target() }))
        .unwrap();
    judge(&Timeline::new(&g, &plan, device).unwrap());
}

fn small() -> PlanDqn {
    PlanDqn { episodes: 8, smallest: 0.0, ..PlanDqn::default() }
}

/// The tensor of v1: the one that its task makes first.
fn v1(t: &Timeline) -> usize {
    (0..t.tensors.len()).find(|&x| t.tensors[x].producer == Some(t.order[0])).unwrap()
}

#[test]
fn nodes_are_events_in_time_and_edges_weigh_their_lags() {
    with_timeline(NESTED, &device(1.0), |t| {
        let x = v1(t);
        let home = (0..t.tensors.len()).find(|&x| t.tensors[x].homed).unwrap();
        let events = Events::new(t, &[home, x], 100);
        let of = |tensor, kind, position, time| (tensor, kind, position, time);
        let found: Vec<_> =
            events.nodes.iter().map(|e| of(e.tensor, e.kind, e.position, e.time)).collect();
        let expected = [
            of(None, EventKind::Start, 0, 0.0),
            of(Some(x), EventKind::Malloc, 0, 0.0),
            of(Some(home), EventKind::Read, 0, 0.0),
            of(Some(x), EventKind::Write, 0, 32.0),
            of(Some(x), EventKind::Read, 1, 32.0),
            of(Some(x), EventKind::Read, 3, 96.0),
            of(Some(x), EventKind::Free, 3, 144.0),
        ];
        assert_eq!(found, expected);
        // Consecutive events of one tensor are joined as those of one tensor are.
        assert_eq!(events.beside, [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)]);
        assert_eq!(events.group[1], events.group[6]);
        // v1's events are at 0, 32, 32, 96 and 144; the home's read is 32 before the write.
        let all = [0.0, 32.0 + 32.0 + 96.0 + 144.0, 32.0, 32.0 + 64.0 + 112.0 + 32.0];
        assert_eq!(events.lag[..4], all);
        // No more nodes than allowed: the second tensor is left out.
        assert_eq!(Events::new(t, &[home, x], 6).nodes.len(), 2);
    });
}

#[test]
fn every_node_stands_for_one_action() {
    with_timeline(NESTED, &device(2.0), |t| {
        let device = device(2.0);
        let world = World::new(t, &device, 100, 0);
        let mut nodes: Vec<usize> = world.actions.iter().map(|a| a.node).collect();
        nodes.dedup();
        assert_eq!(nodes.len(), world.actions.len());
        assert!(!nodes.contains(&NOTHING));
        let x = v1(t);
        let of_v1: Vec<_> = world.actions.iter().filter(|a| a.absence.tensor == x).collect();
        let [drop, swap] = of_v1[..] else { panic!("{of_v1:?}") };
        assert!(drop.drops && !swap.drops && drop.absence == swap.absence);
        assert_eq!(swap.absence.idle, Idle::Between(1));
        // It goes to host memory by its read, and is dropped by its malloc: 16 bytes, 8 seconds
        // each way, 32 to make it, until the next event 64 and 32 of the longest 64.
        assert_eq!(world.events.nodes[swap.node].kind, EventKind::Read);
        assert_eq!(world.events.nodes[drop.node].kind, EventKind::Malloc);
        assert_eq!(world.features[swap.node], [1.0, 1.0, 1.0, 1.0, 1.0]);
        assert_eq!(world.features[drop.node], [1.0, 1.0, 1.0, 0.5, -1.0]);
        assert_eq!(world.features[NOTHING], [0.0; 5]);
    });
}

#[test]
fn rewards_are_what_actions_add_to_the_step() {
    with_timeline(WIDE, &device(2.0), |t| {
        let device = device(2.0);
        let world = World::new(t, &device, 100, 0);
        let peak = t.live.iter().copied().max().unwrap();
        let mut episode = Episode::new(&world, peak);
        assert_eq!(episode.begin(), None);
        let limit = peak - 16;
        let mut episode = Episode::new(&world, limit);
        for drops in [true, false] {
            let mut state = episode.begin();
            let mut rewards = 0.0;
            while let Some(now) = state {
                let wanted = |v: &usize| {
                    let action = world.actions.iter().find(|a| a.node == *v);
                    action.is_some_and(|a| a.drops == drops && a.absence.tensor == v1(t))
                };
                let action = now.actions().find(wanted).unwrap_or(NOTHING);
                assert!(now.valid[action], "{now:?}");
                let (reward, next) = episode.act(action).unwrap();
                rewards += reward;
                state = next;
            }
            let (choice, promise) = episode.result();
            assert_eq!(promise.over, 0);
            let chosen = choice.gaps.iter().copied().filter(|&gap| gap != Gap::Keep);
            let gap = if drops { Gap::Repeat { hold: true } } else { Gap::Swap { hold: false } };
            assert!(chosen.eq([gap]), "{choice:?}");
            // Dropped, it takes its task's seconds again.
            let step = t.start[t.order.len()];
            if drops {
                assert_eq!(promise.seconds, step + t.seconds(0));
            }
            let overhead = promise.seconds / step - 1.0;
            assert!((rewards + 10.0 * overhead).abs() < 1e-9, "{rewards} {overhead}");
        }
    });
}

/// Rows times a matrix.
fn product(rows: &[Vec<f32>], weight: &[f32]) -> Vec<Vec<f32>> {
    let columns = weight.len() / rows[0].len();
    let entry =
        |row: &[f32], j| row.iter().enumerate().map(|(i, x)| x * weight[i * columns + j]).sum();
    rows.iter().map(|row| (0..columns).map(|j| entry(row, j)).collect()).collect()
}

fn relu(rows: &[Vec<f32>]) -> Vec<Vec<f32>> {
    rows.iter().map(|row| row.iter().map(|x| x.max(0.0)).collect()).collect()
}

fn sum(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// Equations 1 to 3, edge by edge: what each node's action is worth.
fn worth_by_edges(world: &World, state: &State, shape: Shape, network: &Network) -> Vec<f32> {
    let w = |name| network.weight(name);
    let events = &world.events;
    let n = events.nodes.len();
    let end = events.nodes[n - 1].time;
    let mut edges =
        events.beside.iter().map(|&(a, b)| [a as usize, b as usize]).collect::<Vec<_>>();
    let apart = |&[a, b]: &[usize; 2]| (events.nodes[a].time - events.nodes[b].time).abs() / end;
    let pairs = (0..n).flat_map(|a| (0..n).map(move |b| [a, b]));
    edges.extend(pairs.filter(|&[a, b]| a != b && events.group[a] == events.group[b]));
    let own: Vec<Vec<f32>> = (0..n)
        .map(|v| {
            let features = world.features[v].iter().copied();
            let features: Vec<f32> =
                features.chain([f32::from(u8::from(state.valid[v]))]).collect();
            let mut lags = vec![0.0; shape.embedding];
            for edge in edges.iter().filter(|edge| edge[0] == v) {
                let lag = relu(&product(&[vec![apart(edge) as f32]], &w("lag")));
                lags = sum(&lags, &product(&lag, &w("lags"))[0]);
            }
            sum(&product(&[features], &w("features"))[0], &lags)
        })
        .collect();
    let mut vectors = relu(&own);
    for _ in 1..shape.rounds {
        let heard: Vec<Vec<f32>> = (0..n)
            .map(|v| {
                let near = edges.iter().filter(|edge| edge[0] == v).map(|edge| &vectors[edge[1]]);
                near.fold(vectors[v].clone(), |all, one| sum(&all, one))
            })
            .collect();
        let heard = product(&heard, &w("neighbours"));
        vectors = relu(&own.iter().zip(&heard).map(|(a, b)| sum(a, b)).collect::<Vec<_>>());
    }
    let total = vectors.iter().fold(vec![0.0; shape.embedding], |all, one| sum(&all, one));
    let mean = total.iter().map(|x| x / n as f32).collect();
    let mut graph = product(&[mean], &w("whole")).remove(0);
    graph.extend(product(&[vectors[state.current].clone()], &w("current")).remove(0));
    let of_graph = product(&relu(&[graph]), &w("of_graph"))[0][0];
    let of_actions = product(&relu(&product(&vectors, &w("action"))), &w("of_action"));
    of_actions.iter().map(|row| row[0] + of_graph).collect()
}

#[test]
fn the_network_is_what_the_equations_say() {
    with_timeline(NESTED, &device(2.0), |t| {
        let device = device(2.0);
        let world = World::new(t, &device, 100, 0);
        let peak = t.live.iter().copied().max().unwrap();
        let state = Episode::new(&world, peak - 16).begin().unwrap();
        for rounds in 1..4 {
            let shape = Shape { embedding: 5, rounds };
            let mut network = Network::new(shape, 0.01, &mut fastrand::Rng::with_seed(7));
            let expected = worth_by_edges(&world, &state, shape, &network);
            let programs = Programs::new(&world, &network, 1).unwrap();
            let mut learner = Learner::new(&programs, &mut network).unwrap();
            let found = learner.all(&state).unwrap();
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                assert!((found - expected).abs() < 1e-5 * expected.abs().max(1.0));
            }
        }
    });
}

#[test]
fn the_network_learns_what_actions_are_worth() {
    with_timeline(NESTED, &device(2.0), |t| {
        let device = device(2.0);
        let world = World::new(t, &device, 100, 0);
        let peak = t.live.iter().copied().max().unwrap();
        let state = Episode::new(&world, peak - 16).begin().unwrap();
        let shape = Shape { embedding: 8, rounds: 4 };
        let mut network = Network::new(shape, 0.01, &mut fastrand::Rng::with_seed(1));
        let actions: Vec<usize> = state.actions().collect();
        assert!(actions.len() > 1, "{state:?}");
        let programs = Programs::new(&world, &network, actions.len()).unwrap();
        for best in [actions[0], actions[actions.len() - 1]] {
            // Another learner goes on with what the first one learned.
            let mut learner = Learner::new(&programs, &mut network).unwrap();
            let worth = |&a: &usize| (&*state, a, if a == best { -1.0 } else { -3.0 });
            let samples: Vec<_> = actions.iter().map(worth).collect();
            for _ in 0..200 {
                learner.learn(&samples).unwrap();
            }
            assert_eq!(learner.best(&state).unwrap(), Some(best));
            let worth = learner.worth(&state).unwrap();
            assert!((worth + 1.0).abs() < 0.2, "{worth}");
        }
    });
}

#[test]
fn the_same_seed_gives_the_same_plan_and_it_fits() {
    let (mut found, mut seeds_differ) = (0, 0);
    for seed in 0..6 {
        let (g, plan) =
            in_definition_order(&there_and_back(&mut fastrand::Rng::with_seed(seed), 6));
        let mut shared = plan.clone();
        let cx = Cx::new(TargetInfo { align: CELL, ..CPU.target() });
        ShareInPlace { enabled: true }.run(&g, &mut shared, &cx).unwrap();
        let limit = shared.slots().unwrap().live_peak().device * 3 / 4;
        let device = device(0.2);
        let with_seed = |seed| {
            let search = Search { seed, ..Search::default() };
            let cx = Cx { device: Some(&device), search, ..cx };
            let strategy = ("plan_dqn", &small() as &dyn Strategy);
            let kept = keep_limit(&g, plan.clone(), limit, &Tail::default(), &cx, strategy).ok()?;
            assert!(kept.finished.arena.device <= limit);
            let plan = kept.finished.plan;
            Some((kept.stats, format!("{:?} {:?}", plan.order(), plan.buffers)))
        };
        let first = with_seed(1);
        assert_eq!(first, with_seed(1));
        found += usize::from(first.is_some());
        seeds_differ += usize::from(first != with_seed(2));
    }
    assert!(found > 3 && seeds_differ > 0, "{found} {seeds_differ}");
}

#[test]
fn without_effort_one_episode_is_played() {
    let device = device(2.0);
    with_timeline(NESTED, &device, |t| {
        let world = World::new(t, &device, 100, 0);
        let limit = t.live.iter().copied().max().unwrap() - 16;
        for (effort, episodes) in [(0.0, 1), (1e3, 8)] {
            let search = Search::default();
            let mut random = fastrand::Rng::with_seed(1);
            let mut network = Network::new(Shape { embedding: 4, rounds: 1 }, 0.01, &mut random);
            let budget = search.budget(effort);
            let (options, search) = (&small(), &search);
            let mut agent = Agent { options, random, search, budget, episodes: 0, actions: 0 };
            let programs = Programs::new(&world, &network, options.batch).unwrap();
            agent.train(&mut network, &programs, limit, 8).unwrap();
            assert_eq!(agent.episodes, episodes);
        }
    });
}
