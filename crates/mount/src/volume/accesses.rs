//! The policy for access times, which a remount can change.

use super::MountedVolume;
use buttress::{AccessPolicy, AccessTimes};
use core::sync::atomic::{AtomicU8, Ordering};

const STRICT: u8 = 1;
const NEVER: u8 = 2;
const WITHOUT_DIRECTORIES: u8 = 4;

/// An [`AccessPolicy`] that can change while requests run.
#[derive(Debug)]
pub(super) struct Accesses(AtomicU8);

impl Accesses {
    pub(super) fn new(policy: AccessPolicy) -> Self {
        Self(AtomicU8::new(bits(policy)))
    }

    pub(super) fn get(&self) -> AccessPolicy {
        let bits = self.0.load(Ordering::SeqCst);
        let times = match (bits & STRICT, bits & NEVER) {
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
    /// Changes the policy for access times for all later requests.
    pub fn set_accesses(&self, policy: AccessPolicy) {
        self.accesses.0.store(bits(policy), Ordering::SeqCst);
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
