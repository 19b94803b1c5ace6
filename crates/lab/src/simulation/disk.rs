//! The event loop of a simulated disk, which serves queued requests in virtual time.
//!
//! The drive begins requests one after another. The disk begins a request as soon as the drive is
//! ready and a request has arrived. The disk chooses only among requests that have arrived by then
//! and are among the first [`Drive::queue_depth`] of the queue. The queue is in the order of
//! submission (each batch ascending by offset); requests beyond the drive's depth stay in the
//! queue.
//!
//! The event loop runs when a caller asks. It first runs up to the clock's time
//! ([`SimulatedDisk::settle`]), so that no choice depends on later requests. While a caller is
//! blocked, it then runs on until the drive has begun the caller's request, whose time is then
//! fixed. The disk reads a request's bytes from the backend, or writes them, at the moment of the
//! request's completion.

use std::collections::VecDeque;
use std::time::Duration;

use buttress_device::{QueuedRequest, Schedule, StartedRequest, VirtualClock};
use buttress_locks::unscheduled::Mutex;
use buttress_locks::{Rank, lock_class};

use super::{Command, Direction, Drive, Model};

lock_class!(DiskLock, "state", Rank::new(84).over_device());

#[derive(Debug)]
pub(crate) struct SimulatedDisk {
    clock: VirtualClock,
    is_rotational: bool,
    state: Mutex<DiskState, DiskLock>,
}

#[derive(Debug)]
struct DiskState {
    drive: Box<dyn Drive>,
    /// The pending requests, in the order of submission.
    queue: VecDeque<Job>,
    /// The requests that have begun, each with the time of its end.
    begun: Vec<(u64, Begun)>,
    /// The earliest time of the drive's next request.
    next_start: u64,
    next_write: u64,
}

#[derive(Debug)]
struct Job {
    command: Command,
    work: Work,
}

#[derive(Clone, Debug)]
enum Work {
    Queued(QueuedRequest),
    /// A single write, by number; its caller writes the bytes.
    Write(u64),
}

impl Work {
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Queued(one), Self::Queued(two)) => one.is(two),
            (Self::Write(one), Self::Write(two)) => one == two,
            _ => false,
        }
    }
}

/// A request that the drive has begun.
#[derive(Debug)]
enum Begun {
    Queued(StartedRequest),
    /// A single write, by number.
    Write(u64),
}

impl Begun {
    fn is(&self, work: &Work) -> bool {
        match (self, work) {
            (Self::Queued(one), Work::Queued(two)) => one.request().is(two),
            (Self::Write(one), Work::Write(two)) => one == two,
            _ => false,
        }
    }
}

impl SimulatedDisk {
    pub(crate) fn new(clock: VirtualClock, model: &Model) -> Self {
        let state = DiskState {
            drive: model.drive(),
            queue: VecDeque::new(),
            begun: Vec::new(),
            next_start: 0,
            next_write: 0,
        };
        Self {
            clock,
            is_rotational: matches!(model, Model::Spinning(_)),
            state: Mutex::new(state),
        }
    }

    fn command(&self, direction: Direction, offset_bytes: u64, length_bytes: u64) -> Command {
        Command {
            direction,
            offset_bytes,
            length_bytes,
            arrived: self.clock.nanoseconds(),
        }
    }

    /// Advances the time until `work` is done.
    fn run_until_done(&self, state: &mut DiskState, work: &Work) {
        loop {
            if let Some(done) = state.done_time(work) {
                self.clock.advance_to(done);
                self.settle(state);
                return;
            }
            if !state.begin_next(u64::MAX) {
                return;
            }
        }
    }

    /// Runs the disk up to the clock's time.
    fn settle(&self, state: &mut DiskState) {
        let now = self.clock.nanoseconds();
        while state.begin_next(now) {}
        if !state.begun.iter().any(|(done, _)| *done <= now) {
            return;
        }
        let (mut over, begun): (Vec<_>, Vec<_>) = state.begun.drain(..).partition(|(done, _)| *done <= now);
        state.begun = begun;
        over.sort_by_key(|(done, _)| *done);
        for (done, work) in over {
            if let Begun::Queued(request) = work {
                request.complete(Duration::from_nanos(done));
            }
        }
    }
}

impl DiskState {
    fn done_time(&self, work: &Work) -> Option<u64> {
        self.begun
            .iter()
            .find(|(_, begun)| begun.is(work))
            .map(|(done, _)| *done)
    }

    /// Begins the next request, if it can begin by `limit`. Returns whether the drive began a
    /// request.
    fn begin_next(&mut self, limit: u64) -> bool {
        // The queue is in the order of arrival.
        let Some(first) = self.queue.front() else {
            return false;
        };
        let start = self.next_start.max(first.command.arrived);
        if start > limit {
            return false;
        }
        let depth = self.drive.queue_depth();
        let (places, commands): (Vec<usize>, Vec<Command>) = self
            .queue
            .iter()
            .enumerate()
            .take(depth)
            .filter(|(_, job)| job.command.arrived <= start)
            .map(|(place, job)| (place, job.command))
            .unzip();
        let chosen = self.drive.choose(&commands, start);
        let Some(job) = places.get(chosen).and_then(|place| self.queue.remove(*place)) else {
            return false;
        };
        let begun = match job.work {
            Work::Queued(request) => match request.start() {
                Some(started) => Begun::Queued(started),
                // A cancelled request costs no time.
                None => return true,
            },
            Work::Write(number) => Begun::Write(number),
        };
        let served = self.drive.serve(&job.command, start);
        self.next_start = served.next_start;
        self.begun.push((served.done, begun));
        true
    }
}

impl Schedule for SimulatedDisk {
    fn is_rotational(&self) -> bool {
        self.is_rotational
    }

    fn submit(&self, requests: Vec<QueuedRequest>) {
        let mut state = self.state.lock();
        self.settle(&mut state);
        for request in requests {
            let direction = match request.is_write() {
                true => Direction::Write,
                false => Direction::Read,
            };
            let command = self.command(direction, request.offset_bytes(), request.length_bytes());
            state.queue.push_back(Job {
                command,
                work: Work::Queued(request),
            });
        }
    }

    fn wait_for(&self, request: &QueuedRequest) {
        let mut state = self.state.lock();
        self.settle(&mut state);
        self.run_until_done(&mut state, &Work::Queued(request.clone()));
    }

    fn cancel(&self, request: &QueuedRequest) {
        let cancelled = Work::Queued(request.clone());
        self.state.lock().queue.retain(|job| !job.work.is(&cancelled));
    }

    fn catch_up(&self) {
        self.settle(&mut self.state.lock());
    }

    fn drain(&self) {
        let mut state = self.state.lock();
        self.settle(&mut state);
        while state.begin_next(u64::MAX) {}
        if let Some(last) = state.begun.iter().map(|(done, _)| *done).max() {
            self.clock.advance_to(last);
        }
        self.settle(&mut state);
    }

    fn wait_for_write(&self, offset_bytes: u64, length_bytes: u64) {
        let mut state = self.state.lock();
        self.settle(&mut state);
        let work = Work::Write(state.next_write);
        state.next_write = state.next_write.wrapping_add(1);
        let command = self.command(Direction::Write, offset_bytes, length_bytes);
        state.queue.push_back(Job {
            command,
            work: work.clone(),
        });
        self.run_until_done(&mut state, &work);
    }
}
