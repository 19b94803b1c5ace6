//! Guards against other users of a device: locks between our own processes, and the kernel's
//! mounts.
//!
//! - Between Buttress processes, a writer holds an exclusive lock (`flock`) on every device, and a
//!   reader a shared one. Devices on network file systems without locks are used without a lock. If
//!   an ancestor process locks a block device, the lock serves this process too: `udevadm lock` and
//!   systemd-repart run mkfs in this way.
//! - A volume that the kernel has mounted changes during a read, and a writer would destroy it. A
//!   block device for writing is opened exclusively, which the kernel refuses while it is mounted.
//!   An image file can be mounted through a loop device, which the kernel does not associate with
//!   an open of the file. The check therefore searches the loop devices for the file
//!   (`/sys/block/loop*/loop/backing_file`). Unused loop devices, of which a machine may have many,
//!   are not in `/proc/partitions`, and are not checked one by one.
//!
//! Whether a device is in use is derived from public tables of the kernel. The mount table names
//! only one device of each mounted volume. `/sys/fs/btrfs` names all devices of mounted btrfs
//! volumes. A disk's `holders` name the devices stacked upon it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// Acquires the lock of a device's file, and searches for mounts of the device. A writer refuses a
/// file that another program uses. A reader receives messages for the user.
pub(super) fn claim(file: &File, path: &Path, is_block_device: bool, write: bool) -> io::Result<Vec<String>> {
    lock_patiently(file, write, is_block_device)?;
    let metadata = file.metadata()?;
    let users = if is_block_device {
        let (major, minor) = (
            rustix::fs::major(metadata.rdev()),
            rustix::fs::minor(metadata.rdev()),
        );
        let disk = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}"));
        // Clamp: if sysfs does not know the device, no other program uses it.
        disk.map(|disk| parts_in_use(&disk)).unwrap_or_default()
    } else {
        loop_devices_in_use(&metadata)
    };
    let Some(user) = users.first() else {
        return Ok(Vec::new());
    };
    let user = user.display();
    if write {
        let what = format!("it is mounted or in use as {user}; unmount it first, or open it read-only");
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, what));
    }
    Ok(vec![format!(
        "{} is mounted or in use as {user}: its content can change during the read, and can be older than the mount's",
        path.display()
    )])
}

/// Releases the lock. Closing one descriptor releases the lock only if no copy of that descriptor
/// is open. A child process that this program starts holds a copy of the descriptor until it
/// executes its own program.
pub(crate) fn release(file: &File) {
    // A file that cannot be unlocked was not locked; closing it releases any lock.
    let _unlocked = rustix::fs::flock(file, FlockOperation::Unlock);
}

/// Acquires the lock. udev, which makes device nodes, briefly locks a block device whenever it
/// appears or changes, so the function waits for udev.
fn lock_patiently(file: &File, write: bool, is_block_device: bool) -> io::Result<()> {
    let tries = if is_block_device { 20 } else { 0 };
    for _ in 0..tries {
        match lock(file, write) {
            Err(_) if is_held_for_us(file) => return Ok(()),
            Err(cause) if cause.kind() == io::ErrorKind::ResourceBusy => {
                std::thread::sleep(Duration::from_millis(50));
            }
            answer => return answer,
        }
    }
    lock(file, write)
}

pub(super) fn lock(file: &File, write: bool) -> io::Result<()> {
    let operation = if write {
        FlockOperation::NonBlockingLockExclusive
    } else {
        FlockOperation::NonBlockingLockShared
    };
    match rustix::fs::flock(file, operation) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOLCK | Errno::NOSYS | Errno::INVAL | Errno::BADF) => Ok(()),
        Err(Errno::WOULDBLOCK) => {
            let what = if write {
                "another process has it open; wait for this process, or open it read-only"
            } else {
                "another process is writing to it; wait for this process"
            };
            Err(io::Error::new(io::ErrorKind::ResourceBusy, what))
        }
        Err(cause) => Err(cause.into()),
    }
}

/// Returns true if an ancestor process of this process holds a lock on this file.
fn is_held_for_us(file: &File) -> bool {
    let (Ok(metadata), Ok(locks)) = (file.metadata(), fs::read_to_string("/proc/locks")) else {
        return false;
    };
    let device = metadata.dev();
    let file = format!(
        "{:02x}:{:02x}:{}",
        rustix::fs::major(device),
        rustix::fs::minor(device),
        metadata.ino()
    );
    let ancestors = ancestors();
    locks.lines().any(|line| {
        // The form of a line in `/proc/locks` is `1: FLOCK ADVISORY WRITE 1234 00:05:321 0 EOF`. In
        // the line of a waiting process, the second word is an arrow.
        let mut words = line.split_whitespace().skip(1);
        let is_lock = words.next() == Some("FLOCK");
        let holder = words.nth(2).and_then(|pid| pid.parse::<u32>().ok());
        is_lock && words.next() == Some(&file) && holder.is_some_and(|pid| ancestors.contains(&pid))
    })
}

/// Returns the ancestors of this process, nearest first.
fn ancestors() -> Vec<u32> {
    /// A limit on the search that exceeds the nesting of processes.
    const MOST: usize = 64;
    let parent = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        line.trim().parse().ok().filter(|parent| *parent > 0)
    };
    std::iter::successors(parent(&std::process::id()), parent)
        .take(MOST)
        .collect()
}

