//! The io_uring engine: reads and writes reach the kernel through a submission ring, without a
//! thread for each.
//!
//! Callers put requests into the ring themselves, up to the queue's depth. One reaper thread, which
//! the first request starts, takes completions out and submits queued requests. If the kernel or a
//! container's filter refuses a ring, [`IoUringEngine::new`] fails and the device falls back to
//! threads.
//!
//! An io_uring ring only reads and writes the backend's file. A request that ended short or with an
//! error is repeated through the backend, which returns the correct result or error. A request that
//! is not aligned for O_DIRECT goes through the backend at once, on the caller's thread.
//!
//! Invariants, on which the `unsafe` here rests:
//! - from the moment a request is in the ring until its completion is taken out, its buffers (a
//!   read's), the dispatch that holds its payloads (a write's) and its vector lie in
//!   [`Submissions::in_flight`], untouched;
//! - the ring's submission side is only used under the lock of [`Submissions`], its completion side
//!   only by the reaper;
//! - at most `depth` requests are in the ring, which has at least that many entries and one more
//!   for the stop signal.

use buttress_exact::{Exact as _, usize_of};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use buttress_locks::unscheduled::{Mutex, MutexGuard};
use buttress_locks::{Rank, lock_class};
use io_uring::register::Restriction;
use io_uring::{IoUring, opcode, types};

use crate::backend::RingTarget;
use crate::buffer::Buffer;
use crate::engine::{Engine, RunRequests, serve_from_cache};
use crate::error::byte_length;
use crate::queue::request::{Dispatch, Segment};
use crate::queue::{Core, uncleared_buffers};

lock_class!(ReaperLock, "reaper", Rank::LEAF);
lock_class!(SubmissionsLock, "submissions", Rank::LEAF);

/// The identity of the completion that makes the reaper check if the device was closed.
const STOP: u64 = u64::MAX;

pub(crate) struct IoUringEngine {
    shared: Arc<Shared>,
    reaper: Mutex<Option<JoinHandle<()>>, ReaperLock>,
}

struct Shared {
    core: Arc<Core>,
    ring: IoUring,
    depth: usize,
    submissions: Mutex<Submissions, SubmissionsLock>,
}

#[derive(Default)]
struct Submissions {
    waiting: VecDeque<Arc<Dispatch>>,
    in_flight: HashMap<u64, InFlight>,
    next_identity: u64,
    closed: bool,
}

/// A request in flight in the kernel.
struct InFlight {
    dispatch: Arc<Dispatch>,
    buffers: Vec<Buffer>,
    vector: Vector,
}

/// The addresses and lengths of a read's buffers, in the kernel's form.
struct Vector(Box<[libc::iovec]>);

// SAFETY: the pointers lead into the buffers, or the dispatch's payloads, that lie beside the
// vector in `InFlight` and move together with it; they are only followed by the kernel, and those
// into payloads only to read.
unsafe impl Send for Vector {}

impl Vector {
    fn new(buffers: &mut [Buffer]) -> Self {
        let part = |buffer: &mut Buffer| libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        };
        Self(buffers.iter_mut().map(part).collect())
    }

    /// For a write, the payloads are part of the dispatch, which lives as long.
    fn of_payloads(dispatch: &Dispatch) -> Self {
        let part = |segment: &Segment| libc::iovec {
            iov_base: segment.payload.as_ptr().cast_mut().cast(),
            iov_len: segment.payload.len(),
        };
        Self(dispatch.segments.iter().map(part).collect())
    }
}

impl std::fmt::Debug for IoUringEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IoUringEngine")
            .field("depth", &self.shared.depth)
            .finish_non_exhaustive()
    }
}

impl IoUringEngine {
    /// Sets up a ring for `depth` requests at once.
    ///
    /// # Errors
    /// Fails if the kernel refuses (not built in, forbidden by a filter or a limit), or if the
    /// backend is no plain file.
    pub(crate) fn new(core: Arc<Core>, depth: u32) -> io::Result<Self> {
        if core.backend.ring_target().is_none() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the device is not a plain file",
            ));
        }
        let depth = depth.clamp(1, 256);
        let ring = restricted_ring(depth.exact_add(1))?;
        let depth = usize_of(depth);
        let shared = Shared {
            core,
            ring,
            depth,
            submissions: Mutex::default(),
        };
        Ok(Self {
            shared: Arc::new(shared),
            reaper: Mutex::new(None),
        })
    }

    /// Returns true if a reaper runs. Starts a reaper thread if none runs.
    fn ensure_reaper(&self) -> bool {
        let mut reaper = self.reaper.lock();
        if reaper.is_none() {
            let shared = Arc::clone(&self.shared);
            *reaper = std::thread::Builder::new()
                .name("buttress-ring".to_owned())
                .spawn(move || {
                    crate::placement::run_anywhere();
                    shared.reap_until_closed();
                })
                .ok();
        }
        reaper.is_some()
    }
}

impl RunRequests for IoUringEngine {
    fn kind(&self) -> Engine {
        Engine::IoUring
    }

