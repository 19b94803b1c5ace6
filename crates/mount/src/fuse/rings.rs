//! Requests by io_uring: each request is answered on the processor of its caller.
//!
//! Every possible processor has a queue. Every queue has several threads, bound to its processor,
//! with one ring each. A ring holds one request at a time. A request that waits for a disk
//! therefore blocks only its thread, and the kernel passes the next request to another thread. The
//! kernel prefers the ring of the thread that became idle last.
//!
//! The kernel uses rings only if every queue has one. The device still carries interruptions and
//! requests without an answer.
//!
//! The server creates rings at the mount, because a sandboxed server cannot create any, and only if
//! the kernel accepts them (`enable_uring`). If a ring fails, its thread serves the device.

use super::CONTENT_BYTES_MAX;
use super::dispatch::{Server, Turn, When};
use super::notify::{Later, Then};
use super::reading;
use super::wire::{Following, Header, IN_HEADER, Input, Kept, Output};
use crate::vfs::{HeldBack, Stale};
use buttress_ring::{ANSWER_HEAD_BYTES, Fetched, Request, Ring};
use crossbeam_channel::{Receiver, Sender};
use rustix::fd::{AsFd as _, OwnedFd};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Scope, ScopedJoinHandle};

/// File that shows whether the kernel accepts rings.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";
/// File that lists the possible processors, as `0-7`.
const PROCESSORS: &str = "/sys/devices/system/cpu/possible";

/// Numbers of threads: the largest and smallest per processor, and the target for all processors
/// together.
const PER_PROCESSOR_MAX: usize = 16;
const PER_PROCESSOR_MIN: usize = 4;
const TOGETHER: usize = 64;
/// Largest number of processors for rings. With rings on more processors, too many threads would be
/// idle.
const PROCESSORS_MAX: u16 = 64;

/// Creates rings for all queues. Returns no rings if the kernel offers none, the system denies them
/// to this process, or there are too many processors.
pub(super) fn prepare(device: &OwnedFd) -> Vec<Ring> {
    let is_on = std::fs::read(PARAMETER).is_ok_and(|text| text.trim_ascii() == b"Y");
    let processors = std::fs::read_to_string(PROCESSORS).ok();
    let processors = processors.and_then(|text| count_in(text.trim()));
    let Some(processors) = processors.filter(|count| is_on && *count <= PROCESSORS_MAX) else {
        return Vec::new();
    };
    let each = TOGETHER
        .checked_div(usize::from(processors))
        .unwrap_or(0)
        .clamp(PER_PROCESSOR_MIN, PER_PROCESSOR_MAX);
    let queues = (0..processors).flat_map(|queue| std::iter::repeat_n(queue, each));
    let made: io::Result<Vec<_>> = queues
        .map(|queue| Ring::new(device.as_fd(), queue, CONTENT_BYTES_MAX))
        .collect();
    made.unwrap_or_default()
}

/// Returns the number of processors in a list without gaps.
fn count_in(list: &str) -> Option<u16> {
    let last = match list.split_once('-') {
        Some(("0", last)) => last.parse::<u16>().ok()?,
        Some(_) => return None,
        None if list == "0" => 0,
        None => return None,
    };
    last.checked_add(1)
}

/// The threads of one queue.
#[derive(Debug, Default)]
struct Queue {
    /// Number of threads.
    threads: AtomicUsize,
    /// Number of threads that wait for an invalidation.
    waiting: AtomicUsize,
}

impl Queue {
    /// Returns whether a thread of this queue may wait for an invalidation. The caller must call
    /// [`Queue::waited`] in either case. One thread per queue never waits, because the kernel's
    /// invalidation may wait for a call whose request is in this queue.
    fn may_wait(&self) -> bool {
        let waiting = self.waiting.fetch_add(1, Ordering::AcqRel).saturating_add(1);
        waiting < self.threads.load(Ordering::Acquire)
    }

