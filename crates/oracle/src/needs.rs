//! The needs of tests beside the toolchain: programs, rights, and features of a kernel or a file
//! system.
//!
//! Each need has a name. `cargo xtask test --without NAME` accepts that the need is missing. The
//! variable `BUTTRESS_WITHOUT` (names separated by commas) then makes the tests treat it as missing
//! even if it exists. A test asks [`missing`]; if the test leaves something out because of the
//! answer, it calls [`skip`](crate::skip::skip).

use std::fmt;
use std::sync::OnceLock;

/// The variable with the names of needs to treat as missing.
pub const WITHOUT: &str = "BUTTRESS_WITHOUT";

/// Programs that tests start, with their Debian packages. Programs of every Linux system are not
/// listed.
pub const PROGRAMS: [(&str, &str); 25] = [
    ("mkfs.btrfs", "btrfs-progs"),
    ("btrfs", "btrfs-progs"),
    ("losetup", "mount"),
    ("mount", "mount"),
    ("partx", "util-linux"),
    ("tar", "tar"),
    ("filefrag", "e2fsprogs"),
    ("mkfs.ext4", "e2fsprogs"),
    ("setfacl", "acl"),
    ("sgdisk", "gdisk"),
    ("parted", "parted"),
    ("compsize", "btrfs-compsize"),
    ("strace", "strace"),
    ("xfs_io", "xfsprogs"),
    ("dpkg-deb", "dpkg"),
    ("umoci", "umoci"),
    ("systemd-repart", "systemd"),
    ("fio", "fio"),
    ("stress-ng", "stress-ng"),
    ("dbench", "dbench"),
    ("fs_mark", "fsmark"),
    ("postmark", "postmark"),
    ("sqlite3", "sqlite3"),
    ("git", "git"),
    ("fusermount3", "fuse3"),
];

/// Needs that no package provides, each with a description.
pub const OTHERS: [(&str, &str); 12] = [
    ("root", "the rights of root, to mount volumes"),
    ("kernel", "a kernel with btrfs"),
    ("loop-devices", "loop devices"),
    ("fuse", "/dev/fuse, and the rights to mount with it"),
    (
        "fuse-rings",
        "a kernel that was told to offer FUSE over io_uring (enable_uring of the module fuse is Y)",
    ),
    (
        REFERENCE_PROGS,
        "btrfs-progs 6.14, the reference of what is printed",
    ),
    ("gnu-cp", "cp of GNU coreutils"),
    ("direct-io", "O_DIRECT on the file system of the build"),
    ("io-uring", "io_uring"),
    (
        "user-xattrs",
        "user attributes on the file system of temporary files",
    ),
    ("page-cache", "a kernel that says what is in the page cache (6.5)"),
    (
        "debian-archive",
        "packages of Debian, by apt-get download or from the folder that BUTTRESS_DEBIAN_PACKAGES names",
    ),
];

/// The name of the need for the reference version of btrfs-progs.
pub const REFERENCE_PROGS: &str = "btrfs-progs-6.14";

/// A missing need, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    need: &'static str,
    reason: String,
}

impl Missing {
    /// Returns the need `need` as missing, with the observation in `reason`.
    ///
    /// # Panics
    /// Panics when `need` has no entry in [`PROGRAMS`] or [`OTHERS`].
    #[must_use]
    pub fn new(need: &str, reason: impl fmt::Display) -> Self {
        let Some(need) = names().find(|name| *name == need) else {
            panic!("{need} is no need that tests have")
        };
        Self {
            need,
            reason: reason.to_string(),
        }
    }

    /// Returns the name of the missing need.
    #[must_use]
    pub const fn need(&self) -> &'static str {
        self.need
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

/// Returns the names of all needs.
pub fn names() -> impl Iterator<Item = &'static str> {
    PROGRAMS.into_iter().chain(OTHERS).map(|(name, _)| name)
}

/// Returns whether a need counts as missing by the environment.
fn is_left_out(need: &str) -> bool {
    static WITHOUT_NAMES: OnceLock<String> = OnceLock::new();
    let names = WITHOUT_NAMES.get_or_init(|| std::env::var(WITHOUT).unwrap_or_default());
    names.split(',').any(|name| name == need)
}

/// Returns the missing need, or `None` if the need is met. Only their use shows whether the last
/// six of [`OTHERS`] are met; this function counts them as met.
///
/// # Panics
/// Panics when `need` is not a known need.
#[must_use]
pub fn missing(need: &str) -> Option<Missing> {
    if is_left_out(need) {
        return Some(Missing::new(need, format!("--without {need}")));
    }
    if let Some((program, package)) = PROGRAMS.into_iter().find(|(program, _)| *program == need) {
        let reason = format!("{program} is not installed (package {package})");
        return (!in_path(program)).then(|| Missing::new(need, reason));
    }
    let is_met = match need {
        "root" => rustix::process::geteuid().is_root(),
        "kernel" => std::fs::read_to_string("/proc/filesystems")
            .is_ok_and(|kinds| kinds.split_whitespace().any(|word| word == "btrfs")),
        "loop-devices" => std::path::Path::new("/dev/loop-control").exists(),
        REFERENCE_PROGS => crate::tools::newest_is_reference(),
        _ => true,
    };
    let what = OTHERS.into_iter().find(|(name, _)| *name == need);
    let what = what.map_or(need, |(_, what)| what);
    (!is_met).then(|| Missing::new(need, format!("needs {what}")))
}

/// Returns the first of these needs that is missing.
#[must_use]
pub fn any_missing(needs: &[&str]) -> Option<Missing> {
    needs.iter().find_map(|need| missing(need))
}

fn in_path(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_need_has_one_name() {
        let all: Vec<_> = names().collect();
        let mut once = all.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), all.len());
    }

    #[test]
    #[should_panic(expected = "is no need")]
    fn a_need_that_is_not_listed_is_refused() {
        drop(Missing::new("a-thing-of-its-own", "not there"));
    }
}
