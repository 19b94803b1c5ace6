//! Checks a whole tree block: bytes, header, the parent's expectation, then all items.

use super::header::{Header, RawHeader};
use super::{BlockError, BlockFormat, BlockProblem, DamagedBlock, Expectation, TreeBlock};
use crate::checksum::CHECKSUM_FIELD_BYTES;
use crate::superblock::HIGHEST_LEVEL;
use crate::tree_checker::{self, is_file_tree};
use crate::units::TreeId;
use bytes::Bytes;
use core::ops::ControlFlow;
use zerocopy::FromBytes;

/// A receiver of a block's failures. The receiver returns `Break` to stop the checks.
pub(crate) type Report<'a> = &'a mut dyn FnMut(BlockProblem) -> ControlFlow<()>;

impl TreeBlock {
    /// Checks the tree block in `bytes`, which were read for `expected`.
    ///
    /// # Errors
    /// Returns the first check that fails. The order of the checks is size, checksum, address,
    /// fsid, chunk tree uuid, level, generation, owner, first key and flags. After these checks,
    /// the tree checker runs over keys, layout and items.
    pub fn check(bytes: Bytes, format: &BlockFormat, expected: &Expectation) -> Result<Self, BlockError> {
        let mut first = None;
        let stop_at_first = &mut |problem| {
            first = Some(problem);
            ControlFlow::Break(())
        };
        let block = examine(bytes, format, expected, stop_at_first);
        match first {
            None => Ok(block),
            Some(problem) => Err(BlockError {
                logical: expected.logical,
                problem,
            }),
        }
    }

    /// Returns all failures of `bytes`, which were read for `expected`, and the block with its
    /// accessible items.
    #[must_use]
    pub fn inspect(bytes: Bytes, format: &BlockFormat, expected: &Expectation) -> DamagedBlock {
        let mut failures = Vec::new();
        let keep_all = &mut |problem| {
            failures.push(BlockError {
                logical: expected.logical,
                problem,
            });
            if failures.len() < DamagedBlock::MAX_FAILURES {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        };
        let block = examine(bytes, format, expected, keep_all);
        DamagedBlock { failures, block }
    }

    /// Checks that this block matches another pointer to its address. A cached block was checked
    /// for an earlier pointer. Matching a pointer computes no checksum, and reads only the first
    /// item.
    ///
    /// # Errors
    /// Returns the first field that does not match: address, level, generation, owner, first key.
    pub fn matches(&self, expected: &Expectation) -> Result<(), BlockError> {
        let mut first = None;
        let _ = check_promises(self, expected, &mut |problem| {
            first = Some(problem);
            ControlFlow::Break(())
        });
        match first {
            None => Ok(()),
            Some(problem) => Err(BlockError {
                logical: expected.logical,
                problem,
            }),
        }
    }
}

/// Runs the checks until `report` stops them.
fn examine(bytes: Bytes, format: &BlockFormat, expected: &Expectation, report: Report<'_>) -> TreeBlock {
    let (header, level) = match RawHeader::ref_from_prefix(&bytes) {
        Ok((raw, _)) => (Header::from_raw(raw, format.checksum_type), raw.level),
        Err(_) => (Header::absent(expected.logical), 0),
    };
    let size_bytes = bytes.len();
    let block = TreeBlock::new(bytes, header);
    let _ = check_all(&block, size_bytes, level, format, expected, report);
    block.within_bounds()
}

fn check_all(
    block: &TreeBlock,
    size_bytes: usize,
    level: u8,
    format: &BlockFormat,
    expected: &Expectation,
    report: Report<'_>,
) -> ControlFlow<()> {
    let node_bytes = format.node_bytes;
    if usize::try_from(node_bytes) != Ok(size_bytes) {
        report(BlockProblem::Size {
            size_bytes,
            node_bytes,
        })?;
    }
    let covered = block.bytes().get(CHECKSUM_FIELD_BYTES..).unwrap_or_default();
    let computed = format.checksum_type.compute(covered);
    let header = block.header();
    if header.checksum != computed
        && !has_former_checksum(block, format)
        && !buttress_faults::on("format-block-checksum-unchecked")
    {
        report(BlockProblem::Checksum {
            stored: header.checksum,
            computed,
        })?;
    }
    check_identity(block, format, report)?;
    if level > HIGHEST_LEVEL {
        report(BlockProblem::LevelTooHigh { level })?;
    }
    check_promises(block, expected, report)?;
    tree_checker::check_block(block, format, report)
}

/// Returns true if the block has a correct checksum of the former algorithm.
fn has_former_checksum(block: &TreeBlock, format: &BlockFormat) -> bool {
    // Clamp: a block is longer than its checksum field.
    let covered = block.bytes().get(CHECKSUM_FIELD_BYTES..).unwrap_or_default();
    format.former_checksum_type.is_some_and(|former| {
        let stored = block.bytes().get(..former.size_bytes());
        stored == Some(former.compute(covered).as_bytes())
    })
}

/// Checks that the block belongs to this volume.
fn check_identity(block: &TreeBlock, format: &BlockFormat, report: Report<'_>) -> ControlFlow<()> {
    let header = block.header();
    if header.fsid != format.fsid && !format.seed_fsids.contains(&header.fsid) {
        report(BlockProblem::Fsid {
            stored: header.fsid,
            expected: format.fsid,
        })?;
    }
    match format.chunk_tree_uuid {
        Some(expected) if expected != header.chunk_tree_uuid => report(BlockProblem::ChunkTreeUuid {
            stored: header.chunk_tree_uuid,
            expected,
        }),
        _ => ControlFlow::Continue(()),
    }
}

/// Checks the block against the fields that its parent's pointer predicts.
fn check_promises(block: &TreeBlock, expected: &Expectation, report: Report<'_>) -> ControlFlow<()> {
    let header = block.header();
    if header.logical != expected.logical {
        report(BlockProblem::Address {
            stored: header.logical,
        })?;
    }
    if let Some(level) = expected.level.filter(|level| *level != header.level) {
        report(BlockProblem::Level {
            stored: header.level,
            expected: level,
        })?;
    }
    if let Some(generation) = expected
        .generation
        .filter(|generation| *generation != header.generation)
    {
        report(BlockProblem::Generation {
            stored: header.generation,
            expected: generation,
        })?;
    }
    if let Some(owner) = expected.owner.filter(|owner| !owner_fits(header.owner, *owner)) {
        report(BlockProblem::Owner {
            stored: header.owner,
            expected: owner,
        })?;
    }
    if let Some(first_key) = expected.first_key {
        let stored = block.key(0);
        if stored != Some(first_key) {
            report(BlockProblem::FirstKey {
                stored,
                expected: first_key,
            })?;
        }
    }
    ControlFlow::Continue(())
}

/// Returns true if tree `expected` may contain a block of tree `stored`. Subvolumes share tree
/// blocks with each other, and relocation trees with every tree.
fn owner_fits(stored: TreeId, expected: TreeId) -> bool {
    if expected == TreeId::TREE_RELOCATION {
        return true;
    }
    if is_file_tree(expected) {
        is_file_tree(stored)
    } else {
        stored == expected
    }
}
