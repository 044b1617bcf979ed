//! cuBLASLt and cuDNN, loaded when something is first asked of them, and what was made ready
//! for each call.

use super::super::driver::{AlgorithmCandidate, CallHandle, DriverError, StreamHandle};
use super::super::work::Request;
use super::blas::{Blas, ProductCall};
use super::dnn::{Dnn, DnnCall};
use super::ready::Ready;
use arenic_backends::cuda::library::LibraryCall;

/// The libraries of one context.
#[derive(Default)]
pub(super) struct Libraries {
    calls: Vec<Call>,
    blas: Option<Result<Blas, DriverError>>,
    dnn: Option<Result<Dnn, DriverError>>,
}

enum Call {
    Product(ProductCall),
    Dnn(DnnCall),
}

impl Libraries {
    /// See [`Driver::candidates`](super::super::driver::Driver::candidates).
    pub(super) fn candidates(
        &mut self,
        request: &Request,
    ) -> Result<Vec<AlgorithmCandidate>, DriverError> {
        match &request.call {
            LibraryCall::Product(product) => {
                let blas = self.blas.get_or_insert_with(Blas::new).as_ref();
                let ways = blas.map_err(Clone::clone)?.candidates(product, request)?;
                Ok(self.keep(ways, Call::Product))
            }
            LibraryCall::Convolution(convolution) => {
                let ways = self.dnn()?.convolutions(convolution, request)?;
                Ok(self.keep(ways, Call::Dnn))
            }
            LibraryCall::Attention(attention) => {
                let ways = self.dnn()?.attentions(attention, request)?;
                Ok(self.keep(ways, Call::Dnn))
            }
        }
    }

    fn dnn(&mut self) -> Result<&Dnn, DriverError> {
        self.dnn.get_or_insert_with(Dnn::new).as_ref().map_err(Clone::clone)
    }

    fn keep<C>(&mut self, ways: Vec<Ready<C>>, of: impl Fn(C) -> Call) -> Vec<AlgorithmCandidate> {
        let kept = ways.into_iter().map(|Ready { call, name, workspace, deterministic }| {
            self.calls.push(of(call));
            let call = CallHandle(self.calls.len() as u64 - 1);
            AlgorithmCandidate { call, name, workspace, deterministic }
        });
        kept.collect()
    }

    /// See [`Driver::call`](super::super::driver::Driver::call).
    pub(super) unsafe fn call(
        &self,
        stream: StreamHandle,
        call: CallHandle,
        addresses: &[u64],
        workspace: u64,
    ) -> Result<(), DriverError> {
        // SAFETY: the caller's promise.
        unsafe {
            match (&self.calls[call.0 as usize], &self.blas, &self.dnn) {
                (Call::Product(call), Some(Ok(blas)), _) => {
                    blas.call(call, stream, addresses, workspace)
                }
                (Call::Dnn(call), _, Some(Ok(dnn))) => dnn.call(call, stream, addresses, workspace),
                _ => unreachable!("a call that no library made"),
            }
        }
    }
}
