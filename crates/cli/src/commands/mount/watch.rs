//! A small process beside a server, which outlives it.
//!
//! A server that closed itself in cannot unmount, and one that was killed cannot either: the mount would stay, and answer everything
//! with an error. So a process of its own waits for the server. It is told over its standard input:
//!
//! | it reads | it |
//! |---|---|
//! | `u` | unmounts every directory that shows the volume; if a directory is busy, sends pending writes to the server and detaches the mount |
//! | `k`, a process, an address | answers with the kind of shutdown that stands there in the memory of that process, or [`NO_KIND`] for any other number |
//! | `s` | calls syncfs(2) on the mount, so that the kernel sends the server what it keeps, and answers with a byte |
//! | the end | the server is gone: detaches its mounts that are still there |
//!
//! Mounts are found by their device, not by a directory. Several directories may show a volume, and the first directory
//! may show another volume by then.
//!
//! It opens nothing of the image, and tells nothing of a process' memory but whether one of three numbers is at a place.

use std::ffi::{OsStr, OsString};
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};
use buttress_mount::fuse::unmount;
use rustix::io::Errno;

use crate::mounted::places::{self, Mounted};

/// Names the device of the mounts that are watched, and their image, to the process that does.
const VARIABLE: &str = "BUTTRESS_WATCHES_MOUNT";

/// The mount that a process watches.
#[derive(Debug)]
pub(super) struct Watched {
    device: String,
    image: OsString,
}

impl Watched {
    pub(super) fn new(image: &Path, device: String) -> Self {
        Self {
            device,
            image: image.as_os_str().to_owned(),
        }
    }

    fn to_text(&self) -> OsString {
        let mut text = OsString::from(&self.device);
        text.push(" ");
        text.push(&self.image);
        text
    }

    fn of_text(text: &OsStr) -> Option<Self> {
        let bytes = text.as_bytes();
        let blank = bytes.iter().position(|byte| *byte == b' ')?;
        let (device, image) = bytes.split_at_checked(blank)?;
        Some(Self {
            device: std::str::from_utf8(device).ok()?.to_owned(),
            image: OsStr::from_bytes(image.get(1..)?).to_owned(),
        })
    }

    /// The directories that show it, the last one first. A directory that another mount covers is left out.
    fn directories(&self) -> Vec<PathBuf> {
        let mounts = places::all();
        let is_it = |mount: &&Mounted| {
            mount.is_ours && mount.device == self.device && mount.source.as_os_str() == self.image
        };
        let on_top = |mount: &&Mounted| places::top(&mounts, &mount.directory).as_ref().is_some_and(is_it);
        let of_it = mounts.iter().rev().filter(is_it).filter(on_top);
        of_it.map(|mount| mount.directory.clone()).collect()
    }
}

/// There is no kind of shutdown there, or nothing that can be read.
const NO_KIND: u8 = 255;
const KINDS: u32 = 3;

/// The watching process, as its server has it.
#[derive(Debug)]
pub(super) struct Watch(Child);

impl Watch {
    /// Starts one.
    pub(super) fn start(watched: &Watched) -> Result<Self> {
        let program = std::env::current_exe().context("finding this program")?;
        let child = Command::new(program)
            .arg("mount")
            .env_clear()
            .envs(std::env::vars_os().filter(|(name, _)| name == "PATH"))
            .env(VARIABLE, watched.to_text())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("starting the process that watches the mount")?;
        Ok(Self(child))
    }

    /// The kind of shutdown that stands at an address of a process' memory.
    pub(super) fn kind_at(&mut self, process: u32, address: u64) -> Option<u32> {
        let mut question = vec![b'k'];
        question.extend(process.to_ne_bytes());
        question.extend(address.to_ne_bytes());
        self.0.stdin.as_mut()?.write_all(&question).ok()?;
        let mut kind = [NO_KIND];
        self.0.stdout.as_mut()?.read_exact(&mut kind).ok()?;
        kind.first()
            .copied()
            .filter(|kind| *kind != NO_KIND)
            .map(u32::from)
    }

