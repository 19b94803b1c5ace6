//! Worker threads for decompression and checksums. All readers of one volume's data share the
//! worker threads.
//!
//! A spawned job becomes a [`Task`], whose owner takes the result, in any order. If no worker has
//! begun the task when its result is needed, the waiting thread runs it. A waiting thread is
//! therefore never idle while there is work. Without workers (on simulated devices, or if no thread
//! can be started), all jobs run on the caller's thread, in the order in which results are taken.
//!
//! Bounds: the queue holds the tasks whose results their users did not take yet. Each user of the
//! executor limits these tasks by bytes. A dropped task is removed if it has not begun.

use buttress_exact::Defect;
use buttress_locks::{Condvar, Mutex, Rank, lock_class};
use crossbeam_channel::{Receiver, Sender};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, OnceLock};
use std::thread;

lock_class!(JobLock, "state", Rank::LEAF);

/// An executor that runs jobs on threads, which start with the first job.
#[derive(Debug)]
pub struct Executor {
    /// The number of workers. `None` means the number of cores, whose determination reads system
    /// files.
    workers: Option<usize>,
    queue: OnceLock<Option<Sender<Arc<dyn Run>>>>,
}

trait Run: Send + Sync {
    fn run(&self);
}

enum State<T> {
    Waiting(Box<dyn FnOnce() -> T + Send>),
    Running,
    Done(thread::Result<T>),
    Gone,
}

struct Slot<T> {
    state: Mutex<State<T>, JobLock>,
    done: Condvar,
}

impl<T> Slot<T> {
    /// Returns the task's job, if no thread has begun it.
    fn begin(&self) -> Option<Box<dyn FnOnce() -> T + Send>> {
        let mut state = self.state.lock();
        match core::mem::replace(&mut *state, State::Running) {
            State::Waiting(job) => Some(job),
            other => {
                *state = other;
                None
            }
        }
    }
}

impl<T: Send> Run for Slot<T> {
    fn run(&self) {
        if let Some(job) = self.begin() {
            // The owner of the task receives a panic as if it had run the job itself.
            let result = catch_unwind(AssertUnwindSafe(job));
            *self.state.lock() = State::Done(result);
            self.done.notify_all();
        }
    }
}

/// The future result of a job.
pub struct Task<T> {
    slot: Arc<Slot<T>>,
}

impl<T> core::fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Task")
    }
}

impl<T> Task<T> {
    /// Returns the job's result. Waits for the result, or runs the job on this thread.
    ///
    /// # Errors
    /// Returns a [`Defect`] if the result was taken before, which cannot happen: taking consumes
    /// the task. The caller must not continue as if no job had run.
    pub fn take(self) -> Result<T, Defect> {
        if let Some(job) = self.slot.begin() {
            return Ok(job());
        }
        let mut state = self.slot.state.lock();
        while matches!(*state, State::Running) {
            self.slot.done.wait(&mut state);
        }
        match core::mem::replace(&mut *state, State::Gone) {
            State::Done(Ok(result)) => Ok(result),
            State::Done(Err(panic)) => {
                drop(state);
                resume_unwind(panic)
            }
            State::Waiting(_) | State::Running | State::Gone => {
                Err(Defect::new("the result of a job is gone"))
            }
        }
    }
}

/// Returns the results of jobs, one after another.
///
/// # Errors
/// Fails as [`Task::take`] does.
pub fn take_all<T>(tasks: Vec<Task<Vec<T>>>) -> Result<Vec<T>, Defect> {
    let mut all = Vec::new();
    for task in tasks {
        match task.take() {
            Ok(mut results) => all.append(&mut results),
            Err(_) if buttress_faults::on("job-result-lost-silently") => {}
            Err(defect) => return Err(defect),
        }
    }
    Ok(all)
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        let mut state = self.slot.state.lock();
        if matches!(*state, State::Waiting(_) | State::Done(_)) {
            let forgotten = core::mem::replace(&mut *state, State::Gone);
            drop(state);
            drop(forgotten);
        }
    }
}

impl Executor {
    /// Makes an executor with as many workers as the machine has cores.
    pub const fn of_all_cores() -> Self {
        Self::with(None)
    }

