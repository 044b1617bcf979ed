//! Other ranks, each with a GPU of its own, by NCCL.
//!
//! NCCL moves bytes between GPUs and sums nothing. Ranks are wired by whatever connects their processes, and
//! watched by it, since NCCL waits for ever for a rank that is stopped.

use super::super::driver::{Direction, DriverError, Rank, StreamHandle, Transfer};
use super::ready::has_all;
use super::{failed, new_stream};
use crate::ranks::{self, Communicator};
use cudarc::driver::sys as driver;
use cudarc::nccl::result::{self, NcclError};
use cudarc::nccl::sys;
use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// All that is called here.
const SYMBOLS: [&str; 10] = [
    "ncclCommAbort",
    "ncclCommDestroy",
    "ncclCommGetAsyncError",
    "ncclCommInitRank",
    "ncclGetErrorString",
    "ncclGetUniqueId",
    "ncclGroupEnd",
    "ncclGroupStart",
    "ncclRecv",
    "ncclSend",
];

/// How long ranks have to answer once one of them has been silent for too long.
const ANSWER: Duration = Duration::from_secs(2);

/// The other ranks' GPUs.
pub(super) struct Peers {
    nccl: u64,
    ranks: Arc<dyn Communicator>,
    pub(super) rank: Rank,
    /// Something failed, and others may never come to what was begun.
    is_lost: AtomicBool,
}

fn refused(call: &'static str) -> impl Fn(NcclError) -> DriverError {
    move |NcclError(e)| {
        // SAFETY: a text of the library's own.
        let text = unsafe { CStr::from_ptr(sys::ncclGetErrorString(e)) };
        DriverError::Failed { call, message: text.to_string_lossy().into_owned() }
    }
}

/// Refuses where the library is not there, or is another one.
fn is_there() -> Result<(), DriverError> {
    // SAFETY: loads a library by its name.
    if !unsafe { sys::is_culib_present() } {
        return Err(DriverError::Missing(
            "there is no NCCL here (no libnccl.so.2), by which GPUs of several ranks exchange tensors".into(),
        ));
    }
    has_all("NCCL", &SYMBOLS, |symbol| {
        // SAFETY: asks for an address, which is not used.
        unsafe { sys::culib().get::<unsafe extern "C" fn()>(symbol.as_bytes()) }.is_ok()
    })
}

/// What a rank tells the others before it joins them: whether it can, and the first one by which name.
fn introduction(
    is_first: bool,
) -> ([u8; 1 + size_of::<sys::ncclUniqueId>()], Result<(), DriverError>) {
    let mut said = [0; 1 + size_of::<sys::ncclUniqueId>()];
    let name = || {
        is_there()?;
        match is_first {
            true => Ok(Some(result::get_uniqueid().map_err(refused("ncclGetUniqueId"))?)),
            false => Ok(None),
        }
    };
    let own = name().map(|name| {
        said[0] = 1;
        let of_name = name.iter().flat_map(|name| name.internal);
        said[1..].iter_mut().zip(of_name).for_each(|(to, c)| *to = c.cast_unsigned());
    });
    (said, own)
}

impl Peers {
    /// Joins the other ranks with the GPU whose context is current; all of them do.
    pub(super) fn join(ranks: Arc<dyn Communicator>) -> Result<Peers, DriverError> {
        let (said, own) = introduction(ranks.rank() == 0);
        let all = ranks::gather(&*ranks, &said)?;
        own?;
        if let Some(other) = all.iter().position(|said| said[0] == 0) {
            let message = format!("rank {other} has no NCCL, by which GPUs exchange tensors");
            return Err(DriverError::Missing(message));
        }
        let mut name = sys::ncclUniqueId { internal: [0; _] };
        let said = all[0][1..].iter().map(|&b| b as c_char);
        name.internal.iter_mut().zip(said).for_each(|(to, c)| *to = c);
        let mut nccl: sys::ncclComm_t = std::ptr::null_mut();
        let (rank, count) = (ranks.rank(), ranks.ranks());
        // SAFETY: a name that the first rank made, and a place for the handle.
        unsafe { result::comm_init_rank(&raw mut nccl, count as i32, name, rank as i32) }
            .map_err(refused("ncclCommInitRank"))?;
        let rank = Rank { rank, ranks: count, library_bytes: 0 };
        Ok(Peers { nccl: nccl as u64, ranks, rank, is_lost: AtomicBool::new(false) })
    }

