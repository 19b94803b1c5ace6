//! Resynchronisation of a volume that this process serves: one at a time, beside the users of the volume.
//!
//! If a device missed commits, a writable mount starts the resynchronisation in the background
//! ([`Resyncs::start`]). A scrub and `device resync` on the mount wait for the background job, then
//! run it for what is left ([`Resyncs::run`]). The end of the mount cancels the resynchronisation
//! ([`Resyncs::end`]); the next mount continues with what the device lacks then.
//!
//! Invariants:
//! - At most one resynchronisation of the volume runs. `State::under_way` enforces it.
//! - After [`Resyncs::end`] returns, no resynchronisation runs and none starts.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use buttress::scrub::{Error, ResyncOptions, Resynced, ResyncedDevice};
use buttress::unstable::scrub::Resync;
use buttress::unstable::scrub::resync::devices_behind;
use buttress::unstable::writer::WritableFilesystem;
use buttress::{ByteCount, DeviceId, Generation, Progress};
use buttress_mount::volume::Log;
use parking_lot::{Condvar, Mutex};

/// Interval at which a caller that waits for another resynchronisation checks its own cancellation.
const POLL: Duration = Duration::from_millis(100);

/// Longest time that a mount waits for the beginning of a resynchronisation before it serves.
const BEGINS_WITHIN: Duration = Duration::from_secs(2);

/// Interval at which a mount checks for this beginning.
const NAP: Duration = Duration::from_millis(2);

/// The resynchronisations of a volume that this process serves.
pub struct Resyncs {
    state: Mutex<State>,
    ended: Condvar,
    log: Log,
}

impl fmt::Debug for Resyncs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resyncs").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    /// Progress of the running resynchronisation.
    under_way: Option<Progress>,
    /// The result of the last resynchronisation in the background.
    last: Option<Last>,
    /// True once the mount starts no further resynchronisation.
    is_over: bool,
}

/// Outcome of a resynchronisation in the background.
struct Last {
    resynced: Resynced,
    /// Reason why a device stays behind the volume.
    error: Option<String>,
}

/// A device that missed commits, as `scrub status` shows it.
#[derive(Clone, Debug)]
pub struct Behind {
    /// Id of the device.
    pub device: DeviceId,
    /// The device's name, as the log shows it.
    pub name: Arc<str>,
    /// Generation of the device's superblock.
    pub since: Generation,
}

/// The state of devices that missed commits, on a volume that this process serves.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Devices that are currently behind.
    pub behind: Vec<Behind>,
    /// Progress of a running resynchronisation: bytes done and bytes in total; the total is 0 if
    /// unknown.
    pub running: Option<(ByteCount, ByteCount)>,
    /// Reason why the last resynchronisation left a device behind.
    pub error: Option<String>,
}

/// Guard that marks the end of a resynchronisation, also after a panic.
struct Ends<'a>(&'a Resyncs);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.state.lock().under_way = None;
        self.0.ended.notify_all();
    }
}

/// Describes a device that was brought up to date, for messages.
pub fn describe(device: &ResyncedDevice) -> String {
    format!(
        "{} (device {}) missed commits since generation {} and was brought up to date: {} bytes written",
        device.name, device.device, device.since, device.written
    )
}

/// Lists the writable devices of a volume that missed commits.
fn behind(writer: &WritableFilesystem) -> Vec<Behind> {
    let slots = devices_behind(writer.committed_view().volume()).into_iter();
    let behind = slots.filter_map(|slot| {
        Some(Behind {
            device: slot.id(),
            name: Arc::clone(slot.name()),
            since: slot.stale()?.generation,
        })
    });
    behind.collect()
}

impl Resyncs {
    /// Creates a value without any resynchronisation. The resynchronisation writes its messages to
    /// `log`.
    pub fn new(log: Log) -> Self {
        Self {
            state: Mutex::default(),
            ended: Condvar::new(),
            log,
        }
    }

