//! Owner, mode, extended attributes and times of extracted files.
//!
//! Each file gets its owner (which clears set-user-id and capabilities), extended attributes, mode
//! and times, in this order. Until a file or directory has its attributes, only the user of the
//! command can read or enter it.
//!
//! An ordinary user cannot set some attributes (owners, `trusted.` and `security.` attributes), and
//! the destination's file system may lack others, or space for them beside the inode. Failures to set
//! such attributes are counted and reported once at the end, similar to `cp -a`. Device nodes that
//! were not created are missing from the copy, which is a loss. Every other failure is an error.
//!
//! **A file without its original owner gets none of the owner's special rights.** As in GNU cp and
//! tar, set-user-id and set-group-id are cleared, and `security.capability` is omitted. The sticky
//! bit stays, because it removes rights. Permission bits and ACLs are kept, as in cp: the image
//! could grant the same rights to every user.
//!
//! With [`Preserve::All`](super::Preserve::All) a privileged user gets everything in the volume, including set-user-id
//! files, device nodes and `trusted.` attributes, as from `cp -a`. With [`Preserve::Nothing`](super::Preserve::Nothing), the
//! extractor creates no set-user-id files, no device nodes and no extended attributes.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result};
use buttress::{Timestamp, WalkEntry, Xattr};
use rustix::fs::{AtFlags, CWD, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::Shared;
use super::beneath::Node;

/// An operation that the system refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The system refuses to set the owner, or the owner does not exist on this system.
    Owner,
    /// Setting set-user-id or set-group-id: the copy could not preserve the owner.
    SpecialMode,
    /// Setting an extended attribute failed: the system refuses the attribute, or the file system
    /// does not support it or its size.
    Attribute,
    /// The system refuses to create a device node.
    DeviceNode,
    /// Creating a device node: the user did not ask for it.
    UnwantedDeviceNode,
}

/// Report about refused operations at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Count of refused operations, with the reason.
    pub text: String,
    /// True if requested files are missing. Otherwise the files exist without some attributes, as
    /// an unprivileged user must expect.
    pub is_loss: bool,
}

/// Counts of refused operations by kind.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    owners: AtomicU64,
    special_modes: AtomicU64,
    attributes: AtomicU64,
    device_nodes: AtomicU64,
    unwanted_device_nodes: AtomicU64,
}

impl Refusals {
    fn counter(&self, refused: Refused) -> &AtomicU64 {
        match refused {
            Refused::Owner => &self.owners,
            Refused::SpecialMode => &self.special_modes,
            Refused::Attribute => &self.attributes,
            Refused::DeviceNode => &self.device_nodes,
            Refused::UnwantedDeviceNode => &self.unwanted_device_nodes,
        }
    }

    pub(super) fn count(&self, refused: Refused) {
        self.counter(refused).fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the reports about refused operations.
    pub(super) fn list(&self) -> Vec<Refusal> {
        [
            (
                Refused::Owner,
                false,
                "owners were not preserved: only a privileged user can change owners",
            ),
            (
                Refused::SpecialMode,
                false,
                "files lost set-uid or set-gid, because their owners were not preserved",
            ),
            (
                Refused::Attribute,
                false,
                "extended attributes were not preserved: the host or its file system refused them",
            ),
            (
                Refused::DeviceNode,
                true,
                "device nodes were left out: only a privileged user can create them",
            ),
            (
                Refused::UnwantedDeviceNode,
                true,
                "device nodes were left out: to copy them, give -a",
            ),
        ]
        .into_iter()
        .filter_map(|(refused, is_loss, text)| {
            let count = self.counter(refused).load(Ordering::Relaxed);
            (count > 0).then(|| Refusal {
                text: format!("{count} {text}"),
                is_loss,
            })
        })
        .collect()
    }
}

/// Attributes for one file, directory or link.
#[derive(Clone, Debug)]
pub(super) struct Attributes {
    /// Path for messages.
    pub(super) path: Vec<u8>,
    /// Permission bits with set-user-id, set-group-id and sticky.
    pub(super) permissions: u32,
    kept: Option<Box<Kept>>,
}

/// Attributes that a copy preserves only if the user asks for them.
#[derive(Clone, Debug)]
struct Kept {
    uid: u32,
    gid: u32,
    times: Timestamps,
    xattrs: Vec<Xattr>,
}

impl Attributes {
    /// Returns the attributes of an entry that are to be preserved.
    pub(super) fn of(entry: &WalkEntry, shared: &Shared) -> Self {
        let metadata = entry.metadata();
        let preserve = shared.preserve;
        let kept = (preserve.metadata() || preserve.xattrs()).then(|| {
            Box::new(Kept {
                uid: metadata.uid,
                gid: metadata.gid,
                times: Timestamps {
                    last_access: timespec(metadata.accessed),
                    last_modification: timespec(metadata.modified),
                },
                xattrs: match preserve.xattrs() {
                    true => entry.xattrs().to_vec(),
                    false => Vec::new(),
                },
            })
        });
        Self {
            path: entry.path(),
            permissions: metadata.permissions(),
            kept,
        }
    }

