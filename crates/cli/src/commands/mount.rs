//! `buttress mount IMAGE DIRECTORY`: mounts a volume on a directory by FUSE.
//!
//! - `options`: the options of `-o`. `known`: options without effect here.
//! - `again`: remounts, and second mounts of a mounted volume.
//! - `serving`: opens the volume, mounts it, serves it.
//! - `background`: serves in a separate process.
//! - `answering`: executes commands for paths below the mount.
//! - `closing_in`: restricts the server to the system calls that it needs.
//! - `watch`: a process that unmounts if the server cannot.
//! - `images`: detects deleted and replaced image files of a mount.
//! - `shown_options`: options that a remount changes.
//! - `leaving`: the end by a signal.
//! - `registry`: the existing servers. `listing`: the directories of their mounts.
//! - `unmounting`: `buttress umount`.

mod access_times;
mod again;
mod answering;
mod background;
mod closing_in;
mod ending;
pub(crate) mod images;
mod known;
mod leaving;
mod listing;
mod options;
pub(crate) mod registry;
mod serving;
mod shown_options;
mod unmounting;
mod watch;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use clap::Args;

use crate::context::Context;
use crate::exit::{self, Advice, Outcome};
use crate::globals::{Globals, Uses};
use crate::manual::{Example, example};
use crate::mounted::places;
use crate::table::{ROWS, Subcommand};
use options::MountWishes;
pub use unmounting::Umount;

/// Mount a volume on a directory, without root
///
/// The mount is read-only without `-o rw`. Mount options have the names of btrfs(5) and mount(8),
/// and commas join them. For the volume: subvol=PATH, subvolid=ID, device=PATH,
/// offset=BYTES|part=N, degraded, rescue=OPTION:OPTION…, generation=N. For changes: ro, rw, compress,
/// compress=ALGORITHM:LEVEL, compress-force=…, max_inline=SIZE, nodatacow, nodatasum,
/// commit=SECONDS, writeback_cache, auto_reclaim=PERCENT. For access: uid=ID, gid=ID, fakeroot,
/// allow_other, suid, nosuid, dev, nodev, noexec, noatime, strictatime, nodiratime.
///
/// `uid=ID` and `gid=ID` show all files as owned by this user and group, `fakeroot` as owned by root. With
/// `writeback_cache` the kernel keeps written data until a file is synced or closed, and reports errors then.
///
/// Written data is durable after a sync by a program, after the commit interval of 30 seconds, a second
/// after the last file is closed, and when `buttress umount` returns.
#[derive(Args, Debug)]
pub struct Mount {
    /// Options, joined by commas; may be repeated
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<OsString>,
    /// Stay in the foreground; Ctrl-C unmounts
    #[arg(short = 'f', long)]
    foreground: bool,
    /// Write messages to this file, not to the system's log
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Move little used data together in the background, so that its space is unallocated again:
    /// block groups whose use fell below this percentage, 30 by default
    #[arg(
        long, value_name = "PERCENT", num_args = 0..=1, require_equals = true, default_missing_value = "30",
        value_parser = clap::value_parser!(u8).range(1..100)
    )]
    auto_reclaim: Option<u8>,
    /// List mounted volumes
    #[arg(long, conflicts_with_all = ["image", "directory", "options", "foreground", "log", "auto_reclaim"])]
    list: bool,
    /// The image or device
    #[arg(value_name = "IMAGE", required_unless_present = "list")]
    image: Option<PathBuf>,
    /// The mount's directory
    #[arg(value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
}

impl Subcommand for Mount {
    const NAME: &'static str = "mount";
    const EXAMPLES: &'static [Example] = &[
        example("buttress mount backup.img /mnt", "Mounts a volume read-only"),
        example(
            "buttress mount -o rw,compress=zstd,subvol=home disk.img /mnt",
            "Mounts a subvolume for writing, and compresses new data",
        ),
        example(
            "buttress mount --overlay tried.changes -o rw disk.img /mnt",
            "Mounts for writing to an overlay, and leaves the image unchanged",
        ),
        example("buttress mount --list", "Lists mounted volumes"),
    ];

    fn uses(&self) -> Uses {
        if self.list { Uses::NOTHING } else { Uses::PATHS }
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        if self.list {
            return listing::list(context);
        }
        let mut globals = context.globals().clone();
        let mut wishes = MountWishes::default();
        for options in &self.options {
            wishes.take(options, &mut globals)?;
        }
        wishes.auto_reclaim = self.auto_reclaim.or(wishes.auto_reclaim);
        if self.log.is_none() && self.auto_reclaim.is_none() && *context.globals() == Globals::default() {
            wishes.options = Some(self.options.join(OsStr::new(",")));
        }
        // A remount finds its mount by the directory.
        let (image, directory) = match (&self.image, &self.directory) {
            (Some(image), Some(directory)) => (image, directory),
            (Some(directory), None) if wishes.remount => (directory, directory),
            _ => {
                return Err(exit::usage(
                    "the directory is missing: run `buttress mount IMAGE DIRECTORY`",
                ));
            }
        };
        if !background::is_server() {
            for note in &wishes.notes {
                context.notice(note);
            }
        }
        if wishes.auto_reclaim.is_some() && !wishes.write && !wishes.remount {
            return Err(exit::usage("--auto-reclaim needs -o rw"));
        }
        if globals.generation.is_some() && wishes.write {
            return Err(exit::usage(
                "an older state can only be read: give -o ro with generation=N",
            ));
        }
        let directory = directory_of(directory)?;
        if wishes.remount {
            if let Some(option) = context.globals().unused(Uses::NOTHING) {
                return Err(exit::usage(format_args!("{option} has no effect on a remount")));
            }
            if let Some(option) = self.option_of_server() {
                return Err(exit::usage(format_args!("{option} has no effect on a remount")));
            }
            return again::remount(&directory, &self.options.join(OsStr::new(",")));
        }
        refuse_twice(image, &directory)?;
        if !background::is_server()
            && let Some(done) = again::bind(image, &directory, &wishes, &globals, self.option_of_server())?
        {
            return Ok(done);
        }
        let context = Context::new(globals);
        if self.foreground {
            return serving::serve(&context, image, &directory, &wishes, self.log.as_deref(), false);
        }
        if background::is_server() {
            background::leave_session();
            return serving::serve(&context, image, &directory, &wishes, self.log.as_deref(), true);
        }
        background::start()
    }
}

