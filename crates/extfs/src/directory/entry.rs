//! The coded fields of a directory entry: length and type.
//!
//! Source: ext4 documentation, section "Directory Entries".

use crate::inode::FileKind;

/// The size of an entry without its name.
pub(super) const ENTRY_BYTES: usize = 8;

/// Returns the length of an entry. Lengths of 64 KiB do not fit their field, so two low bits, which
/// are zero in any length, extend it.
pub(super) fn entry_bytes(stored: u16, block_bytes: usize) -> usize {
    let stored = usize::from(stored);
    if block_bytes < 65536 {
        return stored;
    }
    match stored {
        0 | 0xffff => block_bytes,
        _ => (stored & 0xfffc) | ((stored & 3) << 16),
    }
}

/// Returns the type of the code in an entry.
pub(super) const fn kind_of_entry(kind: u8) -> Option<FileKind> {
    match kind {
        1 => Some(FileKind::Regular),
        2 => Some(FileKind::Directory),
        3 => Some(FileKind::CharacterDevice),
        4 => Some(FileKind::BlockDevice),
        5 => Some(FileKind::Fifo),
        6 => Some(FileKind::Socket),
        7 => Some(FileKind::Symlink),
        _ => None,
    }
}
