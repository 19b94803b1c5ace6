//! `buttress umount DIRECTORY`: unmounts, and after the last mount waits for the server.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use buttress_mount::fuse;
use clap::Args;

use super::again;
use super::images::Fate;
use super::registry::Known;
use crate::context::Context;
use crate::exit::{Advice, Outcome};
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::mounted::places::{self, Mounted};
use crate::table::Subcommand;

/// Unmount a volume that `buttress mount` mounted, and return when all changes are durable
///
/// If the volume is also mounted on another directory, the command commits it and returns, and the
/// server continues.
#[derive(Args, Debug)]
pub struct Umount {
    /// Detach the mount from the tree now, and end once no process uses it any more
    #[arg(short = 'l', long)]
    lazy: bool,
    /// Unmount even if the image was deleted; its content is then lost
    #[arg(short = 'f', long)]
    force: bool,
    /// The mount's directory
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

impl Subcommand for Umount {
    const NAME: &'static str = "umount";
    const EXAMPLES: &'static [Example] = &[example(
        "buttress umount /mnt",
        "Unmounts, and returns when everything is durable",
    )];

    fn uses(&self) -> Uses {
        Uses::NOTHING
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let shown = self.directory.display();
        let mounts = places::all();
        let mount = mount_of(&mounts, &self.directory)?;
        let server = Known::of(mount)?;
        if let Some(server) = &server {
            self.mind_images(server, &mounts, mount, context)?;
        }
        fuse::unmount(&mount.directory, self.lazy)
            .with_context(|| format!("unmounting {shown}"))
            .map_err(|error| {
                error.context(Advice::new(
                    "if it is busy, `fuser -vm DIRECTORY` lists the processes that use it; --lazy does not wait for them",
                ))
            })?;
        if self.lazy {
            return Ok(Outcome::Done);
        }
        match server {
            Some(server) => wait(server, context).with_context(|| format!("unmounting {shown}"))?,
            None => context.notice(format_args!(
                "{shown}: the server belongs to another user, and may still write its last commit"
            )),
        }
        Ok(Outcome::Done)
    }
}

impl Umount {
    /// Refuses to unmount if the image was deleted and the server would end.
    fn mind_images(
        &self,
        server: &Known,
        mounts: &[Mounted],
        mount: &Mounted,
        context: &Context,
    ) -> Result<()> {
        if server.shown_by(mounts).count() > 1 {
            // Another directory still shows the volume.
            return Ok(());
        }
        match server.fate_of_images(&mount.directory) {
            Fate::Deleted(text) if !self.force => {
                Err(anyhow!("unmounting {}: {text}", self.directory.display()))
                    .context(Advice::new("to unmount anyway, give --force"))
            }
            Fate::Moved(text) => {
                context.notice(text);
                Ok(())
            }
            Fate::Kept | Fate::Deleted(_) => Ok(()),
        }
    }
}

/// Returns the mount of this program on a directory.
fn mount_of<'a>(mounts: &'a [Mounted], directory: &Path) -> Result<&'a Mounted> {
    let shown = directory.display();
    let resolved = places::resolved(directory).unwrap_or_else(|| directory.to_owned());
    match places::top(mounts, &resolved) {
        Some(mount) if mount.is_ours => return Ok(mount),
        Some(mount) => {
            return Err(anyhow!(
                "{shown}: not a mount of this program (found {})",
                mount.kind
            ))
            .context(Advice::new("unmount it with umount(8)"));
        }
        None => {}
    }
    let refused = Err(anyhow!("{shown}: not a mount point"));
    let is_image = |mount: &&Mounted| mount.is_ours && mount.source == resolved;
    if let Some(mount) = mounts.iter().find(is_image) {
        let directory = mount.directory.display();
        return refused.context(Advice::new(format!(
            "it is mounted on {directory}; give that directory"
        )));
    }
    let above = mounts
        .iter()
        .filter(|mount| mount.is_ours && resolved.starts_with(&mount.directory));
    match above.max_by_key(|mount| mount.directory.as_os_str().len()) {
        Some(mount) => {
            let directory = mount.directory.display();
            refused.context(Advice::new(format!("it is inside the mount on {directory}")))
        }
        None => refused.context(Advice::new("`buttress mount --list` lists mounted volumes")),
    }
}

/// Waits until the server of an unmounted directory has ended or, if other directories show its
/// volume, has committed.
fn wait(server: Known, context: &Context) -> Result<()> {
    let mounts = places::all();
    let image = server.text("image").unwrap_or_default().to_owned();
    if let Some(other) = server.shown_by(&mounts).next() {
        if server.writes() {
            again::commit(&other.directory).context("committing changes")?;
        }
        context.notice(format_args!(
            "{image} is still mounted on {}",
            other.directory.display()
        ));
        return Ok(());
    }
    if server.is_mounted() {
        context.notice(format_args!(
            "{image} is still mounted in other mount namespaces; its server ends with the last process there"
        ));
        return Ok(());
    }
    server.wait()
}