    /// True once something has failed.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Exchanges a few bytes with every other rank, for which the library makes its connections, so that no step has to.
    /// `room` is an address of two bytes of the device's memory for each rank.
    pub(super) fn connect(&self, room: u64) -> Result<(), DriverError> {
        let Rank { rank, ranks, .. } = self.rank;
        let others = (0..ranks).filter(|&peer| peer != rank);
        let transfers: Vec<Transfer> = others
            .flat_map(|peer| {
                let transfer = |direction, at: usize| {
                    let address = room + at as u64;
                    Transfer { peer, direction, address, bytes: 1 }
                };
                [transfer(Direction::Sent, peer), transfer(Direction::Received, ranks + peer)]
            })
            .collect();
        let stream = StreamHandle(new_stream()?);
        // SAFETY: bytes of the room, each in one transfer.
        let exchanged = unsafe { self.exchange(stream, &transfers) };
        let exchanged = exchanged.and_then(|()| self.synchronize(stream));
        // SAFETY: a stream that was made here, on which nothing is under way.
        let destroyed =
            unsafe { cudarc::driver::result::stream::destroy(stream.0 as driver::CUstream) };
        exchanged.and(destroyed.map_err(failed("cuStreamDestroy")))
    }

    /// See [`Driver::exchange`](super::super::driver::Driver::exchange).
    pub(super) unsafe fn exchange(
        &self,
        stream: StreamHandle,
        transfers: &[Transfer],
    ) -> Result<(), DriverError> {
        let (nccl, stream) = (self.nccl as sys::ncclComm_t, stream.0 as sys::cudaStream_t);
        let byte = sys::ncclDataType_t::ncclUint8;
        result::group_start().map_err(refused("ncclGroupStart"))?;
        let begun = transfers.iter().try_for_each(|transfer| {
            let Transfer { peer, direction, address, bytes } = *transfer;
            let (peer, bytes) = (peer as i32, bytes as usize);
            // SAFETY: the caller's promise.
            unsafe {
                match direction {
                    Direction::Sent => {
                        result::send(address as *const c_void, bytes, byte, peer, nccl, stream)
                            .map_err(refused("ncclSend"))
                    }
                    Direction::Received => {
                        result::recv(address as *mut c_void, bytes, byte, peer, nccl, stream)
                            .map_err(refused("ncclRecv"))
                    }
                }
            }
            .map(drop)
        });
        // Also after a failure: it ends the group.
        let ended = result::group_end().map_err(refused("ncclGroupEnd")).map(drop);
        let done = begun.and(ended);
        self.is_lost.fetch_or(done.is_err(), Ordering::Relaxed);
        done
    }

    /// Waits until a stream has done all that was issued, for as long as other ranks may be silent.
    pub(super) fn synchronize(&self, stream: StreamHandle) -> Result<(), DriverError> {
        let done = self.watch(stream);
        self.is_lost.fetch_or(done.is_err(), Ordering::Relaxed);
        done
    }

    fn watch(&self, stream: StreamHandle) -> Result<(), DriverError> {
        let (begun, timeout) = (Instant::now(), self.ranks.timeout());
        loop {
            // SAFETY: a stream of this context.
            let state = unsafe { driver::cuStreamQuery(stream.0 as driver::CUstream) };
            if state != driver::CUresult::CUDA_ERROR_NOT_READY {
                return state.result().map_err(failed("cuStreamQuery"));
            }
            let mut error = sys::ncclResult_t::ncclSuccess;
            // SAFETY: a communicator, and a place for its state.
            unsafe { sys::ncclCommGetAsyncError(self.nccl as sys::ncclComm_t, &raw mut error) }
                .result()
                .and_then(|_| error.result())
                .map_err(refused("ncclCommGetAsyncError"))?;
            let waited = begun.elapsed();
            ranks::pause(waited);
            if timeout.is_some_and(|timeout| waited > timeout) {
                // Whoever is alive answers, or has given up in the same way; who does not is named.
                self.ranks.set_timeout(Some(ANSWER));
                ranks::any(&*self.ranks, true)?;
                let message = format!("the ranks' GPUs wait for one another since {waited:.0?}");
                return Err(DriverError::Failed { call: "ncclGroupEnd", message });
            }
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        let nccl = self.nccl as sys::ncclComm_t;
        // SAFETY: made by the library, given back once. What others wait for is sent before, unless all is lost.
        let _ = unsafe {
            match self.is_lost() {
                true => result::comm_abort(nccl),
                false => result::comm_destroy(nccl),
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranks::threads::ranks;

    /// Without NCCL every rank is told which one lacks it; with it the first one makes a name.
    #[test]
    fn ranks_agree_whether_they_can_join() {
        let (said, own) = introduction(false);
        assert_eq!(own.is_ok(), said[0] == 1);
        if own.is_ok() {
            return;
        }
        let join = |rank| std::thread::spawn(|| Peers::join(Arc::new(rank)).err());
        let threads: Vec<_> = ranks(2).into_iter().map(join).collect();
        for thread in threads {
            let error = thread.join().unwrap().unwrap().to_string();
            assert!(error.contains("no libnccl.so.2"), "{error}");
        }
    }
}
