//! The thread engine: positioned reads and writes on worker threads.
//!
//! Workers start when requests are queued that no idle worker can take, up to the queue's depth, and stay until the
//! device is closed. Two shortcuts keep small and cached reads from paying for a thread switch:
//!
//! - small dispatches whose bytes are in the page cache are served at once, on the caller's thread; the first
//!   one of a batch that is not ends the attempts for that batch, so a cold medium costs one failed system call;
//! - who waits for a dispatch that no worker has started yet runs it itself.
//!
//! The queue is first in, first out: batches arrive sorted, and the kernel's scheduler below sorts on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use crate::engine::{Engine, RunRequests, serve_from_cache};
use crate::queue::Core;
use crate::queue::request::Dispatch;

#[derive(Debug)]
pub(crate) struct ThreadEngine {
    shared: Arc<Shared>,
    depth: usize,
    workers: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    core: Arc<Core>,
    queue: Mutex<Queue>,
    work_arrived: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Arc<Dispatch>>,
    idle_workers: usize,
    closed: bool,
}

impl ThreadEngine {
    pub(crate) fn new(core: Arc<Core>, depth: u32) -> Self {
        let depth = usize::try_from(depth).unwrap_or(1).clamp(1, 256);
        let shared = Shared {
            core,
            queue: Mutex::default(),
            work_arrived: Condvar::new(),
        };
        Self {
            shared: Arc::new(shared),
            depth,
            workers: Mutex::default(),
        }
    }

    /// Starts workers for `wanted` more dispatches than idle workers can take, as far as the depth allows.
    fn start_workers(&self, wanted: usize) {
        let mut workers = self.workers.lock();
        let count = wanted.min(self.depth.saturating_sub(workers.len()));
        for _ in 0..count {
            let shared = Arc::clone(&self.shared);
            // Where no thread can be had, whoever waits does the work: slower, but nothing is lost.
            if let Ok(worker) = std::thread::Builder::new()
                .name("buttress-io".to_owned())
                .spawn(move || shared.work())
            {
                workers.push(worker);
            }
        }
    }
}

impl RunRequests for ThreadEngine {
    fn kind(&self) -> Engine {
        Engine::Threads
    }

    fn submit(&self, dispatches: &[Arc<Dispatch>]) {
        let rest = serve_from_cache(&self.shared.core, dispatches);
        if rest.is_empty() {
            return;
        }
        let (idle, unserved) = {
            let mut queue = self.shared.queue.lock();
            queue.waiting.extend(rest.iter().cloned());
            (
                queue.idle_workers,
                queue.waiting.len().saturating_sub(queue.idle_workers),
            )
        };
        for _ in 0..rest.len().min(idle) {
            self.shared.work_arrived.notify_one();
        }
        if unserved > 0 {
            self.start_workers(unserved);
        }
    }

    fn help(&self, dispatch: &Arc<Dispatch>) {
        if dispatch.start() {
            self.forget(dispatch);
            self.shared.core.execute(dispatch);
        }
    }

    fn forget(&self, dispatch: &Arc<Dispatch>) {
        let mut queue = self.shared.queue.lock();
        if let Some(place) = queue
            .waiting
            .iter()
            .position(|queued| Arc::ptr_eq(queued, dispatch))
        {
            queue.waiting.remove(place);
        }
    }
}

impl Drop for ThreadEngine {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.work_arrived.notify_all();
        for worker in self.workers.get_mut().drain(..) {
            // A worker that panicked has nothing more to say here; its panic was printed when it happened.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn work(&self) {
        while let Some(dispatch) = self.next() {
            if dispatch.start() {
                self.core.execute(&dispatch);
            }
        }
    }

    /// The next dispatch, or `None` once the device is closed. What is queued then, nobody waits for.
    fn next(&self) -> Option<Arc<Dispatch>> {
        let mut queue = self.queue.lock();
        loop {
            if queue.closed {
                return None;
            }
            if let Some(dispatch) = queue.waiting.pop_front() {
                return Some(dispatch);
            }
            queue.idle_workers = queue.idle_workers.saturating_add(1);
            self.work_arrived.wait(&mut queue);
            queue.idle_workers = queue.idle_workers.saturating_sub(1);
        }
    }
}
