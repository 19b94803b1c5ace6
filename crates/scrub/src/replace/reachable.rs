//! All tree blocks that are reachable in a state of a volume, and the unreadable ones among them.
//!
//! The walk omits trees that are being deleted, of which parts are gone, and pending logs.

use crate::error::Error;
use buttress_exact::Exact as _;
use buttress_format::{ItemType, Logical, RootItem, TreeBlock, TreeId};
use buttress_fs::filesystem::root_pointer;
use buttress_fs::{Filesystem, Progress};
use buttress_locks::{Mutex, Rank, lock_class};
use buttress_tree::{BlockPointer, ReadAhead, RootPointer, Scanner};
use std::collections::HashMap;

lock_class!(SeenLock, "seen", Rank::LEAF);

/// Reads every reachable tree block of a state once, and returns the errors in order of address.
///
/// # Errors
/// The walk fails if the job was cancelled.
pub(super) fn unreadable_blocks(
    filesystem: &Filesystem,
    progress: &Progress,
) -> Result<Vec<buttress_tree::Error>, Error> {
    let reading = Reading {
        seen: Mutex::default(),
        node_bytes: u64::from(filesystem.superblock().node_bytes).max(1),
        progress,
    };
    let roots = roots(filesystem);
    let is_first = |root: &RootPointer| reading.is_first(root.logical);
    let roots = roots.into_iter().filter(is_first).map(|root| (root, ()));
    let tallies = filesystem.forest().survey(roots.collect::<Vec<_>>(), &reading);
    progress.check()?;
    let mut failures: Vec<buttress_tree::Error> = tallies.into_iter().flatten().collect();
    failures.sort_by_key(|failure| failure.pointer().logical);
    Ok(failures)
}

/// Returns the roots of all trees that are not being deleted. Unreadable parts of the root tree are
/// reported by other errors.
fn roots(filesystem: &Filesystem) -> Vec<RootPointer> {
    let superblock = filesystem.superblock();
    let mut roots = vec![*filesystem.root_tree().root()];
    if let Ok(chunks) = filesystem.tree(TreeId::CHUNK) {
        roots.push(*chunks.root());
    }
    for item in filesystem.root_tree().range(.., ReadAhead::sweep()).flatten() {
        let key = item.key();
        if key.item_type != ItemType::ROOT_ITEM {
            continue;
        }
        let Ok(item) = RootItem::parse(&key, item.data(), superblock.sector_bytes) else {
            continue;
        };
        if item.logical != Logical::MIN && item.references > 0 {
            roots.push(root_pointer(TreeId::new(key.objectid.get()), &item));
        }
    }
    roots
}

/// A visitor of a tree walk that reads each tree block once.
struct Reading<'a> {
    /// The visited blocks, as bits of 64 blocks for each key.
    seen: Mutex<HashMap<u64, u64>, SeenLock>,
    node_bytes: u64,
    progress: &'a Progress,
}

impl Reading<'_> {
    fn is_first(&self, logical: Logical) -> bool {
        let number = logical.get().quotient(self.node_bytes);
        let bit = 1_u64 << (number & 63);
        let mut seen = self.seen.lock();
        let word = seen.entry(number >> 6).or_default();
        let is_first = *word & bit == 0;
        *word |= bit;
        is_first
    }
}

impl Scanner for Reading<'_> {
    type Tally = Vec<buttress_tree::Error>;
    type Tag = ();

    fn begin(&self) -> Self::Tally {
        Vec::new()
    }

    fn wants(&self, _: &mut Self::Tally, pointer: &BlockPointer, (): ()) -> Option<()> {
        self.is_first(pointer.logical).then_some(())
    }

    fn visit(&self, _: &mut Self::Tally, _: &BlockPointer, _: &TreeBlock, (): ()) {}

    fn failed(&self, failures: &mut Self::Tally, error: buttress_tree::Error, (): ()) {
        failures.push(error);
    }

    fn is_cancelled(&self) -> bool {
        self.progress.is_cancelled()
    }
}
