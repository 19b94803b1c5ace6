//! Runs the same operations on the kernel's btrfs and on this crate's. Each operation must end with
//! the same error number. After all operations, the items of both subvolumes must be equal, except
//! for transaction numbers and current times.
//!
//! The paths of the test use few names, so that many operations meet each other's results, or fail.

use super::steps::{How, Step, random_steps};
use super::volume::{Image, ROOT};
use crate::WritableFilesystem;
use crate::operations::entries::not_found;
use crate::operations::{AttributeChanges, NewInode, NodeKind, RenameMode, SetXattr};
use buttress_format::{FileKind, InodeNumber, ItemType, Key, SubvolumeId, Timestamp};
use buttress_fs::error::Result;
use buttress_fs::inode::{DeviceNumber, FileAttributes};
use buttress_fs::location::Location;
use buttress_fs::lookup::Follow;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::kernel_missing;
use buttress_tree::ReadAhead;
use rustix::fs::{
    AtFlags, CWD, FileType, IFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps, XattrFlags, chmod,
    chownat, ioctl_setflags, linkat, lremovexattr, lsetxattr, mkdir, mknodat, open, renameat_with, rmdir,
    symlink, unlink, utimensat,
};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::path::Path;

/// The umask of this process, which the kernel applies.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Umask:"))
        .unwrap();
    u32::from_str_radix(line.trim(), 8).unwrap()
}

/// Does a step by system calls.
fn do_by_kernel(top: &Path, step: &Step) -> Result<(), Errno> {
    let at = |path: &str| top.join(path);
    let mode = |bits: u32| Mode::from_raw_mode(bits);
    match step {
        Step::Create(path, bits) => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
            open(at(path), flags, mode(*bits)).map(drop)
        }
        Step::Directory(path, bits) => mkdir(at(path), mode(*bits)),
        Step::Fifo(path) => mknodat(CWD, at(path), FileType::Fifo, mode(0o644), 0),
        Step::Device(path, major, minor) => {
            let device = rustix::fs::makedev(*major, *minor);
            mknodat(CWD, at(path), FileType::CharacterDevice, mode(0o4600), device)
        }
        Step::Symlink(path, target) => symlink(target, at(path)),
        Step::Link(from, to) => linkat(CWD, at(from), CWD, at(to), AtFlags::empty()),
        Step::Unlink(path) => unlink(at(path)),
        Step::RemoveDirectory(path) => rmdir(at(path)),
        Step::Rename(from, to, how) => {
            let flags = match how {
                How::Replace => RenameFlags::empty(),
                How::NoReplace => RenameFlags::NOREPLACE,
                How::Exchange => RenameFlags::EXCHANGE,
                How::Whiteout => RenameFlags::WHITEOUT,
            };
            renameat_with(CWD, at(from), CWD, at(to), flags)
        }
        Step::Mode(path, bits) => chmod(at(path), mode(*bits)),
        Step::Owner(path, uid, gid) => {
            let uid = uid.map(rustix::fs::Uid::from_raw);
            let gid = gid.map(rustix::fs::Gid::from_raw);
            chownat(CWD, at(path), uid, gid, AtFlags::SYMLINK_NOFOLLOW)
        }
        Step::Times(path, accessed, modified) => {
            let time = |seconds: i64| Timespec {
                tv_sec: seconds,
                tv_nsec: 5,
            };
            let times = Timestamps {
                last_access: time(*accessed),
                last_modification: time(*modified),
            };
            utimensat(CWD, at(path), &times, AtFlags::SYMLINK_NOFOLLOW)
        }
        Step::SetXattr(path, name, value, how) => {
            let flags = match how {
                SetXattr::CreateOrReplace => XattrFlags::empty(),
                SetXattr::Create => XattrFlags::CREATE,
                SetXattr::Replace => XattrFlags::REPLACE,
            };
            lsetxattr(at(path), name.as_str(), value, flags)
        }
        Step::RemoveXattr(path, name) => lremovexattr(at(path), name.as_str()),
        Step::Flags(path, attributes) => {
            // Opening a device node would search for a driver.
            let kind = FileType::from_raw_mode(rustix::fs::stat(at(path))?.st_mode);
            if !matches!(kind, FileType::RegularFile | FileType::Directory) {
                return Err(Errno::OPNOTSUPP);
            }
            let file = open(at(path), OFlags::RDONLY, Mode::empty())?;
            ioctl_setflags(&file, IFlags::from_bits_retain(attributes.bits()))
        }
        Step::Unnamed(directory, path) => {
            let file = open(at(directory), OFlags::TMPFILE | OFlags::RDWR, mode(0o600))?;
            let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
            let place = format!("/proc/self/fd/{descriptor}");
            linkat(CWD, place, CWD, at(path), AtFlags::SYMLINK_FOLLOW)
        }
    }
}

