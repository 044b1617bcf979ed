//! Ranks that are processes, started and wired by MPI: `mpirun` or `srun`.
//!
//! Messages go from each rank to each other by non-blocking point-to-point calls, which are watched until all
//! have come: so a rank that is silent can be named. Nothing is summed by MPI.

use ::mpi::Threading;
use ::mpi::environment::Universe;
use ::mpi::point_to_point::send_receive_into;
use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::{Communicator as _, Destination as _, Source as _};
use arenic_runtime::memory::process_bytes;
use arenic_runtime::ranks::{Communicator, RankError, pause};
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// All processes that were started together.
pub struct World {
    universe: Universe,
    rank: usize,
    ranks: usize,
    local_rank: usize,
    joined: Joined,
    timeout: Mutex<Option<Duration>>,
    /// MPI allows one call at a time.
    calls: Mutex<()>,
    /// Told of the rank that is silent, before all ranks are ended.
    on_silence: Box<dyn Fn(&RankError) + Send + Sync>,
}

/// What the process had when it had joined the others, in bytes.
struct Joined {
    /// So much more was resident than before: MPI's code and data, and its buffers.
    resident: u64,
    /// So much of it was shared with other processes.
    shared: u64,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.ranks)
    }
}

impl World {
    /// Joins the others. `on_silence` is told of a rank that is silent for longer than the timeout; what
    /// was sent to it cannot be taken back, so that all ranks are ended then.
    ///
    /// # Errors
    /// MPI cannot be called from the threads of streams, or was begun already.
    pub fn join(
        on_silence: impl Fn(&RankError) + Send + Sync + 'static,
    ) -> Result<World, RankError> {
        let messages = Messages::default();
        let before = process_bytes("VmRSS");
        let begun = ::mpi::initialize_with_threading(Threading::Serialized);
        let Some((universe, provided)) = begun else {
            return Err(RankError::Transport("MPI has been begun already".into()));
        };
        if !matches!(provided, Threading::Serialized | Threading::Multiple) {
            let text = "this MPI library can be called from the main thread alone";
            return Err(RankError::Transport(text.into()));
        }
        let world = universe.world();
        let (rank, ranks) = (world.rank() as usize, world.size() as usize);
        // Processes that can share memory are on one machine.
        let local_rank = world.split_shared(world.rank()).rank() as usize;
        messages.go_round(&world);
        let resident = process_bytes("VmRSS")
            .zip(before)
            .map_or(0, |(now, before)| now.saturating_sub(before));
        let joined = Joined { resident, shared: shared_bytes() };
        let (timeout, calls, on_silence) =
            (Mutex::default(), Mutex::default(), Box::new(on_silence));
        Ok(World { universe, rank, ranks, local_rank, joined, timeout, calls, on_silence })
    }

    /// Ends all ranks; this one, and so the launcher, with this exit code.
    pub fn end_all(&self, code: u8) -> ! {
        self.universe.world().abort(code.into())
    }
}

/// Bytes of this process that it shares with others: segments that MPI sends messages through. Nothing else does.
fn shared_bytes() -> u64 {
    process_bytes("RssShmem").unwrap_or(0)
}

/// Messages that go from each rank to each other before the first step, so that what MPI allocates for its connections
/// is there when its memory is measured.
struct Messages {
    sent: Vec<u8>,
    received: Vec<u8>,
}

impl Default for Messages {
    /// Their pages are resident, and not counted as MPI's.
    fn default() -> Messages {
        let (sent, received) = (vec![1; Messages::LONG], vec![1; Messages::LONG]);
        Messages { sent, received }
    }
}

impl Messages {
    /// Sent at once, with what is copied by the way.
    const SHORT: usize = 1;
    /// Longer than what any usual transport sends before the receiver is known to wait.
    const LONG: usize = 256 << 10;

    fn go_round(mut self, world: &SimpleCommunicator) {
        let (rank, ranks) = (world.rank(), world.size());
        for distance in 1..ranks {
            let to = world.process_at_rank((rank + distance) % ranks);
            let from = world.process_at_rank((rank - distance).rem_euclid(ranks));
            for len in [Messages::SHORT, Messages::LONG] {
                send_receive_into(&self.sent[..len], &to, &mut self.received[..len], &from);
            }
        }
    }
}

impl Communicator for World {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn local_rank(&self) -> usize {
        self.local_rank
    }

    fn exchange(&self, sent: &[&[u8]], received: &mut [&mut [u8]]) -> Result<(), RankError> {
        let _one = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let timeout = *self.timeout.lock().unwrap_or_else(PoisonError::into_inner);
        let world = self.universe.world();
        ::mpi::request::scope(|scope| {
            let mut waiting = Vec::with_capacity(2 * self.ranks);
            let others = received.iter_mut().enumerate().filter(|(rank, _)| *rank != self.rank);
            for (rank, place) in others {
                let from = world.process_at_rank(rank as i32);
                waiting.push((rank, from.immediate_receive_into(scope, &mut **place)));
            }
            for rank in (0..self.ranks).filter(|&rank| rank != self.rank) {
                let message = if sent.len() == 1 { sent[0] } else { sent[rank] };
                let to = world.process_at_rank(rank as i32);
                waiting.push((rank, to.immediate_send(scope, message)));
            }
            let begun = Instant::now();
            while !waiting.is_empty() {
                let mut left = Vec::with_capacity(waiting.len());
                for (rank, request) in waiting.drain(..) {
                    if let Err(request) = request.test() {
                        left.push((rank, request));
                    }
                }
                waiting = left;
                let waited = begun.elapsed();
                if let Some(&(rank, _)) = waiting.first()
                    && timeout.is_some_and(|timeout| waited > timeout)
                {
                    (self.on_silence)(&RankError::Silent { rank, seconds: waited.as_secs() });
                    self.end_all(1);
                }
                pause(waited);
            }
        });
        Ok(())
    }

    /// What came as the ranks joined, and how much the segments they share have grown since. What MPI allocates later
    /// in its own part of the heap is not seen.
    fn memory_bytes(&self) -> u64 {
        self.joined.resident + shared_bytes().saturating_sub(self.joined.shared)
    }

    fn timeout(&self) -> Option<Duration> {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_timeout(&self, timeout: Option<Duration>) {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner) = timeout;
    }
}