    /// Finishes a regular file, or a directory whose attributes are all preserved.
    pub(super) fn apply_to_file(&self, fd: impl AsFd, inherits_acl: bool, shared: &Shared) -> Result<()> {
        let Some(kept) = &self.kept else { return Ok(()) };
        let fd = fd.as_fd();
        let keeps_metadata = shared.preserve.metadata();
        let is_owned =
            keeps_metadata && set_owner(kept, shared, |uid, gid| rustix::fs::fchown(fd, uid, gid))?;
        if inherits_acl {
            for name in [ACCESS_ACL, DEFAULT_ACL] {
                // Usually, the new file has no inherited attribute; the file's own attributes are
                // set below.
                let _ = rustix::fs::fremovexattr(fd, name);
            }
        }
        self.set_xattrs(kept, is_owned, shared, |name, value| {
            rustix::fs::fsetxattr(fd, name, value, XattrFlags::empty())
        })?;
        if !keeps_metadata {
            return Ok(());
        }
        rustix::fs::fchmod(fd, self.mode(is_owned, shared)).context("setting its mode")?;
        rustix::fs::futimens(fd, &kept.times).context("setting its times")
    }

    /// Finishes a directory.
    pub(super) fn apply_to_directory(
        &self,
        directory: impl AsFd,
        inherits_acl: bool,
        shared: &Shared,
    ) -> Result<()> {
        if self.kept.is_some() {
            self.apply_to_file(directory.as_fd(), inherits_acl, shared)?;
        }
        if shared.preserve.metadata() {
            return Ok(());
        }
        // The directory was created with all rights of its owner, so that files can be created in
        // it.
        if self.permissions & 0o700 != 0o700 {
            rustix::fs::fchmod(directory, Mode::from_raw_mode(self.permissions & 0o777))
                .context("setting its mode")?;
        }
        Ok(())
    }

    /// Finishes a file whose attributes cannot be set through an open descriptor: a link (which has
    /// no mode), a device, a pipe.
    pub(super) fn apply_to_node(
        &self,
        node: &Node,
        is_link: bool,
        inherits_acl: bool,
        shared: &Shared,
    ) -> Result<()> {
        let Some(kept) = &self.kept else { return Ok(()) };
        let path = node.path();
        let keeps_metadata = shared.preserve.metadata();
        let is_owned = keeps_metadata
            && set_owner(kept, shared, |uid, gid| {
                rustix::fs::chownat(node.fd(), "", uid, gid, AtFlags::EMPTY_PATH)
            })?;
        if inherits_acl && !is_link {
            // As for regular files, remove an inherited ACL.
            let _ = rustix::fs::removexattr(&path, ACCESS_ACL);
        }
        self.set_xattrs(kept, is_owned, shared, |name, value| {
            rustix::fs::setxattr(&path, name, value, XattrFlags::empty())
        })?;
        if !keeps_metadata {
            return Ok(());
        }
        if !is_link {
            rustix::fs::chmod(&path, self.mode(is_owned, shared)).context("setting its mode")?;
        }
        match rustix::fs::utimensat(node.fd(), "", &kept.times, AtFlags::EMPTY_PATH) {
            // Kernels before 5.8 lack `utimensat` with an empty path.
            Err(Errno::INVAL | Errno::NOENT) => {
                rustix::fs::utimensat(CWD, &path, &kept.times, AtFlags::empty())
            }
            other => other,
        }
        .context("setting its times")
    }

