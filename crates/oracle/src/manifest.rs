//! The content of a directory tree, in a form in which two sources can be compared.
//!
//! A [`Manifest`] maps each path (bytes, relative, without a leading `./`, empty for the top) to an
//! [`Entry`]. Content is the list of data ranges, each with a CRC-32C, so comparisons include
//! holes, and a file of a terabyte without data costs nothing. Hard links are compared as groups:
//! each entry names the smallest path of its group.

use anyhow::{Context, Result, bail};
use rustix::fs::{AtFlags, CWD, SeekFrom, StatxFlags, lgetxattr, llistxattr, seek, statx};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The inode number of directories that the kernel synthesises.
const MADE_UP_INODE: u64 = 2;

/// A time as seconds since the epoch, and nanoseconds.
pub type Time = (i64, u32);

/// A half-open range of data in a file, and the CRC-32C of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataRange {
    /// The offset of the first byte.
    pub start: u64,
    /// The offset after the last byte.
    pub end: u64,
    /// The CRC-32C of the bytes.
    pub crc32c: u32,
}

/// A file, directory or other inode under a path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// File type and permissions, as in `st_mode`.
    pub mode: u32,
    /// The user id of the owner.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
    /// The size in bytes; for directories as the source reports it.
    pub size: u64,
    /// Device number of device nodes as (major, minor).
    pub device: (u32, u32),
    /// Time of the last change of content.
    pub modified: Time,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// The data ranges of a regular file.
    pub data: Vec<DataRange>,
    /// The smallest path of the hard link group, if the inode has more than one path.
    pub linked: Option<Vec<u8>>,
    /// Attributes of a file or directory as `FS_IOC_GETFLAGS` returns them, if the source was asked
    /// for them.
    pub attributes: Option<u32>,
    /// Fields that not every source has.
    pub extra: Option<Extra>,
    /// Whether the entry's times are not on disk. The kernel synthesises the directory that stands
    /// for a subvolume inside a snapshot, with the time of the first access.
    pub made_up: bool,
}

/// The fields of stat(2) and statx(2) that a tar stream lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extra {
    /// The inode number.
    pub inode: u64,
    /// The number of links.
    pub links: u32,
    /// The number of blocks of 512 bytes.
    pub blocks: u64,
    /// The time of the last read.
    pub accessed: Time,
    /// The time of the last change of the inode.
    pub changed: Time,
    /// The time of creation.
    pub born: Time,
}

/// The entries of a tree, by path.
pub type Manifest = BTreeMap<Vec<u8>, Entry>;

/// Returns bytes in a readable form for messages.
#[must_use]
pub fn shown(path: &[u8]) -> String {
    if path.is_empty() {
        ".".to_owned()
    } else {
        path.escape_ascii().to_string()
    }
}

/// Reads the tree at `top`, descending into nested subvolumes.
pub fn of_directory(top: &Path) -> Result<Manifest> {
    of_directory_by(top, |_, file, entry| {
        for (start, end) in data_ranges(file, entry.size)? {
            entry.data.push(DataRange {
                start,
                end,
                crc32c: crc_of(file, start, end)?,
            });
        }
        Ok(())
    })
}

/// Reads a tree as [`of_directory`] does. `content` gets each regular file with its path, and sets
/// [`Entry::data`].
pub fn of_directory_by(
    top: &Path,
    mut content: impl FnMut(&[u8], &File, &mut Entry) -> Result<()>,
) -> Result<Manifest> {
    let mut manifest = Manifest::new();
    let mut groups: HashMap<(u32, u32, u64), Vec<Vec<u8>>> = HashMap::new();
    let mut waiting: Vec<Vec<u8>> = vec![Vec::new()];
    while let Some(path) = waiting.pop() {
        let place = if path.is_empty() {
            top.to_path_buf()
        } else {
            top.join(OsStr::from_bytes(&path))
        };
        let stat = statx(CWD, &place, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::ALL)
            .with_context(|| format!("stat of {}", shown(&path)))?;
        let mut entry = entry_of(&place, &stat).with_context(|| shown(&path))?;
        if entry.mode & 0o170_000 == 0o100_000 {
            content(&path, &File::open(&place)?, &mut entry).with_context(|| shown(&path))?;
        }
        if entry.mode & 0o170_000 == 0o040_000 {
            for child in std::fs::read_dir(&place)? {
                let mut name = path.clone();
                if !name.is_empty() {
                    name.push(b'/');
                }
                name.extend_from_slice(child?.file_name().as_bytes());
                waiting.push(name);
            }
        } else if stat.stx_nlink > 1 {
            groups
                .entry((stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino))
                .or_default()
                .push(path.clone());
        }
        manifest.insert(path, entry);
    }
    link_groups(&mut manifest, groups.into_values());
    Ok(manifest)
}

