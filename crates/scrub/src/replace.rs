//! Replacing a device: fills the target while other threads may write, and then makes it the
//! device.
//!
//! [`Replace::run`] visits the chunks with a stripe on the source device, in order of their offsets
//! on that device. The replacement checks each piece as a scrub does. It writes valid bytes to the
//! target at the same offset, from the source or from another device. Meanwhile every write to the
//! source also goes to the target ([`buttress_volume::replacement`]). The replacement regularly
//! commits the cursor, below which the target has everything. An interrupted replacement continues
//! at this cursor.
//!
//! | event | result |
//! |---|---|
//! | the progress is cancelled | the replacement is suspended ([`Replaced::Suspended`]); another run continues |
//! | the target fails | the replacement is suspended, with the error |
//! | no copy of a tree block is good, or a part of the extent tree cannot be read | the replacement ends, and the source stays ([`Error::MetadataLost`]) |
//! | the volume cannot be opened through the target, or lacks a tree block then | the replacement ends, and the source stays |
//! | no copy of some data is good | the data is listed ([`Lost`]), and the replacement continues; `copying` lists what the target gets |
//!
//! # The end of a replacement
//!
//! 1. `through_target` opens the last commit in memory with the target in the source's place.
//!    `reachable` reads every tree block of it. Until the exchange, only the item in the device tree
//!    shows the replacement.
//! 2. A commit exchanges source and target.
//! 3. The replacement opens the volume again, now by the superblocks on the target.
//! 4. The source's superblocks are wiped.

mod reachable;
mod through_target;

use crate::Shape;
use crate::copying::{Copying, Lost};
use crate::damage::Part;
use crate::error::Error;
use crate::filling_target::Replacing;
use crate::options::Options;
use crate::report::Report;
use crate::scrub::Scrub;
use buttress_device::IoError;
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, Physical, ReplaceState};
use buttress_fs::Progress;
use buttress_volume::{Replacement, Volume};
use buttress_writer::{WritableFilesystem, wipe_superblocks};
use core::time::Duration;
use crossbeam_channel::{RecvTimeoutError, bounded};
use std::sync::Arc;

/// Options of a replacement.
#[derive(Clone, Debug)]
pub struct ReplaceOptions {
    /// The size of the job's groups, and how they are read.
    pub shape: Shape,
    /// The most bytes per second of each device.
    pub limit: Option<ByteCount>,
    /// The interval between commits of the cursor.
    pub commit_every: Duration,
}

impl Default for ReplaceOptions {
    fn default() -> Self {
        Self {
            shape: Shape::default(),
            limit: None,
            commit_every: Duration::from_secs(5),
        }
    }
}

/// The result of one run of the replacement.
#[derive(Debug)]
pub enum Replaced {
    /// The replacement finished: the volume uses the target in place of the source.
    Finished {
        /// The bytes of data without a valid copy.
        lost: ByteCount,
        /// The places of the lost bytes, up to the limit of the list.
        lost_places: Vec<Lost>,
        /// The reason why the source still has its superblocks, if it does. In this case, do not
        /// open the source together with the volume.
        unwiped: Option<String>,
        /// The report of the copy to the target.
        report: Report,
    },
    /// The replacement was cancelled, and is now suspended.
    Suspended,
}

/// A replacement in progress, for the caller to complete.
#[derive(Debug)]
pub struct Replace {
    writable: WritableFilesystem,
    options: ReplaceOptions,
    progress: Progress,
}

impl Replace {
    /// Returns the replacement in progress of a volume, started by
    /// [`Replacements::start`](buttress_writer::Replacements::start) now or in an earlier session.
    #[must_use]
    pub const fn new(writable: WritableFilesystem, options: ReplaceOptions, progress: Progress) -> Self {
        Self {
            writable,
            options,
            progress,
        }
    }

