//! Items that exist in log trees only: the ranges of a directory that the log holds completely.
//!
//! The key `(directory DIR_LOG_INDEX first)` and the item's only content, the last index, name a
//! range of directory indexes. The log holds every entry of the directory with an index in `[first,
//! last]`. An entry in that range of indexes that the log does not hold was removed. `DIR_LOG_ITEM`
//! names a range of name hashes in the same way, and is no longer written.
//!
//! Source: on-disk format documentation, sections "DIR_LOG_ITEM" and "DIR_LOG_INDEX".

use crate::item_error::ItemError;
use crate::key::Key;
use crate::raw;
use crate::units::InodeNumber;
use zerocopy::little_endian::U64;

/// A checked `DIR_LOG_INDEX` or `DIR_LOG_ITEM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirLogRange {
    /// The directory.
    pub directory: InodeNumber,
    /// The first index or hash of the range.
    pub first: u64,
    /// The last index or hash of the range: inclusive, unlike ranges elsewhere.
    pub last: u64,
}

impl DirLogRange {
    /// Checks the size of the item, and that its range does not end before it begins.
    ///
    /// # Errors
    /// Returns an [`ItemError`] with the first check that fails.
    pub fn parse(key: &Key, data: &[u8]) -> Result<Self, ItemError> {
        let last: &U64 = raw::exactly(key, data)?;
        let (first, last) = (key.offset, last.get());
        if last < first {
            return Err(ItemError::new(key, LogProblem::RangeBackwards { first, last }));
        }
        Ok(Self {
            directory: InodeNumber::new(key.objectid.get()),
            first,
            last,
        })
    }
}

/// The check that a log item fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogProblem {
    /// A logged range ends before it begins.
    #[error("a logged range from {first} to {last} ends before its start")]
    RangeBackwards {
        /// The key's offset.
        first: u64,
        /// The item's content.
        last: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item_error::ItemProblem;
    use crate::key::ItemType;
    use crate::units::ObjectId;

    #[test]
    fn ranges_run_forward() {
        let key = Key::new(ObjectId::new(257), ItemType::DIR_LOG_INDEX, 5);
        let parse = |data: &[u8]| DirLogRange::parse(&key, data).map_err(|error| error.problem);
        let directory = InodeNumber::new(257);
        assert_eq!(
            parse(&u64::MAX.to_le_bytes()),
            Ok(DirLogRange {
                directory,
                first: 5,
                last: u64::MAX
            })
        );
        assert_eq!(
            parse(&5_u64.to_le_bytes()),
            Ok(DirLogRange {
                directory,
                first: 5,
                last: 5
            })
        );
        assert_eq!(
            parse(&4_u64.to_le_bytes()),
            Err(LogProblem::RangeBackwards { first: 5, last: 4 }.into())
        );
        assert_eq!(
            parse(&[0; 7]),
            Err(ItemProblem::SizeWrong {
                size_bytes: 7,
                expected_bytes: 8
            })
        );
    }
}
