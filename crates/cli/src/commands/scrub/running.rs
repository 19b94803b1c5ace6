//! A running scrub: maintains its record, and prints its result. For an unmounted volume, the scrub
//! alone opens the devices, writes its record every second, and pauses on signals. When the scrub
//! ends, it updates the devices' statistics and prints its result.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result};
use buttress::scrub::{DeviceReport, Options as ScrubOptions, Report, ResyncOptions, Scrub};
use buttress::unstable::fs::Filesystem;
use buttress::unstable::{filesystem_of, volume_over, writer_of};
use buttress::{ByteCount, DeviceOptions, Progress, Subvolume, Volume};

use super::options::Options;
use super::record::{Record, State};
use super::{UNCORRECTABLE, files, printing, start};
use crate::background;
use crate::context::Context;
use crate::exit::Outcome;
use crate::output::stdout;
use crate::progress::Watch;
use crate::resyncs::describe;
use crate::signals::Cancelling;
use crate::status_files::{Record as _, while_saving};
use crate::writing::{self, Writing};

/// Function that stores a record, in the status file or in memory.
type Keep<'a> = dyn Fn(Record) -> Result<()> + Sync + 'a;

/// A scrub, with the position from which it was resumed.
pub(super) struct Under<'a> {
    pub(super) scrub: &'a Scrub<'a>,
    pub(super) begun: Instant,
    /// Record at the start of this run.
    pub(super) first: Record,
    pub(super) keep: &'a Keep<'a>,
}

impl Under<'_> {
    /// Returns the counters of this run and of earlier ones.
    fn devices(&self, report: &Report) -> Vec<DeviceReport> {
        let mut devices = report.devices.clone();
        for device in &mut devices {
            let before = self
                .first
                .devices
                .iter()
                .find(|before| before.uuid == device.uuid);
            if let Some(before) = before {
                device.counters.add(&before.counters);
            }
        }
        devices
    }

    pub(super) fn record(&self, state: State) -> Record {
        let elapsed = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        Record {
            state,
            milliseconds: self.first.milliseconds.saturating_add(elapsed),
            devices: self.devices(&self.scrub.report()),
            position: self.scrub.position(),
            ..self.first.clone()
        }
    }

    fn save(&self, state: State) -> Result<()> {
        (self.keep)(self.record(state))
    }

    /// Runs the scrub and stores its record during the run. Returns the results of the scrub and of
    /// storing its record.
    pub(super) fn run_and_keep(&self) -> (Result<(), buttress::scrub::Error>, Result<()>) {
        while_saving(|| self.save(State::Running), || self.scrub.run())
    }
}

/// Scrubs a volume from the beginning, or resumes from a record.
pub(super) fn run(
    context: &Context,
    image: &Path,
    options: &Options,
    path: Option<&Path>,
    resumed: Option<Record>,
    command: &'static str,
) -> Result<Outcome> {
    // The repair of the volume and the exit code must not depend on a reader of the summary.
    stdout::go_on_unread();
    let opening = DeviceOptions {
        write: !options.read_only,
        direct_when_cold: true,
        direct_when_cold_to_write: true,
        ..context.device_options()
    };
    let mut opened = context.open_images_with(&[image.to_owned()], &opening)?;
    let progress = context.progress();
    if !options.read_only
        && let Some(newer) = resync(context, &opened, options, &progress)?
    {
        opened = newer;
    }
    let filesystem = filesystem_of(opened.volume());
    let uuid = opened.volume().info().fsid;
    let resumed = resumed.filter(|record| record.uuid == uuid);
    let scrub_options = ScrubOptions {
        read_only: options.read_only,
        limit: options.limit.filter(|limit| *limit > 0).map(ByteCount::new),
        resume: start::position_of(resumed.as_ref()),
        ..ScrubOptions::default()
    };
    let scrub = Scrub::new(&filesystem, scrub_options, progress.clone())
        .with_context(|| image.display().to_string())?
        .asking(&files::written);
    let now = writing::environment("scrub")?.now().seconds;
    let first = first_record(&scrub, uuid, now, resumed.as_ref());
    if let Some(resumed) = &resumed {
        let done: u64 = resumed
            .devices
            .iter()
            .map(|device| device.counters.bytes_scrubbed())
            .sum();
        progress.advance(0, ByteCount::new(done));
    }
    let keep = |record: Record| match path {
        Some(path) => record.save(context, path),
        None => Ok(()),
    };
    let under = Under {
        scrub: &scrub,
        begun: Instant::now(),
        first,
        keep: &keep,
    };
    under.save(State::Running)?;
    let cancelling = Cancelling::start(&progress)?;
    let watch = Watch::start(context, "scrub", progress.clone());
    let (ended, saved) = under.run_and_keep();
    if let Err(error) = saved {
        context.warn(format_args!("the status file is out of date: {error:#}"));
    }
    if progress.is_cancelled() {
        say_stopped(context);
    }
    watch.end_as(ended.is_ok());
    let is_done = match ended {
        Ok(()) => true,
        Err(_) if progress.is_cancelled() => false,
        Err(error) => return Err(error.into()),
    };
    drop(cancelling);
    let state = if is_done { State::Finished } else { State::Aborted };
    let record = under.record(state);
    under.save(state)?;
    let report = Report {
        devices: record.devices.clone(),
        ..scrub.report()
    };
    drop(scrub);
    if !options.read_only {
        count_in_statistics(context, &opened, &report);
    }
    conclude(context, options, &record, report, &filesystem, command)
}

