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
    let options = RecoveryOptions {
        cache: ByteCount::new(cache),
        spool: None,
    };
    let watch = Watch::start(context, "recover", progress.clone());
    let done = chunk_tree(devices, &identity, &index, &options, &progress);
    watch.end_as(done.is_ok());
    done.context("recovering the chunk tree")
}

fn chunk_tree(
    devices: &[Device],
    identity: &Identity,
    index: &BlockIndex,
    options: &RecoveryOptions,
    progress: &Progress,
) -> Result<Vec<String>> {
    let chunks = ChunkRecovery::plan(devices, identity, index, progress)?;
    if !chunks.is_needed() {
        return Ok(Vec::new());
    }
    chunks.run(options, progress)?;
    let count = chunks.recovered().chunks.len();
    Ok(vec![format!("recovered the chunk tree: {count} chunks")])
}
