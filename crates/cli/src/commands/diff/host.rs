//! A directory tree of the host as one side of a comparison.

use std::fs::File;
use std::path::Path;

use anyhow::Result;
use buttress::kind_of_mode;
use rustix::fs::OFlags;

use super::content::Segments;
use super::side::{Entry, Facts, Node};
use crate::host::HostFile;

/// A directory tree of the host.
#[derive(Debug)]
pub(super) struct HostTree {
    start: HostFile,
    device: u64,
    one_file_system: bool,
}

impl HostTree {
    pub(super) fn new(path: &Path, one_file_system: bool) -> Result<Self> {
        let start = HostFile::directory(path)?;
        let device = start.stat()?.st_dev;
        Ok(Self {
            start,
            device,
            one_file_system,
        })
    }

    pub(super) fn start(&self) -> HostFile {
        self.start.clone()
    }

    pub(super) fn entries(&self, directory: &HostFile) -> Result<Vec<Entry>> {
        if self.one_file_system && directory.stat()?.st_dev != self.device {
            return Ok(Vec::new());
        }
        let entries = directory.entries()?.into_iter().map(|file| Entry {
            name: file.name().to_vec(),
            node: Node::Host(file),
        });
        Ok(entries.collect())
    }
}

pub(super) fn facts(file: &HostFile) -> Result<Facts> {
    let stat = file.stat()?;
    let is_device = matches!(stat.st_mode & 0o170_000, 0o020_000 | 0o060_000);
    Ok(Facts {
        kind: kind_of_mode(stat.st_mode),
        permissions: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        size_bytes: u64::try_from(stat.st_size).unwrap_or(0),
        modified: (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0)),
        links: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
        identity: (stat.st_dev, stat.st_ino),
        birth: None,
        device: is_device.then(|| (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev))),
    })
}

pub(super) fn segments(file: &HostFile) -> Result<Segments> {
    Ok(Segments::host(File::from(file.open(OFlags::RDONLY)?))?)
}
