//! Room for copies beside kernels, and the step's seconds that follow.
//!
//! AutoSwap's schedule (Zhang et al., section IV-E): copies out one after another as soon as
//! they can, copies in one after another as late as they can without a wait, and memory
//! that is not there is waited for. A copy takes room in memory while it runs: what leaves
//! keeps its bytes until the copy is done, what comes has them from its copy's start.

use super::script::{Fetch, Script, ScriptStep, Store, StoreKind};
use super::timeline::Timeline;
use arenic_ir::cost::{Device, Direction};

/// What a schedule promises.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prediction {
    /// The step, in seconds.
    pub seconds: f64,
    /// Bytes above the limits, summed over steps that are above them.
    pub over: u64,
}

impl Prediction {
    /// Less above the limit, then faster.
    pub fn is_better_than(&self, other: &Prediction) -> bool {
        (self.over, self.seconds) < (other.over, other.seconds)
    }
}

/// Schedules scripts for a device under a limit.
pub struct Room {
    /// Seconds of each tensor's copy to the host, and to the device.
    copy: Vec<(f64, f64)>,
    /// Seconds that kernels lose by these copies.
    lost: Vec<(f64, f64)>,
    bytes: Vec<u64>,
    /// Bytes of host memory that scripts should keep to.
    host: Option<u64>,
    /// Live bytes of each step, those of copies included.
    live: Vec<u64>,
    /// When each step begins and ends.
    start: Vec<f64>,
    end: Vec<f64>,
    /// When each step's memory is there, and its operands.
    free: Vec<f64>,
    ready: Vec<f64>,
    /// When each tensor's copy to the host is done.
    stored: Vec<f64>,
    /// What has a home. Where that is on the device it comes back to the bytes that it left, so
    /// no earlier than these are free: `back` is the step that it is first back for,
    /// `released` the first that does without them.
    homed: Vec<bool>,
    back: Vec<usize>,
    released: Vec<usize>,
    issue: Vec<(usize, usize, usize)>,
}

impl Room {
    /// For a timeline's tensors.
    pub fn new(t: &Timeline, device: &Device) -> Room {
        let each_way = |seconds: &dyn Fn(Direction, u64) -> f64| {
            let both =
                |bytes| (seconds(Direction::ToHost, bytes), seconds(Direction::ToDevice, bytes));
            t.tensors.iter().map(|x| both(x.bytes)).collect()
        };
        Room {
            copy: each_way(&|direction, bytes| device.copy_seconds(direction, bytes)),
            lost: each_way(&|direction, bytes| device.lost_seconds(direction, bytes)),
            bytes: t.tensors.iter().map(|x| x.bytes).collect(),
            host: None,
            live: Vec::new(),
            start: Vec::new(),
            end: Vec::new(),
            free: Vec::new(),
            ready: Vec::new(),
            stored: vec![0.0; t.tensors.len()],
            homed: t.tensors.iter().map(|x| x.homed).collect(),
            back: vec![0; t.tensors.len()],
            released: vec![0; t.tensors.len()],
            issue: Vec::new(),
        }
    }

    /// Promises count bytes above a limit on host memory, too.
    pub fn within_host(self, limit: Option<u64>) -> Room {
        Room { host: limit, ..self }
    }

    /// Sets where each copy to the device is issued, and where the bytes of each copy to
    /// the host are used again.
    pub fn schedule(&mut self, script: &mut Script, limit: u64) -> Prediction {
        let n = script.steps.len();
        self.live.clear();
        self.live.extend(script.steps.iter().map(|s| s.live));
        let over: u64 = self.live.iter().map(|&bytes| bytes.saturating_sub(limit)).sum();
        let over = over + self.host.map_or(0, |limit| self.over_in_host(script, limit));
        self.start.clear();
        self.start.resize(n, 0.0);
        self.end.clear();
        self.end.resize(n, 0.0);
        self.free.clear();
        self.free.resize(n + 1, 0.0);
        self.back.fill(n);
        self.released.fill(0);
        script.fetches.iter().rev().for_each(|f| self.back[f.tensor] = f.before);
        self.release(script, limit);
        self.issue(script, limit);
        Prediction { seconds: self.run(script), over }
    }

    /// What a script promises with its copies as they are issued.
    pub fn predict(&mut self, script: &Script, limit: u64) -> Prediction {
        let n = script.steps.len();
        for times in [&mut self.start, &mut self.end, &mut self.free] {
            times.clear();
            times.resize(n + 1, 0.0);
        }
        let live = self.live_with_copies(script);
        let over = live.iter().map(|&bytes| bytes.saturating_sub(limit)).sum();
        Prediction { seconds: self.run(script), over }
    }

    /// Bytes in host memory above a limit, summed over steps that are above it.
    fn over_in_host(&self, script: &Script, limit: u64) -> u64 {
        let n = script.steps.len();
        let mut last: Vec<Option<usize>> = vec![None; self.bytes.len()];
        script.fetches.iter().for_each(|f| last[f.tensor] = Some(f.before));
        let mut changes = vec![0i64; n + 2];
        changes[0] = script.homes as i64;
        for store in script.stores.iter().filter(|s| s.kind == StoreKind::Swap) {
            let bytes = self.bytes[store.tensor] as i64;
            changes[store.before] += bytes;
            // What nothing brings back is handed out there.
            changes[last[store.tensor].unwrap_or(n) + 1] -= bytes;
        }
        let live = changes[..=n].iter().scan(0i64, |live, change| {
            *live += change;
            Some(*live as u64)
        });
        live.map(|bytes| bytes.saturating_sub(limit)).sum()
    }

