//! SmartPool's placements on random small problems, against all placements and a checker of their own.

use arenic_baselines::place_smartpool::PlaceSmartpool;
use arenic_passes::place::{Fit, Placer, Problem, Wish};
use arenic_programs::Random;
use arenic_programs::placements::{assert_valid, optimum, random_buffers};

#[test]
fn heuristics_are_valid_and_not_below_the_optimum() {
    let placers = [PlaceSmartpool { fit: Fit::First }, PlaceSmartpool { fit: Fit::Best }];
    for seed in 0..1500 {
        let mut random = Random::new(seed);
        let n = 1 + random.below(5);
        let buffers = random_buffers(&mut random, n, seed % 5);
        let p = Problem::new(buffers.clone()).unwrap();
        for placer in &placers {
            let s = placer.place(&p, &Wish::default());
            assert_valid(&buffers, &s.offsets, s.height);
            let best = optimum(&buffers, s.height + 1);
            assert!(s.height >= best && (!s.optimal || s.height == best));
        }
    }
}
