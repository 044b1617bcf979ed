//! Random small problems against all placements; every placement against a checker of its
//! own.

use super::*;
use crate::search::Deadline;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// The bytes of a buffer that are in use at an instant.
fn in_use(b: &Buffer, at: u64, time: i64) -> (u64, u64) {
    if time < b.lower || b.upper <= time {
        return (0, 0);
    }
    let (low, high) = match b.gaps.iter().find(|g| g.lower <= time && time < g.upper) {
        Some(gap) => gap.window.unwrap_or((0, 0)),
        None => (0, b.size.div_ceil(b.alignment) * b.alignment),
    };
    if low < high { (at + low, at + high) } else { (0, 0) }
}

/// Goes through every instant at which a buffer begins or a gap ends.
fn assert_valid(buffers: &[Buffer], offsets: &[u64], height: u64) {
    assert_eq!(buffers.len(), offsets.len());
    let mut times: Vec<i64> = buffers.iter().map(|b| b.lower).collect();
    times.extend(buffers.iter().flat_map(|b| b.gaps.iter().flat_map(|g| [g.lower, g.upper])));
    for &time in &times {
        let ranges = buffers.iter().zip(offsets).map(|(b, &at)| in_use(b, at, time));
        let mut ranges: Vec<(u64, u64)> = ranges.filter(|(low, high)| low < high).collect();
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|w| w[0].1 <= w[1].0), "overlap at {time}: {ranges:?}");
    }
    for (b, &at) in buffers.iter().zip(offsets) {
        assert_eq!(at % b.alignment, 0);
        assert!(b.offset.is_none_or(|o| o == at), "fixed {b:?} at {at}");
        assert!(b.size == 0 || at + b.size <= height);
    }
}

fn random_buffers(random: &mut Random, n: u64, kind: u64) -> Vec<Buffer> {
    let span = 2 + random.below(8);
    let mut buffers: Vec<Buffer> = Vec::new();
    for _ in 0..n {
        let lower = random.below(span) as i64 - 3;
        let upper = lower + 1 + random.below(span) as i64;
        let alignment = if kind == 1 { 1 << random.below(3) } else { 1 };
        let mut b = Buffer { lower, upper, size: random.below(6), alignment, ..Buffer::default() };
        if kind == 2 && random.below(3) == 0 && Problem::new(buffers.clone()).is_ok() {
            b.offset = Some(random.below(12));
            let with = [&buffers[..], &[b.clone()]].concat();
            if Problem::new(with).is_err() {
                b.offset = None;
            }
        }
        if kind == 3 && upper - lower > 2 {
            let window = (b.size > 2 && random.below(2) == 0).then(|| (1, b.size - 1));
            b.gaps.push(Gap { lower: lower + 1, upper: upper - 1, window });
        }
        if kind == 4 && random.below(2) == 0 {
            b.hint = Some(random.below(9));
        }
        buffers.push(b);
    }
    buffers
}

/// The least height, by trying every buffer at every offset below `limit`.
fn optimum(buffers: &[Buffer], limit: u64) -> u64 {
    fn clash(a: &Buffer, at: u64, b: &Buffer, bt: u64) -> bool {
        (a.lower.max(b.lower)..a.upper.min(b.upper)).any(|time| {
            let (x, y) = (in_use(a, at, time), in_use(b, bt, time));
            x.0 < y.1 && y.0 < x.1
        })
    }
    fn place(buffers: &[Buffer], offsets: &mut Vec<u64>, best: &mut u64) {
        let height = |offsets: &[u64]| {
            let sized = buffers.iter().zip(offsets).filter(|(b, _)| b.size > 0);
            sized.map(|(b, at)| at + b.size.next_multiple_of(b.alignment)).max().unwrap_or(0)
        };
        if height(offsets) >= *best {
            return;
        }
        let Some(b) = buffers.get(offsets.len()) else {
            *best = height(offsets);
            return;
        };
        if b.size == 0 {
            offsets.push(b.offset.unwrap_or(0));
            place(buffers, offsets, best);
            offsets.pop();
            return;
        }
        for at in 0..*best {
            let free = offsets.iter().zip(buffers).all(|(&o, other)| !clash(b, at, other, o));
            if at % b.alignment == 0 && b.offset.is_none_or(|o| o == at) && free {
                offsets.push(at);
                place(buffers, offsets, best);
                offsets.pop();
            }
        }
    }
    let mut best = limit;
    place(buffers, &mut Vec::new(), &mut best);
    best
}

