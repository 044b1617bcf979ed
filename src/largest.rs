//! The largest size for which something can be had, as of a batch under a byte limit.

use std::sync::atomic::{AtomicBool, Ordering};

/// What was found for the largest size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Largest<T> {
    /// The size.
    pub size: u64,
    /// What there is for it.
    pub found: T,
    /// How many sizes were tried.
    pub tried: u32,
}

/// Sizes beyond this are not tried.
const MOST: u64 = 1 << 40;

/// Doubles a size from 1 on until `attempt` fails for being `too_large`, then bisects.
/// `stop` ends the search with the largest size so far.
///
/// Every size below one that works is taken to work, too: where that is not so, the result
/// works, but a larger one may as well.
///
/// # Errors
/// The size and the error of an attempt that fails for another reason, or for 1.
pub(crate) fn largest<T, E>(
    mut attempt: impl FnMut(u64) -> Result<T, E>,
    too_large: impl Fn(&E) -> bool,
    stop: &AtomicBool,
) -> Result<Largest<T>, (u64, E)> {
    let found = attempt(1).map_err(|e| (1, e))?;
    let mut best = Largest { size: 1, found, tried: 1 };
    let mut fails = MOST + 1;
    while fails - best.size > 1 && !stop.load(Ordering::Relaxed) {
        let middle = best.size + (fails - best.size) / 2;
        let size = middle.min(2 * best.size);
        let tried = best.tried + 1;
        match attempt(size) {
            Ok(found) => best = Largest { size, found, tried },
            Err(e) if too_large(&e) => {
                fails = size;
                best.tried = tried;
            }
            Err(e) => return Err((size, e)),
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    static GO_ON: AtomicBool = AtomicBool::new(false);

    type Found = Result<Largest<u64>, (u64, ())>;

    /// What is found where sizes up to `fits` work, and the sizes tried.
    fn search(fits: u64) -> (Found, Vec<u64>) {
        let mut tried = Vec::new();
        let attempt = |n| {
            tried.push(n);
            if n <= fits { Ok(n) } else { Err(()) }
        };
        (largest(attempt, |()| true, &GO_ON), tried)
    }

    #[test]
    fn doubles_then_bisects() {
        let (found, tried) = search(11);
        assert_eq!(tried, [1, 2, 4, 8, 16, 12, 10, 11]);
        assert_eq!(found, Ok(Largest { size: 11, found: 11, tried: 8 }));
        assert_eq!(search(0), (Err((1, ())), vec![1]));
        for fits in 1..200 {
            let (found, tried) = search(fits);
            assert!(found.is_ok_and(|l| (l.size, l.found) == (fits, fits)));
            assert!(tried.len() <= 2 * (fits.ilog2() as usize + 1), "{fits}: {tried:?}");
        }
    }

    #[test]
    fn ends_where_everything_works() {
        assert!(search(u64::MAX).0.is_ok_and(|l| l.size == MOST));
    }

    #[test]
    fn other_errors_end_the_search() {
        let failing = |n| if n < 4 { Ok(n) } else { Err("damaged") };
        assert_eq!(largest(failing, |e| *e != "damaged", &GO_ON), Err((4, "damaged")));
    }

    #[test]
    fn stops_with_the_best_so_far() {
        let stop = AtomicBool::new(false);
        let attempt = |n| {
            stop.store(n == 8, Ordering::Relaxed);
            Ok::<_, ()>(n)
        };
        assert!(largest(attempt, |()| true, &stop).is_ok_and(|l| (l.size, l.tried) == (8, 4)));
    }
}
