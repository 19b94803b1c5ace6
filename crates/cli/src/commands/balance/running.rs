//! A balance under way in this process, on a volume that is not mounted: its record, and signals.
//!
//! SIGINT cancels the balance, as btrfs-progs' Ctrl-C does. SIGTERM and SIGHUP pause the balance,
//! which can be resumed, as after an unmount.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use buttress::balance::{BalanceControl, BalanceItem, BalanceSummary, Choice};
use buttress::{ByteCount, DeviceOptions, Volume};
use serde_json::json;

use super::record::Record;
use crate::background::{self, this_process};
use crate::context::Context;
use crate::exit::Outcome;
use crate::progress::Watch;
use crate::signals::{Cancelling, Interrupted};
use crate::status_files::{self, Record as _, while_saving};
use crate::writing::Writing;

/// A balance that exists, and the parties that its progress is reported to.
pub(super) struct Running<'a> {
    pub(super) context: &'a Context,
    pub(super) writing: Writing,
    /// The status file, if it has a location.
    pub(super) status: Option<&'a Path>,
    pub(super) in_background: bool,
    pub(super) limit: Option<u64>,
    pub(super) signals: Signals,
}

/// The control of a balance, and the handlers of signals that act on it.
pub(super) struct Signals {
    control: BalanceControl,
    interrupted: Interrupted,
    cancelling: Cancelling,
}

impl Signals {
    /// Handles signals from now on. A status file tells others about this process, so the handlers
    /// come before it.
    pub(super) fn handle(context: &Context) -> Result<Self> {
        let control = BalanceControl::new(context.progress());
        Ok(Self {
            interrupted: Interrupted::start(control.cancellation())?,
            cancelling: Cancelling::start(control.progress())?,
            control,
        })
    }
}

impl Running<'_> {
    /// Runs the balance to its end, or until it is paused or cancelled, and closes the volume.
    pub(super) fn run(self, image: &Path, item: BalanceItem, choice: &Choice) -> Result<BalanceSummary> {
        let Signals {
            control,
            interrupted,
            cancelling,
        } = self.signals;
        let save = |error: Option<String>| match self.status {
            None => Ok(()),
            Some(path) => Record {
                process: this_process(),
                item,
                counts: control.counts(),
                error,
            }
            .save(self.context, path),
        };
        save(None)?;
        let watch = Watch::start(self.context, "balance", control.progress().clone());
        let volume = self.writing.volume();
        let limit = self.limit.filter(|limit| *limit > 0).map(ByteCount::new);
        let (ended, saved) = while_saving(|| save(None), || volume.run_balance(choice, limit, &control));
        watch.end_as(ended.is_ok());
        drop((cancelling, interrupted));
        if let Err(error) = saved {
            self.context
                .warn(format_args!("the status file is out of date: {error:#}"));
        }
        // Other processes take the missing status file as the end, so the devices are unlocked before it.
        drop(self.writing);
        match &ended {
            Err(error) if self.in_background => save(Some(error.to_string()))?,
            _ => self.status.map_or(Ok(()), status_files::remove)?,
        }
        ended.with_context(|| image.display().to_string())
    }
}

/// Opens a volume that has a balance, for changes. Returns `None`, and writes nothing, if the volume has none.
pub(super) fn open_existing(context: &Context, image: &Path) -> Result<Option<(Writing, BalanceItem)>> {
    let options = DeviceOptions {
        write: true,
        ..context.device_options()
    };
    let opened = context.open_images_with(&[image.to_owned()], &options)?;
    let Some(item) = opened.volume().balance_status()? else {
        return Ok(None);
    };
    let writing = Writing::new(opened, Volume::options());
    Ok(Some((
        writing.with_context(|| image.display().to_string())?,
        item,
    )))
}

/// The status file. A balance of a block device in the foreground has no status file, unless the
/// command line names one.
pub(super) fn status_path(
    image: &Path,
    named: Option<&Path>,
    in_background: bool,
) -> Result<Option<PathBuf>> {
    match background::status_file(image, named, super::STATUS_ENDING) {
        Ok(path) => Ok(Some(path)),
        Err(_) if !in_background => Ok(None),
        Err(error) => Err(error),
    }
}

/// Starts this command line again as a process of its own, and waits until its record says that it runs.
pub(super) fn go_to_background(
    context: &Context,
    command: &'static str,
    status: Option<&Path>,
) -> Result<Outcome> {
    let (process, _) = background::start(|process| {
        Record::load_running(status).filter(|record| record.process.0 == process)
    })?;
    if context.json() {
        let document = json!({ "end": null, "process": process });
        context.print_json(command, document)?;
    }
    Ok(Outcome::Done)
}
