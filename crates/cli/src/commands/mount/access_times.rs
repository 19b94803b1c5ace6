//! Mount options for access times.
//!
//! Sources: mount(8), options `atime`, `relatime`, `strictatime` and `diratime` and their
//! negations; mount(2).

use buttress::{AccessPolicy, AccessTimes};
use rustix::mount::MountFlags;

/// Applies an option. Returns whether the option sets the policy for access times. As with
/// mount(2), a negated option falls back to `relatime`.
pub(super) fn take(policy: &mut AccessPolicy, name: &str) -> bool {
    match name {
        "noatime" => policy.times = AccessTimes::Never,
        "strictatime" => policy.times = AccessTimes::Strict,
        "atime" if policy.times == AccessTimes::Never => policy.times = AccessTimes::Relative,
        "nostrictatime" if policy.times == AccessTimes::Strict => policy.times = AccessTimes::Relative,
        "relatime" => policy.times = AccessTimes::Relative,
        "diratime" => policy.without_directories = false,
        "nodiratime" => policy.without_directories = true,
        // As with `lazytime`, times that are not on the device yet stay in memory, and become
        // durable with the next sync.
        "atime" | "nostrictatime" | "norelatime" | "lazytime" | "nolazytime" => {}
        _ => return false,
    }
    true
}

/// Returns the policy of a mount's options in the table of mounts. If the mount table shows no
/// other option of access times, the policy is `strictatime`.
pub(super) fn of_table(options: &str) -> AccessPolicy {
    let has = |name: &str| options.split(',').any(|option| option == name);
    let times = match (has("noatime"), has("relatime")) {
        (true, _) => AccessTimes::Never,
        (false, true) => AccessTimes::Relative,
        (false, false) => AccessTimes::Strict,
    };
    AccessPolicy {
        times,
        without_directories: has("nodiratime"),
    }
}

/// Returns the flags of mount(2) for a policy. A remount without an access-time flag keeps the old
/// policy, so the result always has one flag.
pub(super) fn flags(policy: AccessPolicy) -> MountFlags {
    let times = match policy.times {
        AccessTimes::Relative => MountFlags::RELATIME,
        AccessTimes::Strict => MountFlags::STRICTATIME,
        AccessTimes::Never => MountFlags::NOATIME,
    };
    match policy.without_directories {
        true => times | MountFlags::NODIRATIME,
        false => times,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_access_times_are_those_of_mount() {
        let taken = |text: &str| {
            let mut policy = AccessPolicy::default();
            let known = text.split(',').all(|name| take(&mut policy, name));
            known.then_some((policy.times, policy.without_directories))
        };
        for (text, times, without_directories) in [
            ("relatime", AccessTimes::Relative, false),
            ("lazytime,norelatime", AccessTimes::Relative, false),
            ("noatime", AccessTimes::Never, false),
            ("noatime,atime", AccessTimes::Relative, false),
            ("strictatime", AccessTimes::Strict, false),
            ("strictatime,atime", AccessTimes::Strict, false),
            ("strictatime,nostrictatime", AccessTimes::Relative, false),
            ("strictatime,relatime", AccessTimes::Relative, false),
            ("nodiratime", AccessTimes::Relative, true),
            ("strictatime,nodiratime", AccessTimes::Strict, true),
            ("nodiratime,diratime", AccessTimes::Relative, false),
        ] {
            assert_eq!(taken(text), Some((times, without_directories)), "{text}");
        }
        assert_eq!(taken("sync"), None);
    }

    #[test]
    fn table_of_mounts_names_strictatime_by_no_option() {
        for (options, times, without_directories) in [
            ("rw,relatime", AccessTimes::Relative, false),
            ("rw,nosuid,noatime", AccessTimes::Never, false),
            ("rw,nodev", AccessTimes::Strict, false),
            ("ro,nodiratime,relatime", AccessTimes::Relative, true),
        ] {
            let expected = AccessPolicy {
                times,
                without_directories,
            };
            assert_eq!(of_table(options), expected, "{options}");
        }
    }
}
