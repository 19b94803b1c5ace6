//! A device as the layers above see it: bytes with a size, for single or batched requests.

use std::fmt;
use std::ops::Range;
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
use crate::error::{IoError, Operation, byte_length, read_only};
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

/// Options for opening a file or block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// Opens for writing too. A block device is then opened exclusively, so that no other program
    /// uses it.
    pub write: bool,
    /// The block device that the caller has already opened exclusively, for example to pass it to a
    /// mount.
    pub claimed: Option<PathBuf>,
    /// Bypasses the page cache (`O_DIRECT`). Unaligned requests still work; they are widened and
    /// copied.
    pub direct: bool,
    /// Bypasses the page cache for reads, if next to nothing of the device is in it and `O_DIRECT`
    /// works. This option serves jobs that read much data once: it saves copying, and the page
    /// cache keeps the data of other programs.
    pub direct_when_cold: bool,
    /// If the page cache holds next to nothing of a writable device, also bypasses the cache for
    /// writes. This option serves jobs that use the device alone.
    pub direct_when_cold_to_write: bool,
    /// The engine by which reads reach the device.
    pub engine: Engine,
    /// The maximum number of requests in service at once (1 to 256).
    pub depth: u32,
    /// The maximum size in bytes of a merged request.
    pub max_request_bytes: u64,
    /// The location of the volume on the device.
    pub partition: Offset,
    /// Keeps changes in this side file, and leaves the device unchanged (see [`crate::overlay`]).
    /// With write access, the side file is created if it does not exist.
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

/// The default number of requests in service at once. On the SSD of the measurements, 16 KiB random
/// reads gain little beyond this depth (docs/internals/performance.md, "Device").
pub const DEFAULT_DEPTH: u32 = 16;

/// The default maximum size in bytes of a merged request.
pub const MAX_REQUEST_BYTES: u64 = 1 << 20;

/// An open device: a backend, a request queue and its statistics. Cloning is cheap, and all clones
/// are one device.
///
/// Offsets are in bytes from the start of the device, or of the partition that was chosen when it
/// was opened.
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
    /// True if this handle refuses changes.
    is_for_reading: bool,
}

struct Inner {
    core: Arc<Core>,
    engine: Box<dyn RunRequests>,
    max_request_bytes: u64,
    notices: Vec<String>,
    rotational: bool,
    /// The state that an overlay over the device would record. Only files and block devices have
    /// such a state.
    #[cfg(target_os = "linux")]
    base_state: Option<BaseState>,
}

impl Device {
    /// Opens the image file or block device at `path`.
    ///
    /// # Errors
    /// Fails if the file cannot be opened, if opening would disturb another user, or if the
    /// requested partition does not exist.
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

    /// Makes a device of a file that another process opened and locked. `name` is the path of the
    /// file, for messages.
    ///
    /// # Errors
    /// Fails if a descriptor is not open for writing, is neither an image file nor a block device,
    /// or if another process holds the lock.
    #[cfg(target_os = "linux")]
    pub fn from_locked(name: impl AsRef<Path>, locked: crate::LockedFile) -> Result<Self, IoError> {
        let backend = locked.into_backend(name.as_ref())?;
        Ok(Self::with_backend(backend, Engine::Threads))
    }