    fn waited(&self) {
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Threads with their rings that start to serve on a signal.
pub(super) struct Crew<'scope> {
    threads: Vec<ScopedJoinHandle<'scope, io::Result<()>>>,
    begin: Sender<()>,
    is_whole: bool,
}

impl<'scope> Crew<'scope> {
    /// Starts a thread for each ring.
    pub(super) fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        server: &'scope Server,
        device: &'scope OwnedFd,
        rings: Vec<Ring>,
    ) -> Self {
        let count = rings
            .last()
            .map_or(0, |ring| usize::from(ring.queue()).saturating_add(1));
        let queues: Vec<Arc<Queue>> = (0..count).map(|_| Arc::default()).collect();
        let (begin, begins) = crossbeam_channel::unbounded();
        let (enabled, all_enabled) = crossbeam_channel::unbounded();
        let mut threads = Vec::new();
        for ring in rings {
            let number = ring.queue();
            let Some(queue) = queues.get(usize::from(number)).cloned() else {
                continue;
            };
            let (begins, enabled) = (begins.clone(), enabled.clone());
            let worker = Worker { ring, queue };
            threads.extend(
                std::thread::Builder::new()
                    .name(format!("buttress-ring-{number}"))
                    .spawn_scoped(scope, move || worker.work(server, device, enabled, &begins))
                    .ok(),
            );
        }
        drop(enabled);
        let mut has_one = vec![false; count];
        for queue in all_enabled {
            if let Some(has_one) = has_one.get_mut(usize::from(queue)) {
                *has_one = true;
            }
        }
        Self {
            threads,
            begin,
            is_whole: count > 0 && has_one.into_iter().all(|has_one| has_one),
        }
    }

    /// Returns whether every queue has a ring.
    pub(super) const fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Signals the threads to start.
    pub(super) fn begin(self) -> Vec<ScopedJoinHandle<'scope, io::Result<()>>> {
        for _ in &self.threads {
            // Threads that could not enable their rings have ended.
            let _ = self.begin.send(());
        }
        self.threads
    }
}

/// State of one ring thread.
struct Worker {
    ring: Ring,
    queue: Arc<Queue>,
}

impl Worker {
    fn work(
        mut self,
        server: &Server,
        device: &OwnedFd,
        enabled: Sender<u16>,
        begins: &Receiver<()>,
    ) -> io::Result<()> {
        bind(self.ring.queue());
        if self.ring.enable().is_err() {
            return Ok(());
        }
        let _ = enabled.send(self.ring.queue());
        drop(enabled);
        if begins.recv().is_err() {
            return Ok(());
        }
        self.queue.threads.fetch_add(1, Ordering::AcqRel);
        let ended = self.answer_all(server);
        self.queue.threads.fetch_sub(1, Ordering::AcqRel);
        ended.or_else(|_| reading::answer_all(server, device))
    }

