//! Records about subvolumes in trees of the volume: the default subvolume, the uuid tree, quota
//! groups.

use super::places::ROOT_TREE_DIRECTORY;
use crate::items::{Entry, Items, broken};
use crate::steps::Applied;
use buttress_format::{
    ByteCount, FileKind, ItemType, Key, QgroupId, QgroupInfo, QgroupLimit, QgroupRelation, TreeId, Uuid,
    UuidItem, name_hash, uuid_key,
};
use buttress_fs::error::{Error, Result};

const DEFAULT: &[u8] = b"default";

/// Sets the default subvolume to the top level.
pub(super) fn reset_default(items: &mut Items<'_>) -> Result<Applied> {
    let key = Key::new(ROOT_TREE_DIRECTORY, ItemType::DIR_ITEM, name_hash(DEFAULT));
    items.remove_entries(TreeId::ROOT, &key, DEFAULT)?;
    let entry = Entry {
        location: Key::new(TreeId::FS.object_id(), ItemType::ROOT_ITEM, u64::MAX),
        transid: items.generation(),
        kind: FileKind::Directory,
        name: DEFAULT.to_vec(),
    };
    items.add_entry(TreeId::ROOT, &key, &entry)?;
    Ok(Applied::Changed)
}

/// Adds a subvolume to a uuid of the uuid tree, or removes it.
pub(super) fn settle_uuid(
    items: &mut Items<'_>,
    subvolume: TreeId,
    uuid: Uuid,
    exists: bool,
) -> Result<Applied> {
    let mut changed = false;
    for item_type in [ItemType::UUID_KEY_SUBVOL, ItemType::UUID_KEY_RECEIVED_SUBVOL] {
        let has_uuid = items.has_tree(subvolume)? && {
            let root = items.running.root_item(subvolume)?;
            let own = match item_type {
                ItemType::UUID_KEY_SUBVOL => root.uuid,
                _ => root.received_uuid,
            };
            own == uuid
        };
        let key = uuid_key(uuid, item_type);
        let mut data = items
            .get(TreeId::UUID, &key)?
            .map_or_else(Vec::new, |item| item.data().to_vec());
        if !data.is_empty() {
            UuidItem::parse(&key, &data).map_err(|error| broken(TreeId::UUID, error))?;
        }
        let is_listed = data
            .chunks_exact(size_of::<u64>())
            .any(|id| id == subvolume.get().to_le_bytes());
        if exists && has_uuid && !is_listed {
            UuidItem::push(&mut data, subvolume);
        } else if exists || has_uuid || !UuidItem::remove(&mut data, subvolume) {
            continue;
        }
        changed = true;
        if data.is_empty() {
            items.remove(TreeId::UUID, &key)?;
        } else {
            items.put(TreeId::UUID, &key, &data)?;
        }
    }
    Ok(if changed {
        Applied::Changed
    } else {
        Applied::Nothing("the uuid tree has the right entry")
    })
}

/// Returns a quota group by its text `LEVEL/NUMBER`.
fn group(text: &str) -> Result<QgroupId> {
    let group = text.split_once('/').and_then(|(level, number)| {
        let (level, number): (u64, u64) = (level.parse().ok()?, number.parse().ok()?);
        let raw = level.checked_shl(48)?;
        (level < 1 << 16 && number < 1 << 48).then_some(QgroupId::new(raw | number))
    });
    group.ok_or(Error::Invalid {
        what: "a quota group",
    })
}

/// Returns the item of a quota group; `None` if there is none.
fn info(items: &mut Items<'_>, group: QgroupId) -> Result<Option<QgroupInfo>> {
    let key = QgroupInfo::key(group);
    let Some(item) = items.get(TreeId::QUOTA, &key)? else {
        return Ok(None);
    };
    let info = QgroupInfo::parse(&key, item.data()).map_err(|error| broken(TreeId::QUOTA, error))?;
    Ok(Some(info))
}

/// Sets the counts of a quota group: referenced and exclusive bytes.
pub(super) fn set_quota_counts(items: &mut Items<'_>, text: &str, counts: [u64; 2]) -> Result<Applied> {
    let group = group(text)?;
    let Some(found) = info(items, group)? else {
        return Ok(Applied::Nothing("the quota group does not exist"));
    };
    let [referenced, exclusive] = counts.map(ByteCount::new);
    let info = QgroupInfo {
        generation: items.generation(),
        referenced,
        referenced_compressed: referenced,
        exclusive,
        exclusive_compressed: exclusive,
        ..found
    };
    let key = QgroupInfo::key(group);
    items.put(TreeId::QUOTA, &key, &info.to_bytes())?;
    Ok(Applied::Changed)
}

/// Creates a quota group without counts. The next round sets the counts.
pub(super) fn make_quota_group(items: &mut Items<'_>, text: &str) -> Result<Applied> {
    let group = group(text)?;
    let limit = QgroupLimit::key(group);
    if !items.has(TreeId::QUOTA, &limit)? {
        let none = QgroupLimit::none(group);
        items.put(TreeId::QUOTA, &limit, &none.to_bytes())?;
    }
    if info(items, group)?.is_some() {
        return Ok(Applied::Nothing("the quota group exists"));
    }
    let empty = QgroupInfo {
        group,
        generation: items.generation(),
        referenced: ByteCount::ZERO,
        referenced_compressed: ByteCount::ZERO,
        exclusive: ByteCount::ZERO,
        exclusive_compressed: ByteCount::ZERO,
    };
    let key = QgroupInfo::key(group);
    items.put(TreeId::QUOTA, &key, &empty.to_bytes())?;
    Ok(Applied::Changed)
}

/// Records a relation of quota groups on both sides if both exist, else on none.
pub(super) fn settle_quota_relation(items: &mut Items<'_>, one: &str, other: &str) -> Result<Applied> {
    let relation = QgroupRelation {
        group: group(one)?,
        other: group(other)?,
    };
    let both_exist = info(items, relation.group)?.is_some() && info(items, relation.other)?.is_some();
    for key in relation.keys() {
        if both_exist {
            items.put(TreeId::QUOTA, &key, &[])?;
        } else {
            items.remove(TreeId::QUOTA, &key)?;
        }
    }
    Ok(Applied::Changed)
}
