//! A volume that is open for writing: the engine's handle, and the writer's own state.
//!
//! [`WritableFilesystem`] is a cheap handle, `Send` and `Sync`. [`WritableFilesystem`] dereferences
//! to its [`Engine`], whose calls commit, make views and report space.

use crate::log_tree::logs::LogTrees;
use crate::recounts::Recounts;
use buttress_engine::engine::CommitStages;
use buttress_engine::opening::Opening;
use buttress_engine::{Engine, Uncommitted, WriteOptions};
use buttress_format::Generation;
use buttress_format::superblock::SuperblockFlags;
use buttress_fs::error::{Result, WritingRefusal};
use buttress_fs::filesystem::Filesystem;
use core::ops::Deref;
use std::sync::Arc;

/// A volume that is open for writing. See the module's documentation.
///
/// If the last handle is dropped, changes without a [commit](Engine::commit) are lost.
/// [`close`](Self::close) commits uncommitted changes, and [`abandon`](Self::abandon) discards
/// them. If the last handle is dropped without either call,
/// [`Environment::lost`](buttress_engine::Environment::lost) reports the lost changes.
#[derive(Clone, Debug)]
pub struct WritableFilesystem {
    engine: Engine,
    stages: Arc<Stages>,
}

/// The writer's stages of commits, and its state.
#[derive(Debug, Default)]
struct Stages {
    /// The logs written since the last commit.
    logs: LogTrees,
    recounts: Recounts,
}

impl CommitStages for Stages {
    fn write_back(self: Arc<Self>, engine: &Engine) -> Result<()> {
        self.filesystem(engine).writeback().write_all()
    }

    fn write_back_in_background(self: Arc<Self>, engine: &Engine) -> Result<()> {
        self.filesystem(engine).writeback().write_in_background()
    }
}

impl Stages {
    fn filesystem(self: Arc<Self>, engine: &Engine) -> WritableFilesystem {
        WritableFilesystem {
            engine: engine.clone(),
            stages: self,
        }
    }
}

impl Deref for WritableFilesystem {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl WritableFilesystem {
    /// Makes a volume that was opened from writable devices ready for writing. Replays a pending
    /// log. Ends the relocation trees of a balance of Linux that was cut. Removes inodes that a crash
    /// left without a name, and subvolumes that were not finished.
    ///
    /// # Errors
    /// Fails with [`Error::WritingRefused`](buttress_fs::Error::WritingRefused) for a refused state
    /// or feature; [`Error::DamagedLog`](buttress_fs::Error::DamagedLog), or with an error of a
    /// device or a tree.
    pub fn new(filesystem: Filesystem, options: WriteOptions) -> Result<Self> {
        let stages = Arc::<Stages>::default();
        let opening = Engine::open(filesystem, options, Arc::clone(&stages) as Arc<dyn CommitStages>)?;
        Self::begin(opening, stages)
    }

    /// Opens a volume as [`WritableFilesystem::new`] does, on devices whose changes stay in memory.
    /// A metadata image can be opened in memory too, because nothing is written to the image.
    pub(crate) fn in_memory(filesystem: Filesystem, options: WriteOptions) -> Result<Self> {
        let stages = Arc::<Stages>::default();
        let opening =
            Engine::open_in_memory(filesystem, options, Arc::clone(&stages) as Arc<dyn CommitStages>)?;
        Self::begin(opening, stages)
    }

    fn begin(mut opening: Opening, stages: Arc<Stages>) -> Result<Self> {
        let log = opening.log.take();
        let writable = Arc::clone(&stages).filesystem(&opening.engine);
        let flags = writable.forest().volume().superblock().flags;
        let changes_checksums = flags.intersects(SuperblockFlags::CHANGING_CHECKSUMS);
        if changes_checksums && !buttress_faults::on("checksum-change-cleans-orphans") {
            drop(writable);
            return Self::begin_between_checksums(opening, stages, log.is_some());
        }
        if let Some(log) = &log {
            writable.log_tree().replay(log)?;
        }
        let subvolumes = writable.subvolumes();
        let cleaned = subvolumes
            .end_relocation_trees()
            .and_then(|()| writable.orphans().clean_all().map(drop));
        match cleaned.and_then(|()| subvolumes.sweep_unfinished()) {
            // On a volume without free space, orphans remain until the next opening.
            Ok(()) => {}
            Err(error) if error.is_out_of_space() => {}
            Err(error) => return Err(error),
        }
        drop(writable);
        let engine = opening.end();
        Ok(Self { engine, stages })
    }

    /// Opens a volume whose data has checksums of two types. An edit that frees or writes data would
    /// leave wrong checksums of one type, so the next opening after the change cleans up.
    fn begin_between_checksums(opening: Opening, stages: Arc<Stages>, has_log: bool) -> Result<Self> {
        if has_log {
            let name = "a log tree in the middle of a change of the checksums";
            let remedy = "delete the log with `buttress rescue zero-log`; its last writes are lost";
            return Err(WritingRefusal::State { name, remedy }.into());
        }
        let engine = opening.end();
        Ok(Self { engine, stages })
    }

    /// Commits and drops this handle. Other handles of the volume keep it open.
    ///
    /// # Errors
    /// Fails as [`Engine::commit`] does. Uncommitted changes are lost when the last handle is
    /// dropped after a failed commit.
    pub fn close(self) -> Result<Generation> {
        self.engine.close()
    }

    /// The counts of quotas that refused writes caused.
    pub(crate) fn recounts(&self) -> &Recounts {
        &self.stages.recounts
    }

    /// Drops this handle without a commit, and returns the uncommitted changes. The volume then has
    /// the state of the last commit, which a background thread may have made. Other handles of the
    /// volume may still commit the changes.
    pub fn abandon(self) -> Uncommitted {
        self.engine.abandon()
    }

    /// Returns the engine's handle.
    pub(crate) const fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn logs(&self) -> &LogTrees {
        &self.stages.logs
    }
}
