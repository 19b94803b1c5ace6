//! The threads of a scrub: streams walk chunks and submit groups; checkers, one for each core, wait
//! for groups and check them.
//!
//! A stream has at most [`Shape::groups`](crate::Shape) in flight. On simulated devices, everything
//! runs on the caller's thread, so that runs repeat.

use crate::filling::{Filled, Groups};
use crate::group::Submitted;
use crate::job::Job;
use crate::schedule::Schedule;
use buttress_exact::Exact as _;
use buttress_locks::{Condvar, Mutex, Rank, lock_class};
use buttress_volume::MappedChunk;
use crossbeam_channel::{Receiver, Sender, bounded};
use std::collections::VecDeque;
use std::sync::Arc;

lock_class!(WindowLock, "under_way", Rank::LEAF);

/// The most streams, for any number of devices.
const STREAMS_MAX: usize = 16;

impl Job<'_> {
    /// Runs the whole scrub on this thread, one stream after another.
    pub(crate) fn run_inline(&self, schedule: &Schedule) {
        while let Some(chunk) = schedule.next() {
            let mut under_way: VecDeque<Submitted> = VecDeque::new();
            self.walk(&chunk, &mut |submitted| {
                under_way.push_back(submitted);
                if under_way.len() >= self.options.shape.groups.max(1)
                    && let Some(oldest) = under_way.pop_front()
                {
                    self.check(oldest);
                }
            });
            under_way.into_iter().for_each(|submitted| self.check(submitted));
            schedule.end(&chunk);
            if self.progress.is_cancelled() {
                schedule.stop();
            }
        }
    }

    pub(crate) fn run_threads(&self, schedule: &Schedule) {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let streams = self.devices.len().clamp(1, STREAMS_MAX);
        let queued = streams.exact_mul(self.options.shape.groups.max(1));
        let (submit, submitted) = bounded::<Ticket>(queued);
        std::thread::scope(|scope| {
            let checkers = (0..cores).map(|number| (format!("buttress-scrub-check-{number}"), number));
            let checkers: Vec<_> = checkers
                .filter_map(|(name, _)| {
                    let submitted = submitted.clone();
                    let work = move || self.check_all(&submitted);
                    std::thread::Builder::new()
                        .name(name)
                        .spawn_scoped(scope, work)
                        .ok()
                })
                .collect();
            drop(submitted);
            if checkers.is_empty() {
                // The system could not start a checking thread, so this thread does everything.
                self.run_inline(schedule);
                return;
            }
            let walkers: Vec<_> = (1..streams)
                .filter_map(|number| {
                    let submit = submit.clone();
                    std::thread::Builder::new()
                        .name(format!("buttress-scrub-walk-{number}"))
                        .spawn_scoped(scope, move || self.walk_all(schedule, &submit))
                        .ok()
                })
                .collect();
            self.walk_all(schedule, &submit);
            drop(submit);
            for thread in walkers.into_iter().chain(checkers) {
                if let Err(panic) = thread.join() {
                    std::panic::resume_unwind(panic);
                }
            }
        });
    }

    /// Walks one stream after another, until all chunks have begun.
    fn walk_all(&self, schedule: &Schedule, submit: &Sender<Ticket>) {
        while let Some(chunk) = schedule.next() {
            let begun = Begun { schedule, chunk };
            let window = Arc::new(Window::default());
            self.walk(&begun.chunk, &mut |submitted| {
                let place = Window::enter(&window, self.options.shape.groups.max(1));
                // The send fails only if the checkers panicked, and another place passes that panic
                // on.
                let _gone = submit.send(Ticket { submitted, place });
            });
            window.wait_until_empty();
            drop(begun);
            if self.progress.is_cancelled() {
                schedule.stop();
            }
        }
    }

    fn check_all(&self, submitted: &Receiver<Ticket>) {
        for ticket in submitted {
            let Ticket { submitted, place } = ticket;
            self.check(submitted);
            drop(place);
        }
    }

    /// Walks a chunk from its first unfinished group, and submits one group after another.
    fn walk(&self, chunk: &Arc<MappedChunk>, submit: &mut dyn FnMut(Submitted)) {
        let Some(first) = self.first_group(chunk.start()) else {
            return;
        };
        self.running.lock().begin(chunk.start(), first);
        let (trees, chunk) = match self.trees_of(chunk) {
            Ok(Some((trees, chunk))) => (trees, chunk),
            Ok(None) => return self.running.lock().all_submitted(chunk.start()),
            Err(error) => {
                self.ledger.lock().cannot_walk(error.to_string());
                return;
            }
        };
        let mut groups = Groups::new(&trees, &self.format, &chunk, self.options.shape.stripes, first);
        while let Some(filled) = groups.next() {
            match filled {
                Filled::Unwalked(what) => self.ledger.lock().cannot_walk(what),
                Filled::Group(mut group) => {
                    if self.progress.is_cancelled() || self.replaced.lock().is_over() {
                        return;
                    }
                    if let Some(replacing) = &self.replaces {
                        let passed_over = replacing.copying.keep_wanted(&mut group);
                        if replacing.copying.counts_inspected(&chunk) {
                            self.progress.advance(0, passed_over);
                        }
                    }
                    if group.pieces.is_empty() {
                        continue;
                    }
                    self.running.lock().submitted(chunk.start(), group.number);
                    submit(self.submit(group, &trees));
                }
            }
        }
        self.running.lock().all_submitted(chunk.start());
    }

    /// Scrubs one group, if any part of it is in use.
    pub(crate) fn walk_group(&self, chunk: &Arc<MappedChunk>, number: u64) {
        let Ok(Some((trees, chunk))) = self.trees_of(chunk) else {
            return;
        };
        let stripes = self.options.shape.stripes;
        let mut groups = Groups::new(&trees, &self.format, &chunk, stripes, number);
        while let Some(filled) = groups.next() {
            match filled {
                Filled::Unwalked(_) => {}
                Filled::Group(group) if group.number == number => {
                    return self.check(self.submit(group, &trees));
                }
                Filled::Group(_) => return,
            }
        }
    }
}

/// A chunk that a stream walks. Dropping this value ends the walk of the chunk in any case, because
/// other streams wait for its devices.
struct Begun<'a> {
    schedule: &'a Schedule,
    chunk: Arc<MappedChunk>,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.schedule.end(&self.chunk);
        if std::thread::panicking() {
            self.schedule.stop();
        }
    }
}

/// A submitted group for a checker, with its place in its stream's window.
struct Ticket {
    submitted: Submitted,
    place: InWindow,
}

/// The number of a stream's groups in flight.
#[derive(Debug, Default)]
struct Window {
    under_way: Mutex<usize, WindowLock>,
    left: Condvar,
}

/// A group in flight, until it is dropped.
#[derive(Debug)]
struct InWindow(Arc<Window>);

impl Window {
    fn enter(window: &Arc<Self>, most: usize) -> InWindow {
        let mut under_way = window.under_way.lock();
        while *under_way >= most {
            window.left.wait(&mut under_way);
        }
        *under_way = under_way.exact_add(1);
        InWindow(Arc::clone(window))
    }

    fn wait_until_empty(&self) {
        let mut under_way = self.under_way.lock();
        while *under_way > 0 {
            self.left.wait(&mut under_way);
        }
    }
}

impl Drop for InWindow {
    fn drop(&mut self) {
        let mut under_way = self.0.under_way.lock();
        *under_way = under_way.exact_sub(1);
        self.0.left.notify_all();
    }
}
