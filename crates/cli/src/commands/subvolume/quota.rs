//! The quota group of one subvolume.

use anyhow::Result;
use buttress::unstable::filesystem_of;
use buttress::unstable::format::{ItemType, Key, ObjectId, QgroupInfo, QgroupLimit, QgroupLimitFlags};
use buttress::{ByteCount, SubvolumeId, TreeId, Volume};

/// Limits and usage of the quota group of a subvolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Quota {
    pub(super) referenced: ByteCount,
    pub(super) exclusive: ByteCount,
    pub(super) limit_referenced: Option<ByteCount>,
    pub(super) limit_exclusive: Option<ByteCount>,
}

/// Returns the quota group of a subvolume, or `None` if quotas are off.
pub(super) fn quota_of(filesystem: &Volume, subvolume: SubvolumeId) -> Result<Option<Quota>> {
    let filesystem = filesystem_of(filesystem);
    let tree = match filesystem.tree(TreeId::QUOTA) {
        Ok(tree) => tree,
        Err(buttress::unstable::fs::Error::TreeNotFound { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // The group's id consists of level 0 and the id of the subvolume.
    let group = subvolume.get();
    let key = Key::new(ObjectId::MIN, ItemType::QGROUP_INFO, group);
    let Some(item) = tree.get(&key)? else {
        return Ok(None);
    };
    let info = QgroupInfo::parse(&key, item.data())?;
    let mut quota = Quota {
        referenced: info.referenced,
        exclusive: info.exclusive,
        limit_referenced: None,
        limit_exclusive: None,
    };
    let key = Key::new(ObjectId::MIN, ItemType::QGROUP_LIMIT, group);
    if let Some(item) = tree.get(&key)? {
        let limit = QgroupLimit::parse(&key, item.data())?;
        quota.limit_referenced = limit
            .flags
            .contains(QgroupLimitFlags::MAX_RFER)
            .then_some(limit.max_referenced);
        quota.limit_exclusive = limit
            .flags
            .contains(QgroupLimitFlags::MAX_EXCL)
            .then_some(limit.max_exclusive);
    }
    Ok(Some(quota))
}
