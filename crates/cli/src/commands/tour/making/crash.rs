//! The step that syncs a directory and cuts the power.

use anyhow::{Context as _, Result, ensure};
use buttress::unstable::fs::{Filesystem, OpenOptions};
use buttress::unstable::writer::{WritableFilesystem, open_replayed};
use buttress::unstable::{filesystem_of, writer_of};
use buttress::{Device, DeviceOptions, FileOffset, Follow, Location, NewInode, SubvolumeId, Volume};

use super::Making;
use crate::writing::Writing;

/// Name of the directory to sync.
const INBOX: &[u8] = b"inbox";

/// Number of files in the directory; the next constant is the number of files synced individually.
const MESSAGES: usize = 100;
const SYNCED: usize = 10;

/// Content of the directory.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    names: usize,
    /// Number of files with content.
    with_content: usize,
}

fn found(filesystem: &Filesystem) -> Result<Found> {
    let top = Location::root_of(SubvolumeId::TOP_LEVEL);
    let mut found = Found::default();
    let path = [b"/".as_slice(), INBOX].concat();
    let Ok(directory) = filesystem.resolve(top, &path, Follow::NotLast) else {
        return Ok(found);
    };
    for entry in filesystem.read_dir(directory)? {
        let size = filesystem.metadata(entry?.target)?.size.get();
        found.names = found.names.saturating_add(1);
        found.with_content = found.with_content.saturating_add(usize::from(size > 0));
    }
    Ok(found)
}

fn fill(filesystem: &WritableFilesystem) -> Result<()> {
    let top = Location::root_of(SubvolumeId::TOP_LEVEL);
    let inbox = filesystem.make_directory(top, INBOX, &NewInode::of_root(0o755))?;
    let write = |name: String, is_synced: bool| -> Result<()> {
        let message = filesystem.create(inbox, name.as_bytes(), &NewInode::of_root(0o644))?;
        filesystem.write_at(message, FileOffset::MIN, name.as_bytes())?;
        if is_synced {
            filesystem.log_tree().fsync(message)?;
        }
        Ok(())
    };
    for number in 0..MESSAGES {
        write(format!("message {number}"), number < SYNCED)?;
    }
    filesystem.log_tree().fsync(inbox)?;
    write("too late".to_owned(), false)
}

impl Making {
    /// Syncs a directory and some of its files, loses everything that is only in memory, and
    /// inspects the rest: with the log replayed in memory, then on the volume.
    pub(super) fn cut_power(&mut self) -> Result<String> {
        let writing = self.writing.take().context("the volume is not open")?;
        let filesystem = writer_of(writing.volume()).clone();
        drop(writing);
        filesystem.commit()?;
        fill(&filesystem)?;
        let statistics = filesystem.log_tree().statistics();
        filesystem.abandon();

        let device = Device::open(&self.image, &DeviceOptions::default())?;
        let shown = open_replayed(OpenOptions::new(vec![device]))?;
        let before = found(&shown.on_disk)?;
        let survived = found(&shown.filesystem)?;
        drop(shown);
        let options = DeviceOptions {
            write: true,
            ..DeviceOptions::default()
        };
        let device = Device::open(&self.image, &options)?;
        let opened = Volume::options().on_disk().open_devices(vec![device])?;
        let writing = Writing::new(opened.root(), Volume::options())?;
        let replayed = found(&filesystem_of(writing.volume()))?;
        self.writing = Some(writing);
        ensure!(
            before == Found::default() && survived == replayed,
            "the last commit has {before:?}, the log replayed in memory {survived:?}, and on the volume {replayed:?}; {statistics:?}"
        );
        ensure!(
            survived.names == MESSAGES && survived.with_content >= SYNCED,
            "of {MESSAGES} names that were synced, {SYNCED} with content, {survived:?} survived"
        );
        Ok(format!(
            "{} synced names survived, {} with content, no later name; {} logs of {} blocks",
            survived.names, survived.with_content, statistics.written, statistics.blocks
        ))
    }
}
