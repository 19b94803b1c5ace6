//! Estimates of a stream's length before it is made.
//!
//! [`exact`] makes the whole stream without its data, in one walk over the metadata. [`sample`]
//! reads individual leaves until the estimate has an error of about two percent (twice the standard
//! error), and counts the other leaves by the nodes above them. The estimate walks small trees
//! completely.

use crate::command::Command;
use crate::encoder::Encoder;
use crate::send::error::Result;
use crate::send::items::is_wanted;
use crate::send::options::Options;
use crate::send::output::Output;
use crate::send::snapshot::{Link, Snapshot};
use crate::send::{Summary, make_stream};
use buttress_exact::u64_of;
use buttress_format::send::{COMMAND_HEADER_BYTES, STREAM_HEADER_BYTES};
use buttress_format::{
    ByteCount, Compression, FileExtent, FileExtentBody, FileOffset, InodeNumber, ItemType, Key, Timestamp,
    TreeBlock,
};
use buttress_fs::{Error as FsError, Progress};
use buttress_tree::{BlockOrder, BlockPointer, ReadAhead};
use std::collections::HashMap;

/// Largest number of leaves at which `sample` walks a tree completely.
const LEAVES_WHOLE_MAX: u64 = 512;

/// Number of leaves in the first sample.
const LEAVES_FIRST: u64 = 512;

/// Target for twice the standard error, relative to the estimate.
const ERROR_MAX: f64 = 0.02;

/// Largest number of cached directory paths.
const PATHS_MAX: usize = 1 << 14;

/// Estimate of a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The length of the stream in bytes.
    pub stream_bytes: ByteCount,
    /// Number of inodes in the send.
    pub inodes: u64,
    /// Twice the standard error of the estimated bytes, relative to them; 0 for an exact count.
    pub uncertainty: f64,
}

/// Computes the length of the stream that [`crate::send::send`] would write, without reading data.
///
/// # Errors
/// Returns the errors of [`crate::send::send`].
pub fn exact(snapshot: &Snapshot, options: &Options, progress: &Progress) -> Result<Estimate> {
    let (mut output, drain) = Output::new(options, u64::MAX, progress);
    let inodes = make_stream(snapshot, options, &mut output, progress)?;
    drop(drain);
    let summary = Summary::new(inodes, &output);
    Ok(Estimate {
        stream_bytes: summary.stream_bytes,
        inodes,
        uncertainty: 0.0,
    })
}

/// Estimates the length of a full send from a sample of the leaves. For incremental sends and small
/// trees it counts exactly.
///
/// # Errors
/// Returns the errors of [`exact`].
pub fn sample(snapshot: &Snapshot, options: &Options, progress: &Progress) -> Result<Estimate> {
    let leaves = leaf_count(snapshot, progress)?;
    if options.parent.is_some() || leaves <= LEAVES_WHOLE_MAX {
        return exact(snapshot, options, progress);
    }
    let mut sampler = Sampler {
        snapshot,
        options,
        encoder: Encoder::new(options.version),
        paths: HashMap::new(),
        scratch: Vec::new(),
        sums: Sums::default(),
    };
    // Each round reads the leaves midway between those of earlier rounds.
    let mut stride = leaves
        .checked_div(LEAVES_FIRST)
        .unwrap_or(1)
        .next_power_of_two()
        .max(2);
    loop {
        sampler.look(stride, stride.checked_div(2).unwrap_or(0), progress)?;
        let estimate = sampler.sums.estimate(leaves);
        stride = stride.checked_div(2).unwrap_or(0);
        if estimate.uncertainty <= ERROR_MAX || stride < 2 {
            return Ok(estimate);
        }
    }
}

/// Counts the leaves that a send reads, by the nodes above them.
fn leaf_count(snapshot: &Snapshot, progress: &Progress) -> Result<u64> {
    let mut leaves = 0_u64;
    for_each_leaf(snapshot, progress, &mut |_| leaves = leaves.saturating_add(1))?;
    Ok(leaves)
}

