//! A backend with a gate that holds requests, and a thread that a test can watch: for tests of the
//! order of two requests.
//!
//! A test closes the gate for some requests and lets one thread run up to the gate. The test then
//! starts another thread, which ends or waits for the first thread. The result does not depend on
//! time: if nothing else can block it, a sleeping thread waits for the other thread. [`SetOnDrop`]
//! ends the loops of other threads when a test ends or panics.
//!
//! Clamps: this module is test equipment, and tests compare its images as a whole.

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
    /// A read of `length_bytes` at `offset_bytes`. The gate holds a read after reading, so its
    /// bytes are from before the wait.
    Read {
        /// The offset of the first byte.
        offset_bytes: u64,
        /// The number of bytes.
        length_bytes: u64,
    },
    /// A write. The gate holds the request before it begins.
    Write {
        /// The offset of the first byte.
        offset_bytes: u64,
        /// The bytes to write.
        bytes: &'a [u8],
    },
    /// A flush. The gate holds it before it begins.
    Flush,
    /// A discard of `length_bytes` at `offset_bytes`. The gate holds it before it begins.
    Discard {
        /// The offset of the first byte.
        offset_bytes: u64,
        /// The number of bytes.
        length_bytes: u64,
    },
}

type Filter = Box<dyn Fn(Request<'_>) -> bool + Send>;

#[derive(Default)]
struct State {
    closed_for: Option<Filter>,
    waiting: usize,
}

/// A backend with a gate. A clone of the gate's `Arc` can close and open the gate.
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
    /// Returns the backend `inner` behind an open gate.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Closes the gate for requests that `filter` accepts. Of the requests already held, those that
    /// `filter` rejects continue.
    pub fn close(&self, filter: impl Fn(Request<'_>) -> bool + Send + 'static) {
        self.state.lock().closed_for = Some(Box::new(filter));
        self.changed.notify_all();
    }

    /// Opens the gate: all held requests continue, and later requests pass.
    pub fn open(&self) {
        self.state.lock().closed_for = None;
        self.changed.notify_all();
    }

    /// Returns once the gate holds `count` requests.
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

    fn set_size(&self, size_bytes: u64) -> io::Result<()> {
        self.inner.set_size(size_bytes)
    }

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

/// Sets a flag on drop, also during a panic. A test whose threads run until the flag is set then
/// ends with its panic. Without the flag, a panicking test would wait for these threads forever.
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
    /// Returns a guard for this flag.
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

/// The number of consecutive observations asleep, without running in between, after which a thread
/// counts as waiting.
const ASLEEP_TIMES: u32 = 50;

/// A thread that can report whether it waits.
#[derive(Debug)]
pub struct WatchedThread<T> {
    handle: JoinHandle<T>,
    /// The thread's folder below `/proc`.
    folder: String,
}

impl<T: Send + 'static> WatchedThread<T> {
    /// Starts a thread.
    ///
    /// # Errors
    /// Fails if the system has no `/proc`, or refuses a new thread.
    pub fn start(body: impl FnOnce() -> T + Send + 'static) -> io::Result<Self> {
        let (tell, told) = mpsc::channel();
        let handle = std::thread::Builder::new().spawn(move || {
            // The receiver of the thread's folder may be gone already.
            let _ = tell.send(fs::read_link("/proc/thread-self"));
            body()
        })?;
        let link = told.recv().map_err(io::Error::other)??;
        Ok(Self {
            handle,
            folder: format!("/proc/{}", link.display()),
        })
    }

    /// Returns once the thread has ended or sleeps. The result is true if the thread sleeps.
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

    /// Returns the thread's count of context switches, if the thread sleeps now.
    fn asleep(&self) -> Option<String> {
        let status = fs::read_to_string(format!("{}/status", self.folder)).ok()?;
        let field = |name: &str| status.lines().find(|line| line.starts_with(name));
        field("State:").filter(|state| state.contains('S'))?;
        field("voluntary_ctxt_switches:").map(str::to_owned)
    }

    /// Waits for the end of the thread and returns its result.
    ///
    /// # Errors
    /// Returns the payload of the thread's panic.
    pub fn join(self) -> std::thread::Result<T> {
        self.handle.join()
    }
}