#[test]
fn placements_are_valid_and_optimal_on_small_problems() {
    let mut proved = 0;
    for seed in 0..1500 {
        let mut random = Random(seed);
        let kind = seed % 5;
        let n = 1 + random.below(5);
        let buffers = random_buffers(&mut random, n, kind);
        let p = Problem::new(buffers.clone()).unwrap();
        let solution = solve(&p, &Limits::new(1.0, None, Deadline::default()));
        assert_valid(&buffers, &solution.offsets, solution.height);
        let best = optimum(&buffers, solution.height + 1);
        assert!(p.bound() <= best, "seed {seed}: bound {} above {best}", p.bound());
        if kind != 3 {
            assert_eq!(solution.height, best, "seed {seed}: {buffers:?}");
        }
        assert!(!solution.optimal || solution.height == best, "seed {seed}");
        proved += usize::from(solution.optimal);

        // With a capacity: it fits, or it is proved that nothing does.
        for capacity in [best.saturating_sub(1), best, best + 2] {
            let s = solve(&p, &Limits::new(1.0, Some(capacity), Deadline::default()));
            assert_valid(&buffers, &s.offsets, s.height);
            assert!(!s.impossible || capacity < best, "seed {seed}");
            assert!(kind == 3 || s.impossible == (capacity < best), "seed {seed}");
        }
        let placers: [&dyn Placer; 4] = [
            &Place { effort: 0.0 },
            &crate::place_pyramid::PlacePyramid {},
            &crate::place_smartpool::PlaceSmartpool { fit: Fit::First },
            &crate::place_smartpool::PlaceSmartpool::default(),
        ];
        for placer in placers {
            let s = placer.place(&p, &Wish::default());
            assert_valid(&buffers, &s.offsets, s.height);
            assert!(s.height >= best && (!s.optimal || s.height == best));
        }
    }
    assert!(proved > 1300, "{proved} proved");
}

/// Microlp takes seconds for what HiGHS does at once.
const PROGRAMS: u64 = if cfg!(feature = "highs") { 500 } else { 50 };

#[test]
fn the_integer_program_finds_the_optimum() {
    use crate::place_ilp::PlaceIlp;
    for seed in 0..PROGRAMS {
        let mut random = Random(seed);
        let n = 2 + random.below(4);
        let buffers = random_buffers(&mut random, n, 0);
        let p = Problem::new(buffers.clone()).unwrap();
        let free = PlaceIlp { pyramid: false, ..PlaceIlp::default() };
        let found = free.place(&p, &Wish::default());
        assert_valid(&buffers, &found.offsets, found.height);
        assert_eq!(found.height, optimum(&buffers, found.height + 1), "seed {seed}");
        let around = PlaceIlp::default().place(&p, &Wish::default());
        assert_valid(&buffers, &around.offsets, around.height);
        assert!(around.height >= found.height);
    }
}

#[test]
fn the_search_agrees_with_itself_on_larger_problems() {
    for seed in 0..40 {
        let mut random = Random(seed);
        let mut buffers = random_buffers(&mut random, 60, seed % 5);
        for b in &mut buffers {
            b.size *= 1 + random.below(40);
            b.gaps.iter_mut().for_each(|g| g.window = None);
        }
        let Ok(p) = Problem::new(buffers.clone()) else { continue };
        let limits = Limits { work: 3_000_000, ..Limits::new(0.0, None, Deadline::default()) };
        let solution = solve(&p, &limits);
        assert_valid(&buffers, &solution.offsets, solution.height);
        assert_eq!(solution, solve(&p, &limits), "the same limits give the same placement");
    }
}