/// Passes the pointers to all leaves that a send reads to `each`. It reads only nodes.
fn for_each_leaf(snapshot: &Snapshot, progress: &Progress, each: &mut dyn FnMut(BlockPointer)) -> Result<()> {
    let tree = snapshot.tree();
    if tree.root().level == 0 {
        each(BlockPointer::root(tree.root()));
        return Ok(());
    }
    for visit in tree.blocks_in(BlockOrder::DepthDownTo(1), ReadAhead::sweep()) {
        let visit = visit.map_err(FsError::from)?;
        progress.check()?;
        if visit.pointer.level != 1 {
            continue;
        }
        for slot in 0..visit.block.item_count() {
            let Some(leaf) = visit.pointer.child(&visit.block, slot) else {
                continue;
            };
            let first = leaf.first_key.unwrap_or(Key::MIN);
            if is_wanted(&first, leaf.end_key.as_ref()) {
                each(leaf);
            }
        }
    }
    Ok(())
}

/// Sums over the sampled leaves.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    leaves: f64,
    inodes: f64,
    bytes: f64,
    squared_bytes: f64,
}

impl Sums {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "figures that are guessed; they are neither negative nor near the limits"
    )]
    fn estimate(&self, leaves: u64) -> Estimate {
        let count = self.leaves.max(1.0);
        let mean = self.bytes / count;
        let variance = (self.squared_bytes / count - mean * mean).max(0.0);
        let unseen = (1.0 - count / leaves as f64).max(0.0);
        let error = (variance / count * unseen).sqrt();
        let bytes = mean * leaves as f64;
        let ends = (STREAM_HEADER_BYTES as f64) + 2.0 * (COMMAND_HEADER_BYTES as f64);
        Estimate {
            stream_bytes: ByteCount::new((bytes + ends) as u64),
            inodes: (self.inodes / count * leaves as f64).round() as u64,
            uncertainty: if mean > 0.0 { 2.0 * error / mean } else { 0.0 },
        }
    }
}

/// Sampler of leaves.
struct Sampler<'a> {
    snapshot: &'a Snapshot,
    options: &'a Options,
    encoder: Encoder,
    /// Lengths of directory paths.
    paths: HashMap<InodeNumber, usize>,
    scratch: Vec<u8>,
    sums: Sums,
}

