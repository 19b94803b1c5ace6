//! Has the kernel forget what it was told: names and attributes that changed otherwise than by its own calls, or by calls that it does not
//! expect to change them, and pages that a direct write made old.
//!
//! The kernel takes the lock of a directory to forget a name in it, and somebody may have that lock whose request waits for a thread of
//! this server. So no thread that answers requests does this: where an answer has to wait for it, a thread of its own gives the answer
//! ([`Later`]).

use super::dispatch::{Server, Turn, When};
use super::wire::{Header, Input, OUT_HEADER, Output, ROOT};
use crate::vfs::{HeldBack, NodeId, Stale};
use crossbeam_channel::{Receiver, Sender};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno as Os;
use std::io;

const NOTIFY_INVALIDATE_NODE: u32 = 2;
const NOTIFY_INVALIDATE_NAME: u32 = 3;
/// The name is asked for again; who uses what it led to goes on.
const EXPIRE_ONLY: u32 = 1 << 0;

/// Tells the kernel. See the module.
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

    /// Has the kernel forget these. What it does not know it need not forget, so there are no errors.
    pub fn forget<'a>(&self, all: impl IntoIterator<Item = &'a Stale>) {
        for stale in all {
            // A name that it did not ask for may yet be missing in a listing that it keeps.
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
                // No content begins before a file.
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

/// What the kernel is to forget, and what is to be done then.
#[derive(Debug)]
pub(super) struct Later {
    /// Times come first.
    pub(super) fetches_times: bool,
    pub(super) stale: Vec<Stale>,
    pub(super) then: Then,
}

impl Later {
    /// Has the kernel send what it keeps.
    pub(super) fn before(kept: HeldBack, then: Then) -> Self {
        Self {
            fetches_times: kept.times,
            stale: kept.content,
            then,
        }
    }

    /// Has the kernel forget this.
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
    /// This answer is given.
    Answer(Output<'static>),
    /// This request is answered, for which the kernel had to send something.
    Respond(Vec<u8>),
    /// Whoever waits for it goes on.
    GoOn(Sender<()>),
    /// Nothing.
    Nothing,
}

/// Does such things until nobody has any more.
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
                // It waits for as long as this end is there.
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

/// Answers a request for which the kernel has sent what it kept.
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
