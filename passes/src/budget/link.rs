//! When a direction of the link is busy.

/// Seconds in which copies run, as disjoint intervals in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Link {
    busy: Vec<(f64, f64)>,
}

impl Link {
    /// When a copy that needs so many seconds of the link is done, at the earliest, if it
    /// may begin at `from`.
    pub(super) fn done_after(&self, from: f64, seconds: f64) -> f64 {
        let (mut at, mut left) = (from, seconds);
        let first = self.busy.partition_point(|b| b.1 <= from);
        for &(start, end) in &self.busy[first..] {
            let idle = (start - at).max(0.0);
            if idle >= left {
                break;
            }
            left -= idle;
            at = end;
        }
        at + left
    }

    /// When such a copy must begin, at the latest, to be done at `until`.
    pub(super) fn begun_before(&self, until: f64, seconds: f64) -> f64 {
        let (mut at, mut left) = (until, seconds);
        let last = self.busy.partition_point(|b| b.0 < until);
        for &(start, end) in self.busy[..last].iter().rev() {
            let idle = (at - end).max(0.0);
            if idle >= left {
                break;
            }
            left -= idle;
            at = start.min(at);
        }
        at - left
    }

    /// Takes all of the link between two times.
    pub(super) fn occupy(&mut self, from: f64, until: f64) {
        let first = self.busy.partition_point(|b| b.1 < from);
        let last = self.busy.partition_point(|b| b.0 <= until);
        let within = &self.busy[first..last];
        let start = within.first().map_or(from, |b| b.0.min(from));
        let end = within.last().map_or(until, |b| b.1.max(until));
        self.busy.splice(first..last, [(start, end)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_fill_idle_time() {
        let mut link = Link::default();
        link.occupy(2.0, 4.0);
        link.occupy(6.0, 7.0);
        assert_eq!(link.done_after(0.0, 1.0), 1.0);
        assert_eq!(link.done_after(0.0, 3.0), 5.0);
        assert_eq!(link.done_after(3.0, 3.0), 8.0);
        assert_eq!(link.begun_before(8.0, 1.0), 7.0);
        assert_eq!(link.begun_before(8.0, 2.0), 5.0);
        assert_eq!(link.begun_before(3.0, 3.0), -1.0);
        link.occupy(3.0, 6.5);
        assert_eq!(link.busy, [(2.0, 7.0)]);
    }
}
