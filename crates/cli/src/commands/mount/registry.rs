//! Which servers there are: one small file for each mount, locked as long as the server has the image.
//!
//! `/run/buttress` for root, `$XDG_RUNTIME_DIR/buttress` or a directory of one's own in the temporary directory for others.
//! A file whose lock nobody has is of a server that ended: whoever looks next removes it.
//!
//! The kernel closes what a process had open in no order that it promises, so the lock may be free before the image is: whoever wants
//! the image waits for the end of the process too. When that process began is kept, as its number may be given to another one.

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

/// The file of a server, which has its lock.
#[derive(Debug)]
pub(crate) struct Entry {
    file: File,
    record: Value,
}

/// The record of a mount for other processes.
pub(crate) struct Root {
    /// The number of its device, as in the table of mounts. It identifies the mount on every directory that shows it.
    pub(crate) device: String,
    /// The image files that its server has open.
    pub(crate) images: Value,
    /// The subvolume and the inode.
    pub(crate) shown: String,
    /// The path that was asked for, if one was.
    pub(crate) subvolume: Option<String>,
    /// The options that mount the same once more; none, where more than options said how.
    pub(crate) options: Option<String>,
}

/// A server's file as others find it.
#[derive(Debug)]
pub(crate) struct Known {
    file: File,
    path: PathBuf,
    /// What it says.
    pub(crate) record: Value,
    /// Its lock was free.
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

/// Where the server's socket is, beside its file.
fn socket_beside(file: &Path) -> PathBuf {
    file.with_extension("socket")
}

/// Where this process, as a server, has its socket.
pub(crate) fn own_socket() -> Result<PathBuf> {
    Ok(socket_beside(&directory()?.join(name_of(std::process::id()))))
}

/// Takes away what is left of a server.
fn remove(file: &Path) {
    // Where that fails, whoever looks next does it.
    drop(std::fs::remove_file(socket_beside(file)));
    drop(std::fs::remove_file(file));
}

impl Entry {
    /// Says that this process is going to serve a mount.
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

    /// The server is done; whoever waits learns how it ended. The lock goes with the process, after its devices, which were
    /// opened before: then they are free for others.
    pub(crate) fn end(mut self, result: &Result<()>) {
        if let Err(error) = result
            && let Some(record) = self.record.as_object_mut()
        {
            record.insert("failed".to_owned(), Value::String(format!("{error:#}")));
            // Whoever waits reads it from the open file.
            drop(self.write());
        }
        core::mem::forget(self.file);
    }
}

/// When a process began, in clock ticks since the machine did: the 22nd field of its `stat`, which follows a name in brackets that may
/// hold anything.
fn began(pid: Pid) -> Option<u64> {
    let line = std::fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let line = String::from_utf8_lossy(&line);
    let (_, after_name) = line.rsplit_once(')')?;
    after_name.split_whitespace().nth(19)?.parse().ok()
}

impl Known {
    /// All servers of this user.
    pub(crate) fn all() -> Result<Vec<Self>> {
        Ok(Self::all_and_ended()?
            .into_iter()
            .filter(|known| !known.has_ended)
            .collect())
    }

    /// All servers of this user, and those that ended and that nobody saw after that.
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
                // As long as the process is there, others may have to wait for it.
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

    /// A text that it says.
    pub(crate) fn text(&self, field: &str) -> Option<&str> {
        self.record.get(field)?.as_str()
    }

    /// Whether it changes its image.
    pub(crate) fn writes(&self) -> bool {
        self.record.get("writes").and_then(Value::as_bool) == Some(true)
    }

    /// Waits until it has read the table of mounts since now. A server that cannot be reached reads it by itself.
    pub(crate) fn wait_until_noticed(&self) {
        let Ok(mut socket) = UnixStream::connect(self.socket()) else {
            return;
        };
        // The server reads the table before the request. Without a request it closes the connection.
        drop(socket.shutdown(Shutdown::Write));
        drop(socket.read_to_end(&mut Vec::new()));
    }

    /// Where it listens.
    pub(crate) fn socket(&self) -> PathBuf {
        socket_beside(&self.path)
    }

    /// Whether a mount shows what this server serves. The image must be the same too. The system reuses the device
    /// number of a mount that is gone, while its server may still be at its last commit.
    pub(crate) fn is_shown_by(&self, mount: &Mounted) -> bool {
        mount.is_ours
            && self.text("device") == Some(mount.device.as_str())
            && self.text("image") == Some(mount.source.display().to_string().as_str())
    }

    /// Returns the mounts that show what this server serves, in their order.
    pub(crate) fn shown_by<'a>(&self, mounts: &'a [Mounted]) -> impl Iterator<Item = &'a Mounted> {
        mounts.iter().filter(|mount| self.is_shown_by(mount))
    }

    /// The server of a mount.
    pub(crate) fn of(mount: &Mounted) -> Result<Option<Self>> {
        let mut all = Self::all()?.into_iter();
        Ok(all.find(|known| known.is_shown_by(mount)))
    }

    /// Waits for servers of this image whose mount is gone already, as after a plain umount(8): they are at their last commit.
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

    /// Whether any directory shows what this server serves, for any process that can be seen.
    pub(crate) fn is_mounted(&self) -> bool {
        self.shown_by(&places::all()).next().is_some()
            || self.shown_by(&places::of_other_namespaces()).next().is_some()
    }

    /// The process, if it is still there.
    fn process(&self) -> Option<OwnedFd> {
        let field = |name| self.record.get(name).and_then(Value::as_u64);
        let pid = Pid::from_raw(i32::try_from(field("pid")?).ok()?)?;
        let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // It may be another one by that number.
        (began(pid)? == field("began")?).then_some(process)
    }

    /// Waits until the process is gone, and with it all that it had open.
    fn wait_for_process(&self) -> Result<()> {
        if let Some(process) = self.process() {
            poll(&mut [PollFd::new(&process, PollFlags::IN)], None)?;
        }
        Ok(())
    }

    /// Waits until the server is done with its image.
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
