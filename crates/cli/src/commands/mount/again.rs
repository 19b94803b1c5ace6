//! Further mounts of a mounted volume.
//!
//! - `-o remount` changes the mount to read-only, or back to writable. If a mount began read-only,
//!   a remount for writing unmounts and mounts again. For such a remount, it must be idle: its
//!   server has its devices open for reading, and can open no other files.
//! - On another directory, the same image shows the root of the existing server's mount, as with
//!   `mount --bind`. Linux also has one state for all mounts of a file system. The second mount can
//!   be unmounted separately; the server ends with the last mount.
//!
//! Both require root. Requests that need the server to open the volume again are refused on another
//! directory: writing to a read-only mount, and a subvolume outside of the mounted one.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, anyhow};
use buttress_mount::fuse;
use rustix::mount::{MountFlags, MountPropagationFlags, mount_bind, mount_change, mount_remount};

use super::access_times;
use super::options::MountWishes;
use super::registry::Known;
use crate::exit::{Advice, Outcome, usage};
use crate::globals::Globals;
use crate::mounted::places::{self, Mounted};

/// Root of the top-level subvolume in a server's record.
pub(super) const TOP: &str = "5:256";

/// Returns the mount flags for these options.
fn flags_of(wishes: &MountWishes) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, !wishes.write);
    flags.set(MountFlags::NOSUID, wishes.suid == Some(false));
    flags.set(MountFlags::NODEV, wishes.dev == Some(false));
    flags.set(MountFlags::NOEXEC, wishes.no_exec);
    flags | access_times::flags(wishes.accesses)
}

/// Returns the options of a mount that a remount can change.
fn wishes_of(mount: &Mounted) -> MountWishes {
    let has = |name: &str| mount.options.split(',').any(|option| option == name);
    MountWishes {
        write: !mount.is_read_only,
        suid: Some(!has("nosuid")),
        dev: Some(!has("nodev")),
        no_exec: has("noexec"),
        accesses: access_times::of_table(&mount.options),
        ..MountWishes::default()
    }
}

/// Returns the mount on a directory, and its server.
fn server_of(directory: &Path) -> Result<(Mounted, Known)> {
    let mounts = places::all();
    let mount = places::top(&mounts, directory).filter(|mount| mount.is_ours);
    let mount = mount.with_context(|| format!("{}: not a mount of this program", directory.display()))?;
    let server = Known::of(mount)?;
    let server =
        server.with_context(|| format!("{}: the server belongs to another user", directory.display()))?;
    Ok((mount.clone(), server))
}

/// Returns the number of mounts with the same device as the mount on a directory.
fn mounts_of_same(directory: &Path) -> usize {
    let mounts = places::all();
    let device = places::top(&mounts, directory).map(|mount| mount.device.clone());
    mounts
        .iter()
        .filter(|mount| Some(&mount.device) == device.as_ref())
        .count()
}

/// Unmounts a read-only mount, and mounts it again with the same and further options.
fn mount_anew(server: Known, directory: &Path, further: &OsStr) -> Result<Outcome> {
    let refused = |why: &str| {
        Err(anyhow!("{} is mounted read-only{why}", directory.display()))
            .context(Advice::new("unmount it, and mount it with -o rw"))
    };
    let (Some(first), Some(image)) = (server.text("options"), server.text("image")) else {
        return refused(", with overlay or device options");
    };
    if mounts_of_same(directory) > 1 {
        return refused(", and is mounted on another directory, too");
    }
    let (first, image) = (OsString::from(first), OsString::from(image));
    match fuse::unmount(directory, false) {
        Ok(()) => server.wait()?,
        Err(_) => return refused(", and is in use"),
    }
    let remount = |part: &&OsStr| *part != OsStr::new("remount");
    let further: Vec<&OsStr> = further
        .as_bytes()
        .split(|byte| *byte == b',')
        .map(OsStr::from_bytes)
        .filter(remount)
        .collect();
    let mount = |further: &OsStr| -> Result<()> {
        let program = std::env::current_exe().context("finding this program")?;
        let mut command = Command::new(program);
        command.arg("mount");
        for options in [first.as_os_str(), further] {
            if !options.is_empty() {
                command.arg("-o").arg(options);
            }
        }
        let done = command.arg(&image).arg(directory).output()?;
        match done.status.success() {
            true => Ok(()),
            false => Err(anyhow!(
                "{}",
                String::from_utf8_lossy(&done.stderr).trim().to_owned()
            )),
        }
    };
    let mounted = mount(&further.join(OsStr::new(",")));
    if mounted.is_err() {
        mount(OsStr::new("")).with_context(|| {
            format!(
                "{} could not be mounted again, and is unmounted now",
                directory.display()
            )
        })?;
    }
    mounted.with_context(|| format!("mounting {} read-write", directory.display()))?;
    Ok(Outcome::Done)
}

