//! Makes a change of a history by system calls, in this process.

use super::operation::{Content, Operation, Origin, Span, Special};
use super::subvolume;
use anyhow::{Context, Result, ensure};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, IFlags, Mode, RenameFlags, Timespec, Timestamps, XattrFlags,
    copy_file_range, fallocate, ioctl_getflags, ioctl_setflags, lremovexattr, lsetxattr, mknodat,
    renameat_with, utimensat,
};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, lchown};
use std::path::{Path, PathBuf};

/// The largest part of one write, which bounds the memory of large writes.
const WRITE_BYTES: u64 = 4 << 20;

/// Applies `operation` to the working subvolume `top`; `snapshots` are the earlier snapshots.
pub fn apply(top: &Path, snapshots: &[PathBuf], operation: &Operation) -> Result<()> {
    let at = |path: &[u8]| top.join(OsStr::from_bytes(path));
    match operation {
        Operation::File(path) => {
            File::create_new(at(path))?;
        }
        Operation::Directory(path) => fs::create_dir(at(path))?,
        Operation::Symlink(path, target) => {
            std::os::unix::fs::symlink(OsStr::from_bytes(target), at(path))?;
        }
        Operation::Special(path, kind) => make_special(&at(path), *kind)?,
        Operation::Rename(from, to) => fs::rename(at(from), at(to))?,
        Operation::Exchange(a, b) => renameat_with(CWD, at(a), CWD, at(b), RenameFlags::EXCHANGE)?,
        Operation::Link(existing, new) => fs::hard_link(at(existing), at(new))?,
        Operation::Remove(path) => remove(&at(path))?,
        Operation::RemoveAll(path) => fs::remove_dir_all(at(path))?,
        Operation::SetXattr(path, name, value) => {
            lsetxattr(at(path), *name, value, XattrFlags::empty())?;
        }
        Operation::RemoveXattr(path, name) => lremovexattr(at(path), *name)?,
        Operation::Owner(path, uid, gid) => lchown(at(path), Some(*uid), Some(*gid))?,
        Operation::Mode(path, mode) => rustix::fs::chmod(at(path), Mode::from_raw_mode(*mode))?,
        Operation::Times(path, accessed, modified) => set_times(&at(path), *accessed, *modified)?,
        Operation::Compress(path, algorithm) => {
            lsetxattr(
                at(path),
                "btrfs.compression",
                algorithm.as_bytes(),
                XattrFlags::empty(),
            )?;
        }
        Operation::Subvolume(path) => subvolume(&["create"], &[&at(path)])?,
        Operation::Sync => rustix::fs::syncfs(File::open(top)?)?,
        data => change_data(top, snapshots, data)?,
    }
    Ok(())
}

/// Applies an operation on a file's data.
fn change_data(top: &Path, snapshots: &[PathBuf], operation: &Operation) -> Result<()> {
    let at = |path: &[u8]| top.join(OsStr::from_bytes(path));
    let open = |path: &[u8]| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(at(path))
    };
    let existing = |path: &[u8]| OpenOptions::new().read(true).write(true).open(at(path));
    let keep_size = FallocateFlags::KEEP_SIZE;
    match operation {
        Operation::Write(path, span, content) => write(&open(path)?, *span, *content)?,
        Operation::Truncate(path, size) => existing(path)?.set_len(*size)?,
        Operation::Punch(path, span) => {
            let flags = FallocateFlags::PUNCH_HOLE | keep_size;
            fallocate(existing(path)?, flags, span.offset, span.length)?;
        }
        Operation::Preallocate(path, span, keeps) => {
            let flags = if *keeps {
                keep_size
            } else {
                FallocateFlags::empty()
            };
            fallocate(open(path)?, flags, span.offset, span.length)?;
        }
        Operation::ZeroRange(path, span) => {
            let flags = FallocateFlags::ZERO_RANGE | keep_size;
            fallocate(existing(path)?, flags, span.offset, span.length)?;
        }
        Operation::Reflink(origin, path, offset) => {
            let source = source(top, snapshots, origin.snapshot, &origin.path)?;
            reflink(&source, origin, &open(path)?, *offset)?;
        }
        Operation::ReflinkAll(snapshot, from, to) => {
            let source = source(top, snapshots, *snapshot, from)?;
            rustix::fs::ioctl_ficlone(open(to)?, source)?;
        }
        Operation::NoCopyOnWrite(path) => {
            let file = open(path)?;
            let now = ioctl_getflags(&file)?;
            ioctl_setflags(&file, now | IFlags::NOCOW)?;
        }
        other => anyhow::bail!("{other:?} is no change of data"),
    }
    Ok(())
}

fn remove(path: &Path) -> Result<()> {
    if fs::symlink_metadata(path)?.is_dir() {
        fs::remove_dir(path)?;
    } else {
        fs::remove_file(path)?;
    }
    Ok(())
}

fn make_special(path: &Path, kind: Special) -> Result<()> {
    let device = rustix::fs::makedev;
    let (kind, device) = match kind {
        Special::Fifo => (FileType::Fifo, 0),
        Special::Socket => (FileType::Socket, 0),
        Special::Character(major, minor) => (FileType::CharacterDevice, device(major, minor)),
        Special::Block(major, minor) => (FileType::BlockDevice, device(major, minor)),
    };
    Ok(mknodat(CWD, path, kind, Mode::from_raw_mode(0o640), device)?)
}

fn set_times(path: &Path, accessed: (i64, u32), modified: (i64, u32)) -> Result<()> {
    let time = |(seconds, nanoseconds): (i64, u32)| Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds.into(),
    };
    let times = Timestamps {
        last_access: time(accessed),
        last_modification: time(modified),
    };
    Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

fn write(file: &File, span: Span, content: Content) -> Result<()> {
    let block = content.bytes(span.length.min(WRITE_BYTES));
    let mut done = 0;
    while done < span.length {
        let length = (span.length - done).min(block.len() as u64);
        file.write_all_at(&block[..length as usize], span.offset + done)?;
        done += length;
    }
    Ok(())
}

fn source(top: &Path, snapshots: &[PathBuf], snapshot: Option<usize>, path: &[u8]) -> Result<File> {
    let base = match snapshot {
        Some(number) => snapshots.get(number).context("a snapshot that exists")?,
        None => top,
    };
    // Opening a fifo would wait for a writer, so only regular files are opened.
    let path = base.join(OsStr::from_bytes(path));
    ensure!(
        fs::symlink_metadata(&path)?.is_file(),
        "{} is no file",
        path.display()
    );
    Ok(File::open(path)?)
}

/// Shares or copies a range by copy_file_range(2), which shares aligned parts and copies the rest.
fn reflink(source: &File, origin: &Origin, target: &File, offset: u64) -> Result<()> {
    let (mut from, mut to) = (origin.span.offset, offset);
    let end = origin.span.offset + origin.span.length;
    while from < end {
        let length = usize::try_from(end - from)?;
        if copy_file_range(source, Some(&mut from), target, Some(&mut to), length)? == 0 {
            break;
        }
    }
    Ok(())
}