    /// The number of the process.
    pub(super) fn process(&self) -> u32 {
        self.0.id()
    }

    /// Has it call syncfs(2) on the mount, and waits until that has returned. Without the process, or without a directory that it may
    /// open, nothing happens.
    pub(super) fn sync(&mut self) {
        let asked = self.0.stdin.as_mut().map(|input| input.write_all(b"s"));
        if let (Some(Ok(())), Some(output)) = (asked, self.0.stdout.as_mut()) {
            drop(output.read_exact(&mut [0]));
        }
    }

    /// Has it unmount, and waits until that was tried.
    pub(super) fn unmount(&mut self) {
        if let Some(mut input) = self.0.stdin.take() {
            // Where it is gone, the mount goes when this process does.
            let _ = input.write_all(b"u");
        }
        let _ = self.0.wait();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Returns the mount that this process is to watch, if it was started for this.
pub(super) fn wanted() -> Option<Watched> {
    Watched::of_text(&std::env::var_os(VARIABLE)?)
}

/// Watches.
pub(super) fn run(watched: &Watched) {
    // A process group of its own: what ends the server by a key must not end this.
    let _ = rustix::process::setsid();
    let (mut input, mut word) = (std::io::stdin(), [0]);
    let is_asked = loop {
        match input.read(&mut word) {
            Ok(1) if word == *b"k" => {
                if answer_kind(&mut input).is_err() {
                    break false;
                }
            }
            Ok(1) if word == *b"s" => {
                if answer_sync(watched).is_err() {
                    break false;
                }
            }
            read => break matches!(read, Ok(1)),
        }
    };
    for directory in watched.directories() {
        if is_asked {
            end(&directory);
        } else if is_dead(&directory) {
            let _ = unmount(&directory, true);
        }
    }
}

/// Unmounts; where the mount is busy, has what programs wrote sent to the server and detaches it.
fn end(directory: &Path) {
    if unmount(directory, false).is_ok() {
        return;
    }
    sync(directory);
    let _ = unmount(directory, true);
}

/// Has the kernel send what it keeps to the server.
fn sync(directory: &Path) {
    if let Ok(open) = std::fs::File::open(directory) {
        let _ = rustix::fs::syncfs(&open);
    }
}

/// Syncs the volume by one of its directories, and answers.
fn answer_sync(watched: &Watched) -> std::io::Result<()> {
    if let Some(directory) = watched.directories().first() {
        sync(directory);
    }
    rustix::io::write(rustix::stdio::stdout(), &[0])?;
    Ok(())
}

/// Answers which kind of shutdown stands in another process' memory.
fn answer_kind(input: &mut impl std::io::Read) -> std::io::Result<()> {
    let (mut process, mut address) = ([0; 4], [0; 8]);
    input.read_exact(&mut process)?;
    input.read_exact(&mut address)?;
    let mut kind = [0; 4];
    let memory = format!("/proc/{}/mem", u32::from_ne_bytes(process));
    let read = std::fs::File::open(memory)
        .and_then(|memory| memory.read_exact_at(&mut kind, u64::from_ne_bytes(address)));
    let kind = u32::from_ne_bytes(kind);
    let known = read.is_ok() && kind < KINDS;
    let answer = u8::try_from(kind).ok().filter(|_| known).unwrap_or(NO_KIND);
    rustix::io::write(rustix::stdio::stdout(), &[answer])?;
    Ok(())
}

/// Whether what is mounted on a directory answers with the errors of a server that is gone.
///
/// The end of the server's pipe is seen before the last of its descriptors is closed: until then the kernel answers from what it
/// remembers, and keeps requests waiting. So it is told to ask the server. A request that waits when the connection breaks ends with
/// `ECONNABORTED`, one that was given to a ring of the server with `ECANCELED`, a later one with `ENOTCONN`; a mount that somebody else made there meanwhile answers well.
fn is_dead(directory: &Path) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    let asked = statx(CWD, directory, AtFlags::STATX_FORCE_SYNC, StatxFlags::MODE);
    matches!(asked, Err(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED))
}
