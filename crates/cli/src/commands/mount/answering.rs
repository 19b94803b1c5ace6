//! Server side of commands for paths below a mount: see [`crate::mounted`].
//!
//! A thread accepts connections, and each connection has a thread, up to [`AT_ONCE`]. The end of
//! the mount refuses new commands, and waits for running ones up to [`END_WAIT`]. A command that
//! still runs then receives an error.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use buttress::unstable::{volume_over, writable_over};
use buttress::{Location, NewInode};
use buttress_mount::fuse::Notifier;
use buttress_mount::vfs::{Looks, Vfs as _};
use buttress_mount::volume::{Access, Jobs, MountedVolume, SubvolumeNames};
use parking_lot::RwLock;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use super::images::Images;
use super::registry;
use super::shown_options::ShownOptions;
use crate::commands::balance::online::Balances;
use crate::commands::replace::online::Replacements;
use crate::commands::scrub::online::Scrubs;
use crate::exit;
use crate::mounted::passed::{DESCRIPTORS_MAX, Received};
use crate::mounted::protocol::{Answer, REQUEST_BYTES_MAX, Request};
use crate::opening::{Mount, Place};
use crate::output::elsewhere::{self, Elsewhere};
use crate::resyncs::Resyncs;
use crate::signals;
use crate::table::{self, MountView};
use crate::writing::Writing;

/// Largest number of concurrent commands.
const AT_ONCE: usize = 16;

/// The wait of the mount's end for running commands.
const END_WAIT: Duration = Duration::from_secs(1);

/// The gate of running commands: each command holds a reader's guard.
#[derive(Default)]
pub(super) struct RunningCommands {
    gate: RwLock<()>,
    is_closed: AtomicBool,
}

impl RunningCommands {
    /// Refuses further commands, and waits for those that run. Returns whether none runs.
    pub(super) fn close(&self) -> bool {
        if self.is_closed.load(Ordering::SeqCst) {
            return true;
        }
        let Some(guard) = self.gate.try_write_for(END_WAIT) else {
            return false;
        };
        // The gate stays closed.
        core::mem::forget(guard);
        self.is_closed.store(true, Ordering::SeqCst);
        true
    }
}

/// Volume that the commands use.
pub(super) struct Served {
    pub(super) commands: Arc<RunningCommands>,
    pub(super) access: Access,
    pub(super) root: Location,
    pub(super) image: PathBuf,
    /// Device number of the mount in the table of mounts.
    pub(super) device: String,
    pub(super) volume: Weak<MountedVolume>,
    pub(super) notifier: Notifier,
    pub(super) balances: Arc<Balances>,
    pub(super) replacements: Arc<Replacements>,
    pub(super) scrubs: Arc<Scrubs>,
    pub(super) resyncs: Arc<Resyncs>,
    pub(super) images: Arc<Images>,
    pub(super) jobs: Arc<Jobs>,
    pub(super) shown_options: Arc<ShownOptions>,
}

/// Opens the socket for commands.
pub(super) fn listen() -> Result<UnixListener> {
    let path = registry::own_socket()?;
    // A socket of an earlier server with the same process id may remain.
    drop(std::fs::remove_file(&path));
    UnixListener::bind(&path).with_context(|| format!("making the socket {}", path.display()))
}

/// Starts the thread that accepts connections.
pub(super) fn start(listener: UnixListener, served: Served) -> Result<()> {
    // The server handles signals, not the commands.
    signals::enter_session();
    let (served, running) = (Arc::new(served), Arc::new(AtomicUsize::new(0)));
    let accept = move || {
        for socket in listener.incoming() {
            let Ok(socket) = socket else { continue };
            if running.fetch_add(1, Ordering::SeqCst) >= AT_ONCE {
                running.fetch_sub(1, Ordering::SeqCst);
                continue;
            }
            let (served, running) = (Arc::clone(&served), Arc::clone(&running));
            let answer = move || {
                // The client detects a failed request by the end of the connection.
                let _ = served.answer(&socket);
                running.fetch_sub(1, Ordering::SeqCst);
            };
            let thread = std::thread::Builder::new().name("buttress-command".to_owned());
            drop(thread.spawn(answer));
        }
    };
    let thread = std::thread::Builder::new().name("buttress-commands".to_owned());
    thread.spawn(accept)?;
    Ok(())
}

/// Receives a request with its descriptors: the client's standard output, and files that it opened.
fn receive(mut socket: &UnixStream) -> Result<(Request, Option<OwnedFd>, Received)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut length = [0; 8];
    let received = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut length)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL,
    )?;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    let length = u64::from_le_bytes(length);
    if received.bytes < 8 || length > REQUEST_BYTES_MAX {
        bail!("no request");
    }
    let mut body = Vec::new();
    std::io::Read::by_ref(&mut socket)
        .take(length)
        .read_to_end(&mut body)?;
    let request = Request::parse(&body)?;
    let mut descriptors = descriptors.into_iter();
    let output = request.has_output.then(|| descriptors.next()).flatten();
    let received = Received::pair(&request.passed, descriptors)?;
    Ok((request, output, received))
}

