//! Replacing a device: its target is filled while others may write, and then is the device.
//!
//! [`Replace::run`] goes over the chunks that have a stripe on the source, in order of their places there, as a scrub goes
//! over all: each piece is checked, and what passes is written to the target at the same place, from the source or from
//! wherever else it is good. Meanwhile whatever is written to the source reaches the target, too
//! ([`buttress_volume::replacement`]). The cursor, below which the target has everything, is committed on the way; a run that
//! is interrupted goes on there.
//!
//! | what happens | what becomes of it |
//! |---|---|
//! | the progress is cancelled | the replacement waits ([`Replaced::Suspended`]); another run goes on |
//! | the target fails | as above, with the failure |
//! | a part of the extent tree cannot be read | as above: what is in use there is not known |
//! | no copy gives some bytes | they are counted, and it ends: the source had them no better |

use crate::Shape;
use crate::copying::Copying;
use crate::error::Error;
use crate::filling_target::Replacing;
use crate::options::Options;
use crate::report::Report;
use crate::scrub::Scrub;
use buttress_device::IoError;
use buttress_format::{ByteCount, Physical, ReplaceState};
use buttress_fs::Progress;
use buttress_writer::{WritableFilesystem, wipe_superblocks};
use core::time::Duration;
use crossbeam_channel::{RecvTimeoutError, bounded};
use std::sync::Arc;

/// How to replace.
#[derive(Clone, Debug)]
pub struct ReplaceOptions {
    /// How groups are read.
    pub shape: Shape,
    /// So many bytes in a second of each device at the most.
    pub limit: Option<ByteCount>,
    /// How often the cursor is committed.
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

/// How a run ended.
#[derive(Debug)]
pub enum Replaced {
    /// The target is the device.
    Finished {
        /// Bytes that no copy gave.
        lost: ByteCount,
        /// Why the source still has its superblocks, if it does: it must not be given with the volume's devices any more.
        unwiped: Option<IoError>,
        /// What was found on the way.
        report: Report,
    },
    /// It was cancelled, and waits.
    Suspended,
}

/// A replacement that is under way, to be brought to its end.
#[derive(Debug)]
pub struct Replace {
    writable: WritableFilesystem,
    options: ReplaceOptions,
    progress: Progress,
}

impl Replace {
    /// Of a volume with a replacement: one that was started just now
    /// ([`WritableFilesystem::start_replacement`]), or earlier.
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
    /// [`Error::NoReplacement`]; [`Error::TargetFailed`], [`Error::NotWalked`]: then it waits; that a commit fails.
    pub fn run(&self) -> Result<Replaced, Error> {
        let writable = &self.writable;
        let volume = Arc::clone(writable.committed_view().volume());
        let (Some(replacement), Some(item)) = (volume.replacement(), writable.replacement()) else {
            return Err(Error::NoReplacement);
        };
        let lost_before = item.uncorrectable_read_errors;
        writable.set_replacement_progress(item.cursor_left, ReplaceState::Started, lost_before);
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
        let (lost, failure) = job.replaced();
        let report = job.report();
        let sectors = |bytes: u64| bytes.div_ceil(u64::from(volume.block_format().sector_bytes).max(1));
        let lost_in_all = lost_before.saturating_add(sectors(lost));
        let is_whole = ended.is_ok() && failure.is_none() && report.unwalked.is_empty();
        if !is_whole {
            writable.set_replacement_progress(job.cursor(), ReplaceState::Suspended, lost_in_all);
            writable.commit()?;
            if let Some(failure) = failure {
                return Err(Error::TargetFailed(failure));
            }
            if !self.progress.is_cancelled() {
                ended?;
                return Err(Error::NotWalked(report.unwalked));
            }
            return Ok(Replaced::Suspended);
        }
        drop(job);
        let replacement = writable.finish_replacement(lost_in_all)?;
        let source = replacement.source();
        let wiped = source
            .device()
            .map(|device| wipe_superblocks(device, source.uuid()));
        Ok(Replaced::Finished {
            lost: ByteCount::new(lost),
            unwiped: wiped.and_then(Result::err),
            report,
        })
    }

    /// Fills the target, and commits the cursor meanwhile.
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
                            .replacement()
                            .map_or(0, |item| item.uncorrectable_read_errors);
                        self.writable
                            .set_replacement_progress(cursor, ReplaceState::Started, lost);
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
                // Without a thread the cursor is committed at the end alone.
                Err(_) => Ok(()),
            };
            ended.and(committed)
        })
    }
}

/// The mode of an item for a source that is read only where nothing else helps.
const AVOIDS_SOURCE: u64 = 1;
