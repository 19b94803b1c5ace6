//! Scrubs of a mounted volume: the server runs them, concurrently with its users.
//!
//! Each scrub of a mount has a thread in the server. The record of such a scrub is in the server's
//! memory ([`Scrubs`]), because the server opens no files. `scrub start` and `resume` with `-B`
//! wait for the scrub, but an interrupted wait does not stop it. `scrub cancel` stops the scrub, as
//! does the end of the mount, which waits until the scrub has released the volume. The scrub's
//! record ends with the server of the mount.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use buttress::scrub::{Options as ScrubOptions, Report, ResyncOptions, Scrub};
use buttress::unstable::fs::Filesystem;
use buttress::unstable::writer::WritableFilesystem;
use buttress::unstable::{filesystem_of, writer_of};
use buttress::{ByteCount, Progress, Uuid};
use buttress_mount::volume::Log;
use crossbeam_channel::{Sender, bounded};
use parking_lot::{Condvar, Mutex};

use super::options::Options;
use super::record::{Record, State};
use super::running::{self, Under};
use super::{files, start};
use crate::context::Context;
use crate::exit::{Advice, Outcome};
use crate::resyncs::{self, Resyncs, describe};
use crate::writing::environment;

/// The volume to scrub.
enum Scrubbed {
    Reading(Filesystem),
    Writing(WritableFilesystem),
}

impl Scrubbed {
    fn committed(&self) -> Filesystem {
        match self {
            Self::Reading(filesystem) => filesystem.clone(),
            Self::Writing(writer) => writer.committed_view(),
        }
    }
}

/// Scrubs of a volume that this process serves; at most one runs.
pub struct Scrubs {
    kept: Mutex<Kept>,
    ended: Condvar,
    log: Log,
    resyncs: Arc<Resyncs>,
}

impl std::fmt::Debug for Scrubs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scrubs").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Kept {
    /// Record of the last scrub.
    record: Option<Record>,
    /// Report of the last scrub, once it has ended.
    report: Report,
    /// Error that stopped the last scrub.
    error: Option<String>,
    /// Progress of the running scrub, which can cancel it.
    under_way: Option<Progress>,
    /// True once no further scrub of the mount may start.
    is_over: bool,
}

/// Scrubs of the server's volume, on behalf of a client.
pub(super) struct Online {
    scrubs: Arc<Scrubs>,
    volume: Scrubbed,
}

/// Returns the scrubs of the mount if an argument is below a mount that this process serves.
///
/// # Errors
/// Returns an error if another server must execute the command, or the argument is not an image.
pub(super) fn find(context: &Context, argument: &std::ffi::OsStr) -> Result<Option<Online>> {
    let image = context.target(argument).image;
    let Some(opened) = context.present(&image)? else {
        return Ok(None);
    };
    let mount = context.place().and_then(|place| place.mount);
    Ok(mount.map(|mount| Online {
        scrubs: mount.scrubs,
        volume: match mount.writing {
            Some(writing) => Scrubbed::Writing(writer_of(writing.volume()).clone()),
            None => Scrubbed::Reading(filesystem_of(opened.volume())),
        },
    }))
}

impl Online {
    /// Returns the uuid of the volume.
    pub(super) fn uuid(&self) -> Uuid {
        self.volume.committed().superblock().fsid
    }

    /// Returns the number of bytes that a scrub would read.
    pub(super) fn bytes_to_scrub(&self) -> Result<u64> {
        let scrub = Scrub::new(&self.volume.committed(), ScrubOptions::default(), Progress::new())?;
        Ok(scrub.report().to_scrub())
    }

    /// Returns the state of devices that missed commits. The state is empty for a volume that is
    /// open for reading.
    pub(super) fn resync_status(&self) -> resyncs::Status {
        match &self.volume {
            Scrubbed::Reading(_) => resyncs::Status::default(),
            Scrubbed::Writing(writer) => self.scrubs.resyncs.status(writer),
        }
    }

    /// Returns the record of the last scrub.
    pub(super) fn record(&self) -> Option<Record> {
        self.scrubs.kept.lock().record.clone()
    }

    /// Stops the running scrub, and waits for its end. Returns `None` if no scrub runs.
    pub(super) fn cancel(&self) -> Option<Record> {
        let mut kept = self.scrubs.kept.lock();
        kept.under_way.as_ref()?.cancel();
        while kept.under_way.is_some() {
            self.scrubs.ended.wait(&mut kept);
        }
        kept.record.clone()
    }

    /// Starts or resumes a scrub, and waits for its end if it runs in the foreground.
    pub(super) fn run(
        self,
        context: &Context,
        options: &Options,
        resumed: Option<Record>,
        command: &'static str,
    ) -> Result<Outcome> {
        if options.status_file.is_some() {
            bail!("--status-file: the mount's server keeps the status of a mounted volume's scrub");
        }
        if matches!(self.volume, Scrubbed::Reading(_)) && !options.read_only {
            return Err(anyhow!("it is mounted read-only")).map_err(|error| {
                error.context(Advice::new(
                    "scrub with -r, which only reads, or mount with -o rw",
                ))
            });
        }
        let scrub_options = ScrubOptions {
            read_only: options.read_only,
            limit: options.limit.filter(|limit| *limit > 0).map(ByteCount::new),
            resume: start::position_of(resumed.as_ref()),
            ..ScrubOptions::default()
        };
        let filesystem = self.volume.committed();
        let scrubs = Arc::clone(&self.scrubs);
        let begun = scrubs.start(self.volume, scrub_options, resumed)?;
        if !options.foreground {
            return start::say_started(context, Path::new(&options.image), begun.uuid, std::process::id());
        }
        let mut kept = scrubs.kept.lock();
        while kept.under_way.is_some() {
            scrubs.ended.wait(&mut kept);
        }
        if let Some(error) = &kept.error {
            bail!("{error}");
        }
        let record = kept.record.clone().unwrap_or(begun);
        let report = kept.report.clone();
        drop(kept);
        if record.state != State::Finished {
            running::say_stopped(context);
        }
        running::conclude(context, options, &record, report, &filesystem, command)
    }
}

