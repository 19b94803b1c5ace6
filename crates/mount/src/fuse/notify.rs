//! Invalidation of the kernel's caches: names and attributes that changed outside the kernel's
//! calls, or by calls that should not change them, and pages that a direct write made stale.
//!
//! To drop a name, the kernel locks its directory. Another process may hold this directory lock
//! while its request waits for a thread of this server. A thread that answers requests therefore
//! never invalidates: if an answer must wait for an invalidation, the notifier thread sends this
//! answer ([`Later`]).

use super::dispatch::{Server, Turn, When};
use super::wire::{Header, Input, OUT_HEADER, Output, ROOT};
use crate::vfs::{HeldBack, NodeId, Stale};
use core::sync::atomic::{AtomicUsize, Ordering};
use crossbeam_channel::{Receiver, Sender};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno as Os;
use std::io;
use std::sync::Arc;
use std::thread::{self, Scope};

const NOTIFY_INVALIDATE_NODE: u32 = 2;
const NOTIFY_INVALIDATE_NAME: u32 = 3;
/// Expires a name: the kernel looks it up again, but open files stay valid.
const EXPIRE_ONLY: u32 = 1 << 0;

/// Sender of invalidations to the kernel.
#[derive(Debug)]
pub struct Notifier {
    device: OwnedFd,
    root: NodeId,
}

impl Notifier {
    pub(super) fn new(device: impl AsFd, root: NodeId) -> io::Result<Self> {
        let device = device.as_fd().try_clone_to_owned()?;
        Ok(Self { device, root })
    }

    /// Makes the kernel drop this cached information. The server ignores errors of an invalidation,
    /// because information that the kernel does not have needs none.
    pub fn forget<'a>(&self, all: impl IntoIterator<Item = &'a Stale>) {
        for stale in all {
            // Even if the kernel does not know a name, a cached listing may lack the name.
            let listing = match stale {
                Stale::Name(directory, _) => Some(Stale::Node(*directory)),
                _ => None,
            };
            for stale in core::iter::once(stale).chain(&listing) {
                let message = self.message(stale);
                let _ = rustix::io::write(&self.device, &message.body);
            }
        }
    }

    /// Sends an answer. Returns false if the file system was unmounted.
    fn answer(&self, answer: &Output<'_>) -> io::Result<bool> {
        match rustix::io::write(&self.device, &answer.body) {
            Ok(_) | Err(Os::NOENT) => Ok(true),
            Err(Os::NODEV) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn number(&self, node: NodeId) -> u64 {
        if node == self.root { ROOT } else { node.0 }
    }

    fn message(&self, stale: &Stale) -> Output<'static> {
        let mut message = Output::default();
        let code = match stale {
            Stale::Node(node) => {
                message.u64(self.number(*node)).i64(0).i64(0);
                NOTIFY_INVALIDATE_NODE
            }
            Stale::Attributes(node) => {
                // A negative offset invalidates attributes only.
                message.u64(self.number(*node)).i64(-1).i64(0);
                NOTIFY_INVALIDATE_NODE
            }
            Stale::Content(node, range) => {
                let length = range.end.saturating_sub(range.start);
                message.u64(self.number(*node)).u64(range.start).u64(length);
                NOTIFY_INVALIDATE_NODE
            }
            Stale::Name(directory, name) => {
                message
                    .u64(self.number(*directory))
                    .u32(u32::try_from(name.len()).unwrap_or(u32::MAX))
                    .u32(EXPIRE_ONLY)
                    .bytes(name)
                    .zeros(1);
                NOTIFY_INVALIDATE_NAME
            }
        };
        let mut whole = Output::default();
        let length = message.body.len().saturating_add(OUT_HEADER);
        whole
            .u32(u32::try_from(length).unwrap_or(u32::MAX))
            .u32(code)
            .u64(0)
            .bytes(&message.body);
        whole
    }
}

/// Cached information to invalidate, and the action after that.
#[derive(Debug)]
pub(super) struct Later {
    /// The notifier thread first makes the kernel send its unsent times.
    pub(super) fetches_times: bool,
    pub(super) stale: Vec<Stale>,
    pub(super) then: Then,
}