/// Returns the target of a path. A lookup without symlinks needs no view, which would slow down the
/// next edits.
fn find(filesystem: &WritableFilesystem, path: &str, follow: Follow) -> Result<Location> {
    let mut here = ROOT;
    let mut names = path.split('/').filter(|name| !name.is_empty()).peekable();
    while let Some(name) = names.next() {
        let Ok(Some(entry)) = filesystem.live().lookup(here, name.as_bytes()) else {
            return filesystem.view().resolve(ROOT, path.as_bytes(), follow);
        };
        let is_inner = names.peek().is_some() || path.ends_with('/');
        if entry.kind == FileKind::Symlink && (is_inner || follow == Follow::All)
            || entry.kind != FileKind::Directory && is_inner
        {
            return filesystem.view().resolve(ROOT, path.as_bytes(), follow);
        }
        here = entry.target;
    }
    Ok(here)
}

/// Returns the directory of a path, and its last name.
fn split<'a>(filesystem: &WritableFilesystem, path: &'a str) -> Result<(Location, &'a [u8])> {
    let name_at = path.rfind('/').map_or(0, |slash| slash + 1);
    let (above, name) = path.split_at(name_at);
    Ok((find(filesystem, above, Follow::All)?, name.as_bytes()))
}

/// Does a step by this crate.
fn do_here(filesystem: &WritableFilesystem, umask: u32, step: &Step) -> Result<()> {
    let new = |mode| NewInode {
        mode,
        umask,
        uid: 0,
        gid: 0,
    };
    let inode = |path: &str| find(filesystem, path, Follow::NotLast);
    match step {
        Step::Create(path, mode) => {
            let (directory, name) = split(filesystem, path)?;
            filesystem.create(directory, name, &new(*mode)).map(drop)
        }
        Step::Directory(path, mode) => {
            let (directory, name) = split(filesystem, path)?;
            filesystem.make_directory(directory, name, &new(*mode)).map(drop)
        }
        Step::Fifo(path) => {
            let (directory, name) = split(filesystem, path)?;
            filesystem
                .make_node(directory, name, &new(0o644), NodeKind::Fifo)
                .map(drop)
        }
        Step::Device(path, major, minor) => {
            let (directory, name) = split(filesystem, path)?;
            let (major, minor) = (*major, *minor);
            let kind = NodeKind::CharacterDevice(DeviceNumber { major, minor });
            filesystem
                .make_node(directory, name, &new(0o4600), kind)
                .map(drop)
        }
        Step::Symlink(path, target) => {
            let (directory, name) = split(filesystem, path)?;
            filesystem
                .make_symlink(directory, name, &new(0), target.as_bytes())
                .map(drop)
        }
        Step::Link(from, to) => {
            let from = inode(from)?;
            let (directory, name) = split(filesystem, to)?;
            filesystem.link(from, directory, name)
        }
        Step::Unlink(path) => {
            let (directory, name) = split(filesystem, path)?;
            filesystem.unlink(directory, name)
        }
        Step::RemoveDirectory(path) => {
            let (directory, name) = split(filesystem, path)?;
            filesystem.remove_directory(directory, name)
        }
        Step::Rename(from, to, how) => {
            let (old, old_name) = split(filesystem, from)?;
            let (to, to_name) = split(filesystem, to)?;
            let how = match how {
                How::Replace => RenameMode::Replace,
                How::NoReplace => RenameMode::NoReplace,
                How::Exchange => RenameMode::Exchange,
                How::Whiteout => RenameMode::Whiteout(new(0)),
            };
            filesystem.rename(old, old_name, to, to_name, how)
        }
        Step::Unnamed(directory, path) => {
            let directory = find(filesystem, directory, Follow::All)?;
            let file = filesystem.make_unnamed(directory, &new(0o600))?;
            let (directory, name) = split(filesystem, path)?;
            if name.is_empty() {
                return Err(not_found(name));
            }
            filesystem.link(file.location(), directory, name)
        }
        other => change_here(filesystem, other),
    }
}

