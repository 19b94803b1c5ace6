//! Root references of subvolumes, which the root tree records for parent and child, and a directory
//! of the parent; and the uuid tree.
//!
//! A subvolume's directory entry without a root reference is no finding. A snapshot contains the
//! directory entries of subvolumes below its source, although these subvolumes stay with the
//! source.

use crate::context::Check;
use crate::finding::Finding;
use crate::names::{self, Target};
use crate::report::Note;
use crate::roots::Root;
use buttress_format::{
    DirItems, Generation, ItemType, Key, RootRef, SubvolumeId, TreeId, UuidItem, name_hash, uuid_key, uuid_of,
};
use buttress_fs::{Name, Result};
use buttress_tree::{ReadAhead, Tree};
use std::collections::HashMap;
use uuid::Uuid;

/// Checks root references and uuids.
pub(crate) fn check(check: &Check<'_>, roots: &[Root]) -> Result<()> {
    let Some(root_tree) = check.tree(TreeId::ROOT, roots) else {
        return Ok(());
    };
    let by_id: HashMap<TreeId, &Root> = roots.iter().map(|root| (root.id(), root)).collect();
    let mut complete = true;
    for item in root_tree.range(.., ReadAhead::sweep()) {
        check.progress.check()?;
        let Ok(item) = item else {
            complete = false;
            continue;
        };
        let key = item.key();
        match key.item_type {
            ItemType::ROOT_REF => check_place(check, &root_tree, &by_id, &key, item.data()),
            ItemType::ROOT_BACKREF => check_back(check, &root_tree, &key, item.data()),
            _ => {}
        }
    }
    if complete {
        for root in roots.iter().filter(|root| root.is_live_subvolume()) {
            check_reachable(check, &root_tree, root);
        }
    }
    check_default(check, &root_tree, &by_id);
    check_uuids(check, roots, &by_id)
}

/// Checks the parent's reference: the child and the directory must agree with it.
fn check_place(check: &Check<'_>, root_tree: &Tree, by_id: &HashMap<TreeId, &Root>, key: &Key, data: &[u8]) {
    let (parent, child) = RootRef::parent_and_child(key);
    let Ok(place) = RootRef::parse(key, data) else {
        return;
    };
    let problem = |problem| {
        check.find(Finding::RootReference {
            parent,
            child,
            problem,
        });
    };
    let back = Key::new(child.object_id(), ItemType::ROOT_BACKREF, parent.get());
    match root_tree.get(&back) {
        Ok(None) => problem("only the parent records this place"),
        Ok(Some(other)) if other.data() != data => {
            problem("the parent and the subvolume record different places")
        }
        _ => {}
    }
    match by_id.get(&child) {
        None => check.find(Finding::SubvolumeMissing { parent, child }),
        Some(root) if root.dead => problem("the subvolume is being deleted, but still has a place"),
        Some(_) => {}
    }
    let Some(root) = by_id.get(&parent).filter(|root| !root.dead) else {
        return;
    };
    let tree = check.forest.tree(root.pointer);
    let leads_there = |target: Option<Target>| {
        target.is_some_and(|target| {
            target.location.item_type == ItemType::ROOT_ITEM && target.location.objectid == child.object_id()
        })
    };
    let index = names::by_index(&tree, place.directory, place.sequence, place.name);
    let hash = names::by_hash(&tree, place.directory, place.name);
    let (Ok(index), Ok(hash)) = (index, hash) else {
        return;
    };
    if let Some(missing) = names::missing(leads_there(index), leads_there(hash)) {
        check.find(Finding::SubvolumeEntryMissing {
            parent,
            child,
            directory: place.directory,
            name: Name::from(place.name),
            missing,
        });
    }
}

/// Checks that a child's root reference has a matching reference of the parent. The check of the
/// parent's reference compares the two references.
fn check_back(check: &Check<'_>, root_tree: &Tree, key: &Key, data: &[u8]) {
    let (parent, child) = RootRef::parent_and_child(key);
    if RootRef::parse(key, data).is_err() {
        return;
    }
    let forth = Key::new(parent.object_id(), ItemType::ROOT_REF, child.get());
    if matches!(root_tree.get(&forth), Ok(None)) {
        check.find(Finding::RootReference {
            parent,
            child,
            problem: "only the subvolume records this place",
        });
    }
}

