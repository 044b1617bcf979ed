//! What a run knows of the other ranks that make it, too.

use super::{Step, TrainOptions};
use crate::artifact::Target;
use crate::data::Share;
use arenic_runtime::ranks::{self, Communicator, RankError};
use std::cell::Cell;
use std::time::Duration;

/// An artifact is for another number of ranks than run it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the artifact is for {compiled} {}, and {running} {} it; {}",
    ranks_of(*compiled),
    if *running == 1 { "rank runs" } else { "ranks run" },
    self.mend()
)]
pub struct RankCountError {
    /// How many ranks it was compiled for.
    pub compiled: usize,
    /// How many there are.
    pub running: usize,
}

fn ranks_of(count: usize) -> &'static str {
    if count == 1 { "rank" } else { "ranks" }
}

impl RankCountError {
    /// Whether the ranks that there are can run these programs.
    pub(crate) fn of(
        variants: &[&Target],
        ranks: Option<&dyn Communicator>,
    ) -> Result<(), RankCountError> {
        let running = ranks.map_or(1, Communicator::ranks);
        let counts = variants.iter().map(|target| target.graph.rank_count());
        match counts.into_iter().find(|&compiled| compiled != running) {
            Some(compiled) => Err(RankCountError { compiled, running }),
            None => Ok(()),
        }
    }

    fn mend(&self) -> String {
        let RankCountError { compiled, running } = self;
        match (*compiled, cfg!(feature = "mpi")) {
            (2.., false) => {
                "ranks are started by MPI, and this arenic was built without the feature \
                             `mpi` (cargo build --release --features mpi)"
                    .to_owned()
            }
            (2.., true) => format!("start it with `mpirun -n {compiled}`"),
            _ => format!("compile it with --ranks {running}, or start it without a launcher"),
        }
    }
}

/// The other ranks, as a run sees them.
pub(super) struct Peers<'a> {
    ranks: Option<&'a dyn Communicator>,
    timeout: Option<Duration>,
    /// The longest step so far.
    longest: Cell<Duration>,
}

/// How long a rank may be silent beyond what steps take.
const SILENCE: Duration = Duration::from_secs(10);

/// How long ranks may take to begin, which read files at first.
const BEGINNING: Duration = Duration::from_secs(120);

impl<'a> Peers<'a> {
    /// Those of a run.
    pub(super) fn new(options: &'a TrainOptions) -> Peers<'a> {
        let (ranks, timeout) = (options.ranks.as_deref(), options.rank_timeout);
        let peers = Peers { ranks, timeout, longest: Cell::default() };
        if let Some(ranks) = peers.ranks {
            ranks.set_timeout(Some(peers.timeout.unwrap_or(BEGINNING)));
        }
        peers
    }

    /// Which rank this is; 0 for a process alone.
    pub(super) fn rank(&self) -> usize {
        self.ranks.map_or(0, Communicator::rank)
    }

    /// True for the rank that writes files.
    pub(super) fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// True unless this process is alone.
    pub(super) fn are_several(&self) -> bool {
        self.ranks.is_some_and(|ranks| ranks.ranks() > 1)
    }

    /// The other ranks; `None` for a process alone.
    pub(super) fn others(&self) -> Option<&'a dyn Communicator> {
        self.ranks.filter(|ranks| ranks.ranks() > 1)
    }

    /// The rows of each batch that this rank takes.
    pub(super) fn share(&self, steps: &[Step]) -> Share {
        let of_graph = steps.first().and_then(|step| step.graph.ranks.as_ref());
        match (self.others(), of_graph) {
            (Some(ranks), Some(of_graph)) => Share {
                rank: ranks.rank(),
                ranks: ranks.ranks(),
                by_rows: of_graph.by_rows.clone(),
            },
            _ => Share::WHOLE,
        }
    }

    /// True where any rank says so.
    pub(super) fn any(&self, says: bool) -> Result<bool, RankError> {
        self.others().map_or(Ok(says), |others| ranks::any(others, says))
    }

    /// The most host memory that the transport has on any rank, in bytes; 0 for a process alone.
    pub(super) fn most_transport_bytes(&self) -> Result<u64, RankError> {
        let Some(others) = self.others() else { return Ok(0) };
        self.wait_long();
        let of_ranks = ranks::gather(others, &others.memory_bytes().to_le_bytes())?;
        let figures = of_ranks.iter().filter_map(|bytes| bytes.as_slice().try_into().ok());
        Ok(figures.map(u64::from_le_bytes).max().unwrap_or(0))
    }

    /// A step took so long; the next may take some three times as long, and ten seconds more.
    pub(super) fn took(&self, step: Duration) {
        self.longest.set(self.longest.get().max(step));
        self.watch_again();
    }

    /// Waits for others however long they take, as while one of them writes a file.
    pub(super) fn wait_long(&self) {
        if let Some(ranks) = self.ranks {
            ranks.set_timeout(None);
        }
    }

    /// Ranks may be silent for no longer than steps take.
    pub(super) fn watch_again(&self) {
        if let Some(ranks) = self.ranks {
            let usual = 3 * self.longest.get() + SILENCE;
            ranks.set_timeout(Some(self.timeout.unwrap_or(usual)));
        }
    }
}