    /// Starts a resynchronisation in a separate thread, if a device missed commits. Waits a moment
    /// until new writes reach the device: earlier, a volume on two devices has no space beyond its
    /// chunks.
    pub fn start(self: &Arc<Self>, writer: &WritableFilesystem) {
        let devices = behind(writer);
        if devices.is_empty() {
            return;
        }
        for device in &devices {
            (self.log)(&format!(
                "{} (device {}) missed commits since generation {}, and is being brought up to date in the background",
                device.name, device.device, device.since
            ));
        }
        let progress = Progress::new();
        {
            let mut state = self.state.lock();
            if state.is_over || state.under_way.is_some() {
                return;
            }
            state.under_way = Some(progress.clone());
        }
        let (resyncs, writer) = (Arc::clone(self), writer.clone());
        let job = move || {
            let ends = Ends(&resyncs);
            resyncs.run_in_background(writer, &progress);
            drop(ends);
        };
        let thread = std::thread::Builder::new().name("buttress-resync".to_owned());
        if let Err(error) = thread.spawn(job) {
            drop(Ends(self));
            self.log_failure(&error.to_string());
        }
        self.wait_until_begun();
    }

    fn wait_until_begun(&self) {
        let begun = Instant::now();
        let is_beginning = || {
            let state = self.state.lock();
            let progress = state.under_way.as_ref();
            progress.is_some_and(|progress| progress.snapshot().expected == ByteCount::ZERO)
        };
        while is_beginning() && begun.elapsed() < BEGINS_WITHIN {
            std::thread::sleep(NAP);
        }
    }

    fn run_in_background(&self, writer: WritableFilesystem, progress: &Progress) {
        let (resynced, ended) =
            Resync::new(writer.clone(), ResyncOptions::default(), progress.clone()).run_as_far_as_possible();
        // The end of the mount waits for this thread, then closes the volume.
        drop(writer);
        for device in &resynced.devices {
            (self.log)(&describe(device));
        }
        let error = match ended {
            Ok(()) => None,
            Err(_) if progress.is_cancelled() => {
                (self.log)(
                    "the resynchronisation was stopped: a device that missed commits stays out of date, and the next mount continues",
                );
                None
            }
            Err(error) => Some(error.to_string()),
        };
        if let Some(error) = &error {
            self.log_failure(error);
        }
        self.state.lock().last = Some(Last { resynced, error });
    }

    fn log_failure(&self, error: &str) {
        (self.log)(&format!(
            "a device that missed commits stays out of date: {error}"
        ));
    }

    /// Brings all devices up to date that missed commits. Without a limit, waits for a running
    /// resynchronisation first. With a limit, stops a running resynchronisation and continues
    /// within the limit. The result of this wait includes the work of the earlier
    /// resynchronisation.
    ///
    /// # Errors
    /// The errors of [`Resync::run`]; [`buttress::unstable::fs::Error::Cancelled`] also once the
    /// volume is being closed.
    pub fn run(
        &self,
        writer: &WritableFilesystem,
        options: ResyncOptions,
        progress: &Progress,
    ) -> (Resynced, Result<(), Error>) {
        let mut before = Resynced::default();
        {
            let mut state = self.state.lock();
            while let Some(other) = &state.under_way {
                if let Err(error) = progress.check() {
                    return (before, Err(error.into()));
                }
                if options.limit.is_some() {
                    other.cancel();
                }
                self.ended.wait_for(&mut state, POLL);
                if state.under_way.is_none()
                    && let Some(last) = state.last.take()
                {
                    before = last.resynced;
                }
            }
            if state.is_over {
                return (before, Err(buttress::unstable::fs::Error::Cancelled.into()));
            }
            state.last = None;
            state.under_way = Some(progress.clone());
        }
        let _ends = Ends(self);
        let (resynced, ended) =
            Resync::new(writer.clone(), options, progress.clone()).run_as_far_as_possible();
        before.devices.extend(resynced.devices);
        before.left = resynced.left;
        (before, ended)
    }

    /// Stops a running resynchronisation, waits until it has released the volume, and prevents any
    /// later one.
    pub fn end(&self) {
        let mut state = self.state.lock();
        state.is_over = true;
        while let Some(progress) = &state.under_way {
            progress.cancel();
            self.ended.wait(&mut state);
        }
    }

    /// Returns the state of devices that missed commits.
    pub fn status(&self, writer: &WritableFilesystem) -> Status {
        let state = self.state.lock();
        let running = state.under_way.as_ref().map(|progress| {
            let snapshot = progress.snapshot();
            (snapshot.bytes, snapshot.expected)
        });
        let error = state.last.as_ref().and_then(|last| last.error.clone());
        drop(state);
        Status {
            behind: behind(writer),
            running,
            error,
        }
    }
}
