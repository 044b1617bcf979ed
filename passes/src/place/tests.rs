//! Problems that are refused, and placements that are known.

use super::*;
use crate::search::Deadline;

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