/// Executes a step of the test that changes an inode, with this crate.
fn change_here(filesystem: &WritableFilesystem, step: &Step) -> Result<()> {
    let inode = |path: &str| find(filesystem, path, Follow::NotLast);
    match step {
        Step::Mode(path, mode) => {
            let changes = AttributeChanges {
                mode: Some(*mode),
                ..AttributeChanges::default()
            };
            filesystem.set_attributes(find(filesystem, path, Follow::All)?, &changes)
        }
        Step::Owner(path, uid, gid) => {
            let changes = AttributeChanges {
                uid: *uid,
                gid: *gid,
                ..AttributeChanges::default()
            };
            filesystem.set_attributes(inode(path)?, &changes)
        }
        Step::Times(path, accessed, modified) => {
            let time = |seconds| {
                Some(Timestamp {
                    seconds,
                    nanoseconds: 5,
                })
            };
            let changes = AttributeChanges {
                accessed: time(*accessed),
                modified: time(*modified),
                ..AttributeChanges::default()
            };
            filesystem.set_attributes(inode(path)?, &changes)
        }
        Step::SetXattr(path, name, value, how) => {
            filesystem.set_xattr(inode(path)?, name.as_bytes(), value, *how)
        }
        Step::RemoveXattr(path, name) => filesystem.remove_xattr(inode(path)?, name.as_bytes()),
        Step::Flags(path, attributes) => {
            let location = find(filesystem, path, Follow::All)?;
            filesystem.set_flags(location, *attributes)
        }
        other => panic!("{other:?} is a step of names"),
    }
}

/// Times from this value on are current times, which no step of the test set.
const NOW: i64 = 1_000_000;

/// Returns an item without its transaction numbers, and with all current times made equal.
fn masked(key: &Key, data: &[u8]) -> Vec<u8> {
    let mut data = data.to_vec();
    match key.item_type {
        ItemType::INODE_ITEM => {
            data[..16].fill(0);
            // The kernel starts the change counter of a new inode at an arbitrary value from
            // memory. Only an inode that mkfs made starts its change counter at a known number.
            if key.objectid != InodeNumber::ROOT_DIRECTORY.object_id() {
                data[72..80].fill(0);
            }
            for at in [112, 124, 136, 148] {
                let seconds = i64::from_le_bytes(data[at..at + 8].try_into().unwrap());
                if seconds >= NOW {
                    data[at..at + 8].copy_from_slice(&NOW.to_le_bytes());
                    data[at + 8..at + 12].fill(0);
                }
            }
        }
        ItemType::DIR_ITEM | ItemType::DIR_INDEX | ItemType::XATTR_ITEM => {
            let mut at = 0;
            while at < data.len() {
                data[at + 17..at + 25].fill(0);
                let length = |from: usize| usize::from(u16::from_le_bytes([data[from], data[from + 1]]));
                at += 30 + length(at + 25) + length(at + 27);
            }
        }
        ItemType::EXTENT_DATA => data[..8].fill(0),
        _ => {}
    }
    data
}

fn items(filesystem: &buttress_fs::Filesystem) -> BTreeMap<Key, Vec<u8>> {
    let tree = filesystem.subvolume_tree(SubvolumeId::TOP_LEVEL).unwrap();
    let all = tree.range(Key::MIN..=Key::MAX, ReadAhead::None);
    all.map(|item| {
        let item = item.unwrap();
        (item.key(), masked(&item.key(), item.data()))
    })
    .collect()
}

/// Whether btrfs-progs check the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    Yes,
    /// btrfs-progs does not check this volume, because its check walks all names of an inode for
    /// each name.
    No,
}

const ITEMS_DIFFER: &str = "items differ";

/// Runs the steps on both sides, and lets btrfs-progs check this crate's volume.
pub(super) fn compare(
    steps: &[Step],
    features: &[&str],
    commit_every: usize,
    with_check: Check,
) -> anyhow::Result<()> {
    let (Some(theirs), Some(ours)) = (Image::make(features), Image::make(features)) else {
        return Ok(());
    };
    let umask = umask();
    let mount = Mount::new(std::slice::from_ref(&theirs.path), "noatime")?;
    let filesystem = ours.open();
    for (number, step) in steps.iter().enumerate() {
        let expected = do_by_kernel(mount.path(), step).map_err(Errno::raw_os_error);
        let found = do_here(&filesystem, umask, step);
        if let (Err(error), Ok(())) | (Err(error), Err(_)) = (&found, &expected) {
            anyhow::ensure!(
                Err(error.errno()) == expected,
                "step {number}, {step:?}: here {error} ({}), the kernel {expected:?}",
                error.errno()
            );
        }
        anyhow::ensure!(
            found.is_ok() == expected.is_ok(),
            "step {number}, {step:?}: here {found:?}, the kernel {expected:?}"
        );
        if number % commit_every == 0 {
            filesystem.commit()?;
        }
    }
    filesystem.commit()?;
    let open = |image: &Image| {
        let device = buttress_device::Device::open(&image.path, &buttress_device::OpenOptions::default())?;
        anyhow::Ok(buttress_fs::OpenOptions::new(vec![device]).open()?)
    };
    drop(filesystem);
    if with_check == Check::Yes {
        ours.check();
    }
    mount.close()?;
    let (ours, theirs) = (items(&open(&ours)?), items(&open(&theirs)?));
    let keys: std::collections::BTreeSet<&Key> = ours.keys().chain(theirs.keys()).collect();
    let different: Vec<String> = keys
        .into_iter()
        .filter(|key| ours.get(key) != theirs.get(key))
        .take(8)
        .map(|key| describe(key, ours.get(key), theirs.get(key)))
        .collect();
    anyhow::ensure!(different.is_empty(), "{ITEMS_DIFFER}:\n{}", different.join("\n"));
    Ok(())
}

