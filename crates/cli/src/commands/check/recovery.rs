//! A volume without its chunk tree does not open, so the chunk tree comes back before the repair.

use anyhow::{Context as _, Result};
use buttress::repair::{ChunkRecovery, RecoveryOptions};
use buttress::salvage::{BlockIndex, Identity, identify};
use buttress::{ByteCount, Device, Progress};

use crate::commands::rescue::scan::scan_into;
use crate::context::Context;
use crate::globals::DEFAULT_CACHE_BYTES;
use crate::progress::Watch;

/// Recovers the chunk tree on devices that are open for writing. Returns a line for each change.
///
/// # Errors
/// Fails, and writes nothing, if the chunks are not proved by the other records, or if the trees that
/// account for space cannot be rebuilt afterwards.
pub(super) fn recover(context: &Context, devices: &[Device]) -> Result<Vec<String>> {
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
    let done = job.chunk_tree().context("recovering the chunk tree");
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
    fn chunk_tree(&self) -> Result<Vec<String>> {
        let chunks = ChunkRecovery::plan(self.devices, self.identity, self.index, self.progress)?;
        if !chunks.is_needed() {
            return Ok(Vec::new());
        }
        chunks.run(&self.options, self.progress)?;
        let count = chunks.recovered().chunks.len();
        Ok(vec![format!("recovered the chunk tree: {count} chunks")])
    }
}