    /// Returns only the backend of the image file or block device at `path`, for wrappers with
    /// faults or a simulation. The `options` `engine`, `depth` and `max_request_bytes` belong to
    /// the queue and have no effect.
    ///
    /// # Errors
    /// Fails as [`Device::open`] does.
    pub fn open_backend(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Arc<dyn Backend>, IoError> {
        Ok(crate::file::open(path.as_ref(), options)?.backend)
    }

    /// Makes a device in memory that holds `bytes`.
    #[must_use]
    pub fn memory(bytes: Vec<u8>) -> Self {
        Self::with_backend(Arc::new(MemoryBackend::new("memory", bytes)), Engine::Inline)
    }

    /// Makes a read-only device of `size_bytes` over a closure that fills a buffer from an offset
    /// on, in bytes. Several threads may call the closure at once.
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

    /// Makes a read-only device over anything that reads and seeks. The reader serves requests one
    /// at a time.
    ///
    /// # Errors
    /// Fails if the reader cannot seek to its end.
    pub fn reading(
        name: impl Into<String>,
        reader: impl std::io::Read + std::io::Seek + Send + 'static,
    ) -> std::io::Result<Self> {
        let backend = ReaderBackend::seeking(name, reader)?;
        Ok(Self::with_backend(Arc::new(backend), Engine::Inline))
    }

    /// Makes a device over any backend, with the default depth and request size.
    #[must_use]
    pub fn with_backend(backend: Arc<dyn Backend>, engine: Engine) -> Self {
        Self::build(backend, engine, &OpenOptions::default())
    }

    fn build(backend: Arc<dyn Backend>, engine: Engine, options: &OpenOptions) -> Self {
        // Determines the pool threads' processors on this thread, which is not bound to one of
        // them.
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
                        "io_uring is not available ({cause}): reading with threads instead"
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
            is_for_reading: false,
        }
    }

