//! A mount, and the descriptor that connects the kernel and the server.
//!
//! Root mounts with `mount(2)`. Other users mount with `fusermount3`, a set-user-id program that
//! checks permissions and passes the descriptor over a socket.
//!
//! If root mounts a block device for writing, the kernel claims the device for the mount
//! (`fuseblk`). It then asks the server to sync the mount with all other file systems. umount(8)
//! then returns only after the server has confirmed the end of its work.

use super::READ_AHEAD_BYTES;
use buttress::{AccessPolicy, AccessTimes};
use rustix::fd::{AsRawFd as _, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno as Os, FdFlags, IoSliceMut};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};
use std::ffi::{CString, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Error, ErrorKind, Write as _};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Type of the mount in `/proc/mounts`.
const TYPE: &str = "fuse.buttress";
/// Type of a block device's mount in `/proc/mounts`.
const BLOCK_TYPE: &str = "fuseblk.buttress";

/// Returns whether a type in `/proc/mounts` belongs to a server of this program.
#[must_use]
pub fn is_type_of_ours(name: &[u8]) -> bool {
    [TYPE, BLOCK_TYPE].iter().any(|known| known.as_bytes() == name)
}

/// Block size of a mounted block device in bytes; no current sector size exceeds it.
const BLOCK_BYTES: u32 = 4096;

const DEVICE: &str = "/dev/fuse";
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];

/// Options of a mount.
#[derive(Clone, Debug, Default)]
pub struct MountOptions {
    /// Source that `/proc/mounts` shows.
    pub source: OsString,
    /// Mounts read-only.
    pub read_only: bool,
    /// Allows access for users other than the mounting user.
    pub allow_other: bool,
    /// Honours set-user-id bits.
    pub suid: bool,
    /// Allows access to devices through device nodes.
    pub dev: bool,
    /// Forbids the execution of programs on the mount (`noexec`).
    pub no_exec: bool,
    /// Policy for access times. The server applies it; the kernel only shows it and its changes by
    /// a remount.
    pub accesses: AccessPolicy,
    /// Enables the kernel's write-back cache: the kernel sends written content at a sync or close
    /// of the file, or at any other time.
    pub writeback_cache: bool,
}

/// A mount to serve. Dropping the connection unmounts the file system.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) device: OwnedFd,
    directory: PathBuf,
    by_helper: bool,
    is_mounted: bool,
}

impl Connection {
    /// Mounts a file system on a directory.
    ///
    /// `claim`: the block device `options.source`, opened exclusively. The mount takes the claim
    /// over. While the claim changes hands, the device is unclaimed for a moment; if another
    /// process opens it then, this call fails.
    pub(super) fn mount(directory: &Path, options: &MountOptions, claim: Option<File>) -> io::Result<Self> {
        let directory = directory.canonicalize()?;
        if rustix::process::geteuid().is_root() {
            let mounted = match claim {
                Some(claim) => {
                    drop(claim);
                    mount_directly(&directory, options, true)
                }
                None => mount_directly(&directory, options, false),
            };
            match mounted {
                Ok(device) => {
                    return Ok(Self {
                        device,
                        directory,
                        by_helper: false,
                        is_mounted: true,
                    });
                }
                // The root user of a user namespace can only use the helper.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
                Err(error) => return Err(error),
            }
        }
        let device = mount_by_helper(&directory, options)?;
        Ok(Self {
            device,
            directory,
            by_helper: true,
            is_mounted: true,
        })
    }

    /// Records that another process unmounted the file system.
    pub(super) fn was_unmounted(&mut self) {
        self.is_mounted = false;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.is_mounted {
            // Drop cannot report an error, and no other method remains.
            let _ = unmount_at(&self.directory, self.by_helper, true);
        }
    }
}

/// Unmounts the file system on a directory; `lazy` unmounts as soon as no process uses it any more.
///
/// # Errors
/// The mount is busy, does not exist, or belongs to another user.
pub fn unmount(directory: &Path, lazy: bool) -> io::Result<()> {
    unmount_at(directory, !rustix::process::geteuid().is_root(), lazy)
}

