//! The model's rules for renames, and their effects.

use super::model::{Inode, Model, Target};
use super::operation::{Mode, Operation};
use buttress::{InodeNumber, Location, SubvolumeId};

/// Returns whether `inside` is `directory` or is below it.
fn is_below(model: &Model, inside: Location, directory: u64) -> bool {
    let mut waiting = vec![directory];
    while let Some(number) = waiting.pop() {
        if number == inside.inode.get() {
            return true;
        }
        let location = Location::new(inside.subvolume, InodeNumber::new(number));
        if let Some(inode) = model.inode(location) {
            waiting.extend(inode.entries.values().filter_map(|target| match target {
                Target::Inode(number) => Some(*number),
                Target::Subvolume(_) => None,
            }));
        }
    }
    false
}

const fn is_subvolume(target: Target) -> bool {
    matches!(target, Target::Subvolume(_))
}

/// Returns whether `inside` is the subvolume or is nested in it.
fn lies_in(model: &Model, inside: SubvolumeId, subvolume: SubvolumeId) -> bool {
    let mut current = Some(inside);
    while let Some(id) = current {
        if id == subvolume {
            return true;
        }
        let place = model
            .subvolumes
            .get(&id)
            .and_then(|subvolume| subvolume.place.as_ref());
        current = place.map(|(directory, _)| directory.subvolume);
    }
    false
}

/// Returns whether a name is a placeholder for a subvolume in a snapshot. Kernel versions differ in
/// renames of placeholders, so the tests draw no such rename.
#[must_use]
pub fn names_placeholder(model: &Model, operation: &Operation) -> bool {
    let stands_for = |directory: &Location, name: &[u8]| match model.target(*directory, name) {
        Some(Target::Subvolume(id)) => !model.is_place(id, *directory, name),
        _ => false,
    };
    match operation {
        Operation::Rename(from, old, to, new, _) => stands_for(from, old) || stands_for(to, new),
        _ => false,
    }
}

/// Returns whether the target of a name in `place` may lose this name, and leave the directory. A
/// move changes a moved directory itself, so the root of a read-only subvolume cannot move.
fn may_move(model: &Model, target: Target, place: Location, leaves: bool) -> bool {
    let location = match target {
        Target::Inode(number) => Location::new(place.subvolume, InodeNumber::new(number)),
        Target::Subvolume(id) => Location::root_of(id),
    };
    let is_fixed = model.inode(location).is_some_and(Inode::is_fixed);
    !is_fixed && (!leaves || model.is_writable(location))
}

/// Returns whether a rename is possible.
pub(super) fn can_rename(
    model: &Model,
    (from, old): (Location, &Vec<u8>),
    (to, new): (Location, &Vec<u8>),
    mode: Mode,
) -> bool {
    let (source, target) = (model.target(from, old), model.target(to, new));
    let Some(source) = source else { return false };
    let inode = |target: Target, place: Location| match target {
        Target::Inode(number) => model.inode(Location::new(place.subvolume, InodeNumber::new(number))),
        Target::Subvolume(_) => None,
    };
    let is_directory = |target: Target, place: Location| inode(target, place).is_none_or(Inode::is_directory);
    let moves_into_itself = |target: Target, place: Location| match target {
        Target::Inode(number) => is_below(model, place, number),
        Target::Subvolume(id) => lies_in(model, place.subvolume, id),
    };
    if matches!(
        (mode, target),
        (Mode::NoReplace, Some(_)) | (Mode::Exchange, None)
    ) || moves_into_itself(source, to)
    {
        return false;
    }
    // If both names belong to one inode, the rename has no effect in any subvolume.
    if target == Some(source) && from.subvolume == to.subvolume {
        return true;
    }
    let leaves = from != to;
    let gives_way = |target: Target| {
        model.gives_names(to) && may_move(model, target, to, leaves && mode == Mode::Exchange)
    };
    let is_allowed = model.gives_names(from)
        && model.takes_names(to)
        && may_move(model, source, from, leaves)
        && target.map_or_else(|| model.has_space_for(to, new), gives_way);
    if !is_allowed {
        return false;
    }
    // Only subvolumes may move from one subvolume to another.
    let may_cross = match (mode, target) {
        (Mode::Exchange, Some(target)) => is_subvolume(source) && is_subvolume(target),
        _ => is_subvolume(source),
    };
    if from.subvolume != to.subvolume && !may_cross {
        return false;
    }
    match (mode, target) {
        (Mode::Exchange, Some(target)) => !moves_into_itself(target, from),
        (_, None) => true,
        (_, Some(target)) => {
            let is_empty = inode(target, to).is_some_and(|inode| inode.entries.is_empty());
            is_directory(source, from) == is_directory(target, to) && is_empty
        }
    }
}

/// Makes a rename on the model.
pub(super) fn rename(
    model: &mut Model,
    (from, old): (Location, &Vec<u8>),
    (to, new): (Location, &Vec<u8>),
    mode: Mode,
    now: i64,
) {
    let (Some(source), target) = (model.target(from, old), model.target(to, new)) else {
        return;
    };
    // If both names belong to one inode, the rename has no effect.
    if target == Some(source) {
        return;
    }
    let move_place = |model: &mut Model,
                      target: Target,
                      directory: Location,
                      name: &Vec<u8>,
                      was: (Location, &Vec<u8>)| {
        if let Target::Subvolume(id) = target
            && model.is_place(id, was.0, was.1)
            && let Some(subvolume) = model.subvolumes.get_mut(&id)
        {
            subvolume.place = Some((directory, name.clone()));
        }
    };
    if let (Mode::Exchange, Some(target)) = (mode, target) {
        move_place(model, source, to, new, (from, old));
        move_place(model, target, from, old, (to, new));
        model.link(to, new, source, now);
        model.link(from, old, target, now);
        return;
    }
    if target.is_some() {
        model.unlink(to, new, now);
    }
    move_place(model, source, to, new, (from, old));
    if let Some(directory) = model.inode_mut(from) {
        directory.entries.remove(old);
        directory.touch(now);
    }
    model.link(to, new, source, now);
}
