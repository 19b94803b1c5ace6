//! The registry of servers: one small file per mount, locked while the server uses the image.
//!
//! The directory of these files is `/run/buttress` for root, and `$XDG_RUNTIME_DIR/buttress` or a
//! private temporary directory for other users. An unlocked file belongs to a server that ended;
//! the next reader of the registry removes it.
//!
//! When a process ends, the kernel closes its files in an unspecified order, so the lock may be
//! released before the image. A process that needs the image therefore also waits for the end of
//! the server. The record has the start time of the server, because its process number may be
//! reused.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};

use crate::mounted::places::{self, Mounted};

/// The locked file of this server.
#[derive(Debug)]
pub(crate) struct Entry {
    file: File,
    record: Value,
}

/// The record of a mount for other processes.
pub(crate) struct Root {
    /// The device number in the table of mounts. The device number identifies the mount on every
    /// directory that shows it.
    pub(crate) device: String,
    /// The image files that the server has open.
    pub(crate) images: Value,
    /// The subvolume and the inode at the root of the mount.
    pub(crate) shown: String,
    /// The requested path, if any.
    pub(crate) subvolume: Option<String>,
    /// The options for an identical mount; `None` if other settings affect it.
    pub(crate) options: Option<String>,
}

/// The file of a server, as read by another process.
#[derive(Debug)]
pub(crate) struct Known {
    file: File,
    path: PathBuf,
    /// The content of the file.
    pub(crate) record: Value,
    /// The lock was free.
    has_ended: bool,
}

fn directory() -> Result<PathBuf> {
    let uid = rustix::process::geteuid();
    let path = if uid.is_root() {
        PathBuf::from("/run/buttress")
    } else {
        match std::env::var_os("XDG_RUNTIME_DIR") {
            Some(runtime) => PathBuf::from(runtime).join("buttress"),
            None => std::env::temp_dir().join(format!("buttress-{}", uid.as_raw())),
        }
    };
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("making {}", path.display()));
        }
        _ => {}
    }
    let found = std::fs::symlink_metadata(&path)?;
    if !found.is_dir() || found.uid() != uid.as_raw() {
        bail!("{} is not a directory of this user", path.display());
    }
    Ok(path)
}

fn name_of(pid: u32) -> String {
    format!("mount-{pid}")
}

/// Returns the path of the server's socket, beside its file.
fn socket_beside(file: &Path) -> PathBuf {
    file.with_extension("socket")
}

/// Returns the path of the socket of this process as a server.
pub(crate) fn own_socket() -> Result<PathBuf> {
    Ok(socket_beside(&directory()?.join(name_of(std::process::id()))))
}

/// Removes the files of a server that ended.
fn remove(file: &Path) {
    // If removing the socket fails, the next reader of the registry removes it.
    drop(std::fs::remove_file(socket_beside(file)));
    drop(std::fs::remove_file(file));
}

impl Entry {
    /// Registers this process as the server of a mount.
    pub(crate) fn make(image: &Path, mounted_on: &Path, writes: bool, root: &Root) -> Result<Self> {
        let pid = std::process::id();
        let path = directory()?.join(name_of(pid));
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .with_context(|| format!("making {}", path.display()))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let record = json!({
            "pid": pid,
            "began": began(Pid::from_raw(i32::try_from(pid)?).context("the number of this process")?),
            "image": image.display().to_string(),
            "directory": mounted_on.display().to_string(),
            "device": root.device,
            "images": root.images,
            "writes": writes,
            "root": root.shown,
            "subvolume": root.subvolume,
            "options": root.options,
        });
        let mut entry = Self { file, record };
        entry.write()?;
        Ok(entry)
    }

    fn write(&mut self) -> Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(self.record.to_string().as_bytes())?;
        Ok(())
    }

    /// Ends the server's use of the image, and records the result for waiting processes. The
    /// process holds the lock until its end, when its devices are closed: then other processes can
    /// use them.
    pub(crate) fn end(mut self, result: &Result<()>) {
        if let Err(error) = result
            && let Some(record) = self.record.as_object_mut()
        {
            record.insert("failed".to_owned(), Value::String(format!("{error:#}")));
            // Processes that wait for the end of the server read the record from the open file.
            drop(self.write());
        }
        core::mem::forget(self.file);
    }
}

/// Returns the start time of a process, in clock ticks since the system's start: field 22 of its
/// `stat`. In `stat`, a name in parentheses precedes this field and may contain any character.
fn began(pid: Pid) -> Option<u64> {
    let line = std::fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let line = String::from_utf8_lossy(&line);
    let (_, after_name) = line.rsplit_once(')')?;
    after_name.split_whitespace().nth(19)?.parse().ok()
}

impl Known {
    /// Returns all running servers of this user.
    pub(crate) fn all() -> Result<Vec<Self>> {
        Ok(Self::all_and_ended()?
            .into_iter()
            .filter(|known| !known.has_ended)
            .collect())
    }