impl Sampler<'_> {
    /// Samples the leaves number `offset`, `offset + stride`, and so on.
    fn look(&mut self, stride: u64, offset: u64, progress: &Progress) -> Result<()> {
        let mut chosen = Vec::new();
        let mut number = 0_u64;
        for_each_leaf(self.snapshot, progress, &mut |leaf| {
            if number.checked_rem(stride) == Some(offset) {
                chosen.push(leaf);
            }
            number = number.saturating_add(1);
        })?;
        chosen.sort_unstable_by_key(|leaf| leaf.logical);
        for pointer in &chosen {
            progress.check()?;
            let forest = self.snapshot.tree().forest();
            let block = forest.read_block(pointer).map_err(FsError::from)?;
            self.leaf(&block)?;
        }
        Ok(())
    }

    #[expect(clippy::cast_precision_loss, reason = "figures that are guessed")]
    fn leaf(&mut self, block: &TreeBlock) -> Result<()> {
        let (mut inodes, mut bytes) = (0_u64, 0_u64);
        let mut path: Option<(InodeNumber, Vec<u8>)> = None;
        for slot in 0..block.item_count() {
            let Some(item) = block.item(slot) else { continue };
            let number = InodeNumber::new(item.key.objectid.get());
            match item.key.item_type {
                ItemType::INODE_ITEM => inodes = inodes.saturating_add(1),
                ItemType::INODE_REF | ItemType::INODE_EXTREF => {
                    let mut links = Vec::new();
                    self.snapshot.parse_links(&item.key, item.data, &mut links)?;
                    for link in &links {
                        let full = self.path_of(link)?;
                        let first = path.as_ref().is_none_or(|(known, _)| *known != number);
                        bytes = bytes.saturating_add(self.names_bytes(number, &full, first)?);
                        if first {
                            path = Some((number, full));
                        }
                    }
                }
                ItemType::XATTR_ITEM => {
                    let length = ByteCount::of(item.data.len()).get();
                    bytes = bytes.saturating_add(length).saturating_add(path_bytes(&path));
                }
                ItemType::EXTENT_DATA => {
                    if path.as_ref().is_none_or(|(known, _)| *known != number)
                        && let Ok(link) = self.snapshot.first_link(number)
                    {
                        path = Some((number, self.path_of(&link)?));
                    }
                    let path = path.as_ref().map_or(&[][..], |(_, path)| path);
                    bytes = bytes.saturating_add(self.data_bytes(&item.key, item.data, path)?);
                }
                _ => {}
            }
        }
        let (inodes, bytes) = (inodes as f64, bytes as f64);
        self.sums.leaves += 1.0;
        self.sums.inodes += inodes;
        self.sums.bytes += bytes;
        self.sums.squared_bytes += bytes * bytes;
        Ok(())
    }

    fn path_of(&mut self, link: &Link) -> Result<Vec<u8>> {
        let length = match self.paths.get(&link.parent) {
            Some(&length) => length,
            None => {
                let location = self.snapshot.location(link.parent);
                let length = self.snapshot.filesystem().directory_path(location)?.len();
                if self.paths.len() >= PATHS_MAX {
                    self.paths.clear();
                }
                self.paths.insert(link.parent, length);
                length
            }
        };
        // For the estimate, only the length of this path matters.
        let mut path = vec![b'/'; length.saturating_add(usize::from(length > 0))];
        path.extend_from_slice(&link.name);
        Ok(path)
    }

    fn size_of(&mut self, command: &Command<'_>) -> Result<u64> {
        self.scratch.clear();
        self.encoder.encode(command, &mut self.scratch)?;
        Ok(ByteCount::of(self.scratch.len()).get())
    }

    /// Returns the stream bytes of one name of an inode. The first name also accounts for owner,
    /// mode and times.
    fn names_bytes(&mut self, inode: InodeNumber, path: &[u8], first: bool) -> Result<u64> {
        if !first {
            return self.size_of(&Command::Link { path, target: path });
        }
        let time = Timestamp::default();
        let make = self.size_of(&Command::Mkfile {
            path,
            inode: Some(inode),
        })?;
        let chown = self.size_of(&Command::Chown { path, uid: 0, gid: 0 })?;
        let chmod = self.size_of(&Command::Chmod { path, mode: 0 })?;
        let otime = (self.options.version >= crate::Version::V2).then_some(time);
        let utimes = self.size_of(&Command::Utimes {
            path,
            atime: time,
            mtime: time,
            ctime: time,
            otime,
        })?;
        Ok(make
            .saturating_add(chown)
            .saturating_add(chmod)
            .saturating_add(utimes))
    }

    /// Returns the stream bytes of an extent item.
    fn data_bytes(&mut self, key: &Key, data: &[u8], path: &[u8]) -> Result<u64> {
        let sector_bytes = self.snapshot.filesystem().sector_bytes();
        let extent =
            FileExtent::parse(key, data, sector_bytes).map_err(|error| self.snapshot.corrupt(error))?;
        let stored = self.options.compressed_data && extent.compression != Compression::None;
        let bytes = match extent.body {
            FileExtentBody::Inline(stored_bytes) if stored => ByteCount::of(stored_bytes.len()),
            FileExtentBody::Inline(_) => extent.ram_bytes,
            FileExtentBody::Regular(slice) if slice.is_hole() => return Ok(0),
            FileExtentBody::Preallocated(_) => return Ok(0),
            FileExtentBody::Regular(slice) if stored => slice.disk_bytes,
            FileExtentBody::Regular(slice) => slice.num_bytes,
        };
        let offset = FileOffset::new(key.offset);
        if self.options.no_data {
            return self.size_of(&Command::UpdateExtent {
                path,
                offset,
                length: bytes,
            });
        }
        let overhead = self.size_of(&Command::Write {
            path,
            offset,
            data: &[],
        })?;
        let limit = u64_of(self.options.version.write_bytes_max());
        let writes = bytes.get().div_ceil(limit);
        Ok(overhead.saturating_mul(writes).saturating_add(bytes.get()))
    }
}

fn path_bytes(path: &Option<(InodeNumber, Vec<u8>)>) -> u64 {
    path.as_ref()
        .map_or(0, |(_, path)| ByteCount::of(path.len()).get())
}
