//! What connects simulated devices: messages between ranks that are threads.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a rank waits for another before the test has failed.
const PATIENCE: Duration = Duration::from_secs(60);

struct Fabric {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Messages on their way, by sender, then by receiver.
    on_the_way: Vec<Vec<VecDeque<Vec<u8>>>>,
    has_ended: bool,
}

/// A rank's place at the fabric.
pub(crate) struct Port {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    fabric: Arc<Fabric>,
}

/// Places for so many ranks.
pub(crate) fn fabric(ranks: usize) -> Vec<Port> {
    let on_the_way = vec![vec![VecDeque::new(); ranks]; ranks];
    let state = Mutex::new(State { on_the_way, has_ended: false });
    let fabric = Arc::new(Fabric { state, changed: Condvar::new() });
    (0..ranks).map(|rank| Port { rank, ranks, fabric: Arc::clone(&fabric) }).collect()
}

impl Port {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.fabric.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn send(&self, to: usize, message: &[u8]) {
        self.lock().on_the_way[self.rank][to].push_back(message.to_vec());
        self.fabric.changed.notify_all();
    }

    /// True where a message of another rank is there.
    pub(crate) fn has_message(&self, from: usize) -> bool {
        !self.lock().on_the_way[from][self.rank].is_empty()
    }

    pub(crate) fn receive(&self, from: usize) -> Option<Vec<u8>> {
        self.lock().on_the_way[from][self.rank].pop_front()
    }

    /// Waits until a message of one of these ranks is there.
    pub(crate) fn wait(&self, from: &[usize]) {
        let comes = |state: &mut State| {
            assert!(!state.has_ended, "another rank has ended");
            !from.iter().any(|&q| !state.on_the_way[q][self.rank].is_empty())
        };
        let waited = self.fabric.changed.wait_timeout_while(self.lock(), PATIENCE, comes);
        let (state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        drop(state);
        assert!(!waited.timed_out(), "ranks wait for each other for ever");
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // Others that wait for it have failed, too.
        self.lock().has_ended |= std::thread::panicking();
        self.fabric.changed.notify_all();
    }
}
