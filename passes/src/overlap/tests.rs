use super::SLACK;
use super::lanes::{Lane, Lanes};
use crate::order::{Kind, Problem, Tensor};

fn tensor(bytes: u64, producer: usize, readers: &[usize]) -> Tensor {
    Tensor { bytes, producer: Some(producer), readers: readers.to_vec(), kind: Kind::Transient }
}

const KERNEL: Lane = Lane::Kernel { seconds: 1.0, is_light: false };
const UPDATE: Lane = Lane::Kernel { seconds: 0.1, is_light: true };
const SUM: Lane = Lane::Exchange { seconds: 1.5, sums: true };
const GATHER: Lane = Lane::Exchange { seconds: 1.5, sums: false };

/// Exchanges take what they are said to.
const EXACT: (f64, f64) = (1.0, 1.0);

#[test]
fn a_gather_goes_back_as_far_as_it_takes_and_bytes_allow() {
    // Kernels 0, 1, 2, 4, one after another; 3 gathers for 4.
    let tensors =
        vec![tensor(10, 0, &[1]), tensor(10, 1, &[2]), tensor(10, 2, &[4]), tensor(5, 3, &[4])];
    let p = Problem::new(5, tensors, &[], &[]).unwrap();
    let lanes = Lanes::new(&p, vec![KERNEL, KERNEL, KERNEL, GATHER, KERNEL], [], EXACT);
    let order = [0, 1, 2, 3, 4];
    assert_eq!(lanes.gather_early(&order, 100), [0, 3, 1, 2, 4]);
    assert_eq!(lanes.seconds([0, 3, 1, 2, 4].into_iter(), 1.0), 4.0);
    // While kernels run there are twenty bytes, beside which the gather has no place.
    assert_eq!(lanes.gather_early(&order, 24), order);
    assert_eq!(lanes.seconds(order.into_iter(), 1.0), 5.5);
}

#[test]
fn an_update_comes_when_its_sum_is_there() {
    // Kernels 0, 1, 2 make gradients, 3 and 5 sum two of them, which 4 and 6 read.
    let tensors = |bytes| {
        vec![
            tensor(1, 0, &[1]),
            tensor(1, 1, &[2]),
            tensor(bytes, 0, &[3]),
            tensor(bytes, 3, &[4]),
            tensor(bytes, 2, &[5]),
            tensor(bytes, 5, &[6]),
        ]
    };
    let lanes = vec![KERNEL, KERNEL, KERNEL, SUM, UPDATE, SUM, UPDATE];
    let p = Problem::new(7, tensors(10), &[], &[]).unwrap();
    let of = Lanes::new(&p, lanes, [], EXACT);
    // Neither at once nor at the end: the sum has ended when the third kernel has.
    for order in [[0, 3, 4, 1, 2, 5, 6], [0, 3, 1, 2, 5, 6, 4]] {
        assert_eq!(of.update_when_summed(&order, 100), [0, 3, 1, 2, 4, 5, 6]);
    }
    // Where there is no room for what waits, kernels do.
    assert_eq!(of.update_when_summed(&[0, 3, 4, 1, 2, 5, 6], 21), [0, 3, 4, 1, 2, 5, 6]);
}

#[test]
fn a_part_of_a_parameter_is_made_for_its_update_alone() {
    // 0 sums what 1 makes; 2 is the own part of a parameter, which 3 updates with the sum.
    let tensors = vec![tensor(1, 1, &[0]), tensor(1, 0, &[3]), tensor(8, 2, &[3])];
    let p = Problem::new(5, tensors, &[], &[]).unwrap();
    let lanes = Lanes::new(&p, vec![SUM, KERNEL, UPDATE, UPDATE, KERNEL], [], EXACT);
    assert_eq!(lanes.update_when_summed(&[2, 1, 0, 4, 3], 100), [1, 0, 4, 2, 3]);
}

#[test]
fn what_exchanges_use_is_held_until_they_end() {
    // 1 sums what 0 makes while 2 and 3 run; 4 reads the sum.
    let tensors = vec![tensor(1, 0, &[1]), tensor(1, 1, &[4])];
    let p = Problem::new(6, tensors, &[], &[]).unwrap();
    let lanes = Lanes::new(&p, vec![KERNEL, SUM, KERNEL, KERNEL, UPDATE, KERNEL], [], EXACT);
    // At 2.5 s, which is in the middle of the second kernel.
    assert_eq!(lanes.ends([0, 1, 2, 3, 5, 4].into_iter()), [(1, 3)]);
    // The update waits for it, and has what it used.
    assert_eq!(lanes.ends([0, 1, 4, 2, 3, 5].into_iter()), [(1, 1)]);
}

#[test]
fn dependences_are_kept() {
    let mut moved = 0;
    for seed in 0..400 {
        let mut random = fastrand::Rng::with_seed(seed);
        let n = random.usize(2..60);
        let tensors = (0..n).map(|w| Tensor {
            bytes: random.u64(1..100),
            producer: Some(w),
            readers: (w + 1..n).filter(|_| random.u8(0..10) == 0).collect(),
            kind: if random.u8(0..6) == 0 { Kind::Pinned } else { Kind::Transient },
        });
        let p = Problem::new(n, tensors.collect(), &[], &[]).unwrap();
        let lanes = (0..n).map(|_| random.choice([KERNEL, UPDATE, UPDATE, SUM, GATHER]).unwrap());
        let lanes = lanes.collect();
        let waits = (0..n / 4).filter_map(|_| {
            let (a, b) = (random.usize(0..n), random.usize(0..n));
            (a < b).then_some((a, b))
        });
        let waits: Vec<_> = waits.collect();
        let lanes = Lanes::new(&p, lanes, waits, random.choice([EXACT, SLACK]).unwrap());
        let order: Vec<usize> = (0..n).collect();
        let most = p.peak(&order) + random.u64(0..200);
        let early = lanes.gather_early(&order, most);
        let both = lanes.update_when_summed(&early, most);
        for new in [&early, &both, &lanes.update_when_summed(&order, most)] {
            assert!(p.is_order(new), "{seed}: {new:?}");
            moved += usize::from(*new != order);
            let ends = lanes.ends(new.iter().copied());
            assert_eq!(ends.len(), new.iter().filter(|&&v| lanes.of_exchange(v).is_some()).count());
        }
    }
    assert!(moved > 600, "{moved}");
}