    /// Returns the mode for the file.
    fn mode(&self, is_owned: bool, shared: &Shared) -> Mode {
        if is_owned || self.permissions & SPECIAL == 0 {
            return Mode::from_raw_mode(self.permissions & 0o7777);
        }
        shared.refusals.count(Refused::SpecialMode);
        Mode::from_raw_mode(self.permissions & 0o7777 & !SPECIAL)
    }

    fn set_xattrs(
        &self,
        kept: &Kept,
        is_owned: bool,
        shared: &Shared,
        set: impl Fn(&OsStr, &[u8]) -> Result<(), Errno>,
    ) -> Result<()> {
        for Xattr { name, value } in &kept.xattrs {
            let result = if name == CAPABILITY && !is_owned {
                Err(Errno::PERM)
            } else {
                set(OsStr::from_bytes(name), value)
            };
            match result {
                Err(errno) if refuses_attribute(errno) => shared.refusals.count(Refused::Attribute),
                result => {
                    result.with_context(|| format!("setting its attribute {}", name.escape_ascii()))?;
                }
            }
        }
        Ok(())
    }
}

/// Returns whether the host refuses this one attribute: the file is complete without it.
///
/// File systems limit the attributes of one file. ext4 reports such a limit as `ENOSPC`, others as
/// `E2BIG` or `ERANGE`. If the disk itself is full, the next write reports that.
fn refuses_attribute(errno: Errno) -> bool {
    let is_forbidden = matches!(errno, Errno::PERM | Errno::ACCESS);
    let is_unsupported = matches!(errno, Errno::OPNOTSUPP | Errno::INVAL | Errno::NAMETOOLONG);
    let is_too_large = matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::TOOBIG | Errno::RANGE);
    is_forbidden || is_unsupported || is_too_large
}

/// The set-user-id and set-group-id bits.
const SPECIAL: u32 = 0o6000;

/// Extended attribute that grants capabilities to a program.
const CAPABILITY: &[u8] = b"security.capability";

const ACCESS_ACL: &str = "system.posix_acl_access";
pub(super) const DEFAULT_ACL: &str = "system.posix_acl_default";

/// Sets owner and group, or only the group if more is not permitted. Returns whether both the owner
/// and the group were set.
fn set_owner(
    kept: &Kept,
    shared: &Shared,
    set: impl Fn(Option<Uid>, Option<Gid>) -> Result<(), Errno>,
) -> Result<bool> {
    // For the system the largest number means no change; no file can have such an owner.
    let uid = (kept.uid != u32::MAX).then(|| Uid::from_raw(kept.uid));
    let gid = (kept.gid != u32::MAX).then(|| Gid::from_raw(kept.gid));
    let result = match (uid, gid) {
        (Some(_), Some(_)) => set(uid, gid),
        _ => Err(Errno::INVAL),
    };
    match result {
        Ok(()) => Ok(true),
        // In a container, the owner's number may not be mapped.
        Err(Errno::PERM | Errno::ACCESS | Errno::INVAL) => {
            shared.refusals.count(Refused::Owner);
            if gid.is_some() {
                // As in cp, the extractor then sets at least the group, which grants no rights
                // beyond the user's own.
                let _ = set(None, gid);
            }
            Ok(false)
        }
        Err(error) => Err(error).context("setting its owner"),
    }
}

