//! Keeping out of each other's way: locks between our own processes, and what the kernel has mounted.
//!
//! - Between processes of ours, writers hold an exclusive lock (`flock`) on every device, readers a shared one.
//!   Locks on network file systems that know none are done without.
//! - A volume that the kernel has mounted changes under a reader and would be destroyed by a writer. A block
//!   device for writing is opened exclusively, which the kernel refuses while it is mounted. An image file can
//!   be mounted through a loop device, which the kernel does not connect with opening the file: the loop devices
//!   are looked through for it (`/sys/block/loop*/loop/backing_file`).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// Takes the lock and looks for mounts. For writing, what is in use is refused; for reading, the answer says
/// what the user should know.
pub(super) fn claim(file: &File, path: &Path, is_block_device: bool, write: bool) -> io::Result<Vec<String>> {
    lock(file, write)?;
    let mut users = Vec::new();
    if is_block_device {
        if is_mounted(file.metadata()?.rdev()) {
            users.push(path.to_path_buf());
        }
    } else {
        users.extend(mounted_loop_devices(file)?);
    }
    let Some(user) = users.first() else {
        return Ok(Vec::new());
    };
    let user = user.display();
    if write {
        let what = format!("it is mounted through {user}; unmount that first, or open it read-only");
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, what));
    }
    Ok(vec![format!(
        "{} is mounted through {user}: what is read may change meanwhile, and may be older than what the mount shows",
        path.display()
    )])
}

fn lock(file: &File, write: bool) -> io::Result<()> {
    let operation = if write {
        FlockOperation::NonBlockingLockExclusive
    } else {
        FlockOperation::NonBlockingLockShared
    };
    match rustix::fs::flock(file, operation) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOLCK | Errno::NOSYS | Errno::INVAL | Errno::BADF) => Ok(()),
        Err(Errno::WOULDBLOCK) => {
            let what = if write {
                "another process has it open; wait until that is done, or open it read-only"
            } else {
                "another process is writing to it; wait until that is done"
            };
            Err(io::Error::new(io::ErrorKind::ResourceBusy, what))
        }
        Err(cause) => Err(cause.into()),
    }
}

/// The loop devices, among them partitions of loop devices, that are mounted and lie on this file.
fn mounted_loop_devices(file: &File) -> io::Result<Vec<PathBuf>> {
    let image = file.metadata()?;
    let Ok(devices) = fs::read_dir("/sys/block") else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for device in devices.flatten() {
        let Ok(backing) = fs::read_to_string(device.path().join("loop/backing_file")) else {
            continue;
        };
        // The file may have been moved or deleted since; then its name leads elsewhere, which is no match.
        let Ok(backing) = fs::metadata(backing.trim_end_matches('\n')) else {
            continue;
        };
        if (backing.dev(), backing.ino()) == (image.dev(), image.ino()) {
            found.extend(mounted_parts(&device.path()));
        }
    }
    Ok(found)
}

/// A disk's device node and its partitions' nodes, as far as they are mounted.
fn mounted_parts(disk: &Path) -> Vec<PathBuf> {
    let name = disk
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let parts = fs::read_dir(disk)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name());
    let parts = parts
        .map(|part| part.to_string_lossy().into_owned())
        .filter(|part| part.starts_with(&name));
    std::iter::once(name.clone())
        .chain(parts)
        .map(|node| Path::new("/dev").join(node))
        .filter(|node| {
            fs::metadata(node).is_ok_and(|node| node.file_type().is_block_device() && is_mounted(node.rdev()))
        })
        .collect()
}

/// Whether a block device is mounted somewhere that this process can see.
///
/// The mount table names btrfs's mounts by an anonymous device number, so the source path is compared too.
fn is_mounted(device: u64) -> bool {
    let Ok(table) = fs::read_to_string("/proc/self/mountinfo") else {
        return false;
    };
    table.lines().filter_map(mount_source).any(|source| {
        fs::metadata(source)
            .is_ok_and(|source| source.file_type().is_block_device() && source.rdev() == device)
    })
}

/// The source of one line of mountinfo: the second field after the separator " - ". Source: proc_pid_mountinfo(5).
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
}
