//! Random operations on few names.

use crate::operations::SetXattr;
use buttress_fs::acl::{ACCESS_NAME, DEFAULT_NAME};
use buttress_fs::inode::FileAttributes;
use buttress_oracle::content::names_of_one_hash;

/// How a rename treats an existing entry of the new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Replace,
    NoReplace,
    Exchange,
    Whiteout,
}

/// An operation. Paths neither begin nor end with a slash.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Create(String, u32),
    Directory(String, u32),
    Fifo(String),
    Device(String, u32, u32),
    Symlink(String, String),
    Link(String, String),
    Unlink(String),
    RemoveDirectory(String),
    Rename(String, String, How),
    Mode(String, u32),
    Owner(String, Option<u32>, Option<u32>),
    Times(String, i64, i64),
    SetXattr(String, String, Vec<u8>, SetXattr),
    RemoveXattr(String, String),
    Flags(String, FileAttributes),
    /// Makes a file without a name in a directory, and then links it.
    Unnamed(String, String),
}

/// Random numbers from a seed.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % limit
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    /// Returns a path of one to three names.
    fn path(&mut self) -> String {
        let depth = *self.of(&[1, 1, 2, 2, 2, 3]);
        let names: Vec<&str> = (0..depth).map(|_| self.name()).collect();
        names.join("/")
    }

    fn name(&mut self) -> &'static str {
        const NAMES: [&str; 7] = ["a", "b", "dir", "d2", "a name with spaces", "x", "yy"];
        NAMES[self.below(NAMES.len())]
    }
}

fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = vec![2, 0, 0, 0];
    for (tag, permission, id) in entries {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&permission.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value
}

const NONE: u32 = u32::MAX;

fn xattr(random: &mut Random) -> (String, Vec<u8>) {
    let lists = [
        list(&[
            (1, 7, NONE),
            (2, 6, 1000),
            (4, 5, NONE),
            (16, 6, NONE),
            (32, 0, NONE),
        ]),
        list(&[
            (1, 6, NONE),
            (4, 4, NONE),
            (8, 7, 5),
            (16, 7, NONE),
            (32, 4, NONE),
        ]),
        list(&[(1, 6, NONE), (4, 4, NONE), (32, 4, NONE)]),
        list(&[(1, 6, NONE), (32, 4, NONE)]),
        list(&[]),
    ];
    let text = |name: &[u8]| String::from_utf8(name.to_vec()).unwrap();
    match random.below(8) {
        0 | 1 => (text(DEFAULT_NAME), random.of(&lists).clone()),
        2 => (text(ACCESS_NAME), random.of(&lists).clone()),
        3 => {
            let value = *random.of(&["zlib", "lzo", "zstd", "none", "no", "", "gzip"]);
            ("btrfs.compression".to_owned(), value.as_bytes().to_vec())
        }
        4 => ("trusted.t".to_owned(), vec![9; random.below(300)]),
        // The names in these steps come in groups of three with equal hashes.
        5 => (
            random.of(names_of_one_hash::xattrs()).clone(),
            vec![8; random.below(900)],
        ),
        _ => {
            let name = *random.of(&["user.one", "user.two", "user.three"]);
            (name.to_owned(), vec![7; random.below(2000)])
        }
    }
}

fn attributes(random: &mut Random) -> FileAttributes {
    let all = [
        FileAttributes::empty(),
        FileAttributes::empty(),
        FileAttributes::COMPRESS,
        FileAttributes::NOCOMPRESS,
        FileAttributes::NOCOW,
        FileAttributes::IMMUTABLE,
        FileAttributes::APPEND,
        FileAttributes::NODUMP | FileAttributes::SYNC,
        FileAttributes::NOATIME | FileAttributes::DIRSYNC,
        FileAttributes::COMPRESS | FileAttributes::NOCOW,
        FileAttributes::COMPRESS | FileAttributes::NOCOMPRESS,
    ];
    *random.of(&all)
}

fn step(random: &mut Random) -> Step {
    let path = random.path();
    let modes = [0o644, 0o600, 0o755, 0o2775, 0o4711, 0o1777, 0o7777, 0];
    match random.below(100) {
        0..=13 => Step::Create(path, *random.of(&modes)),
        14..=27 => Step::Directory(path, *random.of(&modes)),
        28 | 29 => Step::Fifo(path),
        30 | 31 => Step::Device(path, 259, 300_000),
        32..=35 => Step::Symlink(path, random.path()),
        36..=43 => Step::Link(path, random.path()),
        44..=49 => Step::Unlink(path),
        50..=52 => Step::RemoveDirectory(path),
        53..=68 => {
            let how = *random.of(&[
                How::Replace,
                How::Replace,
                How::Replace,
                How::NoReplace,
                How::Exchange,
                How::Exchange,
                How::Whiteout,
            ]);
            Step::Rename(path, random.path(), how)
        }
        69..=73 => Step::Mode(path, *random.of(&modes)),
        74..=77 => {
            let ids = [None, Some(0), Some(1000), Some(5)];
            // The step changes the owner or the group: a call that changes neither is no change of
            // owner here.
            Step::Owner(path, *random.of(&ids), *random.of(&ids[1..]))
        }
        78..=80 => {
            let seconds = |random: &mut Random| i64::try_from(random.below(2000)).unwrap() - 1000;
            Step::Times(path, seconds(random), seconds(random))
        }
        81..=89 => {
            let (name, value) = xattr(random);
            let how = *random.of(&[
                SetXattr::CreateOrReplace,
                SetXattr::CreateOrReplace,
                SetXattr::Create,
                SetXattr::Replace,
            ]);
            Step::SetXattr(path, name, value, how)
        }
        90..=92 => Step::RemoveXattr(path, xattr(random).0),
        93..=96 => Step::Flags(path, attributes(random)),
        _ => Step::Unnamed(path, random.path()),
    }
}

/// Returns the steps of a seed.
pub(super) fn random_steps(seed: u64, count: usize) -> Vec<Step> {
    let mut random = Random::new(seed);
    (0..count).map(|_| step(&mut random)).collect()
}
