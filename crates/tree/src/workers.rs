//! Threads that check blocks after read-ahead. All sweeps of a forest share the checking threads.
//!
//! The threads start with the first sweep, and end before the forest is dropped. After their end,
//! the threads hold no reference to the volume, so it can be opened again at once. A simulated
//! device has no checking threads: the reader that needs a block checks it, so that runs are
//! deterministic. A full queue does no harm either. If no thread has begun a batch, the reader that
//! needs its result checks the batch itself.

use buttress_device::placement;
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};

/// The maximum number of threads. More threads gain nothing, because the devices are slower.
const THREADS_MAX: usize = 8;

/// The maximum length of the queue. Readers that need further batches check them.
const QUEUE_LENGTH_MAX: usize = 1024;

/// A piece of work that any thread can do.
pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// The forest's worker threads, started on first use.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    pool: OnceLock<Option<Pool>>,
}

#[derive(Debug)]
struct Pool {
    sender: Option<Sender<Work>>,
    threads: Vec<JoinHandle<()>>,
    /// True when no reader needs the queued work any more.
    is_closed: Arc<AtomicBool>,
}

impl Workers {
    /// Queues work for the threads. Drops the work if the pool has no threads or its queue is full.
    pub(crate) fn offer(&self, work: Work) {
        let pool = self.pool.get_or_init(start).as_ref();
        let Some(sender) = pool.and_then(|pool| pool.sender.as_ref()) else {
            return;
        };
        match sender.try_send(work) {
            Ok(()) | Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::Release);
        self.sender = None;
        for thread in self.threads.drain(..) {
            // The thread has already reported a panic, and no reader waits for its work.
            let _ended = thread.join();
        }
    }
}

/// Starts the threads. Returns `None` if the system refuses all threads.
fn start() -> Option<Pool> {
    let threads = placement::processors().min(THREADS_MAX);
    let (sender, receiver) = bounded::<Work>(QUEUE_LENGTH_MAX);
    let is_closed = Arc::new(AtomicBool::new(false));
    let one = |number: usize| {
        let (receiver, is_closed) = (receiver.clone(), Arc::clone(&is_closed));
        let name = format!("tree-check-{number}");
        let work = move || {
            placement::run_anywhere();
            run(&receiver, &is_closed);
        };
        thread::Builder::new().name(name).spawn(work).ok()
    };
    let threads: Vec<_> = (0..threads).filter_map(one).collect();
    (!threads.is_empty()).then(|| Pool {
        sender: Some(sender),
        threads,
        is_closed,
    })
}

fn run(receiver: &Receiver<Work>, is_closed: &AtomicBool) {
    for work in receiver {
        if !is_closed.load(Ordering::Acquire) {
            work();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn nothing_is_held_when_they_are_dropped() {
        let (workers, held) = (Workers::default(), Arc::new(()));
        for _ in 0..100 {
            let held = Arc::clone(&held);
            workers.offer(Box::new(move || {
                thread::sleep(Duration::from_millis(5));
                drop(held);
            }));
        }
        drop(workers);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
