//! Ranks: processes, or threads, that run one program together and exchange tensors.
//!
//! All that is asked of a transport is one exchange: every rank sends a message to every other and receives
//! one from each. What is summed is summed here, by rank, so that sums have the same bits on every rank, in
//! every run and over every transport. Exchanges run on the thread of their stream, outside of the kernels' pool.

mod collective;
pub mod threads;

pub(crate) use collective::run;

use std::fmt;
use std::thread::{sleep, yield_now};
use std::time::Duration;

/// Why ranks cannot go on together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RankError {
    /// A rank has not sent what the others wait for.
    #[error("rank {rank} has been silent for {seconds} s")]
    Silent {
        /// The rank, from 0.
        rank: usize,
        /// How long it was waited for.
        seconds: u64,
    },
    /// A rank is no longer there.
    #[error("rank {rank} has ended")]
    Ended {
        /// The rank, from 0.
        rank: usize,
    },
    /// A program of several ranks is run by one process alone.
    #[error("the program is for {ranks} ranks, and one process runs it alone")]
    Alone {
        /// How many ranks it is for.
        ranks: usize,
    },
    /// The transport failed, in its own words.
    #[error("the exchange with other ranks failed: {0}")]
    Transport(String),
}

/// A rank's connection with all others. Every rank makes the same exchanges in the same order.
pub trait Communicator: fmt::Debug + Send + Sync {
    /// Which rank this is, from 0.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn ranks(&self) -> usize;

    /// Its number among the ranks of its machine, from 0.
    fn local_rank(&self) -> usize;

    /// Sends `sent[q]` to rank `q`, and receives into `received[q]` what rank `q` sends here, for all ranks
    /// but this one; of one message in `sent` every rank is sent the same. What a rank sends has the
    /// length that the other one expects.
    ///
    /// # Errors
    /// A rank is silent for longer than the timeout, or has ended; the transport fails.
    fn exchange(&self, sent: &[&[u8]], received: &mut [&mut [u8]]) -> Result<(), RankError>;

    /// Bytes of the host's memory that the transport has beside the messages, as far as they were measured.
    fn memory_bytes(&self) -> u64;

    /// For how long a rank may be silent; `None` for however long it takes.
    fn timeout(&self) -> Option<Duration>;

    /// From now on a rank may be silent for so long; `None` for however long it takes.
    fn set_timeout(&self, timeout: Option<Duration>);
}

/// Lets others run while a rank waits that has waited for so long: it looks again at once at first, and sleeps in between
/// later.
pub fn pause(waited: Duration) {
    match waited < Duration::from_millis(2) {
        true => yield_now(),
        false => sleep(Duration::from_micros(50)),
    }
}

/// What every rank says: the same number of bytes of each.
///
/// # Errors
/// Those of [`Communicator::exchange`].
pub fn gather(ranks: &dyn Communicator, own: &[u8]) -> Result<Vec<Vec<u8>>, RankError> {
    let mut all = vec![vec![0; own.len()]; ranks.ranks()];
    all[ranks.rank()].copy_from_slice(own);
    let mut received: Vec<&mut [u8]> = all.iter_mut().map(Vec::as_mut_slice).collect();
    ranks.exchange(&[own], &mut received)?;
    Ok(all)
}

/// True where any rank says so.
///
/// # Errors
/// Those of [`Communicator::exchange`].
pub fn any(ranks: &dyn Communicator, says: bool) -> Result<bool, RankError> {
    Ok(gather(ranks, &[u8::from(says)])?.iter().any(|said| said[0] != 0))
}
