//! Checksums of directory blocks: at the end of a list of entries, or of a block of a hash tree.
//!
//! Source: ext4 documentation, sections "Directory Entries" and "Hash Tree Directories".

use super::entry::{ENTRY_BYTES, entry_bytes};
use crate::bytes::{part, u16_at, u32_at};
use crate::checksum::crc32c;
use crate::error::{ExtError, Place, Problem};
use crate::volume::require_checksum;
use buttress_exact::{Exact as _, u64_of};

/// The size of the entry without a name that holds the checksum of a list.
const TAIL_BYTES: usize = 12;
const TAIL_KIND: u8 = 0xde;
/// The size of the tail of a tree's block: a reserved number, and the checksum.
const TREE_TAIL_BYTES: usize = 8;
const TREE_ENTRY_BYTES: usize = 8;
/// The size of the entry `.` and the offset of the entry `..` in the root of a tree.
const DOT_BYTES: usize = 12;
/// The offset of the information on the tree in its root.
const ROOT_INFO: usize = 0x18;
/// The size of that information.
const ROOT_INFO_BYTES: u8 = 8;

/// Verifies the checksum of a block of a directory.
pub(super) fn check(place: Place, block: &[u8], seed: u32, has_hash_tree: bool) -> Result<(), ExtError> {
    let corrupt = |problem| ExtError::corrupt(place, problem);
    let counts = if has_hash_tree {
        counts_offset(block).map_err(corrupt)?
    } else {
        None
    };
    let (found, expected) = match counts {
        Some(counts) => of_tree(block, counts, seed),
        None => of_list(block, seed),
    }
    .map_err(corrupt)?;
    require_checksum(place, found, expected)
}

/// Returns the offset of the counts in a block of a hash tree, or `None` for a list of entries.
fn counts_offset(block: &[u8]) -> Result<Option<usize>, Problem> {
    let length = |at: usize| u16_at(block, "rec_len", at).map(|stored| entry_bytes(stored, block.len()));
    let inode = u32_at(block, "the entry", 0)?;
    let first = length(4)?;
    if inode == 0 && first == block.len() {
        return Ok(Some(ENTRY_BYTES));
    }
    let is_root = first == DOT_BYTES && length(DOT_BYTES.exact_add(4))?.exact_add(DOT_BYTES) == block.len();
    let info = part(block, "the root of the hash tree", ROOT_INFO, 8)?;
    let has_info = matches!(info, [0, 0, 0, 0, _, ROOT_INFO_BYTES, ..]);
    Ok((is_root && has_info).then_some(ROOT_INFO.exact_add(usize::from(ROOT_INFO_BYTES))))
}

/// Returns the stored and the expected checksum of a block of a hash tree.
fn of_tree(block: &[u8], counts: usize, seed: u32) -> Result<(u32, u32), Problem> {
    let space = block.len().exact_sub(counts).quotient(TREE_ENTRY_BYTES);
    let limit = usize::from(u16_at(block, "limit", counts)?);
    let count = usize::from(u16_at(block, "count", counts.exact_add(2))?);
    let bounded = |field, found: usize, most: usize| {
        if (1..=most).contains(&found) {
            return Ok(());
        }
        Err(Problem::Field {
            field,
            found: u64_of(found),
            least: 1,
            most: u64_of(most),
        })
    };
    bounded("the limit of the hash tree's block", limit, space)?;
    bounded("the count of the hash tree's block", count, limit)?;
    let tail = counts.exact_add(limit.exact_mul(TREE_ENTRY_BYTES));
    if tail.exact_add(TREE_TAIL_BYTES) > block.len() {
        return Err(Problem::NoTail);
    }
    let covered = part(
        block,
        "the hash tree's entries",
        0,
        counts.exact_add(count.exact_mul(TREE_ENTRY_BYTES)),
    )?;
    let reserved = part(block, "the tail", tail, 4)?;
    let found = u32_at(block, "the tail", tail.exact_add(4))?;
    let state = crc32c(crc32c(seed, covered), reserved);
    Ok((found, crc32c(state, &[0; 4])))
}

/// Returns the stored and the expected checksum of a list of entries.
fn of_list(block: &[u8], seed: u32) -> Result<(u32, u32), Problem> {
    let (entries, tail) = block.split_at(block.len().exact_sub(TAIL_BYTES));
    match tail {
        [0, 0, 0, 0, 12, 0, 0, TAIL_KIND, a, b, c, d] => {
            Ok((u32::from_le_bytes([*a, *b, *c, *d]), crc32c(seed, entries)))
        }
        _ => Err(Problem::NoTail),
    }
}