    /// Makes a device in virtual time. The backend holds the bytes, and `schedule` decides when
    /// requests complete on `clock`. The devices of one pool of simulated disks share a clock. With
    /// a schedule, all work of the device runs on the calling thread.
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
            is_for_reading: false,
        }
    }

    /// Returns the backend below the queue, for a second device over the same bytes or for a
    /// wrapper.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.core().backend
    }

    /// Makes a device that begins with this one's content, and keeps writes in memory. This base
    /// device stays unchanged, and may be open for reading only.
    #[must_use]
    pub fn with_changes_in_memory(&self) -> Self {
        let overlay = VolatileOverlay::new(Arc::clone(&self.core().backend));
        let engine = match self.virtual_clock() {
            Some(_) => Engine::Inline,
            None => Engine::Threads,
        };
        Self::with_backend(Arc::new(overlay), engine)
    }

    /// Returns a handle of this device that refuses every change, for users that must only read.
    #[must_use]
    pub fn for_reading(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            is_for_reading: true,
        }
    }

    /// Fails if this handle is for reading, or if the range is not on the device.
    fn check_change(&self, operation: Operation, offset: u64, length: u64) -> Result<(), IoError> {
        let core = self.core();
        if self.is_for_reading {
            return Err(core.error(operation, offset, length, &read_only()));
        }
        core.check_range(operation, offset, length)
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

    /// Returns the maximum size in bytes of a merged request.
    pub(crate) fn max_request_bytes(&self) -> u64 {
        self.inner.max_request_bytes
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.core().backend.size_bytes()
    }

    /// Changes the device's size, durably: an image file grows or is cut. For a block device, the
    /// size cannot change, and the call reads the size again.
    ///
    /// # Errors
    /// Fails as [`Backend::set_size`] does.
    pub fn set_size(&self, size_bytes: u64) -> Result<(), IoError> {
        buttress_locks::waits_for_device();
        let core = self.core();
        self.check_change(Operation::Resize, 0, 0)?;
        let result = core.backend.set_size(size_bytes);
        result.map_err(|cause| core.error(Operation::Resize, 0, 0, &cause))
    }

    /// Returns the first range at or after `from_bytes` that may hold bytes other than zero, or
    /// `None` if only zeros follow. Jobs that read whole devices use it to skip holes of image
    /// files.
    ///
    /// # Errors
    /// Fails as [`Backend::next_data`] does.
    pub fn next_data(&self, from_bytes: u64) -> Result<Option<Range<u64>>, IoError> {
        let core = self.core();
        let found = core.backend.next_data(from_bytes);
        found.map_err(|cause| core.error(Operation::Read, from_bytes, 0, &cause))
    }

    /// Returns the time of the image file's last change, as it was when the device was opened, in
    /// seconds and nanoseconds since 1970. Returns `None` for block devices and other backends.
    #[must_use]
    pub fn changed_at(&self) -> Option<(i64, u32)> {
        #[cfg(target_os = "linux")]
        let state = self.inner.base_state.as_ref();
        #[cfg(target_os = "linux")]
        let time = state.map(|state| (state.changed_seconds, state.changed_nanoseconds));
        #[cfg(not(target_os = "linux"))]
        let time = None;
        // A block device has no time of its own.
        time.filter(|time| *time != (0, 0))
    }

    /// Returns the name for messages: the path, or the name of the backend.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.core().name
    }

    /// Returns true if the device can be written.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        !self.is_for_reading && self.core().backend.is_writable()
    }

    /// Releases the lock on the device for a caller that is done with it, although clones of the
    /// device exist.
    pub fn unlock(&self) {
        self.core().backend.unlock();
    }

    /// Returns the unit in which the medium reads and writes, in bytes.
    #[must_use]
    pub fn sector_bytes(&self) -> u32 {
        self.core().backend.sector_bytes()
    }

    /// Returns true if the medium is known to be rotational: a simulated spinning disk, or a block
    /// device that the kernel calls rotational. For an image file, the block device that holds the
    /// file counts. Hypervisors often report virtual disks as rotational.
    #[must_use]
    pub fn is_rotational(&self) -> bool {
        self.inner.rotational
    }

    /// Returns the engine in use: the requested one, or another if the system refused that.
    #[must_use]
    pub fn engine(&self) -> Engine {
        self.inner.engine.kind()
    }

    /// Returns the notices of opening, such as a refused engine or a mounted loop device. The
    /// notices are sentences without a full stop.
    #[must_use]
    pub fn notices(&self) -> &[String] {
        &self.inner.notices
    }

    /// Reads `length` bytes from `offset_bytes` on, and waits for them.
    ///
    /// # Errors
    /// Fails if the range is not on the device, or cannot be read completely.
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

    /// Returns `length` bytes from `offset_bytes` on, if they are in memory, for example in the
    /// page cache. A cached read never waits for a medium. Returns `None` if the bytes are not in
    /// memory, if this is unknown, or if they cannot be read. Engines that do all work in order
    /// ([`Engine::Inline`], [`Engine::Simulated`]) also return `None`.
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

    /// Returns true if the byte at `offset_bytes` is in memory, if
    /// [`read_cached`](Self::read_cached) can determine it. Changes no statistics.
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

    /// Starts one read, like [`start_reads`](Self::start_reads) with one request.
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

    /// Starts a batch of reads in one plug. The reads are sorted by offset, neighbours are merged,
    /// and all are queued before this returns, without waiting for any. The results are in the
    /// order of the requests.
    ///
    /// A request for a range that is not on the device fails alone.
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

    /// Starts a batch of writes in one plug. The writes are sorted by offset, neighbours are
    /// merged, and all are queued before this returns, without waiting for any (except with the
    /// inline engine). The results of the writes are in the order of the requests. The writes are
    /// durable after a [`flush`](Self::flush) that begins after the caller awaited the writes.
    ///
    /// A request for a range that is not on the device fails, and the other requests of the batch
    /// continue. The order of overlapping writes is unspecified.
    pub fn start_writes(&self, requests: impl AsRef<[WriteRequest]>) -> Vec<PendingWrite> {
        let core = self.core();
        let (valid, refusals) = split(requests.as_ref(), |request| {
            self.check_change(
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

    /// Writes all of `bytes` from `offset_bytes` on. The bytes are durable only after a
    /// [`flush`](Self::flush).
    ///
    /// # Errors
    /// Fails if the device is read-only, if the range is not on it, or if any byte could not be
    /// written.
    pub fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), IoError> {
        let core = self.core();
        let length_bytes = byte_length(bytes.len());
        self.check_change(Operation::Write, offset_bytes, length_bytes)?;
        let queued = core.clock.now();
        core.recorder.queued(1, queued);
        let result = self.inner.engine.write(core, offset_bytes, bytes);
        core.recorder
            .completed(Direction::Write, length_bytes, 0, queued, core.clock.now());
        result.map_err(|cause| core.error(Operation::Write, offset_bytes, length_bytes, &cause))
    }

    /// Waits until all earlier writes are durable.
    ///
    /// # Errors
    /// Fails if durability cannot be guaranteed. Bytes written since the last good flush may be
    /// lost, even if a later flush succeeds.
    pub fn flush(&self) -> Result<(), IoError> {
        buttress_locks::waits_for_device();
        self.inner.engine.flush();
        let core = self.core();
        core.backend
            .flush()
            .map_err(|cause| core.error(Operation::Flush, 0, 0, &cause))
    }

    /// Replaces the bytes from `offset_bytes` on by those of the file `source` from
    /// `source_offset_bytes` on, by sharing its blocks.
    ///
    /// # Errors
    /// Fails as [`write`](Self::write) does. Also fails if the blocks cannot be shared: see
    /// [`Backend::share_from`].
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
        self.check_change(Operation::Share, offset_bytes, length_bytes)?;
        core.backend
            .share_from(source, source_offset_bytes, offset_bytes, length_bytes)
            .map_err(|cause| core.error(Operation::Share, offset_bytes, length_bytes, &cause))
    }

    /// Discards bytes that are no longer needed. Later reads of discarded bytes return arbitrary
    /// bytes.
    ///
    /// # Errors
    /// Fails as [`write`](Self::write) does.
    pub fn discard(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), IoError> {
        buttress_locks::waits_for_device();
        let core = self.core();
        self.check_change(Operation::Discard, offset_bytes, length_bytes)?;
        let result = core.backend.discard(offset_bytes, length_bytes);
        result.map_err(|cause| core.error(Operation::Discard, offset_bytes, length_bytes, &cause))
    }

    /// Returns true if a write can fail for lack of space, like a write into a hole of an image
    /// file.
    #[must_use]
    pub fn may_run_out(&self) -> bool {
        self.core().backend.may_run_out()
    }

    /// Reserves the space that writes to the range will need, so that these writes cannot fail for
    /// lack of space. The call changes no byte of the device. Does nothing if the device does not
    /// support reservations. The reservation waits for no medium.
    ///
    /// # Errors
    /// Returns [`IoError::is_out_of_space`] if too little space exists; a part of the range may
    /// then have space. Also fails as [`write`](Self::write) does.
    pub fn reserve(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), IoError> {
        let core = self.core();
        self.check_change(Operation::Reserve, offset_bytes, length_bytes)?;
        let result = core.backend.reserve(offset_bytes, length_bytes);
        result.map_err(|cause| core.error(Operation::Reserve, offset_bytes, length_bytes, &cause))
    }

    /// Zeroes the bytes by the device's cheapest method.
    ///
    /// # Errors
    /// Fails as [`write`](Self::write) does.
    pub fn zero(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), IoError> {
        buttress_locks::waits_for_device();
        let core = self.core();
        self.check_change(Operation::Zero, offset_bytes, length_bytes)?;
        let result = core.backend.zero(offset_bytes, length_bytes);
        result.map_err(|cause| core.error(Operation::Zero, offset_bytes, length_bytes, &cause))
    }

    /// Returns the queue's statistics since the device was opened. For the statistics of a span of
    /// time, take two readings and call [`QueueStatistics::since`].
    #[must_use]
    pub fn statistics(&self) -> QueueStatistics {
        self.inner.engine.catch_up();
        self.core().recorder.read(self.name(), self.core().clock.now())
    }

    /// Returns the virtual clock of a simulated device.
    #[must_use]
    pub fn virtual_clock(&self) -> Option<VirtualClock> {
        match &self.core().clock {
            Clock::Virtual(clock) => Some(clock.clone()),
            Clock::Real(_) => None,
        }
    }

    /// Advances a simulated device's clock by `span`, the caller's computing time. Queued requests
    /// are served while the simulated clock advances. Does nothing on real devices, where time
    /// passes by itself.
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

/// Returns the requests that pass a check, and for each request, in order, the error if it fails.
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

/// Returns one result for each request, in order: the refusal, or the pending request at its place
/// in the plug.
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
