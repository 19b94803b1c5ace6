//! Runs of a program in which each of its requests fails in turn.

use std::sync::Arc;

use buttress_device::Backend;

use super::{Fault, FaultyBackend};

/// Runs a program once for each request that `fault` names by number, from 0 on, until a run ends
/// without reaching the fault. Returns the number of runs that the fault struck.
///
/// Each run gets the number and a new faulty backend over `base()`. `run` decides which results the
/// fault allows, and checks them. [`FaultyBackend::heal`] ends the fault, as a repair or a deleted
/// file would.
///
/// `fault` must name one request by number (`Fault::FailWriteNumber`), or all requests from one
/// number on (`Fault::FullFromWrite`). With a fault that strikes every run, this function never
/// returns.
///
/// # Errors
/// Returns the first error of `run`, with the number of the struck request.
pub fn strike_each<E>(
    base: impl Fn() -> Arc<dyn Backend>,
    fault: impl Fn(u64) -> Fault,
    mut run: impl FnMut(u64, &Arc<FaultyBackend>) -> Result<(), E>,
) -> Result<u64, (u64, E)> {
    let mut number = 0_u64;
    loop {
        let backend = FaultyBackend::new(base(), number);
        backend.inject(fault(number));
        run(number, &backend).map_err(|error| (number, error))?;
        if backend.struck() == 0 {
            return Ok(number);
        }
        number = number.saturating_add(1);
    }
}
