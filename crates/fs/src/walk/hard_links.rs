//! Which names of a walk are further names of a file that came already.
//!
//! Only inodes that say to have several names are remembered, and only until all of them have come. What is
//! remembered is bounded: a volume that claims millions of names that never come makes later files count as
//! files of their own, which loses nothing but the link.

use super::WalkEntry;
use crate::location::Location;
use buttress_exact::Exact as _;
use std::collections::HashMap;
use std::sync::Arc;

/// How many bytes of paths are remembered.
const PATHS_MAX_BYTES: usize = 64 << 20;

/// What one remembered inode takes beside its path.
const ENTRY_BYTES: usize = 128;

/// The files that wait for further names.
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
    /// The path under which the file of `entry` came first, if it came.
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
