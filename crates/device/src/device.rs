//! A device as the layers above see it: bytes with a size, read singly or in batches.

use std::fmt;
#[cfg(target_os = "linux")]
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backend::{Backend, Source};
use crate::buffer::Buffer;
use crate::clock::VirtualClock;
use crate::engine::inline::InlineEngine;
use crate::engine::io_uring::IoUringEngine;
use crate::engine::threads::ThreadEngine;
use crate::engine::{Engine, RunRequests};
use crate::error::{IoError, Operation, byte_length};
use crate::memory::MemoryBackend;
#[cfg(target_os = "linux")]
use crate::overlay::BaseState;
use crate::overlay::VolatileOverlay;
use crate::partition::Offset;
use crate::pending::{PendingRead, PendingWrite};
use crate::queue::plug::Plug;
use crate::queue::request::{Dispatch, ReadRequest, WriteRequest};
use crate::queue::statistics::{Direction, QueueStatistics, Recorder};
use crate::queue::{Clock, Core};
use crate::reader::ReaderBackend;
use crate::schedule::{Schedule, ScheduledEngine};

/// How to open a file or block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// Open for writing too. Block devices are then opened exclusively, so that nothing else uses them.
    pub write: bool,
    /// Except for this one, which the caller has opened exclusively himself: to hand that over, as to a mount.
    pub claimed: Option<PathBuf>,
    /// Go around the page cache (`O_DIRECT`). Unaligned requests still work; they are widened and copied.
    pub direct: bool,
    /// The same for reading alone, if next to nothing of the device is in the page cache and `O_DIRECT` works there.
    /// For a job that reads much, and once: it saves copying, and the page cache keeps what others use.
    pub direct_when_cold: bool,
    /// The same where it is open for writing: then reads and writes go around the page cache both. For a job that alone has
    /// the device.
    pub direct_when_cold_to_write: bool,
    /// How reads reach the device.
    pub engine: Engine,
    /// The most requests in service at once (1 to 256).
    pub depth: u32,
    /// Neighbours are merged into requests of at most this many bytes.
    pub max_request_bytes: u64,
    /// Where the volume lies.
    pub partition: Offset,
    /// Keep changes in this side file, and leave the device as it is (see [`crate::overlay`]). Written to, the file is made
    /// where there is none.
    pub overlay: Option<PathBuf>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            write: false,
            claimed: None,
            direct: false,
            direct_when_cold: false,
            direct_when_cold_to_write: false,
            engine: Engine::Threads,
            depth: DEFAULT_DEPTH,
            max_request_bytes: MAX_REQUEST_BYTES,
            partition: Offset::Whole,
            overlay: None,
        }
    }
}

/// Requests in service at once, unless told otherwise. On the SSD that this was measured with, 16 KiB random
/// reads gain little beyond it (docs/performance.md, "Device").
pub const DEFAULT_DEPTH: u32 = 16;

/// The most bytes that neighbours are merged into, unless told otherwise.
pub const MAX_REQUEST_BYTES: u64 = 1 << 20;

/// An open device: a backend, a request queue and its statistics. Cheap to clone; all clones are one device.
///
/// Offsets are in bytes from the start of the device, or of the partition that was chosen when it was opened.
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

struct Inner {
    core: Arc<Core>,
    engine: Box<dyn RunRequests>,
    max_request_bytes: u64,
    notices: Vec<String>,
    rotational: bool,
    /// What an overlay over it would remember: of files and block devices.
    #[cfg(target_os = "linux")]
    base_state: Option<BaseState>,
}

