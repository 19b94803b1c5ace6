//! Findings about root references and uuids.

macro_rules! places {
    ([$next:ident $($more:ident)*] $($before:tt)*) => {
        $next! { [$($more)*] $($before)*
            /// A root reference that only one side records, or whose sides contradict each other.
            RootReference = "root-reference", Inconsistent, RootReferences {
                /// The id of the parent subvolume.
                parent: TreeId,
                /// The id of the subvolume.
                child: TreeId,
                /// A description of the problem.
                problem: &'static str,
            } "subvolume {child} in {parent}: {problem}"

            /// A root reference to a subvolume without an entry in the directory.
            SubvolumeEntryMissing = "subvolume-entry-missing", Loss, RootReferences {
                /// The id of the parent subvolume.
                parent: TreeId,
                /// The id of the subvolume.
                child: TreeId,
                /// The inode number of the directory.
                directory: InodeNumber,
                /// The name of the directory entry.
                name: Name,
                /// The missing items: `DIR_ITEM`, `DIR_INDEX`, or both.
                missing: &'static str,
            } "subvolume {child}: directory {directory} of {parent} has no {missing} for its name {name}"

            /// A subvolume without a directory entry that is not being deleted.
            SubvolumeUnreachable = "subvolume-unreachable", Loss, RootReferences {
                /// The id of the subvolume.
                subvolume: TreeId,
            } "subvolume {subvolume} is in no directory"

            /// A root reference to a subvolume that does not exist.
            SubvolumeMissing = "subvolume-missing", Loss, RootReferences {
                /// The id of the parent subvolume.
                parent: TreeId,
                /// The id of the subvolume.
                child: TreeId,
            } "subvolume {child}: {parent} refers to it, but it does not exist"

            /// A subvolume that the uuid tree does not list under its uuid.
            UuidMissing = "uuid-missing", Inconsistent, RootReferences {
                /// The id of the subvolume.
                subvolume: TreeId,
                /// The uuid or the received uuid of the subvolume.
                uuid: Uuid,
            } "subvolume {subvolume}: its uuid {uuid} is not in the uuid tree"

            /// A uuid whose entry names a missing subvolume, or one with another uuid.
            UuidWrong = "uuid-wrong", Inconsistent, RootReferences {
                /// The uuid in the uuid tree.
                uuid: Uuid,
                /// The id of the subvolume.
                subvolume: TreeId,
            } "uuid tree: the entry {uuid} points to subvolume {subvolume}, which has another uuid"

            /// A subvolume without references and without an orphan item.
            RootOrphanItemMissing = "root-orphan-item-missing", Inconsistent, RootReferences {
                /// The id of the subvolume.
                subvolume: TreeId,
            } "subvolume {subvolume} has no references and no orphan item"
        }
    };
}

pub(super) use places;
