//! Mounts of what is mounted already.
//!
//! - `-o remount`: the same mount, from now on for reading only, or for changes again.
//! - The same image on another directory: a server has an image for itself, so the other directory shows what the server's own mount shows, as
//!   `mount --bind` does. Linux keeps one state for all mounts of a file system, too. The second mount goes by itself; the server ends with the
//!   last one.
//!
//! Both are root's. What would need the server to open the volume anew is refused: changes of what was mounted for reading, and a subvolume
//! that does not lie below the mounted one.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use rustix::mount::{MountFlags, MountPropagationFlags, mount_bind, mount_change, mount_remount};

use super::options::MountWishes;
use super::registry::Known;
use crate::exit::{Advice, Outcome};
use crate::globals::Globals;
use crate::mounted::places;

/// The root of the top-level subvolume, as a server's record has it.
pub(super) const TOP: &str = "5:256";

/// What else a mount can be told to be, without its server.
fn flags_of(wishes: &MountWishes) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, !wishes.write);
    flags.set(MountFlags::NOSUID, wishes.suid == Some(false));
    flags.set(MountFlags::NODEV, wishes.dev == Some(false));
    flags.set(MountFlags::NOEXEC, wishes.no_exec);
    flags.set(MountFlags::NOATIME, wishes.no_access_times);
    flags
}

/// The server of what is mounted on a directory.
fn server_of(directory: &Path) -> Result<Known> {
    let mounts = places::all();
    let device_of = |directory: &Path| {
        let mut on_it = mounts.iter().rev();
        let mount = on_it.find(|mount| mount.directory == directory && mount.is_ours)?;
        Some(mount.device.clone())
    };
    let device = device_of(directory)
        .with_context(|| format!("{} is not a mount of this program's", directory.display()))?;
    let known = Known::all()?;
    let mut of_device = known
        .into_iter()
        .filter(|known| device_of(known.directory()).as_ref() == Some(&device));
    of_device
        .next()
        .with_context(|| format!("no server of {} is known", directory.display()))
}

/// Changes how something is mounted.
pub(super) fn remount(directory: &Path, wishes: &MountWishes) -> Result<Outcome> {
    let server = server_of(directory)?;
    if wishes.write && !server.writes() {
        return Err(anyhow!("{} was mounted for reading", directory.display()))
            .context(Advice::new("unmount it, and mount it with -o rw"));
    }
    mount_remount(directory, flags_of(wishes), c"")
        .with_context(|| format!("remounting {}", directory.display()))?;
    if !wishes.write {
        commit(directory)
            .with_context(|| format!("committing what was written to {}", directory.display()))?;
    }
    Ok(Outcome::Done)
}

/// Has the server commit.
fn commit(directory: &Path) -> Result<()> {
    let program = std::env::current_exe().context("finding this program")?;
    let done = std::process::Command::new(program)
        .args(["filesystem", "sync"])
        .arg(directory)
        .output()?;
    match done.status.success() {
        true => Ok(()),
        false => Err(anyhow!("{}", String::from_utf8_lossy(&done.stderr).trim())),
    }
}

/// What a server's mount shows at the root that is wished for.
fn inside(server: &Known, globals: &Globals) -> Option<PathBuf> {
    let wished = globals.subvolume.as_deref();
    let is_same = globals.subvolume_id.is_none()
        && wished.map(|path| path.to_string_lossy().into_owned()).as_deref() == server.text("subvolume");
    if is_same {
        return Some(server.directory().to_owned());
    }
    let path = wished.filter(|_| server.text("root") == Some(TOP))?;
    let below: PathBuf = Path::new(path)
        .components()
        .filter(|part| matches!(part, std::path::Component::Normal(_)))
        .collect();
    Some(server.directory().join(below))
}

/// Shows on another directory what a server of the same image shows. `None` where there is no such server, or it is not root who asks.
pub(super) fn bind(
    image: &Path,
    directory: &Path,
    wishes: &MountWishes,
    globals: &Globals,
) -> Result<Option<Outcome>> {
    if !rustix::process::geteuid().is_root() || image.as_os_str() == OsStr::new("") {
        return Ok(None);
    }
    let Ok(image) = image.canonicalize() else {
        return Ok(None);
    };
    let is_of_image = |known: &Known| known.text("image").map(Path::new) == Some(&image);
    let Some(server) = Known::all()?
        .into_iter()
        .find(|known| is_of_image(known) && server_of(known.directory()).is_ok())
    else {
        return Ok(None);
    };
    let shown = image.display();
    if wishes.write && !server.writes() {
        return Err(anyhow!(
            "{shown} is mounted for reading, on {}",
            server.directory().display()
        ))
        .context(Advice::new("unmount it there first, or mount it for reading"));
    }
    let Some(from) = inside(&server, globals) else {
        return Err(anyhow!(
            "{shown} is mounted already, on {}, which does not show that subvolume",
            server.directory().display()
        ))
        .context(Advice::new(
            "mount the top-level subvolume first (-o subvol=/), or unmount it there",
        ));
    };
    mount_bind(&from, directory).with_context(|| {
        format!(
            "showing {}, where {shown} is mounted already, on {}",
            from.display(),
            directory.display()
        )
    })?;
    // A mount of its own, as one of the same device is: what is mounted below one of both does not appear below the other.
    mount_change(directory, MountPropagationFlags::PRIVATE).context("parting the two mounts")?;
    if !wishes.write {
        let flags = flags_of(wishes) | MountFlags::BIND;
        mount_remount(directory, flags, c"").context("making the second mount one for reading")?;
    }
    Ok(Some(Outcome::Done))
}
