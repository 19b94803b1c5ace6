//! Healing on ordinary reads: a background thread repairs bad copies that reads pass over.
//!
//! A read that finds a bad copy uses another copy and continues. The read reports the place to a
//! [`Healer`], whose thread scrubs the group around it, in the state of the last commit, with its
//! rows locked. If the place was freed or rewritten since, the healer therefore does not touch it.
//! The next commit adds the errors to the device's statistics. Reads never wait for the healer. If
//! too many places are pending, the healer drops further ones; the next read or a scrub finds them
//! again.

use crate::options::Options;
use crate::report::Report;
use crate::scrub::Scrub;
use buttress_exact::Exact as _;
use buttress_format::Logical;
use buttress_fs::{Filesystem, Progress};
use buttress_locks::{Condvar, Mutex, Rank, lock_class};
use buttress_volume::{Fault, FaultReason, MappedChunk, Volume};
use buttress_writer::WritableFilesystem;
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

lock_class!(HealingLock, "state", Rank::LEAF);

/// The largest number of reported places that may be pending at the healer.
const WAITING_MAX: usize = 1024;

/// Counts of healed and remaining errors.
#[derive(Clone, Debug, Default)]
pub struct Healed {
    /// Errors that were repaired.
    pub corrected: u64,
    /// Errors that could not be repaired.
    pub uncorrectable: u64,
    /// Places that the healer dropped because too many were pending.
    pub forgotten: u64,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State, HealingLock>,
    idle: Condvar,
}

#[derive(Debug, Default)]
struct State {
    healed: Healed,
    /// Reported places that the healer has not handled yet.
    waiting: usize,
    /// Whether the healer's thread has ended, so pending places are no longer scrubbed.
    has_ended: bool,
}

/// Repairs bad copies that reads of a volume pass over, until the healer is dropped.
#[derive(Debug)]
pub struct Healer {
    volume: Arc<Volume>,
    told: Option<Sender<Logical>>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Healer {
    /// Begins to heal a volume that is open for writing. The healer keeps the volume open until it
    /// is dropped.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub fn start(filesystem: &WritableFilesystem) -> io::Result<Self> {
        let volume = Arc::clone(filesystem.committed_view().volume());
        let (told, places) = bounded(WAITING_MAX);
        let shared = Arc::new(Shared::default());
        let (own, to_tell) = (Arc::clone(&shared), told.clone());
        let writable = filesystem.clone();
        let thread = std::thread::Builder::new()
            .name("buttress-heal".to_owned())
            .spawn(move || heal_all(&writable, &places, &own))?;
        let hearing = Arc::clone(&shared);
        volume.tell_faults(Some(Arc::new(move |fault: &Fault| {
            tell(fault, &to_tell, &hearing)
        })));
        Ok(Self {
            volume,
            told: Some(told),
            shared,
            thread: Some(thread),
        })
    }

    /// Begins to heal as [`Healer::start`] does, if a chunk has other copies or parity. Returns
    /// `None` if chunks have no redundancy, and on simulated devices, whose runs must repeat.
    /// Returns `None` too if the system cannot start the healer's thread. A scrub later finds the
    /// errors that the healer could not handle.
    #[must_use]
    pub fn start_where_redundant(filesystem: &WritableFilesystem) -> Option<Self> {
        let view = filesystem.committed_view();
        let volume = view.volume();
        let chunks = volume.chunk_map();
        let is_redundant = |chunk: &Arc<MappedChunk>| chunk.layout().ways() > 1;
        if volume.virtual_clock().is_some() || !chunks.chunks().iter().any(is_redundant) {
            return None;
        }
        Self::start(filesystem).ok()
    }

    /// Returns the healer's counts so far.
    #[must_use]
    pub fn healed(&self) -> Healed {
        self.shared.state.lock().healed.clone()
    }

    /// Waits until all faults reported so far are handled, or the thread has ended.
    pub fn wait(&self) {
        let mut state = self.shared.state.lock();
        while state.waiting > 0 && !state.has_ended {
            self.shared.idle.wait(&mut state);
        }
    }
}

impl Drop for Healer {
    fn drop(&mut self) {
        self.volume.tell_faults(None);
        self.told = None;
        if let Some(thread) = self.thread.take() {
            // The thread already reported its panic, and this function does not depend on the
            // thread.
            let _ended = thread.join();
        }
    }
}

/// Reports a copy that a read passed over.
fn tell(fault: &Fault, told: &Sender<Logical>, shared: &Shared) {
    if matches!(
        fault.reason,
        FaultReason::Missing | FaultReason::LeftOut | FaultReason::Stale
    ) {
        return;
    }
    {
        let mut state = shared.state.lock();
        state.waiting = state.waiting.exact_add(1);
    }
    match told.try_send(fault.logical) {
        Ok(()) => {}
        Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
            let mut state = shared.state.lock();
            state.healed.forgotten = state.healed.forgotten.exact_add(1);
            end(&mut state, 1, &shared.idle);
        }
    }
}

fn end(state: &mut State, count: usize, idle: &Condvar) {
    state.waiting = state.waiting.exact_sub(count);
    if state.waiting == 0 {
        idle.notify_all();
    }
}

/// Records that the healer's thread has ended, also by a panic.
struct Ends<'a>(&'a Shared);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.state.lock().has_ended = true;
        self.0.idle.notify_all();
    }
}

fn heal_all(writable: &WritableFilesystem, places: &Receiver<Logical>, shared: &Shared) {
    let _ends = Ends(shared);
    while let Ok(first) = places.recv() {
        let told: Vec<Logical> = core::iter::once(first).chain(places.try_iter()).collect();
        let count = told.len();
        let report = heal(&|| writable.committed_view(), told.into_iter().collect());
        let mut state = shared.state.lock();
        if let Some(totals) = report.map(|report| report.totals()) {
            let healed = &mut state.healed;
            healed.corrected = healed.corrected.exact_add(totals.corrected_errors);
            healed.uncorrectable = healed.uncorrectable.exact_add(totals.uncorrectable_errors);
        }
        end(&mut state, count, &shared.idle);
    }
}

/// Scrubs the groups around some places. Returns `None` if the scrub of these groups is impossible.
fn heal(views: &(dyn Fn() -> Filesystem + Sync), places: BTreeSet<Logical>) -> Option<Report> {
    if buttress_faults::on("heal-nothing") {
        return None;
    }
    let scrub = Scrub::new(&views(), Options::default(), Progress::new()).ok()?;
    let scrub = scrub.beside(views);
    scrub.run_around(&places);
    Some(scrub.report())
}
