//! A few threads that check blocks that were read ahead, shared by all sweeps of a forest.
//!
//! They start with the first sweep and end when the forest is dropped. On simulated devices there are none:
//! whoever needs a block does the work, so that runs can be repeated. A full queue is no obstacle either: work
//! that no thread has begun is done by whoever needs its result.

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use std::sync::OnceLock;
use std::thread;

/// More threads than this gain nothing: the devices are slower.
const THREADS_MAX: usize = 8;

/// Pieces of work that may wait; further ones are left to those who need them.
const QUEUE_LENGTH_MAX: usize = 1024;

/// Something that any thread can do.
pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// The threads, once they are wanted.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    sender: OnceLock<Option<Sender<Work>>>,
}

impl Workers {
    /// Gives work to the threads, or drops it where there are none or they are busy.
    pub(crate) fn offer(&self, work: Work) {
        let Some(sender) = self.sender.get_or_init(start) else {
            return;
        };
        match sender.try_send(work) {
            Ok(()) | Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }
}

/// Starts the threads; `None` when the system gives none.
fn start() -> Option<Sender<Work>> {
    let threads = thread::available_parallelism()
        .map_or(1, usize::from)
        .min(THREADS_MAX);
    let (sender, receiver) = bounded::<Work>(QUEUE_LENGTH_MAX);
    let mut started = false;
    for number in 0..threads {
        let receiver: Receiver<Work> = receiver.clone();
        let name = format!("tree-check-{number}");
        started |= thread::Builder::new()
            .name(name)
            .spawn(move || run(&receiver))
            .is_ok();
    }
    started.then_some(sender)
}

fn run(receiver: &Receiver<Work>) {
    for work in receiver {
        work();
    }
}