/// Converts a timestamp for the system. Nanoseconds from disk may be out of range.
fn timespec(time: Timestamp) -> Timespec {
    Timespec {
        tv_sec: time.seconds,
        tv_nsec: i64::from(time.nanoseconds.min(999_999_999)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Preserve;
    use super::*;
    use buttress::Progress;
    use std::fs::{self, File};
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn shared() -> Shared {
        Shared {
            preserve: Preserve::All,
            replacing: crate::replacing::Replacing::default(),
            sources: crate::sources::Sources::default(),
            progress: Progress::new(),
            review: None,
            refusals: Refusals::default(),
            files: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            errors: parking_lot::Mutex::new(Vec::new()),
            ended: std::sync::atomic::AtomicBool::new(false),
            destination: "here".into(),
        }
    }

    fn attributes(uid: u32, permissions: u32) -> Attributes {
        let time = timespec(Timestamp::default());
        Attributes {
            path: Vec::new(),
            permissions,
            kept: Some(Box::new(Kept {
                uid,
                gid: rustix::process::getegid().as_raw(),
                times: Timestamps {
                    last_access: time,
                    last_modification: time,
                },
                xattrs: vec![Xattr {
                    name: CAPABILITY.to_vec(),
                    value: vec![1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                }],
            })),
        }
    }

    fn mode(path: &std::path::Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_replacement_of_a_node_gets_no_attributes() {
        let folder = tempfile::tempdir().unwrap();
        let (pipe, victim) = (folder.path().join("pipe"), folder.path().join("victim"));
        fs::write(&victim, "as it was").unwrap();
        fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).unwrap();
        let directory = File::open(folder.path()).unwrap();
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(&directory, "pipe", kind, Mode::RUSR, 0).unwrap();
        let node = Node::open(&directory, OsStr::new("pipe")).unwrap();
        let moved = folder.path().join("moved");
        fs::rename(&pipe, &moved).unwrap();
        symlink(&victim, &pipe).unwrap();
        let own = rustix::process::geteuid().as_raw();
        attributes(own, 0o666)
            .apply_to_node(&node, false, false, &shared())
            .unwrap();
        assert_eq!((mode(&moved), mode(&victim)), (0o666, 0o600));
        assert!(fs::metadata(&victim).unwrap().modified().unwrap() > std::time::UNIX_EPOCH);
    }

    #[test]
    fn attributes_that_do_not_fit_the_host_end_no_copy() {
        let errnos = [Errno::NOSPC, Errno::DQUOT, Errno::TOOBIG, Errno::RANGE];
        let shared = shared();
        let attributes = attributes(0, 0o600);
        let kept = attributes.kept.as_ref().unwrap();
        for errno in errnos {
            attributes
                .set_xattrs(kept, true, &shared, |_, _| Err(errno))
                .unwrap();
        }
        let refusals = shared.refusals.list();
        assert_eq!(refusals.len(), 1, "{refusals:?}");
        assert!(refusals[0].text.starts_with("4 extended attributes") && !refusals[0].is_loss);
        for errno in [Errno::IO, Errno::ROFS] {
            attributes
                .set_xattrs(kept, true, &shared, |_, _| Err(errno))
                .unwrap_err();
        }
    }

    /// No system permits this owner, so the test applies even to root.
    #[test]
    fn rights_go_with_the_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        let file = File::create(&path).unwrap();
        let shared = shared();
        attributes(u32::MAX, 0o6755)
            .apply_to_file(&file, false, &shared)
            .unwrap();
        assert_eq!(mode(&path), 0o755);
        assert!(rustix::fs::fgetxattr(&file, OsStr::from_bytes(CAPABILITY), &mut [0u8; 64]).is_err());
        let refused: Vec<String> = shared
            .refusals
            .list()
            .into_iter()
            .map(|refusal| refusal.text)
            .collect();
        assert_eq!(refused.len(), 3, "{refused:?}");
        let own = rustix::process::geteuid().as_raw();
        attributes(own, 0o4755)
            .apply_to_file(&file, false, &shared)
            .unwrap();
        assert_eq!(mode(&path), 0o4755);
    }
}