    /// Returns all servers of this user, including ended ones whose files still exist.
    fn all_and_ended() -> Result<Vec<Self>> {
        let mut all = Vec::new();
        for found in std::fs::read_dir(directory()?)? {
            let path = found?.path();
            let Ok(file) = File::open(&path) else { continue };
            let mut known = Self {
                file,
                path,
                record: Value::Null,
                has_ended: false,
            };
            if known.read().is_err() {
                continue;
            }
            if flock(&known.file, FlockOperation::NonBlockingLockShared).is_ok() {
                known.has_ended = true;
                // While the server's process exists, other processes may have to wait for it.
                if known.process().is_none() {
                    remove(&known.path);
                }
            }
            all.push(known);
        }
        Ok(all)
    }

    fn read(&mut self) -> Result<()> {
        let mut text = String::new();
        self.file.seek(SeekFrom::Start(0))?;
        self.file.read_to_string(&mut text)?;
        self.record = serde_json::from_str(&text)?;
        Ok(())
    }

    /// Returns a text field of the record.
    pub(crate) fn text(&self, field: &str) -> Option<&str> {
        self.record.get(field)?.as_str()
    }

    /// Returns whether the server changes its image.
    pub(crate) fn writes(&self) -> bool {
        self.record.get("writes").and_then(Value::as_bool) == Some(true)
    }

    /// Waits until the server has read the table of mounts after this call. If the server is
    /// unreachable, it reads the table without a request.
    pub(crate) fn wait_until_noticed(&self) {
        let Ok(mut socket) = UnixStream::connect(self.socket()) else {
            return;
        };
        // The server reads the table of mounts before it reads this request. Without a request the
        // server closes the connection.
        drop(socket.shutdown(Shutdown::Write));
        drop(socket.read_to_end(&mut Vec::new()));
    }

    /// Returns the path of the server's socket.
    pub(crate) fn socket(&self) -> PathBuf {
        socket_beside(&self.path)
    }

    /// Returns whether a mount shows the volume of this server. The image must match too, because
    /// the system reuses the device number of an unmounted volume, possibly during its server's
    /// last commit.
    pub(crate) fn is_shown_by(&self, mount: &Mounted) -> bool {
        mount.is_ours
            && self.text("device") == Some(mount.device.as_str())
            && self.text("image") == Some(mount.source.display().to_string().as_str())
    }

    /// Returns the mounts that show the volume of this server, in their order.
    pub(crate) fn shown_by<'a>(&self, mounts: &'a [Mounted]) -> impl Iterator<Item = &'a Mounted> {
        mounts.iter().filter(|mount| self.is_shown_by(mount))
    }

    /// Returns the server of a mount.
    pub(crate) fn of(mount: &Mounted) -> Result<Option<Self>> {
        let mut all = Self::all()?.into_iter();
        Ok(all.find(|known| known.is_shown_by(mount)))
    }

    /// Waits for the last commit of servers of this image whose mount no longer exists, for example
    /// after umount(8).
    pub(crate) fn wait_for_those_that_end(image: &Path) -> Result<()> {
        let of_image = Self::all_and_ended()?.into_iter();
        let of_image = of_image.filter(|known| known.text("image").map(Path::new) == Some(image));
        for known in of_image {
            if known.has_ended || !known.is_mounted() {
                flock(&known.file, FlockOperation::LockShared)?;
                known.wait_for_process()?;
            }
        }
        Ok(())
    }

    /// Returns whether any directory shows the volume of this server, in any visible mount
    /// namespace.
    pub(crate) fn is_mounted(&self) -> bool {
        self.shown_by(&places::all()).next().is_some()
            || self.shown_by(&places::of_other_namespaces()).next().is_some()
    }

    /// Returns the process, if it still exists.
    fn process(&self) -> Option<OwnedFd> {
        let field = |name| self.record.get(name).and_then(Value::as_u64);
        let pid = Pid::from_raw(i32::try_from(field("pid")?).ok()?)?;
        let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // The process id may belong to another process now.
        (began(pid)? == field("began")?).then_some(process)
    }

    /// Waits until the process has ended and its open files are closed.
    fn wait_for_process(&self) -> Result<()> {
        if let Some(process) = self.process() {
            poll(&mut [PollFd::new(&process, PollFlags::IN)], None)?;
        }
        Ok(())
    }

    /// Waits until the server no longer uses its image, and returns its result.
    pub(crate) fn wait(mut self) -> Result<()> {
        flock(&self.file, FlockOperation::LockShared)?;
        self.wait_for_process()?;
        self.read()?;
        remove(&self.path);
        match self.text("failed") {
            Some(text) => bail!("{text}"),
            None => Ok(()),
        }
    }
}
