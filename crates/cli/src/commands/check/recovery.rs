//! Damage without which no other repair runs: the chunk tree, the root tree and blocks of subvolumes
//! come back before the repair.

use anyhow::{Context as _, Result};
use buttress::check::{Finding, Report};
use buttress::repair::{ChunkRecovery, FileTreeRecovery, RecoveryOptions, RootRecovery, inodes_of};
use buttress::salvage::{BlockIndex, Identity, identify};
use buttress::{ByteCount, Device, Progress, TreeId};

use crate::commands::rescue::scan::scan_into;
use crate::context::Context;
use crate::globals::DEFAULT_CACHE_BYTES;
use crate::progress::Watch;

/// Losses to which the owner consents.
#[derive(Clone, Copy, Debug)]
pub(super) struct Consent {
    /// Trees may lose their last changes.
    pub(super) trees: bool,
    /// Files may lose the items of lost blocks.
    pub(super) blocks: bool,
}

/// Returns whether a check found damage in the root tree or in a subvolume, which no rebuild repairs.
pub(super) fn is_needed(report: &Report) -> bool {
    report.findings.iter().any(|reported| match &reported.finding {
        Finding::TreeBlockDamaged { tree, .. } => *tree == TreeId::ROOT || tree.as_subvolume().is_some(),
        _ => false,
    })
}

/// Recovers the chunk tree, the root tree and blocks of subvolumes on devices that are open for
/// writing. Returns a line for each change.
///
/// # Errors
/// Fails, and writes nothing more, if a tree is not proved by the other records.
pub(super) fn recover(context: &Context, devices: &[Device], consent: Consent) -> Result<Vec<String>> {
    let progress = Progress::new();
    let identity = identify(devices, &progress)?.into_iter().next();
    let identity = identity.context("the devices hold no file system")?;
    let folder = tempfile::tempdir()?;
    let watch = Watch::start(context, "scan", progress.clone());
    let index = scan_into(
        context,
        devices,
        &identity,
        &folder.path().join("index"),
        &progress,
    );
    watch.end_as(index.is_ok());
    let index = index?;
    // Clamp: without the option, the default budget counts.
    let cache = context.globals().cache_bytes.unwrap_or(DEFAULT_CACHE_BYTES);
    let job = Job {
        devices,
        identity: &identity,
        index: &index,
        options: RecoveryOptions {
            cache: ByteCount::new(cache),
            spool: None,
        },
        progress: &progress,
    };
    let watch = Watch::start(context, "recover", progress.clone());
    let done = job.run(consent);
    watch.end_as(done.is_ok());
    done
}

struct Job<'a> {
    devices: &'a [Device],
    identity: &'a Identity,
    index: &'a BlockIndex,
    options: RecoveryOptions,
    progress: &'a Progress,
}

impl Job<'_> {
    fn run(&self, consent: Consent) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        self.chunk_tree(&mut lines).context("recovering the chunk tree")?;
        self.root_tree(&mut lines, consent.trees)
            .context("recovering the root tree")?;
        self.file_trees(&mut lines, consent.blocks)
            .context("recovering blocks of subvolumes")?;
        Ok(lines)
    }

    fn chunk_tree(&self, lines: &mut Vec<String>) -> Result<()> {
        let chunks = ChunkRecovery::plan(self.devices, self.identity, self.index, self.progress)?;
        if chunks.is_needed() {
            let refused = chunks.run(&self.options, self.progress)?;
            let count = chunks.recovered().chunks.len();
            lines.push(format!("recovered the chunk tree: {count} chunks"));
            lines.extend(refused.map(not_accounted));
        }
        Ok(())
    }

    fn root_tree(&self, lines: &mut Vec<String>, gives_up: bool) -> Result<()> {
        let roots = RootRecovery::plan(self.devices, self.identity, self.index, self.progress)?;
        if roots.is_needed() {
            let refused = roots.run(&self.options, gives_up, self.progress)?;
            let count = roots.recovered().roots.len();
            lines.push(format!("recovered the root tree: {count} trees"));
            for (tree, generation) in roots.losses() {
                lines.push(format!(
                    "tree {tree}: the changes after generation {generation} are lost"
                ));
            }
            lines.extend(refused.map(not_accounted));
        }
        Ok(())
    }

    fn file_trees(&self, lines: &mut Vec<String>, gives_up: bool) -> Result<()> {
        let recovery = FileTreeRecovery::plan(self.devices, self.index, &self.options, self.progress)?;
        let (found, lost): (Vec<_>, Vec<_>) = recovery.lost().iter().partition(|block| block.is_found());
        if found.is_empty() && (lost.is_empty() || !gives_up) {
            return Ok(());
        }
        recovery.run(&self.options, gives_up, self.progress)?;
        for block in found {
            let at = block.pointer.logical;
            lines.push(format!("block {at}: copied from another place"));
        }
        for block in lost.iter().filter(|_| gives_up) {
            let (pointer, (first, last)) = (&block.pointer, inodes_of(&block.pointer));
            lines.push(format!(
                "block {}: cut out of tree {}; items of the inodes {first} to {last} are lost",
                pointer.logical, pointer.tree
            ));
        }
        Ok(())
    }
}

fn not_accounted(reason: String) -> String {
    format!("the extent tree does not list the new blocks: {reason}")
}
