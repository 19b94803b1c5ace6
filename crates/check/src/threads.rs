//! Work on all cores.

use crate::context::Check;

/// Runs `work` on this thread and others, at most one for each core and each piece of work. On a
/// simulated device, only this thread runs it.
pub(crate) fn run<T: Send>(check: &Check<'_>, pieces: usize, work: &(dyn Fn() -> T + Sync)) -> Vec<T> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let others = if check.volume().virtual_clock().is_some() {
        0
    } else {
        cores.min(pieces).saturating_sub(1)
    };
    std::thread::scope(|scope| {
        let helpers: Vec<_> = (0..others)
            .filter_map(|number| {
                std::thread::Builder::new()
                    .name(format!("buttress-check-{number}"))
                    .spawn_scoped(scope, work)
                    .ok()
            })
            .collect();
        let mut results = vec![work()];
        for helper in helpers {
            match helper.join() {
                Ok(result) => results.push(result),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        results
    })
}
