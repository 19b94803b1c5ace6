//! The thread engine: positioned reads and writes on worker threads.
//!
//! Workers start on demand, up to the queue's depth, and stay until the device is closed. If
//! requests must wait for the medium, each queued dispatch gets one worker at once. Starting a
//! thread takes longer than a cached read, and reads from the page cache are work for the
//! processor. The engine starts only one worker until a request has to wait for the medium. Each
//! worker starts another after its own request if more are queued, up to the number of cores. A
//! worker that is about to wait for the medium starts all others. Shortcuts save a thread switch
//! for small writes, and for small and cached reads:
//!
//! - small dispatches whose bytes are in the page cache run at once, on the caller's thread. The
//!   first dispatch of a batch that is not cached ends these attempts, so a cold medium costs one
//!   failed system call;
//! - a small batch of writes into the page cache is copied at once, on the caller's thread;
//! - a caller that waits for a dispatch that no worker has started runs it itself.
//!
//! The queue is first in, first out: batches arrive sorted, and the kernel's scheduler below sorts
//! further.

use buttress_exact::{Exact as _, usize_of};
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use buttress_locks::unscheduled::{Condvar, Mutex};
use buttress_locks::{Rank, lock_class};

use crate::engine::{Engine, RunRequests, serve_from_cache};
use crate::queue::Core;
use crate::queue::request::Dispatch;

lock_class!(QueueLock, "queue", Rank::LEAF);
lock_class!(WorkersLock, "workers", Rank::LEAF);

/// The number of bytes whose copy into the page cache takes about as long as waking workers and
/// waiting for them.
#[cfg(target_os = "linux")]
const COPIED_BYTES: u64 = 512 << 10;

#[derive(Debug)]
pub(crate) struct ThreadEngine {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    core: Arc<Core>,
    depth: usize,
    /// The number of cores, determined when a worker first needs it.
    cores: OnceLock<usize>,
    queue: Mutex<Queue, QueueLock>,
    work_arrived: Condvar,
    /// The workers that were started and not yet joined.
    workers: Mutex<Vec<JoinHandle<()>>, WorkersLock>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Arc<Dispatch>>,
    workers: usize,
    /// The number of workers that were started and have not begun to take requests.
    coming_workers: usize,
    idle_workers: usize,
    closed: bool,
}

impl Queue {
    /// Returns the number of queued dispatches without an idle worker.
    fn lacking(&self) -> usize {
        let free = self.idle_workers.exact_add(self.coming_workers);
        // Clamp: more workers can be idle than there is work.
        self.waiting.len().saturating_sub(free)
    }
}

impl ThreadEngine {
    pub(crate) fn new(core: Arc<Core>, depth: u32) -> Self {
        let depth = usize_of(depth).clamp(1, 256);
        let shared = Shared {
            core,
            depth,
            cores: OnceLock::new(),
            queue: Mutex::default(),
            work_arrived: Condvar::new(),
            workers: Mutex::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }
}

impl RunRequests for ThreadEngine {
    fn kind(&self) -> Engine {
        Engine::Threads
    }

    fn submit(&self, dispatches: &[Arc<Dispatch>]) {
        let lengths = || dispatches.iter().map(|dispatch| dispatch.length_bytes);
        let total = lengths().fold(0, u64::exact_add);
        let are_writes = dispatches.iter().all(|dispatch| dispatch.is_write());
        // Clamp: an empty list of requests has no length.
        if are_writes && self.is_small_copy(total, lengths().max().unwrap_or(0)) {
            for dispatch in dispatches.iter().filter(|dispatch| dispatch.start()) {
                self.shared.core.execute(dispatch);
            }
            return;
        }
        let rest = serve_from_cache(&self.shared.core, dispatches);
        let is_cold = rest.is_cold;
        let rest = rest.dispatches;
        let Some(first) = rest.first() else {
            return;
        };
        let idle = {
            let mut queue = self.shared.queue.lock();
            queue.waiting.extend(rest.iter().cloned());
            queue.idle_workers
        };
        for _ in 0..rest.len().min(idle) {
            self.shared.work_arrived.notify_one();
        }
        let wanted = if is_cold || first.is_write() {
            rest.len()
        } else {
            1
        };
        self.shared.start_workers(wanted, self.shared.depth);
    }