/// Brings devices that missed commits up to date. If any device was updated, returns the new state
/// of the volume.
fn resync(
    context: &Context,
    opened: &Subvolume,
    options: &Options,
    progress: &Progress,
) -> Result<Option<Subvolume>> {
    let devices = opened.volume().devices();
    if devices.iter().all(|device| device.behind_since.is_none()) {
        return Ok(None);
    }
    let writing = Writing::new(opened.clone(), Volume::options())?;
    let own_progress = context.progress();
    let cancelling = Cancelling::start(&own_progress)?;
    let resync_options = ResyncOptions {
        limit: options.limit.filter(|limit| *limit > 0).map(ByteCount::new),
        ..ResyncOptions::default()
    };
    let (resynced, ended) = writing.volume().resync(resync_options, &own_progress);
    drop(cancelling);
    if own_progress.is_cancelled() {
        progress.cancel();
    }
    for device in &resynced.devices {
        context.notice(describe(device));
    }
    if let Err(error) = ended
        && !progress.is_cancelled()
    {
        context.warn(format_args!(
            "a device that missed commits stays out of date: {error}"
        ));
    }
    writing.commit()?;
    let committed = volume_over(writer_of(writing.volume()).committed_view());
    Ok(Some(committed.subvolume_by_id(opened.id())?))
}

/// Prints that the scrub can be resumed.
pub(super) fn say_stopped(context: &Context) {
    context.notice("the scrub was stopped; to continue it, run `buttress scrub resume`");
}

/// Prints the result of a scrub in the foreground, and returns its exit code.
pub(super) fn conclude(
    context: &Context,
    options: &Options,
    record: &Record,
    mut report: Report,
    filesystem: &Filesystem,
    command: &'static str,
) -> Result<Outcome> {
    let unlisted = report.damages.len().saturating_sub(options.most());
    report.damages.truncate(options.most());
    report.damages_unlisted = report
        .damages_unlisted
        .saturating_add(ByteCount::of(unlisted).get());
    let damages = files::of(filesystem, &report, options.files());
    printing::print_end(context, options, record, &report, &damages, command)?;
    let totals = report.totals();
    if totals.errors() > 0 && totals.corrected_errors > 0 {
        context.warn(format_args!(
            "errors detected during scrubbing, {} corrected",
            totals.corrected_errors
        ));
    }
    if totals.missed > 0 {
        context.warn(format_args!(
            "devices that missed commits lack {} sectors and tree blocks; this is no damage. To bring them up to date, run `buttress device resync`",
            totals.missed
        ));
        if !options.read_only && !report.has_uncorrectable() {
            return Ok(Outcome::Code(UNCORRECTABLE));
        }
    }
    if report.has_uncorrectable() {
        context.warn(format_args!(
            "there are {} uncorrectable errors",
            totals.uncorrectable_errors
        ));
        return Ok(Outcome::Code(UNCORRECTABLE));
    }
    Ok(match record.state {
        State::Finished => Outcome::Done,
        _ => Outcome::Negative,
    })
}

/// Creates the record at the start of this run.
pub(super) fn first_record(
    scrub: &Scrub<'_>,
    uuid: buttress::Uuid,
    now: i64,
    resumed: Option<&Record>,
) -> Record {
    Record {
        uuid,
        state: State::Running,
        process: background::this_process(),
        started: resumed.map_or(now, |record| record.started),
        resumed: resumed.map(|_| now),
        milliseconds: resumed.map_or(0, |record| record.milliseconds),
        devices: resumed.map_or_else(|| scrub.report().devices, |record| record.devices.clone()),
        position: scrub.position(),
    }
}

/// Commits the errors that the scrub found to the devices' statistics.
fn count_in_statistics(context: &Context, opened: &Subvolume, report: &Report) {
    if report.totals().errors() == 0 {
        return;
    }
    let commit = || -> Result<()> {
        let writing = Writing::new(opened.clone(), Volume::options())?;
        writing.commit()?;
        Ok(())
    };
    if let Err(error) = commit() {
        context.warn(format_args!(
            "the errors could not be counted in the devices' statistics: {error:#}"
        ));
    }
}
