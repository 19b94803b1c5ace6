//! The smallest dump that still shows a finding of a check, sanitised, for a bug report.
//!
//! The blocks of the volume are sanitised in memory. Steps remove parts: first blocks to which nothing
//! leads, then whole trees, then pointers from the highest level down, and then items. Each step
//! tries halves of the parts, then quarters, and so on. A part stays removed if a check of the rest,
//! restored to memory, still reports the same finding with all its numbers. A weaker condition would
//! let the reduction replace the finding by one that the reduction itself made.
//!
//! The result is read from its bytes, restored and checked before it is returned.
//!
//! Invariants:
//! - The volume is only read.
//! - The reduced dump opens as the whole dump does, and its check reports the finding.
//!
//! Left out: findings that a dump does not show, because they concern data, or single copies of a
//! block; and volumes whose metadata exceeds [`ReduceOptions::bytes_max`].

mod blocks;
mod zeros;

use crate::block;
use crate::capturing::superblock_item;
use crate::chunk_tree::parse_superblock;
use crate::contents::Contents;
use crate::error::{Error, Result};
use crate::restoring::restore;
use crate::sanitise::Sanitise;
use crate::source::{Find, Source};
use blocks::{Blocks, Kind, Part};
use buttress_check::{Finding, check};
use buttress_device::Device;
use buttress_exact::Exact as _;
use buttress_format::ByteCount;
use buttress_fs::{Filesystem, OpenOptions, Progress};
use std::collections::BTreeMap;
use std::io::Cursor;

/// The most parts of a step that are tried one by one in a round. Larger steps stop at larger groups.
const GROUPS_MAX: usize = 256;

/// Options of [`reduce`].
#[derive(Clone, Copy, Debug)]
pub struct ReduceOptions {
    /// How the dump is sanitised.
    pub sanitise: Sanitise,
    /// The most checks that a reduction runs. The result is then larger than necessary.
    pub checks_max: u32,
    /// The most bytes of tree blocks, all of which are in memory.
    pub bytes_max: u64,
    /// The number of threads that compress.
    pub threads: usize,
}

impl Default for ReduceOptions {
    /// Returns the options for 2,000 checks and 256 MiB of metadata, with a secret of zeros.
    fn default() -> Self {
        Self {
            sanitise: Sanitise {
                secret: [0; 32],
                strict: false,
            },
            checks_max: 2000,
            bytes_max: 256 << 20,
            threads: 1,
        }
    }
}

/// A reduced dump.
#[derive(Clone, Debug)]
pub struct Reduced {
    /// The bytes of the dump.
    pub dump: Vec<u8>,
    /// The finding in the reduced dump.
    pub finding: Finding,
    /// The number of tree blocks in the dump.
    pub blocks: usize,
    /// The number of tree blocks of the volume.
    pub blocks_before: usize,
    /// The number of checks.
    pub checks: u32,
    /// The number of short names that stay.
    pub kept_names: u64,
}

/// Makes the smallest dump that shows the first finding with this code.
///
/// # Errors
/// Fails with [`Error::FindingMissing`] if a check of a whole dump reports no such finding, with
/// [`Error::TooLarge`] for too much metadata, or if `progress` is cancelled.
pub fn reduce(
    filesystem: &Filesystem,
    code: &str,
    options: &ReduceOptions,
    progress: &Progress,
) -> Result<Reduced> {
    let (whole, kept_names) = captured(filesystem, options, progress)?;
    let devices = filesystem.volume().devices();
    let sizes = devices.iter().map(|slot| {
        let own = slot.device().map_or(0, Device::size_bytes);
        let expected = slot.expected_bytes().map_or(0, ByteCount::get);
        own.max(expected)
    });
    let mut trial = Trial {
        sizes: sizes.collect(),
        progress,
        checks: 0,
        checks_max: options.checks_max,
    };
    let findings = trial.findings(&whole.dump(0, 1)?)?;
    let finding = findings.into_iter().find(|finding| finding.code() == code);
    let Some(finding) = finding else {
        return Err(Error::FindingMissing { code: code.into() });
    };
    let blocks_before = whole.len();
    let reduced = trial.reduce(whole, &finding)?;
    let dump = reduced.dump(9, options.threads)?;
    // The promise is about the bytes that the caller gets.
    if !trial.findings(&dump)?.contains(&finding) {
        return Err(Error::FindingMissing { code: code.into() });
    }
    Ok(Reduced {
        dump,
        finding,
        blocks: reduced.len(),
        blocks_before,
        checks: trial.checks,
        kept_names,
    })
}

