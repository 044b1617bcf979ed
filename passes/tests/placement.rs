//! Random small problems against all placements; every placement against a checker of its own.

use arenic_passes::place::{Limits, Place, Placer, Problem, Wish, solve};
use arenic_passes::place_ilp::PlaceIlp;
use arenic_passes::place_pyramid::PlacePyramid;
use arenic_passes::search::Deadline;
use arenic_programs::Random;
use arenic_programs::placements::{assert_valid, optimum, random_buffers};

#[test]
fn placements_are_valid_and_optimal_on_small_problems() {
    let mut proved = 0;
    for seed in 0..1500 {
        let mut random = Random::new(seed);
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
        let quick: [&dyn Placer; 2] = [&Place { effort: 0.0 }, &PlacePyramid {}];
        for placer in quick {
            let s = placer.place(&p, &Wish::default());
            assert_valid(&buffers, &s.offsets, s.height);
            assert!(s.height >= best && (!s.optimal || s.height == best));
        }
    }
    assert!(proved > 1300, "{proved} proved");
}

#[test]
fn the_search_agrees_with_itself_on_larger_problems() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let mut buffers = random_buffers(&mut random, 60, seed % 5);
        for b in &mut buffers {
            b.size *= 1 + random.below(40) as u64;
            b.gaps.iter_mut().for_each(|g| g.window = None);
        }
        let Ok(p) = Problem::new(buffers.clone()) else { continue };
        let limits = Limits { work: 3_000_000, ..Limits::new(0.0, None, Deadline::default()) };
        let solution = solve(&p, &limits);
        assert_valid(&buffers, &solution.offsets, solution.height);
        assert_eq!(solution, solve(&p, &limits), "the same limits give the same placement");
    }
}

/// Problems that the integer program is tried on.
const PROGRAMS: u64 = 500;

#[test]
fn the_integer_program_finds_the_optimum() {
    for seed in 0..PROGRAMS {
        let mut random = Random::new(seed);
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
