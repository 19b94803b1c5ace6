//! Lookup of the subvolumes that a stream names by uuid.

use buttress_format::{ItemType, TreeId, Uuid, UuidItem, uuid_key};
use buttress_fs::{Corruption, Error, Filesystem, Result, SubvolumeInfo};

/// A subvolume found by uuid.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) info: SubvolumeInfo,
    /// True if the subvolume has the uuid as its own, false if as its received uuid.
    pub(super) is_original: bool,
}

/// Finds the subvolume that was received from `uuid` or, without one, the subvolume with this uuid.
///
/// Among several received subvolumes it prefers read-only ones, then the oldest, as btrfs-progs
/// does.
pub(super) fn find(filesystem: &Filesystem, uuid: Uuid) -> Result<Option<Found>> {
    if uuid.is_nil() {
        return Ok(None);
    }
    for (item_type, is_original) in [
        (ItemType::UUID_KEY_RECEIVED_SUBVOL, false),
        (ItemType::UUID_KEY_SUBVOL, true),
    ] {
        let mut found = with_uuid(filesystem, uuid, item_type)?;
        found.sort_by_key(|info| (!info.is_read_only(), info.id));
        if let Some(info) = found.into_iter().next() {
            return Ok(Some(Found { info, is_original }));
        }
    }
    Ok(None)
}

/// Lists the subvolumes with this uuid, or received from it, by the UUID tree.
fn with_uuid(filesystem: &Filesystem, uuid: Uuid, item_type: ItemType) -> Result<Vec<SubvolumeInfo>> {
    let has = |info: &SubvolumeInfo| {
        let own = match item_type {
            ItemType::UUID_KEY_SUBVOL => info.root_item.uuid,
            _ => info.root_item.received_uuid,
        };
        own == uuid && !info.is_deleted()
    };
    let tree = match filesystem.tree(TreeId::UUID) {
        Ok(tree) => tree,
        // Old volumes have no UUID tree.
        Err(Error::TreeNotFound { .. }) => {
            let mut all = filesystem.subvolumes()?;
            all.retain(has);
            return Ok(all);
        }
        Err(error) => return Err(error),
    };
    let key = uuid_key(uuid, item_type);
    let Some(item) = tree.get(&key)? else {
        return Ok(Vec::new());
    };
    let item = UuidItem::parse(&key, item.data()).map_err(|error| Corruption::Item {
        tree: TreeId::UUID,
        error,
    })?;
    let mut found = Vec::new();
    for id in item.subvolumes().filter_map(TreeId::as_subvolume) {
        match filesystem.subvolume(id) {
            Ok(info) if has(&info) => found.push(info),
            // The UUID tree may name deleted subvolumes.
            Ok(_) | Err(Error::SubvolumeNotFound { .. } | Error::TreeNotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}
