//! Where to branch: the section with the fewest ways, and floors that nothing can rest on.

use super::{Item, Part, State, Stretch, least_offset};

impl State {
    /// Finds the stretches of one floor, and the lower of the nearest higher walls of each.
    pub(super) fn find_stretches(&mut self, part: Part) {
        self.stretches.clear();
        let mut from = part.from;
        while from < part.to {
            let floor = self.floor[from as usize];
            let mut to = from;
            while to < part.to && self.floor[to as usize] == floor {
                let t = to as usize;
                self.stretch_of[t] = self.stretches.len() as u32;
                self.count[t] = 0;
                self.ended[t] = u64::MAX;
                self.to_begin[t] = u64::MAX;
                to += 1;
            }
            self.stretches.push(Stretch { from, to, floor, next: u64::MAX, valley: true });
            from = to;
        }
        self.count[part.to as usize] = 0;
        self.find_walls(false);
        self.find_walls(true);
    }

    /// From one side: the nearest higher wall of each stretch.
    fn find_walls(&mut self, from_right: bool) {
        self.walls_ahead.clear();
        let n = self.stretches.len();
        let mut neighbour = u64::MAX;
        for i in 0..n {
            let stretch = &mut self.stretches[if from_right { n - 1 - i } else { i }];
            let floor = stretch.floor;
            while self.walls_ahead.last().is_some_and(|&wall| wall <= floor) {
                self.walls_ahead.pop();
            }
            stretch.next = stretch.next.min(*self.walls_ahead.last().unwrap_or(&u64::MAX));
            stretch.valley &= neighbour > floor;
            neighbour = floor;
            self.walls_ahead.push(floor);
        }
    }

    /// Counts what can rest on each section at its floor; false where a fixed buffer
    /// has lost its place.
    pub(super) fn count_ways(&mut self, items: &[Item]) -> bool {
        for &i in &self.here {
            let item = &items[i as usize];
            let sections = item.first as usize..item.end as usize;
            if let Some(fixed) = item.fixed
                && self.floor[sections].iter().any(|&f| f > fixed)
            {
                return false;
            }
            let from = self.stretch_of[item.first as usize] as usize;
            let to = self.stretch_of[item.end as usize - 1] as usize;
            if from < to || !self.stretches[from].valley {
                // It can rest on the highest stretches below it, once lower ones are full.
                let below = &self.stretches[from..=to];
                let top = below.iter().map(|s| s.floor).max().unwrap_or(0);
                for s in below.iter().filter(|s| s.floor == top) {
                    self.count[s.from.max(item.first) as usize] += 1;
                    self.count[s.to.min(item.end) as usize] -= 1;
                }
                continue;
            }
            let valley = &mut self.stretches[from];
            let at = least_offset(item, valley.floor);
            if at == valley.floor {
                self.count[item.first as usize] += 1;
                self.count[item.end as usize] -= 1;
            } else {
                valley.next = valley.next.min(at);
            }
            if item.end < valley.to {
                let ended = &mut self.ended[item.end as usize];
                *ended = item.size.min(*ended);
            }
            if item.first > valley.from {
                let to_begin = &mut self.to_begin[item.first as usize - 1];
                *to_begin = item.size.min(*to_begin);
            }
        }
        for v in self.stretches.iter().filter(|s| s.valley) {
            for t in v.from as usize + 1..v.to as usize {
                self.ended[t] = self.ended[t].min(self.ended[t - 1]);
            }
            for t in (v.from as usize..v.to as usize - 1).rev() {
                self.to_begin[t] = self.to_begin[t].min(self.to_begin[t + 1]);
            }
        }
        true
    }

    /// The least level above the floor at which anything can rest on the section.
    pub(super) fn empty_level(&self, section: u32, valley: &Stretch) -> u64 {
        let t = section as usize;
        valley.next.min(valley.floor.saturating_add(self.ended[t].min(self.to_begin[t])))
    }

    /// The section with the fewest ways. Lifts sections without any; true where it did.
    /// `None` if a floor is lifted too high.
    pub(super) fn find_pivot(&mut self) -> Option<(bool, u32)> {
        let mut best = ((i32::MAX, u64::MAX, u64::MAX), 0);
        let mut lifted = false;
        let mut count = 0;
        for i in 0..self.stretches.len() {
            let stretch = self.stretches[i];
            for t in stretch.from..stretch.to {
                let rest = self.rest[t as usize];
                count += self.count[t as usize];
                if count == 0 {
                    if stretch.next.saturating_add(rest) > self.capacity {
                        return None;
                    }
                    self.lift(t, stretch.next);
                    lifted = true;
                } else if !lifted && stretch.valley {
                    let empty = self.empty_level(t, &stretch).saturating_add(rest) <= self.capacity;
                    let slack = self.capacity - stretch.floor - rest;
                    let key = (count + i32::from(empty), slack, stretch.floor);
                    if key < best.0 {
                        best = (key, t);
                    }
                }
            }
        }
        Some((lifted, best.1))
    }
}