    fn submit(&self, dispatches: &[Arc<Dispatch>]) {
        let rest = serve_from_cache(&self.shared.core, dispatches).dispatches;
        if rest.is_empty() {
            return;
        }
        if !self.ensure_reaper() {
            // If no thread can be started, no thread would take completions out of the ring.
            for dispatch in rest.iter().filter(|dispatch| dispatch.start()) {
                self.shared.core.execute(dispatch);
            }
            return;
        }
        let (ring, aside): (Vec<_>, Vec<_>) = rest.iter().cloned().partition(|d| self.shared.suits_ring(d));
        let mut submissions = self.shared.submissions.lock();
        submissions.waiting.extend(ring);
        self.shared.fill_ring(submissions);
        for dispatch in aside.iter().filter(|dispatch| dispatch.start()) {
            self.shared.core.execute(dispatch);
        }
    }

    fn help(&self, dispatch: &Arc<Dispatch>) {
        if dispatch.start() {
            self.forget(dispatch);
            self.shared.core.execute(dispatch);
        }
    }

    fn forget(&self, dispatch: &Arc<Dispatch>) {
        let mut submissions = self.shared.submissions.lock();
        if let Some(place) = submissions
            .waiting
            .iter()
            .position(|queued| Arc::ptr_eq(queued, dispatch))
        {
            submissions.waiting.remove(place);
        }
    }
}

impl Drop for IoUringEngine {
    fn drop(&mut self) {
        let Some(reaper) = self.reaper.get_mut().take() else {
            return;
        };
        let mut submissions = self.shared.submissions.lock();
        submissions.closed = true;
        submissions.waiting.clear();
        let stop = opcode::Nop::new().build().user_data(STOP);
        // SAFETY: the submission side is used under its lock; a no-op refers to no memory.
        let pushed = unsafe { self.shared.ring.submission_shared().push(&stop) };
        drop(submissions);
        if pushed.is_ok() && self.shared.enter().is_ok() {
            let _ = reaper.join();
        }
        // Otherwise the reaper stays asleep, and the memory that the kernel may still write is
        // never freed. The memory of the pending reads is then leaked, not corrupted.
    }
}

impl Shared {
    /// Returns true if io_uring may serve this dispatch directly. Buffers have a larger alignment
    /// than any device's sectors.
    fn suits_ring(&self, dispatch: &Dispatch) -> bool {
        let Some(target) = self.core.backend.ring_target() else {
            return false;
        };
        let target = for_dispatch(target, dispatch);
        let aligned = |value: u64| value.checked_rem(target.alignment_bytes.max(1)) == Some(0);
        let start = target.start_bytes.checked_add(dispatch.offset_bytes);
        let payload_aligned = |segment: &Segment| {
            segment.payload.is_empty() || aligned(byte_length(segment.payload.as_ptr().addr()))
        };
        (target.writable || !dispatch.is_write())
            && start.is_some_and(aligned)
            && dispatch
                .segments
                .iter()
                .all(|s| aligned(byte_length(s.length)) && payload_aligned(s))
    }

    /// Puts queued requests into the ring, up to the depth, and notifies the kernel.
    fn fill_ring(&self, mut submissions: MutexGuard<'_, Submissions, SubmissionsLock>) {
        let (mut added, mut refused) = (Vec::new(), Vec::new());
        while submissions.in_flight.len() < self.depth {
            let Some(dispatch) = submissions.waiting.pop_front() else {
                break;
            };
            if dispatch.start() {
                match self.put_in_ring(&mut submissions, &dispatch) {
                    Some(identity) => added.push(identity),
                    None => refused.push(dispatch),
                }
            }
        }
        drop(submissions);
        for dispatch in refused {
            self.core.execute(&dispatch);
        }
        if added.is_empty() || self.enter().is_ok() {
            return;
        }
        // The ring is unusable, which never happens to a running ring. The kernel may or may not
        // have seen the new reads. The reads' buffers are leaked, and the reads are repeated
        // without the ring.
        for identity in added {
            let Some(lost) = self.submissions.lock().in_flight.remove(&identity) else {
                continue;
            };
            std::mem::forget((lost.buffers, lost.vector, Arc::clone(&lost.dispatch)));
            self.core.execute(&lost.dispatch);
        }
    }

