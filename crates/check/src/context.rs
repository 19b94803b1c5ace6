//! The state that all parts of a check share.

use crate::Options;
use crate::finding::Finding;
use crate::report::{Collector, Note, Step};
use crate::roots::Root;
use buttress_format::{BlockFormat, ByteCount, Logical, Superblock, TreeId};
use buttress_fs::{Filesystem, Progress};
use buttress_tree::{Forest, Tree};
use buttress_volume::Volume;
use std::sync::Arc;

/// A check in progress.
pub(crate) struct Check<'a> {
    /// The volume as a file system, for names, and for items of damaged trees.
    pub(crate) filesystem: &'a Filesystem,
    /// The check's own node cache: every read through it comes from the devices.
    pub(crate) forest: Arc<Forest>,
    pub(crate) progress: &'a Progress,
    pub(crate) sector_bytes: u32,
    pub(crate) node_bytes: u32,
    superblock: Arc<Superblock>,
    on_step: &'a (dyn Fn(Step, Option<&'static str>) + Sync),
    collector: Collector,
}

impl<'a> Check<'a> {
    pub(crate) fn new(
        filesystem: &'a Filesystem,
        options: &Options,
        progress: &'a Progress,
        on_step: &'a (dyn Fn(Step, Option<&'static str>) + Sync),
    ) -> Self {
        let volume = Arc::clone(filesystem.volume());
        let superblock = filesystem.superblock();
        Self {
            sector_bytes: superblock.sector_bytes,
            node_bytes: superblock.node_bytes,
            superblock,
            forest: Forest::new(volume, options.cache),
            filesystem,
            on_step,
            progress,
            collector: Collector::new(options.findings_max),
        }
    }

    pub(crate) fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Returns true if an older state is checked. Its superblock is gone, so sums in the superblock
    /// are not compared.
    pub(crate) fn is_older_state(&self) -> bool {
        let notices = self.volume().notices();
        notices
            .iter()
            .any(|notice| matches!(notice, buttress_volume::Notice::OlderState { .. }))
    }

    pub(crate) fn volume(&self) -> &Arc<Volume> {
        self.filesystem.volume()
    }

    pub(crate) fn format(&self) -> &BlockFormat {
        self.forest.block_format()
    }

    /// Returns the tree with this id, if it has a root.
    pub(crate) fn tree(&self, id: TreeId, roots: &[Root]) -> Option<Tree> {
        let root = roots.iter().rev().find(|root| root.id() == id)?;
        Some(self.forest.tree(root.pointer))
    }

    pub(crate) fn find(&self, finding: Finding) {
        self.progress.count_error();
        self.collector.find(finding);
    }

    pub(crate) fn note(&self, note: Note) {
        self.collector.note(note);
    }

    pub(crate) fn skip(&self, step: Step, reason: &'static str) {
        self.collector.skip(step, reason);
    }

    /// Returns whether the check found no valid copy of the tree block at `logical`.
    pub(crate) fn is_lost(&self, logical: Logical) -> bool {
        self.collector.is_lost(logical)
    }

    pub(crate) fn begin(&self, step: Step) {
        (self.on_step)(step, self.collector.skipped(step));
    }

    pub(crate) fn count(&self, blocks: u64, bytes: u64) {
        self.progress.advance(blocks, ByteCount::new(bytes));
    }

    pub(crate) fn into_collector(self) -> Collector {
        self.collector
    }
}
