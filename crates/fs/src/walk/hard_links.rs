//! Hard links of a walk: further names of a file that was already returned.
//!
//! Only inodes with a link count above one are stored, and only until all their names were found.
//! The memory of the hard-link table is bounded. If a volume claims millions of names that never
//! appear, the walk treats later files as separate, and only loses links.

use super::WalkEntry;
use crate::location::Location;
use buttress_exact::Exact as _;
use std::collections::HashMap;
use std::sync::Arc;

/// The maximum number of stored bytes of paths.
const PATHS_MAX_BYTES: usize = 64 << 20;

/// The memory of a stored inode in addition to its path.
const ENTRY_BYTES: usize = 128;

/// The files whose further names are expected.
#[derive(Debug, Default)]
pub(super) struct HardLinks {
    waiting: HashMap<Location, Waiting>,
    bytes: usize,
}

#[derive(Debug)]
struct Waiting {
    first: Arc<[u8]>,
    names_to_come: u32,
}

impl HardLinks {
    /// Returns the first path of the file of `entry`, if it was already returned.
    pub(super) fn first_name(&mut self, entry: &WalkEntry) -> Option<Arc<[u8]>> {
        let metadata = entry.metadata();
        if metadata.nlink < 2 || metadata.is_directory() {
            return None;
        }
        let location = metadata.location;
        if let Some(waiting) = self.waiting.get_mut(&location) {
            let first = Arc::clone(&waiting.first);
            waiting.names_to_come = waiting.names_to_come.exact_sub(1);
            if waiting.names_to_come == 0 {
                self.waiting.remove(&location);
                self.bytes = self.bytes.exact_sub(first.len().exact_add(ENTRY_BYTES));
            }
            return Some(first);
        }
        let path = entry.path();
        let bytes = self.bytes.exact_add(path.len()).exact_add(ENTRY_BYTES);
        if bytes <= PATHS_MAX_BYTES {
            self.bytes = bytes;
            let names_to_come = metadata.nlink.exact_sub(1);
            self.waiting.insert(
                location,
                Waiting {
                    first: path.into(),
                    names_to_come,
                },
            );
        }
        None
    }
}
