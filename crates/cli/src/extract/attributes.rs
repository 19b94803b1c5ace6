//! Owner, mode, extended attributes and times of what is taken out.
//!
//! In this order, for each: owner (which clears set-uid and capabilities), attributes, mode, times. What an
//! ordinary user may not set (owners, `trusted.` and `security.` attributes), or the destination's file system cannot
//! hold, is counted and said once in the end; device nodes that could not be made likewise, as an error, for they are
//! missing. Everything else that fails is an error at once.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result};
use buttress_format::Timestamp;
use buttress_fs::{WalkEntry, Xattr};
use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::Shared;

/// What is kept beside content, names and permission bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preserve {
    /// Nothing: modes pass through the umask, times are those of the copying, as `cp -r` does.
    Nothing,
    /// Everything: owners, modes, times, extended attributes, as `cp -a` does.
    All,
}

impl Preserve {
    /// Whether everything is kept.
    pub fn all(self) -> bool {
        self == Self::All
    }
}

/// What the system did not permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    Owner,
    Attribute,
    DeviceNode,
}

/// What is to be said of it when all is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// How often what was refused, and why.
    pub text: String,
    /// Whether something is missing for it that was asked for. Otherwise it is there, less some of its attributes, as
    /// everybody has to expect who is not privileged.
    pub is_loss: bool,
}

/// How often it did not.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    owners: AtomicU64,
    attributes: AtomicU64,
    device_nodes: AtomicU64,
}

impl Refusals {
    fn counter(&self, refused: Refused) -> &AtomicU64 {
        match refused {
            Refused::Owner => &self.owners,
            Refused::Attribute => &self.attributes,
            Refused::DeviceNode => &self.device_nodes,
        }
    }

    pub(super) fn count(&self, refused: Refused) {
        self.counter(refused).fetch_add(1, Ordering::Relaxed);
    }

    /// What is to be said about it.
    pub(super) fn list(&self) -> Vec<Refusal> {
        [
            (
                Refused::Owner,
                "owners were not kept: only a privileged user can give files away",
                false,
            ),
            (
                Refused::Attribute,
                "extended attributes were not kept: the system or its file system refused them",
                false,
            ),
            (
                Refused::DeviceNode,
                "device nodes were left out: only a privileged user can make them",
                true,
            ),
        ]
        .into_iter()
        .filter_map(|(refused, text, is_loss)| {
            let count = self.counter(refused).load(Ordering::Relaxed);
            (count > 0).then(|| Refusal {
                text: format!("{count} {text}"),
                is_loss,
            })
        })
        .collect()
    }
}

/// What one file, directory or link gets.
#[derive(Clone, Debug)]
pub(super) struct Attributes {
    /// For messages.
    pub(super) path: Vec<u8>,
    /// Permission bits with set-uid, set-gid and sticky.
    pub(super) permissions: u32,
    kept: Option<Box<Kept>>,
}

/// What is kept only with [`Preserve::All`].
#[derive(Clone, Debug)]
struct Kept {
    uid: u32,
    gid: u32,
    times: Timestamps,
    xattrs: Vec<Xattr>,
}

impl Attributes {
    /// Those of an entry, as far as they are to be kept.
    pub(super) fn of(entry: &WalkEntry, shared: &Shared) -> Self {
        let metadata = entry.metadata();
        let kept = shared.preserve.all().then(|| {
            Box::new(Kept {
                uid: metadata.uid,
                gid: metadata.gid,
                times: Timestamps {
                    last_access: timespec(metadata.accessed),
                    last_modification: timespec(metadata.modified),
                },
                xattrs: entry.xattrs().to_vec(),
            })
        });
        Self {
            path: entry.path(),
            permissions: metadata.permissions(),
            kept,
        }
    }

    /// Finishes a regular file.
    pub(super) fn apply_to_file(&self, file: &File, shared: &Shared) -> Result<()> {
        self.apply(file, shared)
    }

