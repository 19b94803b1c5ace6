//! A backend with a gate that holds requests, and a thread that can be watched: for tests of what may happen between two
//! requests.
//!
//! A test closes the gate for some requests and lets one thread run up to it. The test then starts
//! another thread, which ends or waits for the first thread. No time decides: a thread that sleeps
//! waits for the other thread if nothing else is left to wait for. [`SetOnDrop`] ends the loops of
//! other threads when a test ends or panics.
//!
//! Clamps: of a laboratory for tests, whose images are compared as a whole.

use std::fmt;
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use buttress_locks::unscheduled::{Condvar, Mutex};
use buttress_locks::{Rank, lock_class};

use buttress_device::Backend;

use crate::layer::geometry_of_inner;
use buttress_exact::u64_of;

lock_class!(GateLock, "state", Rank::LEAF);

/// A request that arrives at a gate.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// A read of `length_bytes` at `offset_bytes`. The read is complete while it waits at the gate:
    /// its bytes are from before.
    Read {
        /// First byte.
        offset_bytes: u64,
        /// How many.
        length_bytes: u64,
    },
    /// A write request, which has not begun while it waits at the gate.
    Write {
        /// First byte.
        offset_bytes: u64,
        /// What is written.
        bytes: &'a [u8],
    },
    /// A flush request, which has not begun while it waits at the gate.
    Flush,
    /// A discard of `length_bytes` at `offset_bytes`, which has not begun when it waits.
    Discard {
        /// First byte.
        offset_bytes: u64,
        /// How many.
        length_bytes: u64,
    },
}

type Filter = Box<dyn Fn(Request<'_>) -> bool + Send>;

#[derive(Default)]
struct State {
    closed_for: Option<Filter>,
    waiting: usize,
}

/// A backend with a gate. Keep a clone of the `Arc` to close and open it.
pub struct GatedBackend {
    inner: Arc<dyn Backend>,
    state: Mutex<State, GateLock>,
    changed: Condvar,
}

impl fmt::Debug for GatedBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gate before {:?}", self.inner)
    }
}

impl GatedBackend {
    /// The backend `inner` behind an open gate.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Makes requests wait from now on if `filter` returns true for them. Requests that already
    /// wait, and for which `filter` returns false, continue.
    pub fn close(&self, filter: impl Fn(Request<'_>) -> bool + Send + 'static) {
        self.state.lock().closed_for = Some(Box::new(filter));
        self.changed.notify_all();
    }

    /// Lets all go on that wait, and all that come.
    pub fn open(&self) {
        self.state.lock().closed_for = None;
        self.changed.notify_all();
    }

    /// Returns once `count` requests wait at the gate.
    pub fn wait_for_arrivals(&self, count: usize) {
        let mut state = self.state.lock();
        while state.waiting < count {
            self.changed.wait(&mut state);
        }
    }

    fn pass(&self, request: Request<'_>) {
        let mut state = self.state.lock();
        let waits = |state: &State| state.closed_for.as_ref().is_some_and(|filter| filter(request));
        if !waits(&state) {
            return;
        }
        state.waiting = state.waiting.saturating_add(1);
        self.changed.notify_all();
        while waits(&state) {
            self.changed.wait(&mut state);
        }
        state.waiting = state.waiting.saturating_sub(1);
    }
}

impl Backend for GatedBackend {
    geometry_of_inner!();

    fn read_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<()> {
        let length = buffers.iter().map(|buffer| buffer.len());
        let length_bytes = u64_of(length.fold(0, usize::saturating_add));
        let done = self.inner.read_vectored_at(offset_bytes, buffers);
        self.pass(Request::Read {
            offset_bytes,
            length_bytes,
        });
        done
    }

    fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        self.pass(Request::Write { offset_bytes, bytes });
        self.inner.write_at(offset_bytes, bytes)
    }

    fn flush(&self) -> io::Result<()> {
        self.pass(Request::Flush);
        self.inner.flush()
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.pass(Request::Discard {
            offset_bytes,
            length_bytes,
        });
        self.inner.discard(offset_bytes, length_bytes)
    }

    fn may_run_out(&self) -> bool {
        self.inner.may_run_out()
    }

    fn reserve(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.inner.reserve(offset_bytes, length_bytes)
    }

    fn describe_space(&self) -> Option<String> {
        self.inner.describe_space()
    }

    fn zero(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.inner.zero(offset_bytes, length_bytes)
    }
}

/// Sets a flag when it goes, also by a panic. A test whose threads run until the flag is set ends with its panic, where it
/// would wait for them for ever.
///
/// ```
/// use buttress_lab::gate::SetOnDrop;
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// let is_over = AtomicBool::new(false);
/// std::thread::scope(|scope| {
///     let over = SetOnDrop::new(&is_over);
///     scope.spawn(|| while !is_over.load(Ordering::SeqCst) {});
///     assert_eq!(1 + 1, 2);
///     drop(over);
/// });
/// ```
#[derive(Debug)]
pub struct SetOnDrop<'a>(&'a AtomicBool);

impl<'a> SetOnDrop<'a> {
    /// For this flag.
    #[must_use]
    pub const fn new(flag: &'a AtomicBool) -> Self {
        Self(flag)
    }
}

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// How often in a row a thread has to be found asleep, without having run between, to be taken to wait for somebody.
const ASLEEP_TIMES: u32 = 50;

/// A thread that can be asked whether it waits.
#[derive(Debug)]
pub struct WatchedThread<T> {
    handle: JoinHandle<T>,
    /// The folder of the thread below `/proc`.
    folder: String,
}

impl<T: Send + 'static> WatchedThread<T> {
    /// Starts a thread.
    ///
    /// # Errors
    /// Fails if the system has no `/proc`, or cannot start a thread.
    pub fn start(body: impl FnOnce() -> T + Send + 'static) -> io::Result<Self> {
        let (tell, told) = mpsc::channel();
        let handle = std::thread::Builder::new().spawn(move || {
            // Nobody may be there to hear it any more.
            let _ = tell.send(fs::read_link("/proc/thread-self"));
            body()
        })?;
        let link = told.recv().map_err(io::Error::other)??;
        Ok(Self {
            handle,
            folder: format!("/proc/{}", link.display()),
        })
    }

    /// Returns once the thread has come to its end, or sleeps. Returns whether the thread sleeps.
    #[must_use]
    pub fn comes_to_wait(&self) -> bool {
        let mut last = String::new();
        let mut times = 0_u32;
        while !self.handle.is_finished() {
            let now = self.asleep();
            times = match &now {
                Some(now) if *now == last => times.saturating_add(1),
                _ => 0,
            };
            if times >= ASLEEP_TIMES {
                return true;
            }
            last = now.unwrap_or_default();
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }

    /// Returns how often the thread has yielded the processor, if it sleeps now.
    fn asleep(&self) -> Option<String> {
        let status = fs::read_to_string(format!("{}/status", self.folder)).ok()?;
        let field = |name: &str| status.lines().find(|line| line.starts_with(name));
        field("State:").filter(|state| state.contains('S'))?;
        field("voluntary_ctxt_switches:").map(str::to_owned)
    }

    /// What it gave.
    ///
    /// # Errors
    /// The message of the thread's panic.
    pub fn join(self) -> std::thread::Result<T> {
        self.handle.join()
    }
}