/// Sets [`Entry::attributes`] in the manifest of the tree at `top`.
pub fn add_attributes(top: &Path, manifest: &mut Manifest) -> Result<()> {
    for (path, entry) in manifest {
        if entry.made_up || !matches!(entry.mode & 0o170_000, 0o100_000 | 0o040_000) {
            continue;
        }
        let file = File::open(top.join(OsStr::from_bytes(path))).with_context(|| shown(path))?;
        let attributes = rustix::fs::ioctl_getflags(&file).with_context(|| shown(path))?;
        entry.attributes = Some(attributes.bits());
    }
    Ok(())
}

/// Marks each entry of a group of two or more hard links with the smallest path of its group.
pub fn link_groups(manifest: &mut Manifest, groups: impl Iterator<Item = Vec<Vec<u8>>>) {
    for group in groups {
        let Some(smallest) = group.iter().min().cloned() else {
            continue;
        };
        if group.len() > 1 {
            for path in group {
                if let Some(entry) = manifest.get_mut(&path) {
                    entry.linked = Some(smallest.clone());
                }
            }
        }
    }
}

fn entry_of(place: &Path, stat: &rustix::fs::Statx) -> Result<Entry> {
    let time = |time: rustix::fs::StatxTimestamp| (time.tv_sec, time.tv_nsec);
    let mode = u32::from(stat.stx_mode);
    let mut entry = Entry {
        mode,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        size: stat.stx_size,
        device: (stat.stx_rdev_major, stat.stx_rdev_minor),
        modified: time(stat.stx_mtime),
        xattrs: xattrs_of(place)?,
        made_up: stat.stx_ino == MADE_UP_INODE,
        extra: Some(Extra {
            inode: stat.stx_ino,
            links: stat.stx_nlink,
            blocks: stat.stx_blocks,
            accessed: time(stat.stx_atime),
            changed: time(stat.stx_ctime),
            born: time(stat.stx_btime),
        }),
        ..Entry::default()
    };
    if mode & 0o170_000 == 0o120_000 {
        entry.target = std::fs::read_link(place)?.as_os_str().as_bytes().to_vec();
    }
    Ok(entry)
}

fn xattrs_of(place: &Path) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut names = vec![0u8; 65_536];
    let length = llistxattr(place, &mut names[..])?;
    let mut xattrs = BTreeMap::new();
    for name in names[..length]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
    {
        let mut value = vec![0u8; 65_536];
        let length = lgetxattr(place, OsStr::from_bytes(name), &mut value[..])?;
        value.truncate(length);
        xattrs.insert(name.to_vec(), value);
    }
    Ok(xattrs)
}

/// Returns the data ranges in the first `size` bytes of `file`, by SEEK_DATA and SEEK_HOLE:
/// half-open, in bytes.
pub fn data_ranges(file: &File, size: u64) -> Result<Vec<(u64, u64)>> {
    let mut ranges = Vec::new();
    let mut position = 0;
    while position < size {
        let start = match seek(file, SeekFrom::Data(position)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => break,
            Err(error) => return Err(error).context("seek to data"),
        };
        let end = seek(file, SeekFrom::Hole(start))?.min(size);
        if end <= start {
            bail!("a hole at {end} where data starts at {start}");
        }
        ranges.push((start, end));
        position = end;
    }
    Ok(ranges)
}

fn crc_of(file: &File, start: u64, end: u64) -> Result<u32> {
    let mut buffer = vec![0u8; 1 << 20];
    let (mut position, mut crc) = (start, 0);
    while position < end {
        let length = (end - position).min(buffer.len() as u64) as usize;
        file.read_exact_at(&mut buffer[..length], position)?;
        crc = crc32c::crc32c_append(crc, &buffer[..length]);
        position += length as u64;
    }
    Ok(crc)
}