impl Later {
    /// Makes the kernel send the cached content and times that it has not yet sent to the server.
    pub(super) fn before(kept: HeldBack, then: Then) -> Self {
        Self {
            fetches_times: kept.times,
            stale: kept.content,
            then,
        }
    }

    /// Makes the kernel drop cached information about a file or name.
    pub(super) const fn after(stale: Vec<Stale>, then: Then) -> Self {
        Self {
            fetches_times: false,
            stale,
            then,
        }
    }
}

#[derive(Debug)]
pub(super) enum Then {
    /// Send this answer to the kernel.
    Answer(Output<'static>),
    /// Execute this request, which waited for content from the kernel, and answer it.
    Respond(Vec<u8>),
    /// Wake the thread that waits at this channel.
    GoOn(Sender<()>),
    /// Do nothing.
    Nothing,
}

/// Largest number of deferred requests that run at the same time, each in a thread of its own.
/// Further ones run in the notifier thread.
const REQUESTS_MAX: usize = 16;

/// Processes invalidations until all senders are gone. A deferred request may take long, and other
/// answers wait for this thread; so another thread of `scope` executes it.
pub(super) fn forget_first<'scope>(
    scope: &'scope Scope<'scope, '_>,
    server: &'scope Server,
    notifier: &Arc<Notifier>,
    waiting: &Receiver<Later>,
) -> io::Result<()> {
    let running = Arc::new(AtomicUsize::new(0));
    for later in waiting {
        let Later {
            fetches_times,
            stale,
            then,
        } = later;
        if fetches_times {
            server.fetch_times();
        }
        notifier.forget(&stale);
        let is_mounted = match then {
            Then::Answer(answer) => notifier.answer(&answer)?,
            Then::Respond(request) => {
                server.has_come(&stale);
                respond_apart(scope, server, notifier, (&running, Arc::new(request)))?
            }
            Then::GoOn(waits) => {
                // The thread that waits for this invalidation holds the other end of the channel
                // until the notifier wakes it.
                let _ = waits.send(());
                true
            }
            Then::Nothing => true,
        };
        if !is_mounted {
            break;
        }
    }
    Ok(())
}

/// Executes a deferred request in a thread of its own. If too many run, or no thread can start, the
/// calling thread executes it. Returns false if the file system was unmounted.
fn respond_apart<'scope>(
    scope: &'scope Scope<'scope, '_>,
    server: &'scope Server,
    notifier: &Arc<Notifier>,
    (running, request): (&Arc<AtomicUsize>, Arc<Vec<u8>>),
) -> io::Result<bool> {
    // Only this thread adds to the number.
    if running.load(Ordering::SeqCst) < REQUESTS_MAX {
        let (own, notified, asked) = (Arc::clone(running), Arc::clone(notifier), Arc::clone(&request));
        running.fetch_add(1, Ordering::SeqCst);
        let spawned = thread::Builder::new()
            .name("buttress-fuse-deferred".to_owned())
            .spawn_scoped(scope, move || {
                // A broken connection ends the threads that read requests, too.
                let _is_mounted = respond(server, &notified, &asked).is_ok();
                own.fetch_sub(1, Ordering::SeqCst);
            });
        if spawned.is_ok() {
            return Ok(true);
        }
        running.fetch_sub(1, Ordering::SeqCst);
    }
    respond(server, notifier, &request)
}

/// Executes a request after the kernel has sent its unsent content, and answers it. Returns false
/// if the file system was unmounted.
fn respond(server: &Server, notifier: &Notifier, request: &[u8]) -> io::Result<bool> {
    let mut input = Input::of(request);
    let Ok(header) = Header::parse(&mut input) else {
        return Ok(true);
    };
    let mut out = Output::default();
    match server.respond(header, input, Turn::HasCome, &mut out) {
        When::Now => {}
        When::After(stale) => notifier.forget(&stale),
        When::Before(_) | When::Never => return Ok(true),
    }
    notifier.answer(&out)
}
