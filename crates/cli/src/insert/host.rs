//! Copying from the host.

use buttress_exact::{Exact as _, u64_of};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use buttress::{DeviceNumber, FileKind, FileOffset, Timestamp, Xattr, kind_of_mode};
use bytes::Bytes;
use rustix::fs::{OFlags, SeekFrom, Stat};
use rustix::io::Errno;

use super::{Facts, Inserter, Piece, Source, refuse_directory};
use crate::host::HostFile;
use crate::identity::Identity;
use crate::replacing::directory_in_the_way;

/// Size of one read of a file in bytes.
const READ_BYTES: u64 = 1 << 20;

/// Options of copying from the host.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostOptions<'a> {
    /// Copies directories, too.
    pub recursive: bool,
    /// Copies a symbolic link that the user named as a link.
    pub as_links: bool,
    /// Stays on one file system of the host.
    pub one_file_system: bool,
    /// Names in the directory itself to omit.
    pub without: &'a [&'a [u8]],
}

/// Inserts the file or directory at a path of the host under this name. If no name is given, the
/// directory's entries go into the inserter's base directory. Errors below the source are passed to
/// `failed`, and the walk continues unless nothing more can be created.
pub fn insert(
    inserter: &mut Inserter<'_>,
    path: &Path,
    name: Option<&[u8]>,
    options: HostOptions<'_>,
    failed: &mut dyn FnMut(anyhow::Error),
) -> Result<()> {
    crate::context::allow_deep_trees();
    // Links that the user named are followed, unless they are copied as links.
    let followed;
    let path = if options.as_links && !path.as_os_str().as_bytes().ends_with(b"/") {
        path
    } else {
        followed = path.canonicalize()?;
        &followed
    };
    let start = match (path.parent(), path.file_name()) {
        (Some(parent), Some(file)) if parent.as_os_str().is_empty() => HostFile::named(Path::new("."), file)?,
        (Some(parent), Some(file)) => HostFile::named(parent, file)?,
        _ => HostFile::directory(path)?,
    };
    let stat = start.stat()?;
    if kind_of_mode(stat.st_mode) != FileKind::Directory {
        let Some(name) = name else {
            return Err(directory_in_the_way(&inserter.base_shown()));
        };
        return insert_one(inserter, &start, name, &stat);
    }
    if !options.recursive {
        return Err(refuse_directory());
    }
    inserter.enter(name, facts(inserter, &start, &stat)?)?;
    let mut walk = HostWalk {
        levels: vec![entries(&start)?],
        path: vec![path.as_os_str().to_owned()],
        device: options.one_file_system.then_some(stat.st_dev),
    };
    if let Some(level) = walk.levels.last_mut() {
        level.retain(|file| !options.without.contains(&file.name()));
    }
    walk.run(inserter, failed);
    Ok(())
}

/// Walk over directories of the host.
struct HostWalk {
    /// Remaining entries of each directory on the current path, in reverse order.
    levels: Vec<Vec<HostFile>>,
    /// Names of the directories on the current path, for messages.
    path: Vec<std::ffi::OsString>,
    /// Device to stay on.
    device: Option<u64>,
}

/// Returns the entries of a directory in reverse order of their names.
fn entries(directory: &HostFile) -> Result<Vec<HostFile>> {
    let mut entries = directory.entries()?;
    entries.sort_by(|a, b| b.name().cmp(a.name()));
    Ok(entries)
}

impl HostWalk {
    fn run(&mut self, inserter: &mut Inserter<'_>, failed: &mut dyn FnMut(anyhow::Error)) {
        while let Some(level) = self.levels.last_mut() {
            let (name, done) = match level.pop() {
                Some(file) => (file.name().to_vec(), self.take(inserter, &file)),
                None => {
                    self.levels.pop();
                    self.path.pop();
                    (Vec::new(), inserter.leave())
                }
            };
            if let Err(error) = done {
                failed(error.context(self.shown(&name)));
                if inserter.is_over() {
                    return;
                }
            }
        }
    }