/// Checks that every subvolume except the top level has a root reference.
fn check_reachable(check: &Check<'_>, root_tree: &Tree, root: &Root) {
    if root.id().as_subvolume() == Some(SubvolumeId::TOP_LEVEL) {
        return;
    }
    let key = |offset| Key::new(root.id().object_id(), ItemType::ROOT_BACKREF, offset);
    let mut places = root_tree.range(key(0)..=key(u64::MAX), ReadAhead::None);
    if places.next().is_none() {
        check.find(Finding::SubvolumeUnreachable { subvolume: root.id() });
    }
}

/// Checks that the default subvolume exists.
fn check_default(check: &Check<'_>, root_tree: &Tree, by_id: &HashMap<TreeId, &Root>) {
    const NAME: &[u8] = b"default";
    let directory = check.superblock().root_dir_objectid;
    let key = Key::new(directory, ItemType::DIR_ITEM, name_hash(NAME));
    let Ok(Some(item)) = root_tree.get(&key) else {
        return;
    };
    let Ok(mut entries) = DirItems::parse(&key, item.data()) else {
        return;
    };
    if let Some(entry) = entries.find(|entry| entry.name == NAME) {
        let subvolume = TreeId::new(entry.location.objectid.get());
        if !by_id.contains_key(&subvolume) {
            check.find(Finding::DefaultSubvolumeMissing { subvolume });
        }
    }
}

/// Checks that the uuid tree maps each uuid to exactly its subvolumes.
fn check_uuids(check: &Check<'_>, roots: &[Root], by_id: &HashMap<TreeId, &Root>) -> Result<()> {
    let Some(tree) = check.tree(TreeId::UUID, roots) else {
        return Ok(());
    };
    let superblock = check.superblock();
    // A uuid tree generation of zero means that the uuid tree was never filled since mkfs.btrfs.
    // The kernel completes the uuid tree at the next mount.
    if superblock.uuid_tree_generation != superblock.generation {
        if superblock.uuid_tree_generation != Generation::MIN {
            check.note(Note::UuidTreeStale);
        }
        return Ok(());
    }
    for item in tree.range(.., ReadAhead::sweep()) {
        check.progress.check()?;
        let Ok(item) = item else { return Ok(()) };
        let key = item.key();
        check_uuid_item(check, by_id, &key, item.data());
    }
    for root in roots.iter().filter(|root| root.is_live_subvolume()) {
        // mkfs.btrfs gives the top level a uuid, but not all versions add it to the uuid tree.
        if root.id() != TreeId::FS {
            check_uuids_of(check, &tree, root);
        }
    }
    Ok(())
}

/// Checks that every subvolume in a uuid item has that uuid.
fn check_uuid_item(check: &Check<'_>, by_id: &HashMap<TreeId, &Root>, key: &Key, data: &[u8]) {
    let uuid_of_root: fn(&Root) -> Uuid = match key.item_type {
        ItemType::UUID_KEY_SUBVOL => |root| root.uuid,
        ItemType::UUID_KEY_RECEIVED_SUBVOL => |root| root.received_uuid,
        _ => return,
    };
    let Ok(item) = UuidItem::parse(key, data) else {
        return;
    };
    let uuid = uuid_of(key);
    for subvolume in item.subvolumes() {
        match by_id.get(&subvolume) {
            Some(root) if uuid_of_root(root) == uuid => {}
            Some(root) if !root.dead => check.find(Finding::UuidWrong { uuid, subvolume }),
            _ => check.note(Note::UuidLeftOver { uuid }),
        }
    }
}

/// Checks that the uuid tree has a subvolume under its uuids.
fn check_uuids_of(check: &Check<'_>, tree: &Tree, root: &Root) {
    for (item_type, uuid) in [
        (ItemType::UUID_KEY_SUBVOL, root.uuid),
        (ItemType::UUID_KEY_RECEIVED_SUBVOL, root.received_uuid),
    ] {
        if uuid.is_nil() {
            continue;
        }
        let key = uuid_key(uuid, item_type);
        let Ok(item) = tree.get(&key) else { return };
        let known = item.is_some_and(|item| {
            UuidItem::parse(&key, item.data()).is_ok_and(|item| item.subvolumes().any(|id| id == root.id()))
        });
        if !known {
            check.find(Finding::UuidMissing {
                subvolume: root.id(),
                uuid,
            });
        }
    }
}