/// Returns the differences between two manifests as lines: at most 20, then the number of further
/// ones. Fields of [`Entry::extra`], and sizes of directories, are compared only if both sources
/// have them.
#[must_use]
pub fn differences(expected: &Manifest, found: &Manifest) -> Vec<String> {
    let mut lines = Vec::new();
    for (path, entry) in expected {
        match found.get(path) {
            None => lines.push(format!("{}: missing", shown(path))),
            Some(other) => compare(path, entry, other, &mut lines),
        }
    }
    for path in found.keys().filter(|path| !expected.contains_key(*path)) {
        lines.push(format!("{}: not expected", shown(path)));
    }
    if lines.len() > 20 {
        let more = lines.len() - 20;
        lines.truncate(20);
        lines.push(format!("and {more} more"));
    }
    lines
}

fn compare(path: &[u8], expected: &Entry, found: &Entry, lines: &mut Vec<String>) {
    let both_extra = expected.extra.is_some() && found.extra.is_some() && !expected.made_up;
    let mut differ = |what: &str, expected: String, found: String| {
        if expected != found {
            lines.push(format!("{}: {what} is {found}, expected {expected}", shown(path)));
        }
    };
    macro_rules! field {
        ($field:ident) => {
            differ(
                stringify!($field),
                format!("{:?}", expected.$field),
                format!("{:?}", found.$field),
            )
        };
    }
    differ(
        "mode",
        format!("{:o}", expected.mode),
        format!("{:o}", found.mode),
    );
    field!(uid);
    field!(gid);
    field!(device);
    if !expected.made_up {
        field!(modified);
    }
    field!(target);
    field!(data);
    field!(linked);
    if let (Some(expected), Some(found)) = (expected.attributes, found.attributes) {
        differ("attributes", format!("{expected:x}"), format!("{found:x}"));
    }
    if both_extra {
        field!(extra);
    }
    if both_extra || expected.mode & 0o170_000 == 0o100_000 {
        field!(size);
    }
    for (name, value) in &expected.xattrs {
        if found.xattrs.get(name) != Some(value) {
            differ(
                &format!("xattr {}", shown(name)),
                format!("{value:?}"),
                format!("{:?}", found.xattrs.get(name)),
            );
        }
    }
    for name in found
        .xattrs
        .keys()
        .filter(|name| !expected.xattrs.contains_key(*name))
    {
        differ(
            &format!("xattr {}", shown(name)),
            "absent".to_owned(),
            "there".to_owned(),
        );
    }
}

/// Returns the differences between two manifests as an error, if there are any.
pub fn expect_equal(what: &str, expected: &Manifest, found: &Manifest) -> Result<()> {
    let lines = differences(expected, found);
    if lines.is_empty() {
        Ok(())
    } else {
        bail!("{what} differs:\n    {}", lines.join("\n    "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_in_any_field_is_a_difference() {
        let entry = Entry {
            mode: 0o100_644,
            size: 3,
            attributes: Some(0),
            ..Entry::default()
        };
        let expected = Manifest::from([(b"a".to_vec(), entry.clone())]);
        assert!(differences(&expected, &expected).is_empty());
        let changes: [fn(&mut Entry); 7] = [
            |entry| entry.mode = 0o100_600,
            |entry| entry.size = 4,
            |entry| entry.modified = (1, 0),
            |entry| {
                entry.data.push(DataRange {
                    start: 0,
                    end: 3,
                    crc32c: 7,
                })
            },
            |entry| drop(entry.xattrs.insert(b"user.a".to_vec(), Vec::new())),
            |entry| entry.linked = Some(b"b".to_vec()),
            |entry| entry.attributes = Some(0x10),
        ];
        for change in changes {
            let mut other = entry.clone();
            change(&mut other);
            let found = Manifest::from([(b"a".to_vec(), other)]);
            assert_eq!(differences(&expected, &found).len(), 1);
            assert_eq!(differences(&found, &expected).len(), 1);
        }
        assert_eq!(differences(&expected, &Manifest::new()), ["a: missing"]);
        assert_eq!(differences(&Manifest::new(), &expected), ["a: not expected"]);
    }
}
