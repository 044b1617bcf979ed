//! Parts that wait for others, changes of the state, and the way back.

use super::{Change, ExactSearch, Item, MAX_FAILED, Part, State, Step, Waiting, Way};
use std::cmp::Reverse;

impl State {
    /// Goes on with a smaller part where the waiting lifetimes do not connect this one.
    pub(super) fn split(&mut self, items: &[Item], part: Part) -> Option<Step> {
        let mut parts: Vec<(usize, Part)> = Vec::new();
        for &i in &self.here {
            let item = &items[i as usize];
            match parts.last_mut() {
                Some((count, part)) if item.first < part.to => {
                    part.to = part.to.max(item.end);
                    *count += 1;
                }
                _ => parts.push((1, Part { from: item.first, to: item.end, head: i })),
            }
        }
        if let [(_, only)] = parts[..] {
            return (only != part).then_some(Step::Part(only));
        }
        // The smallest first: where it fails, it fails soon.
        parts.sort_by_key(|&(count, part)| (Reverse(count), Reverse(part.from)));
        let next = parts.pop();
        for (_, part) in parts {
            self.agenda.push(Waiting { part, branches: self.branches.len() });
            self.trail.push(Change::Pushed);
        }
        if let Some((_, part)) = next {
            return Some(Step::Part(part));
        }
        let Some(waiting) = self.agenda.pop() else { return Some(Step::Done) };
        self.trail.push(Change::Popped(waiting));
        self.branches.truncate(waiting.branches);
        Some(Step::Part(waiting.part))
    }

    pub(super) fn lift(&mut self, section: u32, level: u64) {
        let floor = &mut self.floor[section as usize];
        self.trail.push(Change::Floor(section, *floor));
        *floor = level;
    }

    /// Places an item on the floor of its valley.
    pub(super) fn put(&mut self, items: &[Item], part: Part, i: u32) -> Part {
        let item = &items[i as usize];
        let sections = item.first as usize..item.end as usize;
        let at = self.floor[sections.start];
        self.offset[i as usize] = at;
        self.floor[sections.clone()].fill(at + item.size);
        self.rest[sections].iter_mut().for_each(|r| *r -= item.size);
        let (before, next) = (self.before[i as usize], self.next[i as usize]);
        self.next[before as usize] = next;
        self.before[next as usize] = before;
        self.trail.push(Change::Placed(i));
        let head = if part.head == i { next } else { part.head };
        Part { head, ..part }
    }

    /// Takes the best way that is left at the last branch.
    pub(super) fn take_way(&mut self, items: &[Item]) -> Option<Part> {
        let branch = self.branches.last_mut()?;
        let (way, part) = (branch.ways.pop()?, branch.part);
        Some(match way {
            Way::Item(i) => self.put(items, part, i),
            Way::Empty { section, level } => {
                self.lift(section, level);
                part
            }
        })
    }

    /// Goes back to the last branch with a way that is left.
    pub(super) fn backtrack(&mut self, s: &mut ExactSearch) -> Option<Part> {
        loop {
            let trail = self.branches.last()?.trail;
            while self.trail.len() > trail {
                self.undo(&s.items);
            }
            if let Some(part) = self.take_way(&s.items) {
                return Some(part);
            }
            let branch = self.branches.pop()?;
            if s.failed.len() < MAX_FAILED {
                s.failed.insert(branch.hash);
            }
        }
    }

    fn undo(&mut self, items: &[Item]) {
        match self.trail.pop() {
            Some(Change::Floor(section, floor)) => self.floor[section as usize] = floor,
            Some(Change::Placed(i)) => {
                let item = &items[i as usize];
                let sections = item.first as usize..item.end as usize;
                self.floor[sections.clone()].fill(self.offset[i as usize]);
                self.rest[sections].iter_mut().for_each(|r| *r += item.size);
                let (before, next) = (self.before[i as usize], self.next[i as usize]);
                self.next[before as usize] = i;
                self.before[next as usize] = i;
            }
            Some(Change::Pushed) => drop(self.agenda.pop()),
            Some(Change::Popped(waiting)) => self.agenda.push(waiting),
            None => {}
        }
    }
}