impl Mount {
    /// Returns an option about the server itself, if the user gave one.
    fn option_of_server(&self) -> Option<&'static str> {
        let given = [
            (self.foreground, "--foreground"),
            (self.log.is_some(), "--log"),
            (self.auto_reclaim.is_some(), "--auto-reclaim"),
        ];
        given
            .into_iter()
            .find(|(given, _)| *given)
            .map(|(_, option)| option)
    }
}

/// Returns the mount point in the form of the table of mounts.
fn directory_of(directory: &Path) -> Result<PathBuf> {
    let shown = directory.display();
    let directory = directory.canonicalize().map_err(|error| {
        let is_dead = error.kind() == std::io::ErrorKind::NotConnected;
        let error = anyhow!(error).context(format!("the directory {shown}"));
        match is_dead {
            true => error.context(Advice::new(format!(
                "the server of this mount has ended: run `buttress umount {shown}`"
            ))),
            false => error,
        }
    })?;
    if !directory.is_dir() {
        return Err(anyhow!("{} is not a directory", directory.display()));
    }
    if directory.parent().is_none() {
        return Err(anyhow!("{} is the root of the file system", directory.display()))
            .context(Advice::new("mount on another directory"));
    }
    Ok(directory)
}

/// Refuses to mount an image on a directory that already shows it, as Linux does. A second mount on
/// the directory would only hide the first mount.
fn refuse_twice(image: &Path, directory: &Path) -> Result<()> {
    let mounts = places::all();
    let on_it = places::top(&mounts, directory).filter(|mount| mount.is_ours);
    let image = image.canonicalize().unwrap_or_else(|_| image.to_owned());
    if on_it.is_none_or(|mount| mount.source != image) {
        return Ok(());
    }
    Err(anyhow!(
        "{}: {} is already mounted there",
        directory.display(),
        image.display()
    ))
    .context(Advice::new(
        "unmount it first, or change its options with -o remount",
    ))
}

/// Runs this process as a watch process of a mount, if it was started as one.
pub(crate) fn watches() -> bool {
    let Some(watched) = watch::wanted() else {
        return false;
    };
    watch::run(&watched);
    true
}

/// Converts the arguments of a mount(8) helper (`mount.buttress SOURCE DIRECTORY [-sfnv] [-N SPACE]
/// [-t TYPE] [-o OPTIONS]`) or of a umount(8) helper (`umount.buttress DIRECTORY [-flnrv] [-N
/// SPACE] [-t TYPE]`) to arguments of the command. Returns `None` if the program was called under
/// neither helper name. mount(8) itself adds `rw`.
///
/// A mount by root through a helper is accessible to all users, as for other file systems.
pub(crate) fn of_helper(arguments: &[OsString]) -> Option<Vec<OsString>> {
    of_helper_of_fuse(arguments).or_else(|| of_helper_by_name(arguments))
}

/// Converts arguments as [`of_helper_by_name`] does, for the helper of package fuse3
/// (`mount.fuse`). mount(8) calls it if this program's helper does not exist. The helper
/// `mount.fuse` calls `buttress SOURCE DIRECTORY -o OPTIONS`, as it calls the servers of other file
/// systems.
fn of_helper_of_fuse(arguments: &[OsString]) -> Option<Vec<OsString>> {
    let [program, source, directory, flag, options] = arguments else {
        return None;
    };
    let is_command = ROWS.iter().any(|row| *source == row.name());
    let is_ours = Path::new(program).file_name()? == "buttress";
    if !is_ours || is_command || flag != "-o" || !Path::new(directory).is_absolute() {
        return None;
    }
    let mut words: Vec<OsString> = ["buttress", "mount"].map(OsString::from).into();
    if rustix::process::geteuid().is_root() {
        words.extend(["-o".into(), "allow_other".into()]);
    }
    words.extend(["-o".into(), options.clone(), source.clone(), directory.clone()]);
    Some(words)
}

fn of_helper_by_name(arguments: &[OsString]) -> Option<Vec<OsString>> {
    let program = Path::new(arguments.first()?).file_name()?.to_str()?;
    let (word, kind) = program.split_once('.')?;
    if !matches!(
        (word, kind),
        (
            "mount" | "umount",
            "buttress" | "fuse.buttress" | "fuseblk.buttress"
        ) | ("mount", "btrfs")
    ) {
        return None;
    }
    let mounts = word == "mount";
    let mut words: Vec<OsString> = vec!["buttress".into(), word.into()];
    if mounts && rustix::process::geteuid().is_root() {
        words.extend(["-o".into(), "allow_other".into()]);
    }
    let mut rest = arguments.iter().skip(1);
    while let Some(argument) = rest.next() {
        match argument.to_str() {
            Some("-s" | "-n" | "-v" | "-r") => {}
            Some("-N" | "-t") => drop(rest.next()),
            // With `-f`, nothing is mounted.
            Some("-f") if mounts => return Some(vec!["buttress".into(), "--version".into()]),
            _ => words.push(argument.clone()),
        }
    }
    Some(words)
}
