//! Removal of whole directories of a volume, as by `rm -r`: first their entries, then the
//! directories themselves.
//!
//! The removal reads each batch of entries from the current state of the volume. Memory therefore
//! does not grow with the directory, and no old state keeps removed extents alive. Nested
//! subvolumes are not removed: they have a separate delete command, and the removal stops with an
//! error at them.

use anyhow::{Context as _, Result, anyhow};
use buttress::{DirEntry, FileKind, Location, Progress, WritableVolume};

use crate::exit::Advice;

/// Largest number of entries in a batch.
const BATCH_ENTRIES: usize = 4096;

/// A directory between the start of the removal and its current position.
struct Level {
    directory: Location,
    /// Parent directory; the next field is the directory's name in it.
    parent: Location,
    name: Vec<u8>,
    /// Entries of the last batch that are still to be removed.
    entries: Vec<DirEntry>,
}

/// Removes the entry with this name in the directory, and everything below it. Returns the number
/// of removed names.
pub fn remove_all(
    volume: &WritableVolume,
    directory: Location,
    name: &[u8],
    progress: &Progress,
) -> Result<u64> {
    let entry = volume.lookup(directory, name)?;
    let entry = entry.ok_or_else(|| anyhow!("{}: no such file", name.escape_ascii()))?;
    let mut removed = 0u64;
    let mut levels = Vec::new();
    enter_or_remove(volume, directory, entry, &mut levels, &mut removed)?;
    while let Some(level) = levels.last_mut() {
        progress.check()?;
        if level.entries.is_empty() {
            let batch = volume.read_dir(level.directory)?.take(BATCH_ENTRIES);
            level.entries = batch.collect::<buttress::Result<_>>()?;
        }
        let here = level.directory;
        if let Some(entry) = level.entries.pop() {
            enter_or_remove(volume, here, entry, &mut levels, &mut removed)?;
        } else if let Some(level) = levels.pop() {
            volume
                .remove_dir(level.parent, &level.name)
                .with_context(|| level.name.escape_ascii().to_string())?;
            removed = removed.saturating_add(1);
        }
    }
    Ok(removed)
}

fn enter_or_remove(
    volume: &WritableVolume,
    directory: Location,
    entry: DirEntry,
    levels: &mut Vec<Level>,
    removed: &mut u64,
) -> Result<()> {
    let DirEntry {
        name, target, kind, ..
    } = entry;
    if kind != FileKind::Directory {
        volume
            .unlink(directory, &name)
            .with_context(|| name.escape_ascii().to_string())?;
        *removed = removed.saturating_add(1);
        return Ok(());
    }
    if target.is_subvolume_root() && target.placeholder().is_none() {
        return Err(anyhow!("{} is a subvolume", name.escape_ascii()))
            .context(Advice::new("delete it with `subvolume delete`"));
    }
    levels.push(Level {
        directory: target,
        parent: directory,
        name,
        entries: Vec::new(),
    });
    Ok(())
}
