//! Superblocks, devices, root items, and the blocks of all trees.

macro_rules! roots {
    ([$next:ident $($more:ident)*] $($before:tt)*) => {
        $next! { [$($more)*] $($before)*
            /// A superblock that does not pass its checks, on a device whose other ones do.
            SuperblockDamaged = "superblock-damaged", Redundancy, Roots {
                /// The device.
                device: DeviceId,
                /// Where it lies.
                physical: Physical,
                /// The check that fails.
                reason: String,
            } "device {device}: the superblock at {physical} is damaged: {reason}"

            /// A superblock of the newest generation that says something else than the one in use.
            SuperblockDiffers = "superblock-differs", Unsafe, Roots {
                /// The device.
                device: DeviceId,
                /// Where it lies.
                physical: Physical,
                /// The field.
                field: &'static str,
                /// What it says.
                found: u64,
                /// What the one in use says.
                expected: u64,
            } "device {device}: wrong {field} in the superblock at {physical} (found {found}, expected {expected})"

            /// A device that missed commits.
            DeviceBehind = "device-behind", Redundancy, Roots {
                /// The device.
                device: DeviceId,
                /// Its generation.
                generation: Generation,
                /// The volume's.
                expected: Generation,
            } "device {device} missed commits (found generation {generation}, expected {expected})"

            /// A device that is not there.
            DeviceMissing = "device-missing", Redundancy, Roots {
                /// The device.
                device: DeviceId,
                /// Its uuid.
                uuid: Uuid,
            } "device {device} ({uuid}) is missing"

            /// A device that is smaller than its item says.
            DeviceTooSmall = "device-too-small", Loss, Roots {
                /// The device.
                device: DeviceId,
                /// Its size.
                size: ByteCount,
                /// What its item says.
                expected: ByteCount,
            } "device {device} is too small (found {size} bytes, expected {expected} by its item)"

            /// A superblock and the chunk tree say different things of a device.
            DeviceItemDiffers = "device-item-differs", Inconsistent, Roots {
                /// The device.
                device: DeviceId,
                /// The field.
                field: &'static str,
                /// In its superblock.
                superblock: String,
                /// In the chunk tree.
                item: String,
            } "device {device}: {field} differs (found {superblock} in the superblock, expected {item} by the chunk tree)"

            /// The superblock counts devices wrongly.
            DeviceCount = "device-count", Inconsistent, Roots {
                /// By the superblock.
                stored: u64,
                /// By the chunk tree.
                counted: u64,
            } "superblock: wrong number of devices (found {stored}, expected {counted} by the chunk tree)"

            /// The superblock adds up the devices' sizes wrongly.
            TotalBytes = "total-bytes", Inconsistent, Roots {
                /// By the superblock.
                stored: ByteCount,
                /// By the device items.
                counted: ByteCount,
            } "superblock: wrong total size of devices (found {stored}, expected {counted} by the device items)"

            /// A system chunk that the superblock's array and the chunk tree do not agree on.
            SystemChunkDiffers = "system-chunk-differs", Unsafe, Roots {
                /// The chunk.
                logical: Logical,
                /// In which way.
                problem: &'static str,
            } "system chunk {logical}: {problem}"

            /// A tree that the volume must have is not there.
            TreeMissing = "tree-missing", Loss, Roots {
                /// The tree.
                tree: TreeId,
            } "tree {tree} has no root item"

            /// A tree block of which no copy is in order.
            TreeBlockDamaged = "tree-block-damaged", Loss, Roots {
                /// The tree through which it was reached.
                tree: TreeId,
                /// Where it lies.
                logical: Logical,
                /// Its level.
                level: u8,
                /// What is wrong with the last copy.
                reason: String,
            } "tree {tree}: block {logical} (level {level}): {reason}"

            /// A copy of a tree block that is bad while another is good.
            CopyDamaged = "copy-damaged", Redundancy, Roots {
                /// Where it lies.
                logical: Logical,
                /// The device of the bad copy.
                device: DeviceId,
                /// Its place there.
                physical: Physical,
                /// What is wrong with it.
                reason: String,
            } "block {logical}: the copy on device {device} at {physical} is damaged: {reason}"

            /// The default subvolume does not exist.
            DefaultSubvolumeMissing = "default-subvolume-missing", Inconsistent, Roots {
                /// What is set.
                subvolume: TreeId,
            } "default subvolume {subvolume} does not exist"

            /// A root item whose root directory is not the one that all have.
            RootDirectory = "root-directory", Loss, Roots {
                /// The subvolume.
                subvolume: SubvolumeId,
                /// The inode that the item names.
                directory: InodeNumber,
            } "subvolume {subvolume}: wrong root directory in its root item (found inode {directory}, expected inode 256)"
        }
    };
}

pub(super) use roots;
