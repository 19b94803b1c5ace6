//! Reads an unmounted volume through the library into a manifest.
//!
//! `buttress tar` shows only what a tar stream holds; this manifest has everything that stat(2) and
//! statx(2) show.

use anyhow::{Context, Result};
use buttress::unstable::fs::Filesystem;
use buttress::{FileOffset, Location, Metadata};
use buttress_oracle::manifest::{DataRange, Entry, Extra, Manifest, Time, link_groups, shown};
use std::collections::HashMap;

/// Returns the manifest of everything below `top`, including nested subvolumes.
pub fn manifest(filesystem: &Filesystem, top: Location) -> Result<Manifest> {
    manifest_by(filesystem, top, |location, entry| {
        entry.data = data(filesystem, location, entry.size)?;
        Ok(())
    })
}

/// Returns a manifest like [`manifest`], but calls `content` for each regular file to fill in
/// [`Entry::data`].
pub fn manifest_by(
    filesystem: &Filesystem,
    top: Location,
    content: impl Fn(Location, &mut Entry) -> Result<()>,
) -> Result<Manifest> {
    manifest_with(filesystem, top, |location, _, entry| {
        if entry.mode & 0o170_000 == 0o100_000 {
            content(location, entry)?;
        }
        Ok(())
    })
}

/// Returns a manifest like [`manifest`], but calls `more` for each inode to fill in further fields.
pub fn manifest_with(
    filesystem: &Filesystem,
    top: Location,
    more: impl Fn(Location, &Metadata, &mut Entry) -> Result<()>,
) -> Result<Manifest> {
    let mut manifest = Manifest::new();
    let mut groups: HashMap<Location, Vec<Vec<u8>>> = HashMap::new();
    let mut waiting = vec![(Vec::new(), top)];
    while let Some((path, location)) = waiting.pop() {
        let stat = filesystem.metadata(location).with_context(|| shown(&path))?;
        let mut entry = entry(filesystem, &stat).with_context(|| shown(&path))?;
        more(location, &stat, &mut entry).with_context(|| shown(&path))?;
        if entry.mode & 0o170_000 == 0o040_000 {
            for child in filesystem.read_dir(location).with_context(|| shown(&path))? {
                let child = child.with_context(|| shown(&path))?;
                let found = filesystem.lookup(location, &child.name)?;
                anyhow::ensure!(
                    found.as_ref().is_some_and(|found| found.target == child.target),
                    "{} in {} is {found:?} by name, {child:?} by index",
                    shown(&child.name),
                    shown(&path)
                );
                let mut name = path.clone();
                if !name.is_empty() {
                    name.push(b'/');
                }
                name.extend_from_slice(&child.name);
                waiting.push((name, child.target));
            }
        } else if entry.extra.as_ref().is_some_and(|extra| extra.links > 1) {
            groups.entry(location).or_default().push(path.clone());
        }
        manifest.insert(path, entry);
    }
    link_groups(&mut manifest, groups.into_values());
    Ok(manifest)
}

fn entry(filesystem: &Filesystem, stat: &Metadata) -> Result<Entry> {
    let location = stat.location;
    let time = |time: buttress::Timestamp| -> Time { (time.seconds, time.nanoseconds) };
    let mut entry = Entry {
        mode: stat.mode,
        uid: stat.uid,
        gid: stat.gid,
        size: stat.size.get(),
        device: stat.device.map_or((0, 0), |device| (device.major, device.minor)),
        modified: time(stat.modified),
        extra: Some(Extra {
            inode: location.inode.get(),
            links: stat.nlink,
            blocks: stat.blocks_512(),
            accessed: time(stat.accessed),
            changed: time(stat.changed),
            born: stat.created.map_or((0, 0), time),
        }),
        ..Entry::default()
    };
    for xattr in filesystem.xattrs(location)? {
        entry.xattrs.insert(xattr.name, xattr.value);
    }
    if stat.mode & 0o170_000 == 0o120_000 {
        entry.target = filesystem.read_link(location)?;
    }
    Ok(entry)
}

/// Adjacent ranges are joined, as in the kernel's seeks to data and holes.
fn data(filesystem: &Filesystem, location: Location, size: u64) -> Result<Vec<DataRange>> {
    let file = filesystem.open_file(location)?;
    let mut ranges: Vec<DataRange> = Vec::new();
    for range in file.extents()? {
        let range = range?;
        let (start, end) = (range.offset.get(), range.end().get().min(size));
        if range.is_zero() || start >= end {
            continue;
        }
        let mut buffer = vec![0u8; 1 << 20];
        let mut crc = ranges
            .last()
            .filter(|last| last.end == start)
            .map_or(0, |last| last.crc32c);
        let mut position = start;
        while position < end {
            let length = usize::try_from((end - position).min(1 << 20))?;
            let read = file.read_at(FileOffset::new(position), &mut buffer[..length])?;
            anyhow::ensure!(read == length, "{read} of {length} bytes at {position}");
            crc = crc32c::crc32c_append(crc, &buffer[..length]);
            position += length as u64;
        }
        match ranges.last_mut() {
            Some(last) if last.end == start => (last.end, last.crc32c) = (end, crc),
            _ => ranges.push(DataRange {
                start,
                end,
                crc32c: crc,
            }),
        }
    }
    Ok(ranges)
}
