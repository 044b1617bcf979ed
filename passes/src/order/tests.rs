//! Random small problems against all their orders.

use super::cut::Network;
use super::improve::portfolio;
use super::*;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

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

#[test]
fn cuts_are_exact_for_their_operator_and_below_every_peak() {
    let (mut proved, mut optimal) = (0, 0);
    for seed in 0..400 {
        let mut random = Random(seed);
        let n = 2 + random.below(6);
        let in_place = seed % 2 == 0;
        let p = random_problem(&mut random, n, in_place);
        let orders = all_orders(&p);
        let optimum = orders.iter().map(|o| p.peak(o)).min().unwrap();
        for v in 0..n {
            let at_v = |o: &Vec<usize>| p.profile(o)[o.iter().position(|&w| w == v).unwrap()];
            let least = orders.iter().map(at_v).min().unwrap();
            let cut = Network::default().cut(&p, v, &vec![0; n], &mut u64::MAX.clone());
            assert!(cut.bound <= least, "seed {seed}");
            if !in_place {
                assert_eq!(cut.bound, least, "seed {seed}, operator {v}");
                orders.iter().for_each(|o| assert_eq!(p.peak(o), naive_peak(&p, o)));
            }
            let tensors = p.bytes(&cut.tensors);
            assert_eq!(cut.bound, p.resident + p.own(v) + tensors, "seed {seed}");
        }
        for (rule, order) in portfolio(&p) {
            assert!(orders.contains(&order), "seed {seed}: {rule} gives no order");
        }
        let solution = solve(&p, &Limits::new(1.0, 0));
        assert!(orders.contains(&solution.order), "seed {seed}");
        assert_eq!(p.peak(&solution.order), solution.peak);
        assert!(solution.certificate.bound <= optimum && optimum <= solution.peak);
        proved += usize::from(solution.is_optimal());
        optimal += usize::from(solution.peak == optimum);
        let at_once = solve(&p, &Limits::new(0.0, 0));
        assert!(at_once.peak >= solution.peak && at_once.certificate == solution.certificate);
    }
    assert!(proved > 250 && optimal > 380, "{proved} proved, {optimal} optimal of 400");
}