fn unmount_at(directory: &Path, by_helper: bool, lazy: bool) -> io::Result<()> {
    if !by_helper {
        let flags = if lazy {
            UnmountFlags::DETACH
        } else {
            UnmountFlags::empty()
        };
        match rustix::mount::unmount(directory, flags | UnmountFlags::NOFOLLOW) {
            // This process has given up root privileges, but the mount helper has them.
            Err(Os::PERM) => {}
            ended => return Ok(ended?),
        }
    }
    let mut helper_arguments = vec![OsString::from("-u")];
    if lazy {
        helper_arguments.push("-z".into());
    }
    helper_arguments.push("--".into());
    helper_arguments.push(directory.as_os_str().to_owned());
    let mut last = Error::from(ErrorKind::NotFound);
    for helper in HELPERS {
        let ran = Command::new(helper)
            .args(&helper_arguments)
            .stdin(Stdio::null())
            .output();
        match ran {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => return Err(Error::other(said(&output.stderr, helper))),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Converts the output of the helper to an error text.
fn said(bytes: &[u8], helper: &str) -> String {
    let text = String::from_utf8_lossy(bytes);
    match text.trim() {
        "" => format!("{helper} failed without a message"),
        text => text.to_owned(),
    }
}

fn flags_of(options: &MountOptions) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOSUID, !options.suid);
    flags.set(MountFlags::NODEV, !options.dev);
    flags.set(MountFlags::NOEXEC, options.no_exec);
    let times = options.accesses.times;
    flags.set(MountFlags::NOATIME, times == AccessTimes::Never);
    flags.set(MountFlags::STRICTATIME, times == AccessTimes::Strict);
    flags.set(MountFlags::NODIRATIME, options.accesses.without_directories);
    flags
}

fn mount_directly(directory: &Path, options: &MountOptions, is_block_device: bool) -> io::Result<OwnedFd> {
    let device = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let mode = rustix::fs::stat(directory)?.st_mode & libc::S_IFMT;
    let mut data = format!(
        "fd={},rootmode={mode:o},user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    if is_block_device {
        data.push_str(&format!(",blksize={BLOCK_BYTES}"));
    }
    let data = CString::new(data)?;
    rustix::mount::mount(
        &options.source,
        directory,
        if is_block_device { BLOCK_TYPE } else { TYPE },
        flags_of(options),
        Some(data.as_c_str()),
    )?;
    read_further_ahead(directory, is_block_device);
    Ok(device)
}

/// Sets the kernel's readahead for the mount as for its own file systems. This limit must be set
/// before the negotiation. If it cannot be set, the kernel reads less far ahead.
fn read_further_ahead(directory: &Path, is_block_device: bool) {
    // This call must not send a request to the server, which does not run yet.
    let found = rustix::fs::statx(
        rustix::fs::CWD,
        directory,
        rustix::fs::AtFlags::STATX_DONT_SYNC,
        rustix::fs::StatxFlags::INO,
    );
    let Ok(found) = found else { return };
    let (major, minor) = (found.stx_dev_major, found.stx_dev_minor);
    // The read-ahead setting of the block device itself stays unchanged.
    let suffix = if is_block_device { "-fuseblk" } else { "" };
    let path = format!("/sys/class/bdi/{major}:{minor}{suffix}/read_ahead_kb");
    let opened = OpenOptions::new().write(true).open(path);
    drop(opened.map(|mut file| file.write_all((READ_AHEAD_BYTES >> 10).to_string().as_bytes())));
}

/// Builds the helper's options, with commas and backslashes in names escaped.
fn helper_options(options: &MountOptions) -> OsString {
    let escaped =
        options
            .source
            .clone()
            .into_vec()
            .into_iter()
            .fold(Vec::new(), |mut escaped: Vec<u8>, byte| {
                if byte == b',' || byte == b'\\' {
                    escaped.push(b'\\');
                }
                escaped.push(byte);
                escaped
            });
    let mut text = b"default_permissions,subtype=buttress,fsname=".to_vec();
    text.extend_from_slice(&escaped);
    for (is_wanted, option) in [
        (true, if options.read_only { ",ro" } else { ",rw" }),
        (!options.suid, ",nosuid"),
        (!options.dev, ",nodev"),
        (options.no_exec, ",noexec"),
        (options.accesses.times == AccessTimes::Never, ",noatime"),
        (options.allow_other, ",allow_other"),
    ] {
        if is_wanted {
            text.extend_from_slice(option.as_bytes());
        }
    }
    OsString::from_vec(text)
}

fn mount_by_helper(directory: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    let mut last = Error::from(ErrorKind::NotFound);
    for helper in HELPERS {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        // The helper finds its end of the socket by the descriptor number.
        rustix::io::fcntl_setfd(&theirs, FdFlags::empty())?;
        let child = Command::new(helper)
            .arg("-o")
            .arg(helper_options(options))
            .arg("--")
            .arg(directory)
            .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        drop(theirs);
        let child = match child {
            Ok(child) => child,
            Err(error) => {
                last = error;
                continue;
            }
        };
        let received = receive(&ours);
        let output = child.wait_with_output()?;
        return match received {
            Ok(device) => {
                rustix::io::fcntl_setfd(&device, FdFlags::CLOEXEC)?;
                Ok(device)
            }
            Err(_) => Err(Error::other(said(&output.stderr, helper))),
        };
    }
    Err(Error::new(
        last.kind(),
        format!("cannot run fusermount3 ({last}); install the package fuse3"),
    ))
}

/// Receives a descriptor over a socket.
fn receive(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut byte)],
        &mut ancillary,
        RecvFlags::empty(),
    )?;
    let mut messages = ancillary.drain();
    let found = messages.find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    found.ok_or_else(|| Error::from(ErrorKind::UnexpectedEof))
}