    /// Puts one started request into the ring. Returns the identity of the request in the ring, or
    /// `None` if the ring refuses the request.
    fn put_in_ring(&self, submissions: &mut Submissions, dispatch: &Arc<Dispatch>) -> Option<u64> {
        let target = self.core.backend.ring_target();
        let target = target.map(|target| for_dispatch(target, dispatch));
        target.and_then(|target| {
            let identity = submissions.next_identity;
            submissions.next_identity = identity.wrapping_add(1).remainder(STOP);
            let (buffers, vector) = if dispatch.is_write() {
                (Vec::new(), Vector::of_payloads(dispatch))
            } else {
                let mut buffers = uncleared_buffers(dispatch);
                let vector = Vector::new(&mut buffers);
                (buffers, vector)
            };
            let count = u32::try_from(vector.0.len()).ok()?;
            let file = types::Fd(target.file.as_raw_fd());
            let offset = target.start_bytes.checked_add(dispatch.offset_bytes)?;
            let entry = if dispatch.is_write() {
                let write = opcode::Writev::new(file, vector.0.as_ptr(), count);
                write.offset(offset).build()
            } else {
                let read = opcode::Readv::new(file, vector.0.as_ptr(), count);
                read.offset(offset).build()
            }
            .user_data(identity);
            let in_flight = InFlight {
                dispatch: Arc::clone(dispatch),
                buffers,
                vector,
            };
            submissions.in_flight.insert(identity, in_flight);
            // SAFETY: the submission side is used under its lock. The vector and the buffers or
            // payloads that the entry refers to lie on the heap, owned by `in_flight` until the
            // completion with this identity is taken out; the file is open for as long as `core`
            // holds the backend.
            if unsafe { self.ring.submission_shared().push(&entry) }.is_err() {
                submissions.in_flight.remove(&identity);
                return None;
            }
            Some(identity)
        })
    }

    /// Notifies the kernel of new entries.
    fn enter(&self) -> io::Result<()> {
        loop {
            match self.ring.submitter().submit() {
                Ok(_) => return Ok(()),
                Err(cause) if is_transient(&cause) => std::thread::yield_now(),
                Err(cause) => return Err(cause),
            }
        }
    }

    fn reap_until_closed(&self) {
        let mut completions = Vec::new();
        loop {
            match self.ring.submitter().submit_and_wait(1) {
                Ok(_) => {}
                Err(cause) if is_transient(&cause) => {}
                Err(_) => return,
            }
            // SAFETY: only this thread uses the ring's completion side.
            let arrived = unsafe { self.ring.completion_shared() };
            completions.extend(arrived.map(|entry| (entry.user_data(), entry.result())));
            for (identity, result) in completions.drain(..) {
                let done = self.submissions.lock().in_flight.remove(&identity);
                if let Some(done) = done {
                    self.complete(done, result);
                }
            }
            let submissions = self.submissions.lock();
            if submissions.closed && submissions.in_flight.is_empty() {
                return;
            }
            self.fill_ring(submissions);
        }
    }

    fn complete(&self, done: InFlight, result: i32) {
        let InFlight {
            dispatch,
            buffers,
            vector,
        } = done;
        drop(vector);
        if u64::try_from(result) == Ok(dispatch.length_bytes) {
            if dispatch.is_write() {
                self.core.finish_write(&dispatch, Ok(()), self.core.clock.now());
                return;
            }
            self.core
                .finish(&dispatch, buffers, Ok(()), self.core.clock.now());
        } else {
            drop(buffers);
            self.core.execute(&dispatch);
        }
    }
}

/// Makes a ring that permanently allows only reads and writes. A process that restricted itself
/// with a system call filter must not bypass it through the ring.
fn restricted_ring(entries: u32) -> io::Result<IoUring> {
    let ring = IoUring::builder().setup_r_disabled().build(entries)?;
    let submitter = ring.submitter();
    submitter.register_restrictions(&mut [
        Restriction::sqe_op(opcode::Readv::CODE),
        Restriction::sqe_op(opcode::Writev::CODE),
        // The no-op request that stops the reaper thread.
        Restriction::sqe_op(opcode::Nop::CODE),
    ])?;
    submitter.register_enable_rings()?;
    Ok(ring)
}

/// Returns the opening of the file (buffered or direct) that a dispatch uses.
fn for_dispatch<'a>(target: RingTarget<'a>, dispatch: &Dispatch) -> RingTarget<'a> {
    let large = target
        .large_writes
        .filter(|large| dispatch.is_write() && dispatch.length_bytes >= large.least_bytes);
    match large {
        Some(large) => RingTarget {
            file: large.file,
            alignment_bytes: large.alignment_bytes,
            ..target
        },
        None => target,
    }
}

/// Returns true if the call was interrupted, or if a temporary resource was short.
fn is_transient(cause: &io::Error) -> bool {
    matches!(
        cause.raw_os_error(),
        Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_opens_nothing() {
        let Ok(mut ring) = restricted_ring(2) else {
            // The system refuses rings, or refuses them to this process, so the test has nothing to
            // refuse.
            return;
        };
        let open = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), c"/dev/null".as_ptr()).build();
        // SAFETY: the name is static.
        unsafe { ring.submission().push(&open) }.unwrap();
        ring.submit_and_wait(1).unwrap();
        assert_eq!(
            ring.completion().next().map(|done| done.result()),
            Some(-libc::EACCES)
        );
        let nothing = opcode::Nop::new().build();
        // SAFETY: refers to no memory.
        unsafe { ring.submission().push(&nothing) }.unwrap();
        ring.submit_and_wait(1).unwrap();
        assert_eq!(ring.completion().next().map(|done| done.result()), Some(0));
        let registered = ring.submitter().register_files(&[0]);
        assert_eq!(
            registered.err().and_then(|error| error.raw_os_error()),
            Some(libc::EACCES)
        );
    }
}
