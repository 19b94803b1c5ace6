//! The manifest of a volume by the reader of this crate.

use anyhow::{Context, Result, ensure};
use buttress_device::Device;
use buttress_extfs::{Ext, ExtInode, ExtTime, FileKind, InodeNumber};
use buttress_oracle::manifest::{DataRange, Entry, Extra, Manifest, Time, link_groups};
use std::collections::BTreeMap;

/// The unwritten and written ranges of blocks of a file, each with its place on the device: first
/// block in the file, block on the device, blocks, unwritten. Neighbours are joined.
pub(crate) type Runs = Vec<(u64, u64, u64, bool)>;

/// Adds a range to runs, and joins it with the last one.
pub(crate) fn add_run(runs: &mut Runs, first: u64, start: u64, blocks: u64, is_unwritten: bool) {
    match runs.last_mut() {
        Some(last) if last.0 + last.2 == first && last.1 + last.2 == start && last.3 == is_unwritten => {
            last.2 += blocks;
        }
        _ => runs.push((first, start, blocks, is_unwritten)),
    }
}

/// Returns the runs of a file.
pub(crate) fn runs(volume: &Ext, inode: &ExtInode) -> Result<Runs> {
    let mut runs = Runs::new();
    for extent in volume.extents(inode) {
        let extent = extent?;
        let (first, start) = (u64::from(extent.first.get()), extent.start.get());
        add_run(
            &mut runs,
            first,
            start,
            u64::from(extent.blocks),
            extent.is_unwritten,
        );
    }
    Ok(runs)
}

/// Returns the manifest of all paths, and the inode of each path.
pub(crate) fn manifest(device: &Device, volume: &Ext) -> Result<(Manifest, BTreeMap<Vec<u8>, ExtInode>)> {
    let (mut manifest, mut inodes) = (Manifest::new(), BTreeMap::new());
    let mut groups: BTreeMap<InodeNumber, Vec<Vec<u8>>> = BTreeMap::new();
    let mut waiting = vec![(Vec::new(), InodeNumber::ROOT)];
    while let Some((path, number)) = waiting.pop() {
        let inode = volume.inode(number)?.context("an entry names an unused inode")?;
        if inode.kind == FileKind::Directory {
            for child in volume.entries(&inode)? {
                let child = child?;
                let mut name = path.clone();
                if !name.is_empty() {
                    name.push(b'/');
                }
                name.extend_from_slice(&child.name);
                waiting.push((name, child.inode));
                ensure!(waiting.len() < 100_000, "more names than the volume has");
            }
        } else {
            groups.entry(number).or_default().push(path.clone());
        }
        manifest.insert(path.clone(), entry(device, volume, &inode)?);
        inodes.insert(path, inode);
    }
    link_groups(&mut manifest, groups.into_values());
    Ok((manifest, inodes))
}

fn time(time: ExtTime) -> Time {
    (time.seconds, time.nanoseconds)
}

fn entry(device: &Device, volume: &Ext, inode: &ExtInode) -> Result<Entry> {
    let per_block = u64::from(volume.superblock().block_bytes) / 512;
    // The kernel counts the content of a file in its inode as if it were in blocks of 512 bytes.
    let counts_content = inode.is_inline() && inode.kind != FileKind::Directory;
    let inline_blocks = if counts_content {
        inode.size_bytes.div_ceil(512)
    } else {
        0
    };
    let attributes = volume.attributes(inode)?.into_iter();
    Ok(Entry {
        mode: u32::from(inode.mode),
        uid: inode.uid,
        gid: inode.gid,
        size: inode.size_bytes,
        device: inode.device,
        modified: time(inode.modified),
        xattrs: attributes
            .map(|attribute| (attribute.name, attribute.value))
            .collect(),
        target: if inode.kind == FileKind::Symlink {
            volume.link_target(inode)?
        } else {
            Vec::new()
        },
        data: if inode.kind == FileKind::Regular {
            data(device, volume, inode)?
        } else {
            Vec::new()
        },
        extra: Some(Extra {
            inode: u64::from(inode.number.get()),
            links: u32::from(inode.links),
            blocks: inode.blocks * per_block + inline_blocks,
            accessed: time(inode.accessed),
            changed: time(inode.changed),
            born: inode.created.map_or((0, 0), time),
        }),
        ..Entry::default()
    })
}

/// Returns the data ranges of a file: written extents without a hole between them.
fn data(device: &Device, volume: &Ext, inode: &ExtInode) -> Result<Vec<DataRange>> {
    if inode.is_inline() {
        let content = volume.content(inode, 4096)?;
        let range = DataRange {
            start: 0,
            end: inode.size_bytes,
            crc32c: crc32c::crc32c(&content),
        };
        return Ok(if content.is_empty() {
            Vec::new()
        } else {
            vec![range]
        });
    }
    let block_bytes = u64::from(volume.superblock().block_bytes);
    let mut ranges: Vec<DataRange> = Vec::new();
    for (first, start, blocks, is_unwritten) in runs(volume, inode)? {
        let begin = first * block_bytes;
        let end = ((first + blocks) * block_bytes).min(inode.size_bytes);
        if is_unwritten || begin >= end {
            continue;
        }
        let bytes = device.read(start * block_bytes, (end - begin) as usize)?;
        match ranges.last_mut() {
            Some(last) if last.end == begin => {
                last.end = end;
                last.crc32c = crc32c::crc32c_append(last.crc32c, &bytes);
            }
            _ => ranges.push(DataRange {
                start: begin,
                end,
                crc32c: crc32c::crc32c(&bytes),
            }),
        }
    }
    Ok(ranges)
}
