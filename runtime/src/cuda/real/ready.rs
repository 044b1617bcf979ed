//! What both libraries are made ready with.

use super::super::driver::DriverError;

/// One way in which a library does what is asked, made ready.
pub(super) struct Ready<C> {
    pub(super) call: C,
    pub(super) name: String,
    pub(super) workspace: u64,
    pub(super) deterministic: bool,
}

/// Refuses a library that does not have all of these symbols: to call one that is missing would
/// end the process.
pub(super) fn has_all(
    library: &str,
    symbols: &[&str],
    has: impl Fn(&str) -> bool,
) -> Result<(), DriverError> {
    match symbols.iter().find(|symbol| !has(symbol)) {
        None => Ok(()),
        Some(symbol) => Err(DriverError::Missing(format!(
            "the {library} that is found here has no `{symbol}`: it is too old or too new"
        ))),
    }
}