    fn take(&mut self, inserter: &mut Inserter<'_>, file: &HostFile) -> Result<()> {
        let stat = file.stat()?;
        if kind_of_mode(stat.st_mode) != FileKind::Directory {
            return insert_one(inserter, file, file.name(), &stat);
        }
        // The walk does not create a directory that it cannot list.
        let below = if self.device.is_none_or(|device| device == stat.st_dev) {
            entries(file)?
        } else {
            Vec::new()
        };
        inserter.enter(Some(file.name()), facts(inserter, file, &stat)?)?;
        self.levels.push(below);
        self.path.push(OsStr::from_bytes(file.name()).to_owned());
        Ok(())
    }

    fn shown(&self, name: &[u8]) -> String {
        let mut path: std::path::PathBuf = self.path.iter().collect();
        if !name.is_empty() {
            path.push(OsStr::from_bytes(name));
        }
        path.display().to_string()
    }
}

fn insert_one(inserter: &mut Inserter<'_>, file: &HostFile, name: &[u8], stat: &Stat) -> Result<()> {
    let facts = facts(inserter, file, stat)?;
    if facts.kind == FileKind::Regular
        && let Some(identity) = Identity::of_stat(stat)
        && inserter.context.sources().has(&identity)
    {
        return Err(anyhow!(
            "it is an image or device of the volume, and cannot be copied into itself"
        ));
    }
    let target = match facts.kind {
        FileKind::Symlink => file.link_target()?,
        _ => Vec::new(),
    };
    let source = match facts.kind {
        FileKind::Regular => Some(Source::Host(File::from(file.open_quietly(OFlags::RDONLY)?))),
        _ => None,
    };
    inserter.make(name, &facts, &target, source)
}

fn facts(inserter: &Inserter<'_>, file: &HostFile, stat: &Stat) -> Result<Facts> {
    let kind = kind_of_mode(stat.st_mode);
    let time = |seconds, nanoseconds: i64| Timestamp {
        seconds,
        nanoseconds: u32::try_from(nanoseconds).unwrap_or(0),
    };
    let is_device = matches!(kind, FileKind::CharacterDevice | FileKind::BlockDevice);
    let xattrs = if inserter.preserve().all() {
        file.xattrs()?
    } else {
        Vec::new()
    };
    Ok(Facts {
        kind,
        permissions: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        accessed: time(stat.st_atime, i64::try_from(stat.st_atime_nsec).unwrap_or(0)),
        modified: time(stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or(0)),
        links: if kind == FileKind::Directory {
            1
        } else {
            u32::try_from(stat.st_nlink).unwrap_or(u32::MAX)
        },
        identity: (stat.st_dev, stat.st_ino),
        device: is_device.then(|| DeviceNumber {
            major: rustix::fs::major(stat.st_rdev),
            minor: rustix::fs::minor(stat.st_rdev),
        }),
        size_bytes: u64::try_from(stat.st_size).unwrap_or(0),
        xattrs: xattrs
            .into_iter()
            .map(|(name, value)| Xattr { name, value })
            .collect(),
        origin: None,
        referent: None,
    })
}

/// Passes the data of a file to `write` in pieces without holes, at most `size_bytes` bytes even if
/// the file grows.
pub(super) fn read(file: &File, size_bytes: u64, write: &mut dyn FnMut(Piece) -> Result<()>) -> Result<()> {
    let mut position = 0;
    while position < size_bytes {
        let start = match rustix::fs::seek(file, SeekFrom::Data(position)) {
            Ok(start) => start.min(size_bytes),
            // Up to the end of the file, no data follows.
            Err(Errno::NXIO) => return Ok(()),
            // The file system does not support holes.
            Err(Errno::INVAL) => position,
            Err(error) => return Err(error.into()),
        };
        let end = match rustix::fs::seek(file, SeekFrom::Hole(start)) {
            Ok(end) => end.min(size_bytes),
            Err(Errno::NXIO) => return Ok(()),
            Err(Errno::INVAL) => size_bytes,
            Err(error) => return Err(error.into()),
        };
        position = start;
        while position < end {
            let length = end.saturating_sub(position).min(READ_BYTES);
            let mut buffer = vec![0; length.narrow::<usize>()];
            let count = file.read_at(&mut buffer, position).context("reading")?;
            if count == 0 {
                bail!("it was truncated while it was read");
            }
            buffer.truncate(count);
            write(Piece {
                offset: FileOffset::new(position),
                bytes: Bytes::from(buffer),
            })?;
            position = position.saturating_add(u64_of(count));
        }
    }
    Ok(())
}