    /// Finishes a directory.
    pub(super) fn apply_to_directory(&self, directory: impl AsFd, shared: &Shared) -> Result<()> {
        if self.kept.is_some() {
            return self.apply(directory, shared);
        }
        // The directory was made with all rights of its owner, so that files could be made in it.
        if self.permissions & 0o700 != 0o700 {
            rustix::fs::fchmod(directory, Mode::from_raw_mode(self.permissions & 0o777))
                .context("setting its mode")?;
        }
        Ok(())
    }

    fn apply(&self, fd: impl AsFd, shared: &Shared) -> Result<()> {
        let Some(kept) = &self.kept else { return Ok(()) };
        let fd = fd.as_fd();
        let (uid, gid) = (Some(Uid::from_raw(kept.uid)), Some(Gid::from_raw(kept.gid)));
        permitted(rustix::fs::fchown(fd, uid, gid), Refused::Owner, shared).context("setting its owner")?;
        for Xattr { name, value } in &kept.xattrs {
            let set = rustix::fs::fsetxattr(fd, OsStr::from_bytes(name), value, XattrFlags::empty());
            permitted(set, Refused::Attribute, shared)
                .with_context(|| format!("setting its attribute {}", name.escape_ascii()))?;
        }
        rustix::fs::fchmod(fd, Mode::from_raw_mode(self.permissions)).context("setting its mode")?;
        rustix::fs::futimens(fd, &kept.times).context("setting its times")
    }

    /// Finishes something that cannot be opened for this: a link (which has no mode), a device, a pipe.
    pub(super) fn apply_to_name(
        &self,
        directory: impl AsFd,
        name: &OsStr,
        is_link: bool,
        shared: &Shared,
    ) -> Result<()> {
        let Some(kept) = &self.kept else { return Ok(()) };
        let directory = directory.as_fd();
        let (uid, gid) = (Some(Uid::from_raw(kept.uid)), Some(Gid::from_raw(kept.gid)));
        let owner = rustix::fs::chownat(directory, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW);
        permitted(owner, Refused::Owner, shared).context("setting its owner")?;
        if !kept.xattrs.is_empty() {
            self.set_xattrs_by_name(directory, name, kept, shared)?;
        }
        if !is_link {
            // It was made a moment ago by this program, by a name that was free: it is no link.
            rustix::fs::chmodat(
                directory,
                name,
                Mode::from_raw_mode(self.permissions),
                AtFlags::empty(),
            )
            .context("setting its mode")?;
        }
        rustix::fs::utimensat(directory, name, &kept.times, AtFlags::SYMLINK_NOFOLLOW)
            .context("setting its times")
    }

    /// Attributes of links and special files go by a path below `/proc/self/fd`, which does not follow the link.
    fn set_xattrs_by_name(
        &self,
        directory: impl AsFd,
        name: &OsStr,
        kept: &Kept,
        shared: &Shared,
    ) -> Result<()> {
        use std::os::fd::AsRawFd;
        let path = std::path::Path::new("/proc/self/fd")
            .join(directory.as_fd().as_raw_fd().to_string())
            .join(name);
        for Xattr { name, value } in &kept.xattrs {
            let set = rustix::fs::lsetxattr(&path, OsStr::from_bytes(name), value, XattrFlags::empty());
            permitted(set, Refused::Attribute, shared)
                .with_context(|| format!("setting its attribute {}", name.escape_ascii()))?;
        }
        Ok(())
    }
}

/// Counts a refusal that an unprivileged user has to expect; passes on other errors.
fn permitted(result: Result<(), Errno>, refused: Refused, shared: &Shared) -> Result<(), Errno> {
    match result {
        Err(Errno::PERM | Errno::ACCESS) => {
            shared.refusals.count(refused);
            Ok(())
        }
        Err(Errno::OPNOTSUPP | Errno::INVAL) if refused == Refused::Attribute => {
            shared.refusals.count(refused);
            Ok(())
        }
        other => other,
    }
}

/// A time stamp for the system. Nanoseconds from disk may be out of range.
fn timespec(time: Timestamp) -> Timespec {
    Timespec {
        tv_sec: time.seconds,
        tv_nsec: i64::from(time.nanoseconds.min(999_999_999)),
    }
}
