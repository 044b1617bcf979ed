//! The ranks that run a program together, where a launcher of MPI starts it.

use super::terminal::tell_failure;
use super::{Failure, Outcome};
#[cfg(feature = "mpi")]
use crate::mpi::World;
use crate::train::RankCountError;
use arenic_runtime::ranks::{Communicator, any};
use std::sync::Arc;

/// This process among those that were started together.
pub(super) struct Ranks {
    #[cfg(feature = "mpi")]
    world: Option<Arc<World>>,
}

/// How many processes launchers say that they have started: Open MPI, and those that speak PMI.
fn launched() -> usize {
    let said = |name: &str| std::env::var(name).ok()?.parse().ok();
    ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"].into_iter().find_map(said).unwrap_or(1)
}

impl Ranks {
    /// Joins the other ranks of an artifact that is for so many.
    #[cfg(feature = "mpi")]
    pub(super) fn join(compiled: usize) -> Result<Ranks, Failure> {
        if compiled == 1 && launched() == 1 {
            return Ok(Ranks { world: None });
        }
        let world = World::join(|silence| {
            tell!("error: {silence} (--rank-timeout); all ranks end");
        });
        let world = Arc::new(world.map_err(super::failed)?);
        let ranks = Ranks { world: Some(world) };
        ranks.fit(compiled)?;
        Ok(ranks)
    }

    /// There are no other ranks.
    #[cfg(not(feature = "mpi"))]
    pub(super) fn join(compiled: usize) -> Result<Ranks, Failure> {
        let ranks = Ranks {};
        ranks.fit(compiled)?;
        Ok(ranks)
    }

    /// Refuses an artifact for another number of ranks; the first rank says it.
    fn fit(&self, compiled: usize) -> Result<(), Failure> {
        let running = self.communicator().map_or(launched(), |ranks| ranks.ranks());
        if compiled == running {
            return Ok(());
        }
        let error = super::failed(RankCountError { compiled, running });
        // The launcher ends all ranks with the first that exits, which waits until it is said.
        if self.is_first()
            && let Some(report) = error.report
        {
            tell_failure(report);
        }
        if let Some(ranks) = self.communicator() {
            any(&*ranks, false).map_err(super::failed)?;
        }
        Err(Failure { report: None, code: 1 })
    }

    /// The connection with the others; `None` for a process alone.
    pub(super) fn communicator(&self) -> Option<Arc<dyn Communicator>> {
        #[cfg(feature = "mpi")]
        let communicator = self.world.clone().map(|world| world as Arc<dyn Communicator>);
        #[cfg(not(feature = "mpi"))]
        let communicator = None;
        communicator
    }

    /// True for the rank that writes to stdout and to files.
    pub(super) fn is_first(&self) -> bool {
        self.communicator().map_or_else(is_first_launched, |ranks| ranks.rank() == 0)
    }

    /// What the run came to. Where it failed, the others wait for this rank, and are ended.
    pub(super) fn close(self, outcome: Outcome) -> Outcome {
        #[cfg(feature = "mpi")]
        if let Some(world) = &self.world {
            let Err(Failure { report: Some(report), code }) = outcome else { return outcome };
            // Where all of them failed alike, the first one says so, and ends the others.
            if !self.is_first() {
                std::thread::sleep(std::time::Duration::from_millis(500));
            }
            tell!("rank {}:", world.rank());
            tell_failure(report);
            world.end_all(code);
        }
        outcome
    }
}

/// True for the first process that a launcher started, as far as it says.
fn is_first_launched() -> bool {
    let said = |name: &str| std::env::var(name).ok();
    let rank = ["OMPI_COMM_WORLD_RANK", "PMI_RANK"].into_iter().find_map(said);
    rank.is_none_or(|rank| rank == "0")
}