/// Changes options of a mount. Mount options that `options` does not name stay unchanged.
pub(super) fn remount(directory: &Path, options: &OsStr) -> Result<Outcome> {
    let (mount, server) = server_of(directory)?;
    let mut wishes = wishes_of(&mount);
    wishes.take(options, &mut Globals::default())?;
    if wishes.write && !server.writes() {
        return mount_anew(server, directory, options);
    }
    mount_remount(directory, flags_of(&wishes), c"")
        .with_context(|| format!("remounting {}", directory.display()))
        .map_err(|error| match rustix::process::geteuid().is_root() {
            true => error,
            false => error.context(Advice::new(
                "only root changes the options of a mount: unmount it, and mount it with other options",
            )),
        })?;
    server.wait_until_noticed();
    if !wishes.write && server.writes() {
        commit(directory).with_context(|| format!("committing changes to {}", directory.display()))?;
    }
    Ok(Outcome::Done)
}

/// Asks the server of a mount to commit.
pub(super) fn commit(directory: &Path) -> Result<()> {
    let program = std::env::current_exe().context("finding this program")?;
    let done = Command::new(program)
        .args(["filesystem", "sync"])
        .arg(directory)
        .output()?;
    match done.status.success() {
        true => Ok(()),
        false => Err(anyhow!("{}", String::from_utf8_lossy(&done.stderr).trim())),
    }
}

/// Returns the path of the requested root, relative to the root that a server serves. Returns
/// `None` if the server does not serve the requested root.
fn path_inside(server: &Known, globals: &Globals) -> Option<PathBuf> {
    let wished = globals.subvolume.as_deref();
    let is_same = globals.subvolume_id.is_none()
        && wished.map(|path| path.to_string_lossy().into_owned()).as_deref() == server.text("subvolume");
    if is_same {
        return Some(PathBuf::from("/"));
    }
    let path = wished.filter(|_| server.text("root") == Some(TOP))?;
    let below = Path::new(path)
        .components()
        .filter(|part| matches!(part, std::path::Component::Normal(_)));
    Some(Path::new("/").join(below.collect::<PathBuf>()))
}

/// Returns the directory at which one of a server's mounts shows the requested root.
fn inside<'a>(
    server: &Known,
    globals: &Globals,
    mut mounts: impl Iterator<Item = &'a Mounted>,
) -> Option<PathBuf> {
    let wished = path_inside(server, globals)?;
    mounts.find_map(|mount| {
        let below = wished.strip_prefix(&mount.root).ok()?;
        // A join with an empty path ends with a slash; collecting the components removes it.
        Some(mount.directory.join(below).components().collect())
    })
}

/// Mounts the root of a mounted volume on another directory, through its existing server. Returns
/// `None` if there is no such server, or if the caller is not root.
pub(super) fn bind(
    image: &Path,
    directory: &Path,
    wishes: &MountWishes,
    globals: &Globals,
    option_of_server: Option<&'static str>,
) -> Result<Option<Outcome>> {
    if !rustix::process::geteuid().is_root() || image.as_os_str() == OsStr::new("") {
        return Ok(None);
    }
    let Ok(image) = image.canonicalize() else {
        return Ok(None);
    };
    let mounts = places::all();
    let is_of_image = |known: &Known| known.text("image").map(Path::new) == Some(&image);
    let is_it = |known: &Known| is_of_image(known) && known.shown_by(&mounts).next().is_some();
    let Some(server) = Known::all()?.into_iter().find(is_it) else {
        return Ok(None);
    };
    let shown_on = server.shown_by(&mounts).next();
    let shown_on = shown_on.map_or(Path::new(""), |mount| mount.directory.as_path());
    let shown = image.display();
    if let Some(option) = option_of_server {
        return Err(usage(format_args!(
            "{option}: {shown} is already mounted on {}, and its server adds another directory",
            shown_on.display()
        )));
    }
    if wishes.write && !server.writes() {
        return Err(anyhow!(
            "{shown} is already mounted read-only on {}",
            shown_on.display()
        ))
        .context(Advice::new("unmount it there first, or mount it read-only"));
    }
    let Some(from) = inside(&server, globals, server.shown_by(&mounts)) else {
        return Err(anyhow!(
            "{shown} is already mounted on {}, which does not contain this subvolume",
            shown_on.display()
        ))
        .context(Advice::new(
            "mount the top-level subvolume first (-o subvol=/), or unmount it there",
        ));
    };
    mount_bind(&from, directory).with_context(|| {
        format!(
            "mounting {}: {shown} is already mounted on {}",
            from.display(),
            directory.display()
        )
    })?;
    // Make the mount private, as for two mounts of one device: later mounts below one of them do
    // not appear below the other.
    mount_change(directory, MountPropagationFlags::PRIVATE).context("separating the two mounts")?;
    if !wishes.write {
        let flags = flags_of(wishes) | MountFlags::BIND;
        mount_remount(directory, flags, c"").context("making the second mount read-only")?;
    }
    Ok(Some(Outcome::Done))
}
