//! Removing whole directories of a volume, as `rm -r` does: first what they hold, then themselves.
//!
//! Entries are taken in batches, each from the volume as it then is, so that memory does not grow with a directory and
//! nothing holds on to what is being removed. Nested subvolumes are not files: they are deleted by their own command, and
//! stop the removal with an error that says so.

use anyhow::{Context as _, Result, anyhow};
use buttress::{DirEntry, FileKind, Location, Progress, WritableVolume};

use crate::exit::Advice;

/// How many entries are looked at in one go.
const BATCH_ENTRIES: usize = 4096;

/// A directory on the way down.
struct Level {
    directory: Location,
    /// The directory that holds it, and its name there.
    parent: Location,
    name: Vec<u8>,
    /// What is still to be removed of the last batch.
    entries: Vec<DirEntry>,
}

/// Removes what has this name in the directory, with all that it holds. Returns how many names went.
pub fn remove_all(
    volume: &WritableVolume,
    directory: Location,
    name: &[u8],
    progress: &Progress,
) -> Result<u64> {
    let entry = volume.lookup(directory, name)?;
    let entry = entry.ok_or_else(|| anyhow!("{}: there is no such file", name.escape_ascii()))?;
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
            .context(Advice::new("`subvolume delete` deletes it"));
    }
    levels.push(Level {
        directory: target,
        parent: directory,
        name,
        entries: Vec::new(),
    });
    Ok(())
}
