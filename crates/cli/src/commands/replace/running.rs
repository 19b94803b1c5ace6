//! A running replacement: writes its record every second, and suspends on signals.

use std::path::{Path, PathBuf};

use anyhow::Result;
use buttress::scrub::{Error, ReplaceOptions, Replaced};
use buttress::{DeviceId, Progress};

use super::below::{Replace, writer_of};
use super::record::Record;
use crate::background::this_process;
use crate::context::Context;
use crate::exit::Advice;
use crate::progress::Watch;
use crate::status_files::{self, Record as _, while_saving};
use crate::writing::Writing;

/// A started replacement, with the receivers of its progress.
pub(super) struct Running<'a> {
    pub(super) context: &'a Context,
    pub(super) progress: Progress,
    pub(super) writing: &'a Writing,
    /// Status file of the replacement, if there is a location for it.
    pub(super) status: Option<&'a Path>,
    pub(super) in_background: bool,
    pub(super) device: DeviceId,
    pub(super) devices: Vec<PathBuf>,
}

impl Running<'_> {
    /// Writes the status file before the replacement begins.
    pub(super) fn announce(&self) -> Result<()> {
        self.save(&self.progress, None)
    }

    /// Removes the status file of a replacement that did not begin.
    pub(super) fn forget(&self) -> Result<()> {
        self.status.map_or(Ok(()), status_files::remove)
    }

    /// Runs the replacement until it ends or is suspended. In the background, the status file then has
    /// the error, if any. The caller removes the file after it has closed the volume.
    pub(super) fn run(&self, options: ReplaceOptions) -> Result<Replaced> {
        let progress = &self.progress;
        self.save(progress, None)?;
        let watch = Watch::start(self.context, "replace", progress.clone());
        let ended = self.run_and_save(options, progress);
        watch.end_as(ended.is_ok());
        if let Err(error) = &ended
            && self.in_background
        {
            self.save(progress, Some(error.to_string()))?;
        }
        ended
    }

    fn run_and_save(&self, options: ReplaceOptions, progress: &Progress) -> Result<Replaced> {
        let filesystem = writer_of(self.writing.volume()).clone();
        let job = || Replace::new(filesystem, options, progress.clone()).run();
        let (ended, saved) = while_saving(|| self.save(progress, None), job);
        if let Err(error) = saved {
            self.context
                .warn(format_args!("the status file is out of date: {error:#}"));
        }
        ended.map_err(advised)
    }

    fn save(&self, progress: &Progress, error: Option<String>) -> Result<()> {
        let Some(path) = self.status else {
            return Ok(());
        };
        let item = writer_of(self.writing.volume()).replacements().current();
        let snapshot = progress.snapshot();
        let (done, all) = (snapshot.bytes.get(), snapshot.expected.get());
        let tenths = u128::from(done)
            .saturating_mul(1000)
            .checked_div(u128::from(all))
            .unwrap_or(0);
        let record = Record {
            process: this_process(),
            device: self.device.get(),
            // While a replacement is unfinished, the command never shows 100 percent.
            tenths: u64::try_from(tenths).unwrap_or(999).min(999),
            write_errors: item.map_or(0, |item| item.write_errors),
            uncorrectable_read_errors: item.map_or(0, |item| item.uncorrectable_read_errors),
            started: item.map_or(0, |item| item.time_started_seconds),
            devices: self.devices.clone(),
            error,
        };
        record.save(self.context, path)
    }
}

/// Adds advice to an error of a replacement.
pub(super) fn advised(error: Error) -> anyhow::Error {
    let advice = match &error {
        Error::MetadataLost { .. } => {
            "the device is unchanged. `buttress check` lists all damage, and `buttress cp -r` copies the readable files"
        }
        Error::NotOpened(_) => "the device is unchanged; try another target",
        _ => return error.into(),
    };
    anyhow::Error::from(error).context(Advice::new(advice))
}
