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
use crossbeam_channel::{Receiver, Sender};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno as Os;
use std::io;

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

/// Processes invalidations until all senders are gone.
pub(super) fn forget_first(
    server: &Server,
    notifier: &Notifier,
    waiting: &Receiver<Later>,
) -> io::Result<()> {
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
        let answer = match then {
            Then::Answer(answer) => answer,
            Then::Respond(request) => {
                server.has_come(&stale);
                match respond(server, notifier, &request) {
                    Some(answer) => answer,
                    None => continue,
                }
            }
            Then::GoOn(waits) => {
                // The thread that waits for this invalidation holds the other end of the channel
                // until the notifier wakes it.
                let _ = waits.send(());
                continue;
            }
            Then::Nothing => continue,
        };
        match rustix::io::write(&notifier.device, &answer.body) {
            Ok(_) | Err(Os::NOENT) => {}
            Err(Os::NODEV) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Executes a request after the kernel has sent its unsent content.
fn respond(server: &Server, notifier: &Notifier, request: &[u8]) -> Option<Output<'static>> {
    let mut input = Input::of(request);
    let header = Header::parse(&mut input).ok()?;
    let mut out = Output::default();
    match server.respond(header, input, Turn::HasCome, &mut out) {
        When::Now => {}
        When::After(stale) => notifier.forget(&stale),
        When::Before(_) | When::Never => return None,
    }
    Some(out)
}
