//! Runs what was planned: CPU kernels, a reference interpreter (one allocation per
//! value) and the executor (one arena per memory space), both over the same kernels, and
//! measures what these take.

pub mod cpu;
pub mod cuda;
pub mod executor;
pub mod kernel;
pub mod machine;
pub mod memory;
pub mod profile;
pub mod ranks;
pub mod reference;
pub mod rounds;
pub mod variants;
pub mod ways;
mod workers;
