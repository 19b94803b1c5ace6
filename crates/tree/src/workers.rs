//! A few threads that check blocks that were read ahead, shared by all sweeps of a forest.
//!
//! They start with the first sweep, and have ended when the forest is dropped: what they hold of the volume is let go of by
//! then, so that it can be opened again at once. On simulated devices there are none:
//! whoever needs a block does the work, so that runs can be repeated. A full queue is no obstacle either: work
//! that no thread has begun is done by whoever needs its result.

use buttress_device::placement;
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};

/// More threads than this gain nothing: the devices are slower.
const THREADS_MAX: usize = 8;

/// Pieces of work that may wait; further ones are left to those who need them.
const QUEUE_LENGTH_MAX: usize = 1024;

/// Something that any thread can do.
pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// The threads, once they are wanted.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    pool: OnceLock<Option<Pool>>,
}

#[derive(Debug)]
struct Pool {
    sender: Option<Sender<Work>>,
    threads: Vec<JoinHandle<()>>,
    /// Nobody wants what still waits.
    is_closed: Arc<AtomicBool>,
}

impl Workers {
    /// Gives work to the threads, or drops it where there are none or they are busy.
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
            // A panic there was told there, and nobody waits for what it did.
            let _ended = thread.join();
        }
    }
}

/// Starts the threads; `None` when the system gives none.
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
