//! All repetitions in a sequence: its *runs*, the stretches of at least two periods that
//! cannot be made longer.
//!
//! Every run has a root that is a longest Lyndon word at its place, in one of two orders of
//! the symbols (Bannai et al., "The Runs Theorem", SIAM Journal on Computing 46(5), 2017).
//! These words follow from the next smaller suffixes, and suffixes are compared by hashes
//! of prefixes: O(n log n) in all.

/// A stretch `start..end` in which every symbol is that of `period` before, where both are
/// in it. No period is smaller, and it has at least two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Run {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) period: usize,
}

impl Run {
    /// Symbol by symbol; hashes alone might err.
    pub(super) fn holds(&self, text: &[u32]) -> bool {
        let run = &text[self.start..self.end];
        run[self.period..] == run[..run.len() - self.period]
    }
}

/// The runs, there are at most as many as symbols; and, where hashes coincide, stretches
/// that are none.
pub(super) fn runs(text: &[u32]) -> Vec<Run> {
    let n = text.len();
    let hashed = Hashed::new(text);
    let mut found = Vec::new();
    for descending in [false, true] {
        // Where the next suffix is that is smaller than the one here.
        let mut next = vec![n; n];
        for i in (0..n).rev() {
            let (mut j, mut after) = (i + 1, 0);
            while j < n {
                after = hashed.common_after(i, j);
                let smaller = j + after == n || (text[j + after] < text[i + after]) != descending;
                if smaller {
                    break;
                }
                (j, after) = (next[j], 0);
            }
            next[i] = j;
            let (period, before) = (j - i, hashed.common_before(i, j));
            let run = Run { start: i - before, end: j + after, period };
            if before + after >= period && found.last() != Some(&run) {
                found.push(run);
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// A sequence with the polynomial hashes of its prefixes, modulo 2^61 - 1.
struct Hashed<'a> {
    text: &'a [u32],
    prefix: Vec<u64>,
    power: Vec<u64>,
}

const MODULUS: u64 = (1 << 61) - 1;
const BASE: u64 = 0x0b5e_55ed_1234_5677;

fn product(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    let sum = (wide as u64 & MODULUS) + (wide >> 61) as u64;
    if sum >= MODULUS { sum - MODULUS } else { sum }
}

/// Symbols that are compared before hashes are.
const PLAIN: usize = 8;

impl Hashed<'_> {
    fn new(text: &[u32]) -> Hashed<'_> {
        let (mut prefix, mut power) = (vec![0], vec![1]);
        for (i, &symbol) in text.iter().enumerate() {
            prefix.push((product(prefix[i], BASE) + u64::from(symbol) + 1) % MODULUS);
            power.push(product(power[i], BASE));
        }
        Hashed { text, prefix, power }
    }

    fn hash(&self, start: usize, length: usize) -> u64 {
        let head = product(self.prefix[start], self.power[length]);
        (self.prefix[start + length] + MODULUS - head) % MODULUS
    }

    /// Symbols that agree from `i` and from `j` on; `i` is below `j`.
    fn common_after(&self, i: usize, j: usize) -> usize {
        let most = self.text.len() - j;
        longest(
            most,
            |k| self.text[i + k] == self.text[j + k],
            |k| self.hash(i, k) == self.hash(j, k),
        )
    }

    /// Symbols that agree before `i` and before `j`; `i` is below `j`.
    fn common_before(&self, i: usize, j: usize) -> usize {
        longest(
            i,
            |k| self.text[i - 1 - k] == self.text[j - 1 - k],
            |k| self.hash(i - k, k) == self.hash(j - k, k),
        )
    }
}

/// The largest length up to `most` at which all agree: by symbols while it is short, then
/// by doubling and halving.
fn longest(most: usize, symbol: impl Fn(usize) -> bool, whole: impl Fn(usize) -> bool) -> usize {
    let plain = most.min(PLAIN);
    if let Some(k) = (0..plain).find(|&k| !symbol(k)) {
        return k;
    }
    let (mut good, mut step) = (plain, PLAIN);
    while good + step <= most && whole(good + step) {
        good += step;
        step *= 2;
    }
    while step > 0 {
        if good + step <= most && whole(good + step) {
            good += step;
        }
        step /= 2;
    }
    good
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// By the definition, in cubic time.
    fn by_definition(text: &[u32]) -> Vec<Run> {
        let n = text.len();
        let mut found = Vec::new();
        for period in 1..=n / 2 {
            let mut start = 0;
            while start + period < n {
                let same = |k: &usize| text[*k] == text[k + period];
                let length = (start..n - period).take_while(same).count();
                let run = Run { start, end: start + length + period, period };
                let smaller = |f: &&Run| f.start <= run.start && f.end >= run.end;
                if length >= period && !found.iter().any(|f| smaller(&f)) {
                    found.push(run);
                }
                start += length + 1;
            }
        }
        found.sort_unstable();
        found
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..<_>::default() })]
        #[test]
        fn all_runs_are_found(
            text in proptest::collection::vec(0u32..3, 0..60),
            repeated in 1usize..5,
        ) {
            let text = text.repeat(repeated);
            let found = runs(&text);
            prop_assert_eq!(&found, &by_definition(&text));
            prop_assert!(found.iter().all(|r| r.holds(&text)));
        }
    }

    #[test]
    fn not_what_repeats_less_than_twice() {
        assert_eq!(runs(&[]), []);
        assert_eq!(runs(&[7]), []);
        assert_eq!(runs(&[1, 2, 3, 1, 2]), []);
        assert!(!Run { start: 0, end: 4, period: 2 }.holds(&[1, 2, 1, 3]));
    }
}