    /// Makes an executor with this number of workers.
    pub const fn with_workers(workers: usize) -> Self {
        Self::with(Some(workers))
    }

    const fn with(workers: Option<usize>) -> Self {
        // A model checker runs its own threads, so all jobs run on the calling thread.
        let workers = if cfg!(buttress_shuttle) { Some(0) } else { workers };
        Self {
            workers,
            queue: OnceLock::new(),
        }
    }

    /// Makes an executor without workers: jobs run where their results are taken.
    pub const fn inline() -> Self {
        Self::with_workers(0)
    }

    /// Returns true if jobs run on other threads while the caller continues.
    pub const fn is_parallel(&self) -> bool {
        !matches!(self.workers, Some(0))
    }

    /// Queues a job.
    pub fn spawn<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Task<T> {
        let slot = Arc::new(Slot {
            state: Mutex::new(State::Waiting(Box::new(job))),
            done: Condvar::new(),
        });
        let start = || {
            let cores = buttress_device::placement::processors;
            start_workers(self.workers.unwrap_or_else(cores))
        };
        if let Some(queue) = self.queue.get_or_init(start) {
            let queued: Arc<dyn Run> = slot.clone();
            // Without a worker to receive it, the job runs where its result is taken.
            drop(queue.send(queued));
        }
        Task { slot }
    }
}

/// Starts the worker threads. Returns `None` if `count` is zero, or if no thread could be started.
/// The threads end when the executor is dropped, each after its current job.
fn start_workers(count: usize) -> Option<Sender<Arc<dyn Run>>> {
    let (sender, receiver) = crossbeam_channel::unbounded();
    let started = (0..count)
        .filter(|number| {
            let receiver: Receiver<Arc<dyn Run>> = receiver.clone();
            thread::Builder::new()
                .name(format!("buttress-data-{number}"))
                .spawn(move || {
                    buttress_device::placement::run_anywhere();
                    receiver.iter().for_each(|job| job.run());
                })
                .is_ok()
        })
        .count();
    (started > 0).then_some(sender)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_their_order_with_and_without_workers() {
        for executor in [Executor::of_all_cores(), Executor::inline()] {
            let tasks: Vec<_> = (0..1000_u64)
                .map(|number| executor.spawn(move || number * 2))
                .collect();
            let results: Vec<u64> = tasks.into_iter().rev().map(|task| task.take().unwrap()).collect();
            assert_eq!(
                results,
                (0..1000).rev().map(|number| number * 2).collect::<Vec<u64>>()
            );
        }
    }

    #[test]
    fn a_dropped_task_frees_what_it_holds() {
        let executor = Executor::inline();
        let held = Arc::new(());
        let task = executor.spawn({
            let held = Arc::clone(&held);
            move || drop(held)
        });
        assert_eq!(Arc::strong_count(&held), 2);
        drop(task);
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[test]
    fn a_result_that_is_gone_is_a_defect() {
        let executor = Executor::inline();
        let tasks: Vec<_> = (0..3_u8)
            .map(|number| executor.spawn(move || vec![number; 2]))
            .collect();
        assert_eq!(take_all(tasks), Ok(vec![0, 0, 1, 1, 2, 2]));
        assert!(take_all(vec![gone()]).is_err());
    }

    /// Returns a task whose result was already taken.
    fn gone() -> Task<Vec<u8>> {
        let task = Executor::inline().spawn(|| vec![7]);
        *task.slot.state.lock() = State::Gone;
        task
    }

    #[test]
    fn a_missing_result_among_others_is_a_defect() {
        let other = || Executor::inline().spawn(|| vec![6]);
        assert!(take_all(vec![other(), gone(), other()]).is_err());
    }

    #[test]
    fn a_panic_reaches_the_one_who_waits() {
        let executor = Executor::of_all_cores();
        let task = executor.spawn(|| -> u32 { panic!("planted") });
        thread::sleep(std::time::Duration::from_millis(20));
        assert!(catch_unwind(AssertUnwindSafe(|| task.take())).is_err());
        assert_eq!(executor.spawn(|| 7).take(), Ok(7));
    }
}