    #[cfg(target_os = "linux")]
    fn is_small_copy(&self, total_bytes: u64, largest_bytes: u64) -> bool {
        total_bytes <= COPIED_BYTES
            && self.shared.core.backend.ring_target().is_some_and(|target| {
                let large = target.large_writes.map_or(u64::MAX, |large| large.least_bytes);
                target.alignment_bytes == 1 && largest_bytes < large
            })
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
        loop {
            // A worker adds the workers that it starts to the list before it ends.
            let worker = self.shared.workers.lock().pop();
            let Some(worker) = worker else {
                return;
            };
            // The panic of a worker was already printed when it happened.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Starts up to `wanted` workers, while requests are queued and fewer than `workers_max` run.
    fn start_workers(self: &Arc<Self>, wanted: usize, workers_max: usize) {
        let count = {
            let mut queue = self.queue.lock();
            // Clamp: more workers may have been started for a greater depth.
            let room = workers_max.saturating_sub(queue.workers);
            let count = if queue.closed {
                0
            } else {
                wanted.min(queue.lacking()).min(room)
            };
            queue.workers = queue.workers.exact_add(count);
            queue.coming_workers = queue.coming_workers.exact_add(count);
            count
        };
        for _ in 0..count {
            let shared = Arc::clone(self);
            let worker = std::thread::Builder::new()
                .name("buttress-io".to_owned())
                .spawn(move || {
                    crate::placement::run_anywhere();
                    shared.work();
                });
            match worker {
                Ok(worker) => self.workers.lock().push(worker),
                // If no thread can be started, the waiting caller does the work: this is slower,
                // but no request is lost.
                Err(_) => {
                    let mut queue = self.queue.lock();
                    queue.workers = queue.workers.exact_sub(1);
                    queue.coming_workers = queue.coming_workers.exact_sub(1);
                }
            }
        }
    }

    fn work(self: &Arc<Self>) {
        {
            let mut queue = self.queue.lock();
            queue.coming_workers = queue.coming_workers.exact_sub(1);
        }
        while let Some(dispatch) = self.next() {
            if !dispatch.start() {
                continue;
            }
            if self.lacks_workers() && self.core.execute_started_if_cached(&dispatch) {
                let cores = crate::placement::processors;
                self.start_workers(1, self.depth.min(*self.cores.get_or_init(cores)));
                continue;
            }
            self.start_workers(self.depth, self.depth);
            self.core.execute(&dispatch);
        }
    }

    /// Returns true if another worker may be started, and has work.
    fn lacks_workers(&self) -> bool {
        let queue = self.queue.lock();
        queue.lacking() > 0 && queue.workers < self.depth
    }

    /// Returns the next dispatch, or `None` once the device is closed. No caller waits for requests
    /// that are still queued when the device is closed.
    fn next(&self) -> Option<Arc<Dispatch>> {
        let mut queue = self.queue.lock();
        loop {
            if queue.closed {
                return None;
            }
            if let Some(dispatch) = queue.waiting.pop_front() {
                return Some(dispatch);
            }
            queue.idle_workers = queue.idle_workers.exact_add(1);
            self.work_arrived.wait(&mut queue);
            queue.idle_workers = queue.idle_workers.exact_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::io;
    use std::sync::{Arc, Barrier};

    use crate::backend::Backend;
    use crate::device::{DEFAULT_DEPTH, Device};
    use crate::engine::Engine;
    use crate::queue::request::ReadRequest;

    /// A medium that calls a function for each read and write.
    struct Medium<F>(F);

    impl<F> fmt::Debug for Medium<F> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a medium")
        }
    }

    impl<F: Fn() + Send + Sync> Backend for Medium<F> {
        fn name(&self) -> &'static str {
            "medium"
        }
        fn size_bytes(&self) -> u64 {
            1 << 40
        }
        fn is_writable(&self) -> bool {
            true
        }
        fn read_vectored_at(&self, _: u64, _: &mut [&mut [u8]]) -> io::Result<()> {
            self.0();
            Ok(())
        }
        fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
            self.0();
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
        fn discard(&self, _: u64, _: u64) -> io::Result<()> {
            Ok(())
        }
        fn zero(&self, _: u64, _: u64) -> io::Result<()> {
            Ok(())
        }
    }

    // If fewer workers were started, the test would not end.
    #[test]
    fn as_many_reads_wait_for_the_medium_as_the_depth_allows() {
        let depth = usize::try_from(DEFAULT_DEPTH).unwrap();
        // The caller first tries to serve small reads from memory. A worker performs large ones.
        for length in [4096, 1 << 20] {
            // The simulated medium responds when the number of waiting reads reaches the queue's
            // depth.
            let meeting = Barrier::new(depth);
            let medium = Medium(move || {
                let _is_leader = meeting.wait().is_leader();
            });
            let device = Device::with_backend(Arc::new(medium), Engine::Threads);
            let requests: Vec<ReadRequest> = (0..2 * depth)
                .map(|number| ReadRequest {
                    offset_bytes: (number as u64) << 24,
                    length,
                })
                .collect();
            for read in device.start_reads(&requests) {
                assert_eq!(read.wait().unwrap().len(), length);
            }
        }
    }

    /// A caller that waits for a request whose worker panicked gets an error. Without the error,
    /// the caller of a request on a panicked worker would wait forever.
    #[test]
    fn request_of_a_worker_that_panics_fails() {
        let (sender, asked) = std::sync::mpsc::channel();
        // The medium signals a request to the test, then panics in a worker.
        let medium = Medium(move || {
            let _ = sender.send(());
            std::panic::panic_any("the medium panics");
        });
        let device = Device::with_backend(Arc::new(medium), Engine::Threads);
        let request = ReadRequest {
            offset_bytes: 0,
            length: 4096,
        };
        let pending = device.start_reads([request]);
        // A worker has started the request, so this thread does not serve it itself.
        asked.recv().unwrap();
        for read in pending {
            let told = read.wait().unwrap_err().to_string();
            assert!(told.contains("panicked"), "{told}");
        }
    }
}