impl Served {
    fn answer(&self, socket: &UnixStream) -> Result<()> {
        let peer = rustix::net::sockopt::socket_peercred(socket)?;
        if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
            bail!("somebody else's");
        }
        // A remount waits until the server has read its new options.
        self.shown_options.refresh();
        let (request, output, received) = receive(socket)?;
        let hears = socket.try_clone()?;
        let hearer = move |label: Option<&str>, text: &str| {
            let answer = match label {
                Some(label) => Answer::Message(label.to_owned(), text.to_owned()),
                None => Answer::Line(text.to_owned()),
            };
            // If the client has disconnected, it needs no messages.
            let _ = (&hears).write_all(answer.to_line().as_bytes());
        };
        let elsewhere = Elsewhere {
            output: output.map(Rc::new),
            is_terminal: request.is_terminal,
            hearer: Rc::new(hearer),
        };
        let caller = NewInode {
            mode: 0,
            umask: request.umask & 0o777,
            uid: peer.uid.as_raw(),
            gid: peer.gid.as_raw(),
        };
        let done = catch_unwind(AssertUnwindSafe(|| {
            elsewhere::within(elsewhere, || self.run(request, received, caller))
        }));
        let code = match done {
            Ok(code) => code?,
            Err(_) => {
                if let Some(volume) = self.volume.upgrade() {
                    volume.broke();
                }
                bail!("it panicked");
            }
        };
        (&*socket).write_all(Answer::End(code).to_line().as_bytes())?;
        Ok(())
    }

    fn run(&self, request: Request, received: Received, caller: NewInode) -> Result<u8> {
        let Some(_running) = self.commands.gate.try_read() else {
            bail!("the server has stopped");
        };
        match self.volume.upgrade().filter(|volume| !volume.is_down()) {
            // Release removed files before the command runs, so that it does not see them.
            Some(volume) => volume.let_removed_go(),
            None => bail!("the server has stopped"),
        }
        // A remount to read-only runs this command to commit the changes before it.
        let is_sync = request
            .arguments
            .iter()
            .skip(1)
            .take(2)
            .eq(["filesystem", "sync"]);
        let is_read_only = self.volume.upgrade().is_some_and(|volume| volume.is_read_only());
        let writes = is_sync || !is_read_only;
        let before = SubvolumeNames::of(&self.access.view())?;
        let paths = Arc::new(request.paths);
        let received = Arc::new(received);
        let directory = request.directory;
        let code = exit::code(table::run_on_mount(&request.arguments, |mount_view| {
            if mount_view == MountView::Committed
                && let Access::Writing(writer) = &self.access
            {
                self.take_what_is_kept_back();
                writer.commit()?;
            }
            let mut place = self.place(mount_view, caller, Arc::clone(&paths), writes)?;
            if let Some(mount) = &mut place.mount {
                mount.received = Arc::clone(&received);
                mount.directory.clone_from(&directory);
            }
            Ok(place)
        }));
        if let (Access::Writing(_), Some(volume)) = (&self.access, self.volume.upgrade()) {
            let paths: Vec<Vec<u8>> = paths.values().cloned().collect();
            self.notifier.forget(&volume.stale_since(&before, &paths));
        }
        Ok(code)
    }

    /// Makes the kernel send its unsent content of files that are open for writing.
    fn take_what_is_kept_back(&self) {
        let Some(volume) = self.volume.upgrade() else {
            return;
        };
        volume.fetch_times();
        let kept = volume.kept_back(Looks::All);
        self.notifier.forget(&kept.content);
        volume.has_come(&kept.content);
    }

    fn place(
        &self,
        mount_view: MountView,
        caller: NewInode,
        paths: Arc<HashMap<OsString, Vec<u8>>>,
        writes: bool,
    ) -> Result<Place> {
        let mut live = None;
        let writing = match &self.access {
            Access::Writing(writer) if writes => {
                self.take_what_is_kept_back();
                // The commands on a mount inspect extents, so content must not be dirty.
                writer.writeback().write_all()?;
                let volume = writable_over(writer.clone(), caller);
                let root = volume.subvolume_by_id(self.root.subvolume)?;
                live = (mount_view == MountView::Live).then(|| root.as_ref().clone());
                Some(Writing::for_somebody(root, caller))
            }
            _ => None,
        };
        Ok(Place {
            opened: match live {
                Some(live) => live,
                None => volume_over(self.access.view()).subvolume_by_id(self.root.subvolume)?,
            },
            image: self.image.clone(),
            directory: b"/".to_vec(),
            mount: Some(Mount {
                writing,
                balances: Arc::clone(&self.balances),
                replacements: Arc::clone(&self.replacements),
                scrubs: Arc::clone(&self.scrubs),
                resyncs: Arc::clone(&self.resyncs),
                images: Arc::clone(&self.images),
                jobs: Arc::clone(&self.jobs),
                received: Arc::default(),
                directory: PathBuf::new(),
                device: self.device.clone(),
                doomed: self.images.deleted(),
                paths,
            }),
        })
    }
}