/// Reads and sanitises all blocks. Returns also the number of names that stay.
fn captured(filesystem: &Filesystem, options: &ReduceOptions, progress: &Progress) -> Result<(Blocks, u64)> {
    let mut source = Source::new(filesystem, Contents::default());
    let addresses = source.addresses(filesystem, Find::Both, progress)?;
    let all = addresses.all();
    let bytes = all.len().exact_mul(source.node_bytes()) as u64;
    if bytes > options.bytes_max {
        return Err(Error::TooLarge {
            bytes,
            most: options.bytes_max,
        });
    }
    let kept_names = source.survey(&addresses, &options.sanitise, progress)?;
    let superblock = superblock_item(filesystem, true)?;
    let parsed = parse_superblock(&superblock)?;
    let mut blocks = BTreeMap::new();
    for logical in all {
        progress.check()?;
        if let Some(bytes) = source.read_dumped(logical) {
            blocks.insert(logical, bytes);
        }
    }
    Ok((Blocks::new(superblock, parsed, blocks), kept_names))
}

/// Checks of dumps in memory.
struct Trial<'a> {
    sizes: Vec<u64>,
    progress: &'a Progress,
    checks: u32,
    checks_max: u32,
}

impl Trial<'_> {
    /// Returns the findings in a dump. A dump that cannot be restored or opened has none.
    fn findings(&mut self, dump: &[u8]) -> Result<Vec<Finding>> {
        self.progress.check()?;
        self.checks = self.checks.exact_add(1);
        // A progress of its own: the caller's counts no bytes of trials.
        let progress = Progress::cancelled_by(self.progress.cancellation());
        let devices: Vec<Device> = self.sizes.iter().map(|bytes| zeros::device(*bytes)).collect();
        if restore(&mut Cursor::new(dump), &devices, &progress).is_err() {
            self.progress.check()?;
            return Ok(Vec::new());
        }
        let Ok(opened) = OpenOptions::new(devices).for_inspection(true).open() else {
            return Ok(Vec::new());
        };
        let report = check(&opened, &buttress_check::Options::default(), &progress)?;
        Ok(report.findings.into_iter().map(|one| one.finding).collect())
    }

    fn shows(&mut self, blocks: &Blocks, finding: &Finding) -> Result<bool> {
        Ok(self.findings(&blocks.dump(0, 1)?)?.contains(finding))
    }

    /// Removes parts of all kinds, again while that brings much.
    fn reduce(&mut self, mut blocks: Blocks, finding: &Finding) -> Result<Blocks> {
        let pointers = (1..=block::LEVEL_MAX).rev().map(Kind::Pointers);
        let kinds: Vec<Kind> = [Kind::Loose, Kind::Roots]
            .into_iter()
            .chain(pointers)
            .chain([Kind::Items])
            .collect();
        loop {
            let before = blocks.len();
            for kind in &kinds {
                blocks = self.without_parts(blocks, *kind, finding)?;
            }
            let is_done = blocks.len().exact_mul(2) > before || self.checks >= self.checks_max;
            if is_done {
                return Ok(blocks);
            }
        }
    }

    /// Removes as many parts of a kind as possible: groups of halving sizes.
    fn without_parts(&mut self, mut blocks: Blocks, kind: Kind, finding: &Finding) -> Result<Blocks> {
        let count = blocks.parts(kind).len();
        let mut size = count;
        while size > 0 {
            // Slots change with each removal, so groups are taken from the end to the beginning.
            let parts = blocks.parts(kind);
            let mut end = parts.len();
            while end > 0 && self.checks < self.checks_max {
                let start = end.saturating_sub(size); // Clamp: the first group may be smaller.
                let group: &[Part] = parts.get(start..end).unwrap_or_default();
                if let Some(less) = blocks.without(kind, group)
                    && self.shows(&less, finding)?
                {
                    blocks = less;
                }
                end = start;
            }
            size = match size.quotient(2) {
                smaller if count.quotient(smaller.max(1)) > GROUPS_MAX => 0,
                smaller => smaller,
            };
        }
        Ok(blocks)
    }
}
