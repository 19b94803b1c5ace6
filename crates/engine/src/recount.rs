//! Recounts of ledgers: compares the ledgers of changed block groups with the trees that a commit
//! will write.
//!
//! The recount runs in builds with debug assertions, between freezing and the first write. The
//! recount reads frozen trees without the edit lock, and only blocks in memory. The recount skips a
//! group whose blocks are not all in memory, and a group whose records were wrong before opening. A
//! difference between a ledger and its recount fails the commit.

use super::block_groups::Group;
use super::loading::free_ranges_of_tree;
use super::running::Running;
use buttress_format::{BlockFormat, ExtentItem, ItemType, Key, ObjectId, TreeId};
use buttress_fs::error::{Defect, Result};
use buttress_tree::{NonBlocking, ReadAhead, Tree};

/// The most items that a recounted block group may have. The recount skips larger groups, which
/// would dominate the time of tests with many files.
const ITEMS_MAX: usize = 1 << 13;

/// The block groups to be recounted. See the module's documentation.
#[derive(Debug)]
pub struct Recount {
    extents: Tree,
    free_space: Option<Tree>,
    groups: Vec<Sums>,
    format: BlockFormat,
}

#[derive(Debug)]
struct Sums {
    start: u64,
    length: u64,
    used: u64,
}

impl Sums {
    /// Returns the ledger of a changed block group; `None` if the group's records were wrong when
    /// its free space was loaded.
    fn of(group: &Group) -> Option<Self> {
        let kept_out = group.excluded_ranges.iter();
        let kept_out = kept_out.map(|range| range.end.saturating_sub(range.start));
        let is_sound = group.unaccounted_bytes == Some(kept_out.fold(0, u64::saturating_add));
        let is_changed = group.used != group.durable_used || group.pinned_bytes > 0;
        (is_sound && is_changed).then_some(Self {
            start: group.start,
            length: group.length,
            used: group.used,
        })
    }
}

impl Recount {
    /// Returns the recount of a converged transaction; `None` in builds without debug assertions.
    pub fn of(running: &Running) -> Option<Self> {
        // An invalid tree may be open, for example while a relocation moves its blocks.
        let free_space = running.trees.get(TreeId::FREE_SPACE);
        let free_space = free_space.filter(|_| running.core.has_free_space_tree());
        cfg!(debug_assertions).then(|| Self {
            extents: running.core.extent.tree.view(),
            free_space: free_space.map(|open| open.tree.view()),
            groups: running.core.groups.iter().filter_map(Sums::of).collect(),
            format: running.core.format.clone(),
        })
    }

    /// Compares each ledger with the trees.
    ///
    /// # Errors
    /// Fails with a [`Defect`] for the first wrong ledger.
    pub fn check(&self) -> Result<()> {
        let _in_memory = NonBlocking::hold();
        for group in &self.groups {
            if let Some(used) = self.used(group)
                && used != group.used
            {
                return Err(group
                    .told("a block group's count is not what the extent tree has")
                    .with("extents", used)
                    .into());
            }
            if let Some(free) = self.free(group)
                && free.checked_add(group.used) != Some(group.length)
            {
                let what =
                    "what the free-space tree has of a block group and what is used are not its length";
                return Err(group.told(what).with("free", free).into());
            }
        }
        Ok(())
    }

    fn used(&self, group: &Sums) -> Option<u64> {
        let key = |at| Key::new(ObjectId::new(at), ItemType(0), 0);
        let range = key(group.start)..key(group.start.checked_add(group.length)?);
        let mut used = 0_u64;
        for (count, item) in self.extents.range(range, ReadAhead::None).enumerate() {
            let item = item.ok().filter(|_| count < ITEMS_MAX)?;
            let key = item.key();
            if matches!(key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM) {
                let extent = ExtentItem::parse(&key, item.data(), &self.format).ok()?;
                used = used.checked_add(extent.length.get())?;
            }
        }
        Some(used)
    }

    fn free(&self, group: &Sums) -> Option<u64> {
        let tree = self.free_space.as_ref()?;
        let free = free_ranges_of_tree(tree, group.start, group.length, self.format.sector_bytes);
        Some(free.ok()?.total_bytes())
    }
}

impl Sums {
    fn told(&self, what: &'static str) -> Defect {
        Defect::new(what)
            .with("block group", self.start)
            .with("length", self.length)
            .with("used", self.used)
    }
}
