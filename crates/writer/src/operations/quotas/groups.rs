//! The items of quota groups: look-ups, and the removal of a group.

use super::broken;
use crate::operations::{Access, Operation};
use buttress_engine::quota_tree::{QuotaKind, relation_keys};
use buttress_format::{
    ByteCount, ItemType, Key, ObjectId, QgroupId, QgroupInfo, QgroupLimit, RootFlags, SubvolumeId, TreeId,
};
use buttress_fs::error::{Error, QuotaRefusal, Result};
use std::collections::BTreeSet;

impl Access<'_> {
    /// Returns all subvolumes that are not deleted, in order.
    pub(super) fn live_subvolumes(&mut self) -> Result<Vec<SubvolumeId>> {
        let mut found = vec![SubvolumeId::TOP_LEVEL];
        let mut key = Key::new(ObjectId::FIRST_FREE, ItemType::ROOT_ITEM, 0);
        while let Some(item) = self.lookups().at_or_after(TreeId::ROOT, &key)? {
            let at = item.key();
            let tree = TreeId::new(at.objectid.get());
            let Some(subvolume) = tree.as_subvolume() else {
                break;
            };
            if at.item_type == ItemType::ROOT_ITEM
                && !self.lookups().root_item(tree)?.flags.contains(RootFlags::DEAD)
            {
                found.push(subvolume);
            }
            let Some(next) = at.successor() else { break };
            key = next;
        }
        Ok(found)
    }

    pub(super) fn require_quotas(&mut self) -> Result<QuotaKind> {
        let kind = self.lookups().core().quota_kind();
        Ok(kind.ok_or(QuotaRefusal::NotEnabled)?)
    }

    pub(super) fn require_classic_quotas(&mut self) -> Result<()> {
        match self.require_quotas()? {
            QuotaKind::Classic => Ok(()),
            QuotaKind::Simple => Err(QuotaRefusal::NoRescan.into()),
        }
    }

    pub(super) fn has_group(&mut self, group: QgroupId) -> Result<bool> {
        Ok(self.get(TreeId::QUOTA, &QgroupInfo::key(group))?.is_some())
    }

    pub(in crate::operations) fn require_group(&mut self, group: QgroupId) -> Result<()> {
        match self.has_group(group)? {
            true => Ok(()),
            false => Err(QuotaRefusal::NoGroup { group }.into()),
        }
    }

    /// Returns whether a group is a member of another one. The item of the member decides, as in
    /// Linux.
    pub(super) fn is_member(&mut self, member: QgroupId, parent: QgroupId) -> Result<bool> {
        let [key, _] = relation_keys(member, parent);
        Ok(self.get(TreeId::QUOTA, &key)?.is_some())
    }

    /// Returns whether an item of a relation exists. A program that was cut off leaves one of two.
    pub(super) fn is_related(&mut self, member: QgroupId, parent: QgroupId) -> Result<bool> {
        for key in relation_keys(member, parent) {
            if self.get(TreeId::QUOTA, &key)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Loads the paths to the items of a group.
    pub(super) fn reach_group(&mut self, group: QgroupId) -> Result<()> {
        self.reach(TreeId::QUOTA, &[QgroupInfo::key(group), QgroupLimit::key(group)])
    }

    /// Returns the members of a group, and the groups of which it is a member.
    pub(in crate::operations) fn groups_related_to(&mut self, group: QgroupId) -> Result<Vec<QgroupId>> {
        let mut found = Vec::new();
        let mut key = Key::new(ObjectId::new(group.get()), ItemType::QGROUP_RELATION, 0);
        while let Some(item) = self.lookups().at_or_after(TreeId::QUOTA, &key)? {
            let at = item.key();
            if (at.objectid, at.item_type) != (key.objectid, key.item_type) {
                break;
            }
            found.push(QgroupId::new(at.offset));
            let Some(next) = at.successor() else { break };
            key = next;
        }
        Ok(found)
    }

    /// Returns all groups with an item of a relation to a group. A relation normally has two items.
    fn all_related_to(&mut self, group: QgroupId) -> Result<BTreeSet<QgroupId>> {
        let mut found = BTreeSet::new();
        let mut key = Key::MIN;
        while let Some(item) = self.lookups().at_or_after(TreeId::QUOTA, &key)? {
            let at = item.key();
            let ends = (QgroupId::new(at.objectid.get()), QgroupId::new(at.offset));
            if at.item_type == ItemType::QGROUP_RELATION {
                found.extend((ends.0 == group).then_some(ends.1));
                found.extend((ends.1 == group).then_some(ends.0));
            }
            let Some(next) = at.successor() else { break };
            key = next;
        }
        Ok(found)
    }

    /// Loads all blocks of the quota tree.
    pub(in crate::operations) fn reach_all_of_quota_tree(&mut self) -> Result<()> {
        let mut key = Key::MIN;
        while let Some(item) = self.lookups().at_or_after(TreeId::QUOTA, &key)? {
            self.reach(TreeId::QUOTA, &[item.key()])?;
            let Some(next) = item.key().successor() else { break };
            key = next;
        }
        Ok(())
    }
}

impl Operation<'_> {
    /// Removes a quota group without members that its subvolume no longer needs.
    pub(super) fn destroy_group(&mut self, kind: QuotaKind, group: QgroupId) -> Result<()> {
        self.reach_all_of_quota_tree()?;
        let related = self.all_related_to(group)?;
        for other in &related {
            if other.level() < group.level() && self.is_member(*other, group)? {
                return Err(QuotaRefusal::HasMembers { group }.into());
            }
        }
        if group.level() == 0 {
            let has_tree = match self.lookups().root_item(TreeId::new(group.get())) {
                Ok(_) => true,
                Err(Error::TreeNotFound { .. }) => false,
                Err(error) => return Err(error),
            };
            if has_tree || kind == QuotaKind::Simple && self.counts_bytes(group)? {
                return Err(QuotaRefusal::InUse { group }.into());
            }
        }
        for other in &related {
            self.reach(TreeId::QUOTA, &relation_keys(group, *other))?;
        }
        self.edit().quota_tree().remove_group(group, &related)
    }

    /// Returns whether a group counts bytes, in its item or with the changes of this transaction.
    fn counts_bytes(&mut self, group: QgroupId) -> Result<bool> {
        if self.lookups().core().has_quota_changes(group) {
            return Ok(true);
        }
        let key = QgroupInfo::key(group);
        let Some(item) = self.get(TreeId::QUOTA, &key)? else {
            return Ok(false);
        };
        let info = QgroupInfo::parse(&key, item.data()).map_err(broken)?;
        Ok(info.referenced != ByteCount::ZERO || info.exclusive != ByteCount::ZERO)
    }
}
