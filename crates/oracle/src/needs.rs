//! What tests need of the machine beside the toolchain: programs, rights, and what a kernel or a file system offers.
//!
//! Each need has a name. `cargo xtask test --without NAME` accepts that it is missing; the tests are told by
//! `BUTTRESS_WITHOUT` (names with commas between) and then take it as missing even where it is there. A test that asks
//! [`missing`], and leaves something out because of the answer, says so with [`skip`](crate::skip::skip).

use std::fmt;
use std::sync::OnceLock;

/// The environment variable that names the needs that tests treat as missing.
pub const WITHOUT: &str = "BUTTRESS_WITHOUT";

/// Programs that tests start, and the Debian packages that bring them. What every Linux system has is not listed.
pub const PROGRAMS: [(&str, &str); 24] = [
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
];

/// Needs that no package brings, and what each is.
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

/// The name of the need for the version of btrfs-progs that comparisons name as their reference.
pub const REFERENCE_PROGS: &str = "btrfs-progs-6.14";

/// A need that the machine does not meet, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    need: &'static str,
    reason: String,
}

impl Missing {
    /// That `need` is missing, which showed in what `reason` says.
    ///
    /// # Panics
    /// `need` has no entry in [`PROGRAMS`] or [`OTHERS`].
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

    /// The name of what is missing.
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

/// The names of all needs.
pub fn names() -> impl Iterator<Item = &'static str> {
    PROGRAMS.into_iter().chain(OTHERS).map(|(name, _)| name)
}

/// Returns whether tests must treat a need as missing.
fn is_left_out(need: &str) -> bool {
    static WITHOUT_NAMES: OnceLock<String> = OnceLock::new();
    let names = WITHOUT_NAMES.get_or_init(|| std::env::var(WITHOUT).unwrap_or_default());
    names.split(',').any(|name| name == need)
}

/// What is missing when this need is asked for; `None` where it is met, as far as that can be seen from outside. The last
/// six of [`OTHERS`] show only in use.
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

/// Returns the first of these needs that the machine does not meet.
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
