//! A small process beside a server, which outlives the server.
//!
//! A server that has restricted itself cannot unmount, and neither can a killed server: its mount
//! would stay, and answer each request with an error. Therefore another process waits for the end
//! of the server. It receives requests on its standard input:
//!
//! | Input | Action |
//! |---|---|
//! | `u` | unmounts every directory that shows the volume; if a directory is busy, sends pending writes to the server and detaches the mount |
//! | `k`, a process, an address | answers with the kind of shutdown at that address of the process' memory, or [`NO_KIND`] for any other number |
//! | `s` | calls syncfs(2) on the mount, so that the kernel sends its cached changes to the server, and answers with a byte |
//! | end of input | the server has ended: detaches its remaining mounts |
//!
//! The watching process finds mounts by device, because several directories may show a volume, and
//! a directory may later show another volume.
//!
//! The watching process does not open the image. Of another process' memory, the watching process
//! only discloses which of three numbers, if any, is at an address.

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

/// Environment variable with the device of the watched mounts and their image, for the watching
/// process.
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

    /// Returns the directories that show the volume; the latest mount comes first. If another mount
    /// covers a directory, the list omits this directory.
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

/// The address has no kind of shutdown, or cannot be read.
const NO_KIND: u8 = 255;
const KINDS: u32 = 3;

/// The server's handle of the watching process.
#[derive(Debug)]
pub(super) struct Watch(Child);

impl Watch {
    /// Starts the process.
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

    /// Returns the kind of shutdown that is stored at an address of a process' memory.
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

    /// Returns the process id of the watch process.
    pub(super) fn process(&self) -> u32 {
        self.0.id()
    }

    /// Requests a syncfs(2) on the mount, and waits until it has returned. If the watching process
    /// has ended, or can open no directory of the mount, nothing happens.
    pub(super) fn sync(&mut self) {
        let asked = self.0.stdin.as_mut().map(|input| input.write_all(b"s"));
        if let (Some(Ok(())), Some(output)) = (asked, self.0.stdout.as_mut()) {
            drop(output.read_exact(&mut [0]));
        }
    }

    /// Requests an unmount, and waits for the attempt.
    pub(super) fn unmount(&mut self) {
        if let Some(mut input) = self.0.stdin.take() {
            // If the watching process has ended, the mount ends with this process.
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

/// Runs the watching process.
pub(super) fn run(watched: &Watched) {
    // Start a separate session: a signal from the terminal to the server must not end this process.
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

/// Unmounts. If the mount is busy, sends pending writes to the server and detaches the mount.
fn end(directory: &Path) {
    if unmount(directory, false).is_ok() {
        return;
    }
    sync(directory);
    let _ = unmount(directory, true);
}

/// Makes the kernel send its cached changes to the server.
fn sync(directory: &Path) {
    if let Ok(open) = std::fs::File::open(directory) {
        let _ = rustix::fs::syncfs(&open);
    }
}

/// Syncs the volume through one of its directories, and answers.
fn answer_sync(watched: &Watched) -> std::io::Result<()> {
    if let Some(directory) = watched.directories().first() {
        sync(directory);
    }
    rustix::io::write(rustix::stdio::stdout(), &[0])?;
    Ok(())
}

/// Answers with the kind of shutdown in another process' memory.
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

/// Returns whether the mount on a directory fails with the errors of an ended server.
///
/// The end of the server's pipe arrives before the last of its descriptors is closed. Before the
/// connection ends, the kernel answers from its cache and keeps requests waiting, so only a
/// server's answer counts. When the connection breaks, a waiting request fails with `ECONNABORTED`,
/// one in a ring of the server with `ECANCELED`, and a later one with `ENOTCONN`. If another
/// process has mounted a different file system there, the call succeeds.
fn is_dead(directory: &Path) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    let asked = statx(CWD, directory, AtFlags::STATX_FORCE_SYNC, StatxFlags::MODE);
    matches!(asked, Err(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED))
}