fn describe(key: &Key, ours: Option<&Vec<u8>>, theirs: Option<&Vec<u8>>) -> String {
    let show = |data: Option<&Vec<u8>>| match (data, key.item_type) {
        (None, _) => "missing".to_owned(),
        (Some(data), ItemType::INODE_ITEM) => {
            format!("{:?}", buttress_format::InodeItem::parse(key, data).unwrap())
        }
        (Some(data), _) => String::from_utf8_lossy(data).into_owned(),
    };
    format!(
        "{key}\n  here       {}\n  the kernel {}",
        show(ours),
        show(theirs)
    )
}

/// Returns a failure's text without the parts that change when other steps are left out.
fn essence(failure: &str) -> String {
    if failure.starts_with(ITEMS_DIFFER) {
        return ITEMS_DIFFER.to_owned();
    }
    let step = failure.split_once(", ").map_or(failure, |(_, rest)| rest);
    let (step, answers) = step.split_once(": here").unwrap_or((step, ""));
    let numbers: String = answers.rsplit("(").next().unwrap_or_default().to_owned();
    format!("{step} {numbers}")
}

/// Returns the steps without those that the failure does not need.
fn smaller(steps: &[Step], features: &[&str], failure: &str) -> Vec<Step> {
    let fails = |steps: &[Step]| {
        let error = compare(steps, features, 17, Check::Yes).err();
        error.is_some_and(|error| essence(&error.to_string()) == failure)
    };
    let mut steps = steps.to_vec();
    let mut length = steps.len() / 2;
    while length > 0 {
        let mut start = 0;
        while start < steps.len() {
            let end = (start + length).min(steps.len());
            let fewer = [&steps[..start], &steps[end..]].concat();
            if fails(&fewer) {
                steps = fewer;
            } else {
                start = end;
            }
        }
        length /= 2;
    }
    steps
}

#[test]
fn random_operations_end_as_the_kernels_do() {
    if skips(kernel_missing()) {
        return;
    }
    let first = buttress_oracle::seeds::seed("operations::against_kernel", "BUTTRESS_SEED", 1);
    let count: u64 = buttress_oracle::seeds::number("BUTTRESS_SEEDS").unwrap_or(6);
    for seed in first..first + count {
        let features: &[&str] = if seed % 2 == 0 {
            &[]
        } else {
            &["-n", "4k", "-m", "single"]
        };
        let steps = random_steps(seed, 400);
        if let Err(error) = compare(&steps, features, 17, Check::Yes) {
            let few = smaller(&steps, features, &essence(&error.to_string()));
            let again = compare(&few, features, 17, Check::Yes).map_err(|error| error.to_string());
            panic!(
                "seed {seed}: {error:#}\nof fewer steps: {few:#?}\n{}",
                again.err().unwrap_or_default()
            );
        }
    }
}

#[test]
fn compression_property_can_be_removed_from_nocow_file() {
    if skips(kernel_missing()) {
        return;
    }
    let file = || "file".to_owned();
    let name = || "btrfs.compression".to_owned();
    let set = |value: &[u8]| Step::SetXattr(file(), name(), value.to_vec(), SetXattr::CreateOrReplace);
    let steps = [
        Step::Create(file(), 0o644),
        Step::Flags(file(), FileAttributes::NOCOW),
        set(b"zlib"),
        set(b"none"),
        set(b""),
        Step::RemoveXattr(file(), name()),
    ];
    compare(&steps, &[], 3, Check::Yes).unwrap_or_else(|error| panic!("{error:#}"));
}