fn buffer(lower: i64, upper: i64, size: u64) -> Buffer {
    Buffer { lower, upper, size, alignment: 1, ..Buffer::default() }
}

#[test]
fn bad_problems_are_refused() {
    let fixed = |lower, upper, size, at| Buffer { offset: Some(at), ..buffer(lower, upper, size) };
    let aligned = |alignment| Buffer { alignment, ..buffer(0, 1, 1) };
    let gap = |lower, upper, window| Buffer {
        gaps: vec![Gap { lower, upper, window }],
        ..buffer(0, 9, 4)
    };
    let cases = [
        (vec![buffer(3, 3, 1)], Invalid::Lifetime(0)),
        (vec![buffer(i64::MAX, i64::MIN, 1)], Invalid::Lifetime(0)),
        (vec![aligned(0)], Invalid::Alignment(0)),
        (vec![aligned(u64::MAX)], Invalid::Alignment(0)),
        (vec![buffer(0, 1, u64::MAX)], Invalid::TooLarge(0)),
        (vec![buffer(0, 1, 1 << 59); 3], Invalid::TooLarge(2)),
        (vec![fixed(0, 1, 1, u64::MAX)], Invalid::TooLarge(0)),
        (vec![Buffer { alignment: 4, ..fixed(0, 1, 1, 6) }], Invalid::Misaligned(0)),
        (vec![fixed(0, 5, 4, 0), buffer(0, 1, 1), fixed(4, 6, 4, 3)], Invalid::Overlap(0, 2)),
        (vec![gap(3, 3, None)], Invalid::Gap(0)),
        (vec![gap(8, 10, None)], Invalid::Gap(0)),
        (vec![gap(2, 3, Some((2, 5)))], Invalid::Gap(0)),
    ];
    for (buffers, expected) in cases {
        assert_eq!(Problem::new(buffers).map(drop), Err(expected));
    }
    let apart = vec![fixed(0, 5, 4, 0), fixed(5, 6, 4, 3), fixed(0, 5, 4, 4)];
    assert_eq!(Problem::new(apart).unwrap().bound(), 8);
}

#[test]
fn many_identical_buffers_end_soon() {
    let p = Problem::new(vec![buffer(0, 7, 3); 10_000]).unwrap();
    let solution = solve(&p, &Limits::new(10.0, None, Deadline::default()));
    assert_eq!((solution.height, solution.optimal), (30_000, true));
    let tight = solve(&p, &Limits::new(10.0, Some(29_999), Deadline::default()));
    assert!(tight.impossible);
}

/// Function 5 of OLLA on the sketch of its figure 6: nested lives are stacked, the rest is
/// left alone.
#[test]
fn the_pyramid_nests() {
    let lives = [(0, 10, 5), (1, 9, 4), (2, 5, 3), (5, 9, 2), (3, 5, 1), (4, 5, 1)];
    let p = Problem::new(lives.map(|(l, u, s)| buffer(l, u, s)).to_vec()).unwrap();
    assert_eq!(pyramid(&p), [(0, 0), (1, 5), (3, 9)]);
}

#[test]
fn hints_are_followed_where_they_cost_nothing() {
    let hinted = |at, b| Buffer { hint: Some(at), ..b };
    let free = vec![hinted(4, buffer(0, 4, 4)), buffer(0, 4, 4), hinted(99, buffer(1, 2, 1))];
    let p = Problem::new(free).unwrap();
    let solution = solve(&p, &Limits::new(1.0, None, Deadline::default()));
    assert_eq!(solution.height, 9);
    let costly =
        Problem::new(vec![hinted(4, buffer(0, 4, 4)), hinted(2, buffer(0, 4, 4))]).unwrap();
    assert_eq!(solve(&costly, &Limits::new(1.0, None, Deadline::default())).height, 8);
    let cheap = Problem::new(vec![buffer(0, 4, 4), hinted(0, buffer(0, 4, 4))]).unwrap();
    assert_eq!(solve(&cheap, &Limits::new(1.0, None, Deadline::default())).offsets, [4, 0]);
}