    /// Fills the target and puts it in the source's place.
    ///
    /// # Errors
    /// Fails with [`Error::NoReplacement`]. After [`Error::TargetFailed`] the replacement is
    /// suspended. After [`Error::MetadataLost`] and [`Error::NotOpened`] the replacement has ended:
    /// the target has no superblocks, and the source is unchanged. A failed commit of the
    /// replacement is an error too.
    pub fn run(&self) -> Result<Replaced, Error> {
        let writable = &self.writable;
        let volume = Arc::clone(writable.committed_view().volume());
        let (Some(replacement), Some(item)) = (volume.replacement(), writable.replacements().current())
        else {
            return Err(Error::NoReplacement);
        };
        let lost_before = item.uncorrectable_read_errors;
        writable
            .replacements()
            .set_progress(item.cursor_left, ReplaceState::Started, lost_before);
        writable.commit()?;
        let options = Options {
            read_only: true,
            limit: self.options.limit,
            shape: self.options.shape,
            ..Options::default()
        };
        let replaces = Replacing {
            copying: Copying {
                replacement: Arc::clone(&replacement),
                avoids_source: item.source_reading_mode == AVOIDS_SOURCE,
            },
            cursor: item.cursor_left,
        };
        let views = || writable.committed_view();
        let job = Scrub::make(&views(), options, self.progress.clone(), Some(replaces))?.beside(&views);
        let ended = self.run_and_commit(&job);
        let (report, cursor, filled) = (job.report(), job.cursor(), job.filled());
        let sectors = |bytes: u64| bytes.div_ceil(u64::from(volume.block_format().sector_bytes).max(1));
        let lost_in_all = lost_before.exact_add(sectors(filled.lost_bytes));
        drop(job);
        let is_lost = (filled.loses_metadata || !report.unwalked.is_empty())
            && !buttress_faults::on("replace-lost-metadata-copied");
        if filled.failure.is_some() || self.progress.is_cancelled() || (ended.is_err() && !is_lost) {
            return self.suspend(cursor, lost_in_all, filled.failure, ended);
        }
        let checked = match is_lost {
            true => Err(self.lost_metadata(&replacement, &filled.lost, &report)),
            false => self.check_through_target(&volume, &replacement),
        };
        match checked {
            Err(_) if self.progress.is_cancelled() => {
                return self.suspend(cursor, lost_in_all, None, Ok(()));
            }
            Err(error) => return self.give_up(&replacement, error),
            Ok(()) => {}
        }
        let replacement = writable.replacements().finish(lost_in_all)?;
        let unwiped = wipe_source(&volume, &replacement).err();
        Ok(Replaced::Finished {
            lost: ByteCount::new(filled.lost_bytes),
            lost_places: filled.lost,
            unwiped,
            report,
        })
    }

    /// Suspends the replacement until the target works again, or until another run.
    fn suspend(
        &self,
        cursor: Physical,
        lost: u64,
        failure: Option<IoError>,
        ended: Result<(), Error>,
    ) -> Result<Replaced, Error> {
        let writable = &self.writable;
        writable
            .replacements()
            .set_progress(cursor, ReplaceState::Suspended, lost);
        writable.commit()?;
        if let Some(failure) = failure {
            return Err(Error::TargetFailed(failure));
        }
        if !self.progress.is_cancelled() {
            ended?;
        }
        Ok(Replaced::Suspended)
    }

    /// Ends the replacement for a reason that another run would also meet. The replaced device
    /// stays in the volume, and the target belongs to no volume.
    fn give_up(&self, replacement: &Replacement, reason: Error) -> Result<Replaced, Error> {
        self.writable.replacements().cancel()?;
        let target = replacement.target();
        if let Some(device) = target.device() {
            // The volume no longer refers to the replacement target, so superblocks that remain on
            // the target do no harm.
            let _unwiped = wipe_superblocks(device, target.uuid());
        }
        Err(reason)
    }

