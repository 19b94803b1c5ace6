//! Places of subvolumes, uuids.

macro_rules! places {
    ([$next:ident $($more:ident)*] $($before:tt)*) => {
        $next! { [$($more)*] $($before)*
            /// A subvolume's place that only one side knows, or that the sides do not agree on.
            RootReference = "root-reference", Inconsistent, RootReferences {
                /// The parent.
                parent: TreeId,
                /// The subvolume.
                child: TreeId,
                /// In which way.
                problem: &'static str,
            } "subvolume {child} in {parent}: {problem}"

            /// A subvolume's place where the directory has no entry for it.
            SubvolumeEntryMissing = "subvolume-entry-missing", Loss, RootReferences {
                /// The parent.
                parent: TreeId,
                /// The subvolume.
                child: TreeId,
                /// The directory.
                directory: InodeNumber,
                /// The name.
                name: Name,
                /// What is missing: `DIR_ITEM`, `DIR_INDEX`, or both.
                missing: &'static str,
            } "subvolume {child}: directory {directory} of {parent} has no {missing} for its name {name}"

            /// A subvolume that lies nowhere and is not being deleted.
            SubvolumeUnreachable = "subvolume-unreachable", Loss, RootReferences {
                /// The subvolume.
                subvolume: TreeId,
            } "subvolume {subvolume} is in no directory"

            /// A place of a subvolume that does not exist.
            SubvolumeMissing = "subvolume-missing", Loss, RootReferences {
                /// The parent.
                parent: TreeId,
                /// The subvolume.
                child: TreeId,
            } "subvolume {child}: {parent} refers to it, but it does not exist"

            /// A subvolume that cannot be found by its uuid.
            UuidMissing = "uuid-missing", Inconsistent, RootReferences {
                /// The subvolume.
                subvolume: TreeId,
                /// Its uuid, or that which it was received from.
                uuid: Uuid,
            } "subvolume {subvolume}: its uuid {uuid} is not in the uuid tree"

            /// A uuid that leads to a subvolume that has another one, or to none.
            UuidWrong = "uuid-wrong", Inconsistent, RootReferences {
                /// The uuid.
                uuid: Uuid,
                /// The subvolume.
                subvolume: TreeId,
            } "uuid tree: the entry {uuid} points to subvolume {subvolume}, which has another uuid"

            /// A subvolume without references that nothing says is to be deleted.
            RootOrphanItemMissing = "root-orphan-item-missing", Inconsistent, RootReferences {
                /// The subvolume.
                subvolume: TreeId,
            } "subvolume {subvolume} has no references and no orphan item"
        }
    };
}

pub(super) use places;
