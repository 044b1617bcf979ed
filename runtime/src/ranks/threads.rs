//! Ranks of one process, a thread each: for tests, and for whoever wants to see what ranks do without MPI.

use super::{Communicator, RankError};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One of the ranks. When it is dropped the others are told that it has ended.
#[derive(Debug)]
pub struct ThreadRank {
    rank: usize,
    shared: Arc<Shared>,
    timeout: Mutex<Option<Duration>>,
}

#[derive(Debug)]
struct Shared {
    ranks: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Messages on their way, by sender, then by receiver.
    on_the_way: Vec<Vec<VecDeque<Vec<u8>>>>,
    ended: Vec<bool>,
}

/// So many ranks, which know one another.
pub fn ranks(count: usize) -> Vec<ThreadRank> {
    let on_the_way = vec![vec![VecDeque::new(); count]; count];
    let state = Mutex::new(State { on_the_way, ended: vec![false; count] });
    let shared = Arc::new(Shared { ranks: count, state, changed: Condvar::new() });
    let rank = |rank| ThreadRank { rank, shared: Arc::clone(&shared), timeout: Mutex::new(None) };
    (0..count).map(rank).collect()
}

/// A rank that panics leaves no message half sent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Communicator for ThreadRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.shared.ranks
    }

    fn local_rank(&self) -> usize {
        self.rank
    }

    fn exchange(&self, sent: &[&[u8]], received: &mut [&mut [u8]]) -> Result<(), RankError> {
        let begun = Instant::now();
        let timeout = *lock(&self.timeout);
        let mut state = lock(&self.shared.state);
        for to in (0..self.shared.ranks).filter(|&to| to != self.rank) {
            let message = if sent.len() == 1 { sent[0] } else { sent[to] };
            state.on_the_way[self.rank][to].push_back(message.to_vec());
        }
        self.shared.changed.notify_all();
        for (rank, place) in received.iter_mut().enumerate().filter(|(q, _)| *q != self.rank) {
            let message = loop {
                if let Some(message) = state.on_the_way[rank][self.rank].pop_front() {
                    break message;
                }
                if state.ended[rank] {
                    return Err(RankError::Ended { rank });
                }
                let wait = Duration::from_millis(100);
                (state, _) = self
                    .shared
                    .changed
                    .wait_timeout(state, wait)
                    .unwrap_or_else(PoisonError::into_inner);
                if timeout.is_some_and(|timeout| begun.elapsed() > timeout) {
                    let seconds = begun.elapsed().as_secs();
                    return Err(RankError::Silent { rank, seconds });
                }
            };
            if message.len() != place.len() {
                let (found, expected) = (message.len(), place.len());
                let text = format!("rank {rank} sent {found} bytes, not {expected}");
                return Err(RankError::Transport(text));
            }
            place.copy_from_slice(&message);
        }
        Ok(())
    }

    fn memory_bytes(&self) -> u64 {
        0
    }

    fn timeout(&self) -> Option<Duration> {
        *lock(&self.timeout)
    }

    fn set_timeout(&self, timeout: Option<Duration>) {
        *lock(&self.timeout) = timeout;
    }
}

impl Drop for ThreadRank {
    fn drop(&mut self) {
        lock(&self.shared.state).ended[self.rank] = true;
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{any, gather};
    use super::*;

    /// What each rank makes of its connection, on a thread of its own.
    fn each<R: Send>(count: usize, f: impl Fn(ThreadRank) -> R + Sync) -> Vec<R> {
        std::thread::scope(|scope| {
            let start = |rank| scope.spawn(|| f(rank));
            let threads: Vec<_> = ranks(count).into_iter().map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn every_rank_receives_what_every_other_sent_it() {
        let said = each(3, |rank| {
            let to: Vec<[u8; 2]> = (0..3).map(|q| [rank.rank() as u8, q]).collect();
            let sent: Vec<&[u8]> = to.iter().map(|m| &m[..]).collect();
            let mut from = [[9u8; 2]; 3];
            let mut received: Vec<&mut [u8]> = from.iter_mut().map(|m| &mut m[..]).collect();
            rank.exchange(&sent, &mut received).unwrap();
            (from, gather(&rank, &[rank.rank() as u8]).unwrap(), any(&rank, rank.rank() == 1))
        });
        for (r, (from, gathered, any)) in said.iter().enumerate() {
            for (q, message) in from.iter().enumerate().filter(|(q, _)| *q != r) {
                assert_eq!(message, &[q as u8, r as u8]);
            }
            assert_eq!(gathered, &[[0], [1], [2]]);
            assert_eq!(any, &Ok(true));
        }
    }

    #[test]
    fn a_rank_that_ends_or_is_silent_is_named() {
        let said = each(2, |rank| match rank.rank() {
            0 => Some(any(&rank, false)),
            _ => None,
        });
        assert_eq!(said[0], Some(Err(RankError::Ended { rank: 1 })));
        let said = each(2, |rank| {
            rank.set_timeout(Some(Duration::from_millis(1)));
            match rank.rank() {
                0 => Some(any(&rank, false)),
                _ => {
                    std::thread::sleep(Duration::from_millis(500));
                    None
                }
            }
        });
        assert_eq!(said[0], Some(Err(RankError::Silent { rank: 1, seconds: 0 })));
    }
}
