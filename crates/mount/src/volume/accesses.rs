//! The policy for access times, and whether the mount is read-only: a remount can change both.
//!
//! For a remount, the kernel sends no request, and its own calls are then read-only. The rest is
//! left to the server: access times and control commands.

use super::MountedVolume;
use buttress::{AccessPolicy, AccessTimes};
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

const STRICT: u8 = 1;
const NEVER: u8 = 2;
const WITHOUT_DIRECTORIES: u8 = 4;

/// An [`AccessPolicy`] that can change while requests run.
#[derive(Debug)]
pub(super) struct Accesses {
    policy: AtomicU8,
    is_read_only: AtomicBool,
}

impl Accesses {
    pub(super) fn new(policy: AccessPolicy) -> Self {
        Self {
            policy: AtomicU8::new(bits(policy)),
            is_read_only: AtomicBool::new(false),
        }
    }

    pub(super) fn get(&self) -> AccessPolicy {
        let bits = self.policy.load(Ordering::SeqCst);
        let times = match (bits & STRICT, bits & NEVER) {
            _ if self.is_read_only.load(Ordering::SeqCst) => AccessTimes::Never,
            (0, 0) => AccessTimes::Relative,
            (_, 0) => AccessTimes::Strict,
            _ => AccessTimes::Never,
        };
        AccessPolicy {
            times,
            without_directories: bits & WITHOUT_DIRECTORIES != 0,
        }
    }
}

fn bits(policy: AccessPolicy) -> u8 {
    let times = match policy.times {
        AccessTimes::Relative => 0,
        AccessTimes::Strict => STRICT,
        AccessTimes::Never => NEVER,
    };
    match policy.without_directories {
        true => times | WITHOUT_DIRECTORIES,
        false => times,
    }
}

impl MountedVolume {
    /// Changes the policy for access times for all later requests, and whether the mount is
    /// read-only. A read-only mount changes no access times, and refuses control commands that
    /// change the volume.
    ///
    /// Left out: background work (cleaner, reclaim, balances, scrubs) continues, and commits of
    /// earlier changes follow.
    pub fn set_remounted(&self, policy: AccessPolicy, is_read_only: bool) {
        self.accesses.policy.store(bits(policy), Ordering::SeqCst);
        self.accesses.is_read_only.store(is_read_only, Ordering::SeqCst);
    }

    /// Returns whether the mount became read-only after it began writable.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.accesses.is_read_only.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_is_kept_in_bits() {
        for times in [AccessTimes::Relative, AccessTimes::Strict, AccessTimes::Never] {
            for without_directories in [false, true] {
                let policy = AccessPolicy {
                    times,
                    without_directories,
                };
                assert_eq!(Accesses::new(policy).get(), policy);
            }
        }
    }
}