    /// Answers requests until the unmount.
    fn answer_all(&mut self, server: &Server) -> io::Result<()> {
        let mut body = Vec::new();
        while self.ring.fetch()? == Fetched::Request {
            let mut turn = Turn::First;
            loop {
                let Some(request) = self.ring.request() else {
                    return Ok(());
                };
                match answer(server, request, turn, &mut body)? {
                    Answer::Before(kept) => {
                        turn = if self.forget(server, kept.clone(), false) {
                            server.has_come(&kept.content);
                            Turn::HasCome
                        } else {
                            Turn::CannotCome
                        };
                    }
                    Answer::Ready(head, bytes, stale) => {
                        if !stale.is_empty() {
                            self.forget(server, HeldBack::content(stale), true);
                        }
                        self.ring.answer(&head, bytes)?;
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Invalidates cached information of the kernel before an answer. Returns whether the thread
    /// invalidated the cached information. If this thread must not wait and `or_later` is set, the
    /// invalidation follows after the answer.
    fn forget(&self, server: &Server, kept: HeldBack, or_later: bool) -> bool {
        let may_wait = self.queue.may_wait();
        if may_wait {
            let (go_on, goes_on) = crossbeam_channel::bounded(1);
            let then = Then::GoOn(go_on);
            if server.forget_first(Later::before(kept, then)) {
                // An error means that the notifier thread has ended, so nothing is cached any more.
                let _ = goes_on.recv();
            }
        } else if or_later {
            let then = Then::Nothing;
            server.forget_first(Later::before(kept, then));
        }
        self.queue.waited();
        may_wait
    }
}

/// Binds this thread to a processor. An offline processor has no calls. If binding is denied, the
/// thread answers from any processor.
fn bind(processor: u16) {
    let mut only = CpuSet::new();
    if usize::from(processor) < CpuSet::MAX_CPU {
        only.set(usize::from(processor));
        let _ = sched_setaffinity(None, &only);
    }
}

enum Answer {
    /// The answer to the request is ready. Before the answer, the kernel must drop this cached
    /// information.
    Ready([u8; ANSWER_HEAD_BYTES], usize, Vec<Stale>),
    /// The kernel must first send this content; the request is unchanged.
    Before(HeldBack),
}

/// Writes an answer into the memory of its request.
fn answer(server: &Server, request: Request<'_>, turn: Turn, body: &mut Vec<u8>) -> io::Result<Answer> {
    let Request {
        head,
        arguments,
        payload,
        payload_bytes,
    } = request;
    let invalid = || {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "a request of a ring that is too short",
        )
    };
    let header = Header::parse(&mut Input::of(head)).map_err(|_| invalid())?;
    let arguments_bytes = header.bytes.checked_sub(IN_HEADER);
    let arguments_bytes = arguments_bytes.and_then(|bytes| bytes.checked_sub(payload_bytes));
    let arguments = arguments_bytes
        .and_then(|bytes| arguments.get(..bytes))
        .ok_or_else(invalid)?;
    let mut out = Output {
        body: core::mem::take(body),
        ..Output::default()
    };
    let when = if payload_bytes == 0 {
        out.content = Following::within(&mut *payload);
        server.respond(header, Input::of(arguments), turn, &mut out)
    } else {
        let content = payload.get(..payload_bytes).unwrap_or_default();
        server.respond(header, Input::of_two(arguments, content), turn, &mut out)
    };
    let Output { body: whole, content } = out;
    let content = content.into_kept();
    let stale = match when {
        When::Before(kept) => {
            *body = whole;
            return Ok(Answer::Before(kept));
        }
        When::After(stale) => stale,
        // The kernel ignores the answer, but gets its memory back.
        When::Now | When::Never => Vec::new(),
    };
    let (head, rest) = whole.split_first_chunk().ok_or_else(invalid)?;
    let bytes = put(payload, rest, &content)
        .ok_or_else(|| io::Error::other("an answer that is longer than any that the kernel asked for"))?;
    let head = *head;
    *body = whole;
    Ok(Answer::Ready(head, bytes, stale))
}

/// Copies the body of an answer to the beginning of the payload. Returns the length of the body, or
/// `None` if it does not fit.
fn put(payload: &mut [u8], body: &[u8], content: &Kept) -> Option<usize> {
    let content_bytes = match content {
        Kept::InPlace(bytes) => *bytes,
        Kept::Apart(content) => content.len(),
    };
    let bytes = body.len().checked_add(content_bytes)?;
    if bytes > payload.len() {
        return None;
    }
    match content {
        Kept::InPlace(_) if body.is_empty() => {}
        Kept::InPlace(_) => payload.copy_within(..content_bytes, body.len()),
        Kept::Apart(content) => payload.get_mut(body.len()..bytes)?.copy_from_slice(content),
    }
    payload.get_mut(..body.len())?.copy_from_slice(body);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted_where_the_list_leaves_none_out() {
        assert_eq!(count_in("0"), Some(1));
        assert_eq!(count_in("0-7"), Some(8));
        for list in ["", "1", "1-7", "0-3,8-11", "0-", "0-99999"] {
            assert_eq!(count_in(list), None, "{list}");
        }
    }

    #[test]
    fn one_thread_of_a_queue_does_not_wait() {
        let queue = Queue::default();
        queue.threads.store(3, Ordering::Release);
        assert!(queue.may_wait());
        assert!(queue.may_wait());
        assert!(!queue.may_wait());
        queue.waited();
        assert!(!queue.may_wait());
        queue.waited();
        queue.waited();
        assert!(queue.may_wait());
        let alone = Queue::default();
        alone.threads.store(1, Ordering::Release);
        assert!(!alone.may_wait());
    }

    #[test]
    fn an_answer_lies_at_the_beginning_of_the_payload() {
        let put = |body: &[u8], content: &Kept| {
            let mut payload = *b"content.";
            let bytes = put(&mut payload, body, content);
            bytes.map(|bytes| payload[..bytes].to_vec())
        };
        assert_eq!(put(b"", &Kept::InPlace(7)).unwrap(), b"content");
        assert_eq!(put(b"a", &Kept::InPlace(7)).unwrap(), b"acontent");
        assert_eq!(put(b"ab", &Kept::Apart(b"cd".to_vec())).unwrap(), b"abcd");
        assert_eq!(put(b"", &Kept::Apart(Vec::new())).unwrap(), b"");
        assert_eq!(put(b"ab", &Kept::InPlace(7)), None);
    }
}
