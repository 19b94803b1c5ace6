//! The processors of pool threads: all processors that the process may use.
//!
//! A thread inherits the processors of the thread that started it. A thread pool starts its threads
//! on first use; the using thread may be bound to one processor, like mount servers' threads. The
//! affinity of the process is that of its first thread, which is bound only from outside.

#[cfg(target_os = "linux")]
use rustix::process::getpid;
#[cfg(target_os = "linux")]
use rustix::thread::{sched_getaffinity, sched_setaffinity};
use std::sync::OnceLock;
use std::thread;

static PROCESSORS: OnceLock<usize> = OnceLock::new();

/// Returns the number of processors that the process may use. Opening a device determines it,
/// because a bound thread cannot.
pub fn processors() -> usize {
    *PROCESSORS.get_or_init(|| thread::available_parallelism().map_or(1, usize::from))
}

/// Lets this thread run on all processors of the process. Does nothing if the system does not
/// report these processors or does not allow the change.
pub fn run_anywhere() {
    #[cfg(target_os = "linux")]
    if let Ok(all) = sched_getaffinity(Some(getpid())) {
        let _ = sched_setaffinity(None, &all);
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;
    use rustix::thread::CpuSet;

    #[test]
    fn threads_of_a_bound_thread_are_not_bound() {
        let of_process = sched_getaffinity(Some(getpid())).unwrap();
        let all = processors();
        let first = (0..CpuSet::MAX_CPU)
            .find(|number| of_process.is_set(*number))
            .unwrap();
        let bound = thread::spawn(move || {
            let mut one = CpuSet::new();
            one.set(first);
            sched_setaffinity(None, &one).unwrap();
            assert_eq!(thread::available_parallelism().unwrap().get(), 1);
            let started = thread::spawn(|| {
                run_anywhere();
                sched_getaffinity(None).unwrap()
            });
            (started.join().unwrap(), processors())
        });
        let (started, counted) = bound.join().unwrap();
        assert_eq!(started, of_process);
        assert_eq!(counted, all);
    }
}