    /// Live bytes of each step, with those that copies need while they run.
    pub fn live_with_copies(&self, script: &Script) -> Vec<u64> {
        let mut live: Vec<u64> = script.steps.iter().map(|s| s.live).collect();
        let stores = script.stores.iter().map(|s| (s.tensor, s.left..s.release));
        let fetches = script.fetches.iter().map(|f| (f.tensor, f.from..f.before));
        for (x, steps) in stores.chain(fetches) {
            live[steps].iter_mut().for_each(|bytes| *bytes += self.bytes[x]);
        }
        live
    }

    /// Seconds of a tensor's copy to the host, and to the device.
    pub fn copy_seconds(&self, x: usize) -> (f64, f64) {
        self.copy[x]
    }

    /// Copies to the host as soon as they can, with room as far as there is some.
    fn release(&mut self, script: &mut Script, limit: u64) {
        let (mut now, mut link) = (0.0f64, 0.0f64);
        let mut next = 0;
        for i in 0..=script.steps.len() {
            while let Some(store) = script.stores.get_mut(next).filter(|s| s.before == i) {
                next += 1;
                let made = store.made.map_or(0.0, |m| self.end[m]);
                link = link.max(made) + self.copy[store.tensor].0;
                store.release = self.room_until(&script.steps, store, i, link - now, limit);
                if store.kind == StoreKind::Swap && self.homed[store.tensor] {
                    self.released[store.tensor] = store.release;
                }
                self.free[store.release] = self.free[store.release].max(link);
            }
            let Some(step) = script.steps.get(i) else { break };
            self.start[i] = now.max(self.free[i]);
            now = self.start[i] + step.seconds;
            self.end[i] = now;
        }
    }

    /// The first step that needs a leaving tensor's bytes, of those that begin before its
    /// copy is done, in `seconds` from step `i` on.
    fn room_until(
        &mut self,
        steps: &[ScriptStep],
        store: &Store,
        i: usize,
        seconds: f64,
        limit: u64,
    ) -> usize {
        let bytes = self.bytes[store.tensor];
        let mut passed: f64 = steps[i..store.left.max(i)].iter().map(|s| s.seconds).sum();
        let mut release = store.left;
        let most = match store.kind {
            StoreKind::Swap if self.homed[store.tensor] => self.back[store.tensor],
            StoreKind::Swap | StoreKind::Commit(_) => steps.len(),
        };
        while release < most && passed < seconds && self.live[release] + bytes <= limit {
            self.live[release] += bytes;
            passed += steps[release].seconds;
            release += 1;
        }
        release
    }

    /// Copies to the device as late as they can, earlier where the link is busy.
    fn issue(&mut self, script: &mut Script, limit: u64) {
        let mut until = self.end.last().copied().unwrap_or(0.0);
        for fetch in script.fetches.iter_mut().rev() {
            let Fetch { tensor, before, away, .. } = *fetch;
            let bytes = self.bytes[tensor];
            let needed = self.start.get(before).copied().unwrap_or(until);
            let begin = until.min(needed) - self.copy[tensor].1;
            let mut from = before;
            let away = away.max(self.released[tensor]);
            while from > away && self.end[from - 1] > begin && self.live[from - 1] + bytes <= limit
            {
                from -= 1;
                self.live[from] += bytes;
            }
            fetch.from = from;
            until = from.checked_sub(1).map_or(0.0, |last| self.end[last]).max(begin);
        }
    }

    /// The step's seconds, with every wait.
    fn run(&mut self, script: &Script) -> f64 {
        let n = script.steps.len();
        self.ready.clear();
        self.ready.resize(n, 0.0);
        self.free.fill(0.0);
        self.stored.fill(0.0);
        self.issue.clear();
        let issued = script.fetches.iter().enumerate().map(|(i, f)| (f.from, f.before, i));
        self.issue.extend(issued);
        self.issue.sort_unstable();
        let (mut now, mut to_host, mut to_device) = (0.0f64, 0.0f64, 0.0f64);
        let (mut store, mut fetch) = (0, 0);
        for i in 0..=n {
            while let Some(s) = script.stores.get(store).filter(|s| s.before == i) {
                store += 1;
                let made = s.made.map_or(0.0, |m| self.end[m]);
                to_host = to_host.max(made) + self.copy[s.tensor].0;
                self.stored[s.tensor] = to_host;
                self.free[s.release] = self.free[s.release].max(to_host);
            }
            while let Some(&(_, before, f)) = self.issue.get(fetch).filter(|f| f.0 == i) {
                fetch += 1;
                let x = script.fetches[f].tensor;
                let allowed = now.max(self.free[i]).max(self.stored[x]);
                to_device = to_device.max(allowed) + self.copy[x].1;
                if let Some(ready) = self.ready.get_mut(before) {
                    *ready = ready.max(to_device);
                }
            }
            let Some(step) = script.steps.get(i) else { break };
            self.start[i] = now.max(self.free[i]).max(self.ready[i]);
            now = self.start[i] + step.seconds;
            self.end[i] = now;
        }
        let out = script.stores.iter().map(|s| self.lost[s.tensor].0);
        let back = script.fetches.iter().map(|f| self.lost[f.tensor].1);
        now.max(to_host).max(to_device) + out.chain(back).sum::<f64>()
    }
}