/// Returns the loop devices and their partitions that lie on this file and are in use.
fn loop_devices_in_use(image: &fs::Metadata) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for device in disks() {
        let Ok(backing) = fs::read_to_string(device.join("loop/backing_file")) else {
            continue;
        };
        // Another process may have moved or deleted the backing file since. The name of a moved or
        // deleted backing file then leads elsewhere, which is no match.
        let Ok(backing) = fs::metadata(backing.trim_end_matches('\n')) else {
            continue;
        };
        if (backing.dev(), backing.ino()) == (image.dev(), image.ino()) {
            found.extend(parts_in_use(&device));
        }
    }
    found
}

/// Returns the directories in sysfs of all disks that have a size.
fn disks() -> Vec<PathBuf> {
    let all = Path::new("/sys/block");
    match fs::read_to_string("/proc/partitions") {
        Ok(table) => partition_names(&table).map(|name| all.join(name)).collect(),
        Err(_) => {
            let disks = fs::read_dir(all).into_iter().flatten().flatten();
            disks.map(|disk| disk.path()).collect()
        }
    }
}

/// Returns the names in the kernel's table of disks and partitions with a size. The partition's
/// name is the last of four fields, below a line with the fields' names. Source:
/// proc_partitions(5).
fn partition_names(table: &str) -> impl Iterator<Item = &str> {
    let fields = table.lines().skip(1).map(|line| line.split_ascii_whitespace());
    fields.filter_map(|mut fields| fields.nth(3))
}

/// Returns the nodes of a disk and its partitions that are in use. `disk` is the disk's directory
/// in sysfs.
fn parts_in_use(disk: &Path) -> Vec<PathBuf> {
    // Clamp: the path comes from the system.
    let name = disk
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let parts = fs::read_dir(disk).into_iter().flatten().flatten();
    let parts = parts.map(|part| part.file_name().to_string_lossy().into_owned());
    let parts = parts.filter(|part| part.starts_with(&name) && disk.join(part).join("partition").exists());
    let names = std::iter::once(name.clone()).chain(parts);
    names
        .filter(|name| is_in_use(name))
        .map(|name| Path::new("/dev").join(name))
        .collect()
}

/// Returns true if the block device with this name in sysfs is mounted, in a mounted btrfs volume,
/// or part of a stacked device.
fn is_in_use(name: &str) -> bool {
    let mut holders = fs::read_dir(format!("/sys/class/block/{name}/holders"))
        .into_iter()
        .flatten();
    let mut volumes = fs::read_dir("/sys/fs/btrfs").into_iter().flatten().flatten();
    holders.next().is_some()
        || volumes.any(|volume| volume.path().join("devices").join(name).exists())
        || fs::metadata(Path::new("/dev").join(name))
            .is_ok_and(|node| node.file_type().is_block_device() && is_mounted(node.rdev()))
}

/// Returns true if a block device is the source of a mount that this process can see.
fn is_mounted(device: u64) -> bool {
    let Ok(table) = fs::read("/proc/self/mountinfo") else {
        return false;
    };
    // A btrfs mount has an anonymous device number, so the source identifies the device.
    mount_sources(&table).iter().any(|source| {
        fs::metadata(source)
            .is_ok_and(|source| source.file_type().is_block_device() && source.rdev() == device)
    })
}

/// Returns the source devices in a mount table. Users choose the names of mount sources and
/// directories, so these names may not be UTF-8.
fn mount_sources(table: &[u8]) -> Vec<String> {
    let table = String::from_utf8_lossy(table);
    let sources = table.lines().filter_map(mount_source);
    sources.map(str::to_owned).collect()
}

/// Returns the source of one line of mountinfo: the second field after the separator " - ". Source:
/// proc_pid_mountinfo(5).
fn mount_source(line: &str) -> Option<&str> {
    line.split_once(" - ")?
        .1
        .split(' ')
        .nth(1)
        .filter(|source| source.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_of_a_mount_is_found() {
        let line = "36 35 0:52 / /mnt rw,noatime shared:1 master:2 - btrfs /dev/loop3 rw,space_cache=v2";
        assert_eq!(mount_source(line), Some("/dev/loop3"));
        assert_eq!(mount_source("22 1 0:21 / /proc rw - proc proc rw"), None);
        assert_eq!(mount_source("nonsense"), None);
    }

    #[test]
    fn a_mount_with_an_odd_name_hides_no_other() {
        let table = b"42 27 0:39 / /m ro - fuse.other /image\xff\xfe ro\n43 27 7:2 / /e ro,relatime - ext4 /dev/loop2 ro\n";
        assert!(mount_sources(table).contains(&"/dev/loop2".to_owned()));
    }

    #[test]
    fn disks_of_any_size_are_found() {
        let table =
            "major minor  #blocks  name\n\n 254        0  268435456 vda\n   7       11   16777216 loop11\n";
        assert_eq!(partition_names(table).collect::<Vec<_>>(), ["vda", "loop11"]);
        assert_eq!(partition_names("").count(), 0);
    }

    #[test]
    fn writers_keep_others_out_and_readers_only_writers() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || File::open(file.path()).unwrap();
        let (first, second, writer) = (open(), open(), open());
        lock(&first, false).unwrap();
        lock(&second, false).unwrap();
        assert_eq!(
            lock(&writer, true).unwrap_err().kind(),
            io::ErrorKind::ResourceBusy
        );
        drop((first, second));
        lock(&writer, true).unwrap();
        assert_eq!(
            lock(&open(), false).unwrap_err().kind(),
            io::ErrorKind::ResourceBusy
        );
    }

    #[test]
    fn a_copy_of_the_descriptor_keeps_no_lock_that_was_given_back() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().write(true).open(image.path()).unwrap();
        let (first, second) = (open(), open());
        lock(&first, true).unwrap();
        let copy = first.try_clone().unwrap();
        lock(&second, true).unwrap_err();
        release(&first);
        drop(first);
        lock(&second, true).unwrap();
        drop(copy);
    }
}
