//! The quota tree: the referenced and the exclusive bytes of each subvolume.
//!
//! - Full quotas count an extent or a tree block for every subvolume that references it. A copied
//!   root's source and its snapshot both reference the blocks and data below that root. Each of the
//!   two subvolumes references its own root exclusively.
//! - Simple quotas count a shared extent once, for the subvolume that created it
//!   ([`Finish::maker`], the owner of a tree block).
//!
//! The quota tree does not count its own blocks, so it is packed before trees that depend on each
//! other.

use super::{Finish, Item};
use crate::blocks::Listing;
use crate::error::Result;
use crate::layout::GENERATION;
use buttress_format::{
    ByteCount, QgroupId, QgroupInfo, QgroupLimit, QgroupStatus, QgroupStatusFlags, TreeId,
};
use buttress_mkfs::Quotas;
use buttress_mkfs::parts::in_order;
use std::collections::BTreeMap;

/// The version of the quota format.
const VERSION: u64 = 1;

/// The bytes that a subvolume uses.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    referenced: u64,
    exclusive: u64,
}

impl Finish<'_> {
    pub(super) fn quota_items(&self, log: &Listing, quotas: Quotas) -> Result<Vec<Item>> {
        let subvolumes = self.layout.subvolumes.iter().map(|subvolume| subvolume.id);
        let all = core::iter::once(TreeId::FS).chain(subvolumes);
        let mut usage: BTreeMap<TreeId, Usage> = all.map(|id| (id, Usage::default())).collect();
        let mut count = |trees: &[TreeId], bytes: u64| {
            let alone = trees.len() == 1;
            for tree in trees {
                if let Some(usage) = usage.get_mut(tree) {
                    usage.referenced = usage.referenced.saturating_add(bytes);
                    let own = if alone { bytes } else { 0 };
                    usage.exclusive = usage.exclusive.saturating_add(own);
                }
            }
        };
        self.data_extents(&mut |extent| {
            let mut trees = match quotas {
                Quotas::Simple => vec![self.maker(&extent)],
                Quotas::Full => {
                    let roots = extent.references.iter().map(|reference| reference.root);
                    roots.flat_map(|root| self.all_that_reach(root)).collect()
                }
            };
            trees.sort_unstable();
            trees.dedup();
            count(&trees, extent.length.get());
            Ok(())
        })?;
        let node_bytes = u64::from(self.settings.node_bytes);
        for (number, note) in log.notes().iter().enumerate() {
            let logical = log.address(number);
            let is_root = self.roots.iter().any(|root| root.logical == logical);
            if is_root || quotas == Quotas::Simple {
                count(&[note.owner], node_bytes);
            } else {
                count(&self.all_that_reach(note.owner), node_bytes);
            }
        }
        let mut items = vec![(QgroupStatus::KEY, status(quotas).encode())];
        for (tree, usage) in usage {
            let group = QgroupId::new(tree.get());
            items.push((QgroupInfo::key(group), info(group, usage).to_bytes().to_vec()));
            items.push((
                QgroupLimit::key(group),
                QgroupLimit::none(group).to_bytes().to_vec(),
            ));
        }
        Ok(in_order(items))
    }

    /// Returns a subvolume and its snapshots.
    fn all_that_reach(&self, tree: TreeId) -> Vec<TreeId> {
        let snapshots = self.layout.snapshots.iter();
        let snapshots = snapshots.filter(|(source, _)| *source == tree);
        core::iter::once(tree)
            .chain(snapshots.map(|(_, snapshot)| *snapshot))
            .collect()
    }
}

fn status(quotas: Quotas) -> QgroupStatus {
    let simple = match quotas {
        Quotas::Full => QgroupStatusFlags::empty(),
        Quotas::Simple => QgroupStatusFlags::SIMPLE_MODE,
    };
    QgroupStatus {
        version: VERSION,
        generation: GENERATION,
        flags: QgroupStatusFlags::ON | simple,
        rescan: 0,
        enable_generation: (quotas == Quotas::Simple).then_some(GENERATION),
    }
}

const fn info(group: QgroupId, usage: Usage) -> QgroupInfo {
    let (referenced, exclusive) = (ByteCount::new(usage.referenced), ByteCount::new(usage.exclusive));
    QgroupInfo {
        group,
        generation: GENERATION,
        referenced,
        referenced_compressed: referenced,
        exclusive,
        exclusive_compressed: exclusive,
    }
}