/// Guard that records the end of a scrub, also after a panic.
struct Ends<'a>(&'a Scrubs);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        let mut kept = self.0.kept.lock();
        kept.under_way = None;
        if let Some(record) = kept.record.as_mut()
            && record.state == State::Running
        {
            record.state = State::Interrupted;
        }
        drop(kept);
        self.0.ended.notify_all();
    }
}

impl Scrubs {
    /// Creates a value without any scrub. The scrub writes its findings to `log`.
    pub fn new(log: Log, resyncs: Arc<Resyncs>) -> Self {
        Self {
            kept: Mutex::default(),
            ended: Condvar::new(),
            log,
            resyncs,
        }
    }

    /// Stops the running scrub, waits until it has released the volume, and prevents any later
    /// scrub.
    pub fn end(&self) {
        let mut kept = self.kept.lock();
        kept.is_over = true;
        while let Some(progress) = &kept.under_way {
            progress.cancel();
            self.ended.wait(&mut kept);
        }
    }

    /// Starts a scrub in a separate thread; returns its initial record.
    fn start(
        self: &Arc<Self>,
        volume: Scrubbed,
        options: ScrubOptions,
        resumed: Option<Record>,
    ) -> Result<Record> {
        let mut kept = self.kept.lock();
        if kept.under_way.is_some() {
            return Err(anyhow!("a scrub is already running")).map_err(|error| {
                error.context(Advice::new(
                    "`buttress scrub cancel` stops it; `buttress scrub status` shows its progress",
                ))
            });
        }
        if kept.is_over {
            bail!("the volume is being unmounted");
        }
        let progress = Progress::new();
        let (tell, told) = bounded(1);
        let (scrubs, cancelled) = (Arc::clone(self), progress.clone());
        let job = move || {
            let ends = Ends(&scrubs);
            let done = scrubs.scrub(&volume, options, resumed, progress, &tell);
            // Release the volume first, because a caller may wait for the scrub's end to close it.
            drop(volume);
            if let Err(error) = done {
                let text = format!("{error:#}");
                (scrubs.log)(&format!("the scrub failed: {text}"));
                scrubs.kept.lock().error = Some(text);
            }
            drop(ends);
        };
        let thread = std::thread::Builder::new().name("buttress-scrub".to_owned());
        thread.spawn(job)?;
        kept.under_way = Some(cancelled);
        kept.error = None;
        drop(kept);
        if let Ok(record) = told.recv() {
            return Ok(record);
        }
        let error = self.kept.lock().error.clone();
        Err(anyhow!(
            error.unwrap_or_else(|| "the scrub did not start".to_owned())
        ))
    }

    /// Brings devices that missed commits up to date. If devices cannot be brought up to date, the
    /// failures are logged, and the scrub counts the data that such devices missed.
    fn resync(&self, writer: &WritableFilesystem, limit: Option<ByteCount>, progress: &Progress) {
        let options = ResyncOptions {
            limit,
            ..ResyncOptions::default()
        };
        let (resynced, ended) = self.resyncs.run(writer, options, progress);
        for device in &resynced.devices {
            (self.log)(&describe(device));
        }
        if let Err(error) = ended {
            (self.log)(&format!(
                "a device that missed commits stays out of date: {error}"
            ));
        }
    }

    fn scrub(
        &self,
        volume: &Scrubbed,
        options: ScrubOptions,
        resumed: Option<Record>,
        progress: Progress,
        tell: &Sender<Record>,
    ) -> Result<()> {
        let is_read_only = options.read_only;
        if let Scrubbed::Writing(writer) = volume
            && !is_read_only
        {
            self.resync(writer, options.limit, &progress);
        }
        let views = || volume.committed();
        let view = views();
        let mut scrub = Scrub::new(&view, options, progress.clone())?.asking(&files::written);
        if let Scrubbed::Writing(_) = volume {
            scrub = scrub.beside(&views);
        }
        let uuid = view.superblock().fsid;
        drop(view);
        let now = environment("scrub")?.now().seconds;
        let first = running::first_record(&scrub, uuid, now, resumed.as_ref());
        let keep = |record: Record| {
            self.kept.lock().record = Some(record);
            Ok(())
        };
        let under = Under {
            scrub: &scrub,
            begun: Instant::now(),
            first,
            keep: &keep,
        };
        let begun = under.record(State::Running);
        keep(begun.clone())?;
        // The client may have disconnected before this answer.
        let _ = tell.send(begun);
        let (ended, _) = under.run_and_keep();
        let state = match ended {
            Ok(()) => State::Finished,
            Err(_) if progress.is_cancelled() => State::Aborted,
            Err(error) => return Err(error.into()),
        };
        let record = under.record(state);
        let report = Report {
            devices: record.devices.clone(),
            ..scrub.report()
        };
        let totals = report.totals();
        if totals.errors() > 0 {
            (self.log)(&format!(
                "a scrub found {} errors ({} corrected, {} uncorrectable)",
                totals.errors(),
                totals.corrected_errors,
                totals.uncorrectable_errors
            ));
        }
        if let Scrubbed::Writing(writer) = volume
            && totals.errors() > 0
            && !is_read_only
        {
            // The commit stores the found errors in the devices' statistics.
            writer.commit()?;
        }
        let mut kept = self.kept.lock();
        kept.record = Some(record);
        kept.report = report;
        Ok(())
    }
}