    /// Lists the lost metadata of the volume: blocks that were to be copied, and all other
    /// unreadable blocks.
    fn lost_metadata(&self, replacement: &Replacement, lost: &[Lost], report: &Report) -> Error {
        let (view, _) = through_target::committed(&self.writable);
        let unreadable = match reachable::unreadable_blocks(&view, &self.progress) {
            Ok(unreadable) => unreadable,
            Err(cancelled) => return cancelled,
        };
        let mut blocks: Vec<String> = unreadable.iter().map(ToString::to_string).collect();
        let is_listed = |lost: &Lost| {
            unreadable
                .iter()
                .any(|error| error.pointer().logical == lost.logical)
        };
        for lost in lost
            .iter()
            .filter(|lost| lost.part == Part::Tree && !is_listed(lost))
        {
            let damage = report
                .damages
                .iter()
                .find(|damage| damage.logical == lost.logical);
            let cause =
                damage.map_or_else(|| "no copy is good".to_owned(), |damage| damage.cause.to_string());
            blocks.push(format!("block {} that no tree refers to: {cause}", lost.logical));
        }
        let unlisted = |what: &&String| !blocks.contains(what);
        let unwalked: Vec<String> = report.unwalked.iter().filter(unlisted).cloned().collect();
        blocks.extend(unwalked);
        Error::MetadataLost {
            device: replacement.source().id(),
            blocks,
        }
    }

    /// Opens the last commit with the target in the source's place, and reads all of its metadata.
    /// An unreadable block counts as lost if a part of it is on the source, or if the source can
    /// still read it.
    fn check_through_target(&self, volume: &Volume, replacement: &Replacement) -> Result<(), Error> {
        if buttress_faults::on("replace-target-unchecked")
            || buttress_faults::on("replace-lost-metadata-copied")
        {
            return Ok(());
        }
        let (view, superblock) = through_target::committed(&self.writable);
        let through_target = through_target::open_before(volume, replacement, &superblock)?;
        let unreadable = reachable::unreadable_blocks(&through_target, &self.progress)?;
        let node_bytes = ByteCount::new(superblock.node_bytes.into());
        let is_lost = |error: &&buttress_tree::Error| {
            let pointer = error.pointer();
            let on_source = volume.map(pointer.logical, node_bytes).is_ok_and(|mappings| {
                let mut mappings = mappings.iter();
                mappings.any(|mapping| mapping.device_uuid == replacement.source().uuid())
            });
            on_source || view.forest().read_block(pointer).is_ok()
        };
        let blocks: Vec<String> = unreadable
            .iter()
            .filter(is_lost)
            .map(ToString::to_string)
            .collect();
        match blocks.is_empty() {
            true => Ok(()),
            false => Err(Error::MetadataLost {
                device: replacement.source().id(),
                blocks,
            }),
        }
    }

    /// Fills the target, and commits the cursor at intervals during the copy.
    fn run_and_commit(&self, job: &Scrub<'_>) -> Result<(), Error> {
        let (stop, stopped) = bounded::<()>(0);
        std::thread::scope(|scope| {
            let committing = move || -> Result<(), Error> {
                let mut last = Physical::MIN;
                while stopped.recv_timeout(self.options.commit_every) == Err(RecvTimeoutError::Timeout) {
                    let cursor = job.cursor();
                    if cursor > last {
                        last = cursor;
                        let lost = self
                            .writable
                            .replacements()
                            .current()
                            .map_or(0, |item| item.uncorrectable_read_errors);
                        self.writable
                            .replacements()
                            .set_progress(cursor, ReplaceState::Started, lost);
                        self.writable.commit()?;
                    }
                }
                Ok(())
            };
            let committing = std::thread::Builder::new()
                .name("buttress-replace".to_owned())
                .spawn_scoped(scope, committing);
            let ended = job.run();
            drop(stop);
            let committed = match committing.map(std::thread::ScopedJoinHandle::join) {
                Ok(Ok(committed)) => committed,
                Ok(Err(panic)) => std::panic::resume_unwind(panic),
                // Without a thread, the cursor is committed only at the end.
                Err(_) => Ok(()),
            };
            ended.and(committed)
        })
    }
}

/// Opens the volume by the superblocks on the former target, then wipes the superblocks of the
/// source.
fn wipe_source(volume: &Volume, replacement: &Replacement) -> Result<(), String> {
    let source = replacement.source();
    let Some(device) = source.device() else {
        return Ok(());
    };
    through_target::open_after(volume, source.uuid()).map_err(|error| error.to_string())?;
    wipe_superblocks(device, source.uuid()).map_err(|error| error.to_string())
}

/// The mode in a replacement item whose source is read only if no other device helps.
const AVOIDS_SOURCE: u64 = 1;