impl Device {
    /// Opens the image file or block device at `path`.
    ///
    /// # Errors
    /// When it cannot be opened, is in use by something that this would disturb, or has no such partition.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self, IoError> {
        let opened = crate::file::open(path.as_ref(), options)?;
        let mut device = Self::build(opened.backend, options.engine, options);
        if let Some(inner) = Arc::get_mut(&mut device.inner) {
            inner.notices.extend(opened.notices);
            #[cfg(target_os = "linux")]
            {
                inner.base_state = Some(opened.state);
            }
        }
        Ok(device)
    }

    /// The backend alone of the image file or block device at `path`: to put faults or a simulation over it.
    /// `engine`, `depth` and `max_request_bytes` of `options` are the queue's and do not matter here.
    ///
    /// # Errors
    /// As [`Device::open`].
    pub fn open_backend(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Arc<dyn Backend>, IoError> {
        Ok(crate::file::open(path.as_ref(), options)?.backend)
    }

    /// A device in memory that holds `bytes`.
    #[must_use]
    pub fn memory(bytes: Vec<u8>) -> Self {
        Self::with_backend(Arc::new(MemoryBackend::new("memory", bytes)), Engine::Inline)
    }

    /// A read-only device of `size_bytes` over a closure that fills a whole buffer from an offset on, in bytes. Several threads
    /// may call it at once.
    #[must_use]
    pub fn reading_at(
        name: impl Into<String>,
        size_bytes: u64,
        read: impl Fn(u64, &mut [u8]) -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self::with_backend(
            Arc::new(ReaderBackend::new(name, size_bytes, read)),
            Engine::Inline,
        )
    }

    /// A read-only device over anything that reads and seeks. Requests are served one at a time.
    ///
    /// # Errors
    /// The reader cannot seek to its end.
    pub fn reading(
        name: impl Into<String>,
        reader: impl std::io::Read + std::io::Seek + Send + 'static,
    ) -> std::io::Result<Self> {
        let backend = ReaderBackend::seeking(name, reader)?;
        Ok(Self::with_backend(Arc::new(backend), Engine::Inline))
    }

    /// A device over any backend, with the default depth and request size.
    #[must_use]
    pub fn with_backend(backend: Arc<dyn Backend>, engine: Engine) -> Self {
        Self::build(backend, engine, &OpenOptions::default())
    }

    fn build(backend: Arc<dyn Backend>, engine: Engine, options: &OpenOptions) -> Self {
        // By a thread that is not bound to one of them.
        crate::placement::processors();
        let core = Arc::new(Core {
            name: backend.name().into(),
            backend,
            recorder: Recorder::default(),
            clock: Clock::Real(Instant::now()),
        });
        let mut notices = Vec::new();
        let engine: Box<dyn RunRequests> = match engine {
            Engine::Inline | Engine::Simulated => Box::new(InlineEngine::new(Arc::clone(&core))),
            Engine::Threads => Box::new(ThreadEngine::new(Arc::clone(&core), options.depth)),
            Engine::IoUring => match IoUringEngine::new(Arc::clone(&core), options.depth) {
                Ok(ring) => Box::new(ring),
                Err(cause) => {
                    notices.push(format!(
                        "io_uring is not available here ({cause}): reading with threads"
                    ));
                    Box::new(ThreadEngine::new(Arc::clone(&core), options.depth))
                }
            },
        };
        let max_request_bytes = options.max_request_bytes;
        Self {
            inner: Arc::new(Inner {
                rotational: core.backend.is_rotational(),
                core,
                engine,
                max_request_bytes,
                notices,
                #[cfg(target_os = "linux")]
                base_state: None,
            }),
        }
    }

    /// Makes a device in virtual time: its bytes are the backend's, and `schedule` decides when requests are complete on
    /// `clock`. Devices of one pool share a clock. Everything runs on the calling thread.
    #[must_use]
    pub fn with_schedule(
        backend: Arc<dyn Backend>,
        clock: &VirtualClock,
        schedule: Box<dyn Schedule>,
    ) -> Self {
        let core = Arc::new(Core {
            name: backend.name().into(),
            backend,
            recorder: Recorder::default(),
            clock: Clock::Virtual(clock.clone()),
        });
        let rotational = schedule.is_rotational();
        let engine = Box::new(ScheduledEngine::new(Arc::clone(&core), schedule));
        let inner = Inner {
            core,
            engine,
            max_request_bytes: MAX_REQUEST_BYTES,
            notices: Vec::new(),
            rotational,
            #[cfg(target_os = "linux")]
            base_state: None,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Returns the backend below the queue: to make another device over the same bytes, or to wrap it.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.core().backend
    }

    /// A device that begins as this one and keeps what is written to it in memory: this one stays as it is, and may be open
    /// for reading only.
    #[must_use]
    pub fn with_changes_in_memory(&self) -> Self {
        let overlay = VolatileOverlay::new(Arc::clone(&self.core().backend));
        let engine = match self.virtual_clock() {
            Some(_) => Engine::Inline,
            None => Engine::Threads,
        };
        Self::with_backend(Arc::new(overlay), engine)
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn base_state(&self) -> Option<BaseState> {
        self.inner.base_state
    }

    pub(crate) fn engine_of(&self) -> &dyn RunRequests {
        self.inner.engine.as_ref()
    }

    pub(crate) fn core(&self) -> &Core {
        &self.inner.core
    }

    /// The most bytes that are merged into one request.
    pub(crate) fn max_request_bytes(&self) -> u64 {
        self.inner.max_request_bytes
    }

    /// Its size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.core().backend.size_bytes()
    }

    /// Gives the device another size, durably: an image file grows or is cut. A block device keeps its size; the call
    /// then reads the size again.
    ///
    /// # Errors
    /// As for [`Backend::set_size`].
    pub fn set_size(&self, size_bytes: u64) -> Result<(), IoError> {
        buttress_locks::waits_for_device();
        let core = self.core();
        let result = core.backend.set_size(size_bytes);
        result.map_err(|cause| core.error(Operation::Resize, 0, 0, &cause))
    }

    /// What messages call it: its path, or the name that its backend was given.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.core().name
    }

    /// Whether it can be written to.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.core().backend.is_writable()
    }

    /// Lets others lock it, for who is done with it while parts of the program still hold it.
    pub fn unlock(&self) {
        self.core().backend.unlock();
    }

    /// The unit in which its medium reads and writes, in bytes.
    #[must_use]
    pub fn sector_bytes(&self) -> u32 {
        self.core().backend.sector_bytes()
    }

    /// Whether its medium is known to turn: a simulated spinning disk, or a block device (or the one under an image
    /// file) of which the kernel says so. Virtual disks often say so without turning.
    #[must_use]
    pub fn is_rotational(&self) -> bool {
        self.inner.rotational
    }

    /// The engine in use; not the one that was asked for, where that was refused.
    #[must_use]
    pub fn engine(&self) -> Engine {
        self.inner.engine.kind()
    }

    /// What the user should know of how it was opened (an engine that was refused, a mounted loop device), as
    /// sentences without a full stop.
    #[must_use]
    pub fn notices(&self) -> &[String] {
        &self.inner.notices
    }

    /// Reads the `length` bytes from `offset_bytes` on, and waits for them.
    ///
    /// # Errors
    /// When the range is not on the device, or cannot be read in full.
    pub fn read(&self, offset_bytes: u64, length: usize) -> Result<Buffer, IoError> {
        let core = self.core();
        if self.inner.engine.kind() == Engine::Simulated {
            return self.start_read(ReadRequest { offset_bytes, length }).wait();
        }
        let length_bytes = byte_length(length);
        core.check_range(Operation::Read, offset_bytes, length_bytes)?;
        let mut buffer = Buffer::uncleared(length);
        let queued = core.clock.now();
        core.recorder.queued(1, queued);
        let result = core.backend.read_telling_at(offset_bytes, &mut [&mut buffer[..]]);
        let now = core.clock.now();
        match result {
            Ok(Source::Memory) => core.recorder.copied_from_queue(length_bytes, now),
            _ => core
                .recorder
                .completed(Direction::Read, length_bytes, 0, queued, now),
        }
        result.map_err(|cause| core.error(Operation::Read, offset_bytes, length_bytes, &cause))?;
        Ok(buffer)
    }

    /// The `length` bytes from `offset_bytes` on, if they are in memory already, as those of a file in the page cache are:
    /// it never waits for a medium. `None` when they are not, when that cannot be known, when they could not be read
    /// either way, and from engines that do everything in order ([`Engine::Inline`], [`Engine::Simulated`]).
    #[must_use]
    pub fn read_cached(&self, offset_bytes: u64, length: usize) -> Option<Buffer> {
        if !matches!(self.engine(), Engine::Threads | Engine::IoUring) {
            return None;
        }
        let core = self.core();
        let length_bytes = byte_length(length);
        core.check_range(Operation::Read, offset_bytes, length_bytes)
            .ok()?;
        let mut buffer = Buffer::uncleared(length);
        let read = core
            .backend
            .read_cached_vectored_at(offset_bytes, &mut [&mut buffer[..]]);
        if !matches!(read, Ok(true)) {
            return None;
        }
        core.recorder.copied(length_bytes);
        Some(buffer)
    }

    /// Whether the byte at `offset_bytes` is in memory already, where [`read_cached`](Self::read_cached) can tell. Nothing is
    /// counted.
    #[must_use]
    pub fn is_cached(&self, offset_bytes: u64) -> bool {
        let core = self.core();
        matches!(self.engine(), Engine::Threads | Engine::IoUring)
            && core.check_range(Operation::Read, offset_bytes, 1).is_ok()
            && matches!(
                core.backend
                    .read_cached_vectored_at(offset_bytes, &mut [&mut [0; 1]]),
                Ok(true)
            )
    }

    /// Starts one read; as [`start_reads`](Self::start_reads) with one request.
    pub fn start_read(&self, request: ReadRequest) -> PendingRead {
        match self.start_reads([request]).pop() {
            Some(pending) => pending,
            None => PendingRead::failed(self.core().error(
                Operation::Read,
                request.offset_bytes,
                byte_length(request.length),
                &std::io::Error::other("the request was lost"),
            )),
        }
    }

    /// Starts a batch of reads: one plug. They are sorted by offset, neighbours are merged, and all are queued
    /// before this returns, without waiting for any. The answers come in the order asked.
    ///
    /// Requests for ranges that are not on the device fail by themselves.
    #[must_use]
    pub fn start_reads(&self, requests: impl AsRef<[ReadRequest]>) -> Vec<PendingRead> {
        let requests = requests.as_ref();
        let core = self.core();
        let (valid, refusals) = split(requests, |request| {
            core.check_range(Operation::Read, request.offset_bytes, byte_length(request.length))
        });
        let plug = Plug::reads(&valid, self.inner.max_request_bytes, core.clock.now());
        self.submit(&plug);
        answers(refusals, &plug, PendingRead::failed, |dispatch, segment| {
            PendingRead::queued(self, dispatch, segment)
        })
    }

    /// Starts a batch of writes: one plug. They are sorted by offset, neighbours are merged, and all are queued
    /// before this returns, without waiting for any (the inline engine excepted). The answers come in the order asked.
    /// They are durable after a [`flush`](Self::flush) that begins when they were waited for.
    ///
    /// Requests for ranges that are not on the device fail by themselves. Of writes that overlap, it is not said which
    /// comes last.
    pub fn start_writes(&self, requests: impl AsRef<[WriteRequest]>) -> Vec<PendingWrite> {
        let core = self.core();
        let (valid, refusals) = split(requests.as_ref(), |request| {
            core.check_range(
                Operation::Write,
                request.offset_bytes,
                byte_length(request.bytes.len()),
            )
        });
        let plug = Plug::writes(&valid, self.inner.max_request_bytes, core.clock.now());
        self.submit(&plug);
        answers(refusals, &plug, PendingWrite::failed, |dispatch, segment| {
            PendingWrite::queued(self, dispatch, segment)
        })
    }

    fn submit(&self, plug: &Plug) {
        let core = self.core();
        core.recorder.queued(plug.dispatches.len(), core.clock.now());
        self.inner.engine.submit(&plug.dispatches);
    }

    /// Writes all of `bytes` from `offset_bytes` on. Durable only after a [`flush`](Self::flush).
    ///
    /// # Errors
    /// When the device is read-only, the range is not on it, or not all could be written.
    pub fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), IoError> {
        let core = self.core();
        let length_bytes = byte_length(bytes.len());
        core.check_range(Operation::Write, offset_bytes, length_bytes)?;
        let queued = core.clock.now();
        core.recorder.queued(1, queued);
        let result = self.inner.engine.write(core, offset_bytes, bytes);
        core.recorder
            .completed(Direction::Write, length_bytes, 0, queued, core.clock.now());
        result.map_err(|cause| core.error(Operation::Write, offset_bytes, length_bytes, &cause))
    }

    /// Returns once everything written before is durable.
    ///
    /// # Errors
    /// When that cannot be promised. What was written since the last good flush may be lost, even if a later
    /// flush succeeds.
    pub fn flush(&self) -> Result<(), IoError> {
        buttress_locks::waits_for_device();
        self.inner.engine.flush();
        let core = self.core();
        core.backend
            .flush()
            .map_err(|cause| core.error(Operation::Flush, 0, 0, &cause))
    }

    /// Makes the bytes from `offset_bytes` on those of the file `source` from `source_offset_bytes` on, by sharing its blocks.
    ///
    /// # Errors
    /// As [`write`](Self::write), and where the blocks cannot be shared: see [`Backend::share_from`].
    #[cfg(target_os = "linux")]
    pub fn share_from(
        &self,
        source: BorrowedFd<'_>,
        source_offset_bytes: u64,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> Result<(), IoError> {
        buttress_locks::waits_for_device();
        let core = self.core();
        core.check_range(Operation::Share, offset_bytes, length_bytes)?;
        core.backend
            .share_from(source, source_offset_bytes, offset_bytes, length_bytes)
            .map_err(|cause| core.error(Operation::Share, offset_bytes, length_bytes, &cause))
    }

    /// Says that the bytes are no longer needed. Reading them afterwards gives anything.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn discard(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), IoError> {
        buttress_locks::waits_for_device();
        let core = self.core();
        core.check_range(Operation::Discard, offset_bytes, length_bytes)?;
        let result = core.backend.discard(offset_bytes, length_bytes);
        result.map_err(|cause| core.error(Operation::Discard, offset_bytes, length_bytes, &cause))
    }

    /// Whether a write can fail for want of space, as one into a hole of an image file can.
    #[must_use]
    pub fn may_run_out(&self) -> bool {
        self.core().backend.may_run_out()
    }

    /// Takes the space that writes to the range will need, so that they cannot fail for want of it. Changes no byte. Does
    /// nothing where that is not possible. Waits for no medium.
    ///
    /// # Errors
    /// [`IoError::is_out_of_space`] if too little space exists; a part of the range may have space then. As
    /// [`write`](Self::write). As [`write`](Self::write).
    pub fn reserve(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), IoError> {
        let core = self.core();
        core.check_range(Operation::Reserve, offset_bytes, length_bytes)?;
        let result = core.backend.reserve(offset_bytes, length_bytes);
        result.map_err(|cause| core.error(Operation::Reserve, offset_bytes, length_bytes, &cause))
    }

    /// Makes the bytes zero, by the cheapest means the device has.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn zero(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), IoError> {
        buttress_locks::waits_for_device();
        let core = self.core();
        core.check_range(Operation::Zero, offset_bytes, length_bytes)?;
        let result = core.backend.zero(offset_bytes, length_bytes);
        result.map_err(|cause| core.error(Operation::Zero, offset_bytes, length_bytes, &cause))
    }

    /// What the queue has counted since the device was opened. For a span, take two readings and
    /// [`QueueStatistics::since`].
    #[must_use]
    pub fn statistics(&self) -> QueueStatistics {
        self.inner.engine.catch_up();
        self.core().recorder.read(self.name(), self.core().clock.now())
    }

    /// The virtual clock, if this is a simulated device.
    #[must_use]
    pub fn virtual_clock(&self) -> Option<VirtualClock> {
        match &self.core().clock {
            Clock::Virtual(clock) => Some(clock.clone()),
            Clock::Real(_) => None,
        }
    }

    /// Tells a simulated device that the caller computed for `span`: its clock moves on, and what is queued is
    /// served meanwhile. Does nothing on real devices, where time passes by itself.
    pub fn charge_cpu(&self, span: Duration) {
        if let Some(clock) = self.virtual_clock() {
            clock.charge_cpu(span);
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.name())
            .field("size_bytes", &self.size_bytes())
            .field("engine", &self.engine())
            .finish_non_exhaustive()
    }
}

/// The requests that pass a check, and for each request in the order asked why it does not.
fn split<R: Clone>(
    requests: &[R],
    check: impl Fn(&R) -> Result<(), IoError>,
) -> (Vec<R>, Vec<Option<IoError>>) {
    let refusals: Vec<Option<IoError>> = requests.iter().map(|request| check(request).err()).collect();
    let checked = requests.iter().zip(&refusals);
    let valid = checked
        .filter(|(_, refusal)| refusal.is_none())
        .map(|(request, _)| request.clone())
        .collect();
    (valid, refusals)
}

/// One answer for each request in the order asked: the refusal, or what waits for its place in the plug.
fn answers<P>(
    refusals: Vec<Option<IoError>>,
    plug: &Plug,
    failed: impl Fn(IoError) -> P,
    queued: impl Fn(&Arc<Dispatch>, usize) -> P,
) -> Vec<P> {
    let mut places = plug.places.iter();
    let pending = refusals.into_iter().filter_map(|refusal| match refusal {
        Some(error) => Some(failed(error)),
        None => {
            let (dispatch, segment) = places.next()?;
            Some(queued(plug.dispatches.get(*dispatch)?, *segment))
        }
    });
    pending.collect()
}
