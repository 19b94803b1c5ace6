//! Findings about superblocks, devices, root items, and the blocks of all trees.

macro_rules! roots {
    ([$next:ident $($more:ident)*] $($before:tt)*) => {
        $next! { [$($more)*] $($before)*
            /// A superblock that fails its checks, on a device with other valid superblocks.
            SuperblockDamaged = "superblock-damaged", Redundancy, Roots {
                /// The id of the device.
                device: DeviceId,
                /// The offset of the superblock on the device.
                physical: Physical,
                /// The check that the superblock fails.
                reason: String,
            } "device {device}: the superblock at {physical} is damaged: {reason}"

            /// A superblock of the newest generation that differs from the superblock in use.
            SuperblockDiffers = "superblock-differs", Unsafe, Roots {
                /// The id of the device.
                device: DeviceId,
                /// The offset of the superblock on the device.
                physical: Physical,
                /// The name of the differing field.
                field: &'static str,
                /// The value in the differing superblock.
                found: u64,
                /// The value in the superblock in use.
                expected: u64,
            } "device {device}: wrong {field} in the superblock at {physical} (found {found}, expected {expected})"

            /// A device that missed commits.
            DeviceBehind = "device-behind", Redundancy, Roots {
                /// The id of the device.
                device: DeviceId,
                /// The generation of the device's superblock.
                generation: Generation,
                /// The generation of the volume's last commit.
                expected: Generation,
            } "device {device} missed commits (found generation {generation}, expected {expected})"

            /// A missing device.
            DeviceMissing = "device-missing", Redundancy, Roots {
                /// The id of the device.
                device: DeviceId,
                /// The uuid of the device.
                uuid: Uuid,
            } "device {device} ({uuid}) is missing"

            /// A device that is smaller than the size in its device item.
            DeviceTooSmall = "device-too-small", Loss, Roots {
                /// The id of the device.
                device: DeviceId,
                /// The size of the device, in bytes.
                size: ByteCount,
                /// The value in the device item.
                expected: ByteCount,
            } "device {device} is too small (found {size} bytes, expected {expected} by its item)"

            /// The device item in a superblock differs from the one in the chunk tree.
            DeviceItemDiffers = "device-item-differs", Inconsistent, Roots {
                /// The id of the device.
                device: DeviceId,
                /// The name of the differing field.
                field: &'static str,
                /// The value of this field in the device's superblock.
                superblock: String,
                /// The value in the chunk tree.
                item: String,
            } "device {device}: {field} differs (found {superblock} in the superblock, expected {item} by the chunk tree)"

            /// The number of devices in the superblock is wrong.
            DeviceCount = "device-count", Inconsistent, Roots {
                /// The value in the superblock.
                stored: u64,
                /// The number of device items in the chunk tree.
                counted: u64,
            } "superblock: wrong number of devices (found {stored}, expected {counted} by the chunk tree)"

            /// The sum of the devices' sizes in the superblock is wrong.
            TotalBytes = "total-bytes", Inconsistent, Roots {
                /// The value in the superblock.
                stored: ByteCount,
                /// The sum of the sizes in the device items.
                counted: ByteCount,
            } "superblock: wrong total size of devices (found {stored}, expected {counted} by the device items)"

            /// A system chunk that differs between the superblock's array and the chunk tree.
            SystemChunkDiffers = "system-chunk-differs", Unsafe, Roots {
                /// The logical address of the chunk.
                logical: Logical,
                /// A description of the problem.
                problem: &'static str,
            } "system chunk {logical}: {problem}"

            /// A required tree of the volume is missing.
            TreeMissing = "tree-missing", Loss, Roots {
                /// The id of the tree.
                tree: TreeId,
            } "tree {tree} has no root item"

            /// A tree block without a valid copy.
            TreeBlockDamaged = "tree-block-damaged", Loss, Roots {
                /// The tree through which the block was reached.
                tree: TreeId,
                /// The logical address of the tree block.
                logical: Logical,
                /// The level of the tree block.
                level: u8,
                /// The error of the last copy.
                reason: String,
            } "tree {tree}: block {logical} (level {level}): {reason}"

            /// A bad copy of a tree block that also has a valid copy.
            CopyDamaged = "copy-damaged", Redundancy, Roots {
                /// The logical address of the tree block.
                logical: Logical,
                /// The device of the bad copy.
                device: DeviceId,
                /// The offset of the bad copy on its device.
                physical: Physical,
                /// The error of the copy.
                reason: String,
            } "block {logical}: the copy on device {device} at {physical} is damaged: {reason}"

            /// The default subvolume does not exist.
            DefaultSubvolumeMissing = "default-subvolume-missing", Inconsistent, Roots {
                /// The id that the default subvolume's directory entry names.
                subvolume: TreeId,
            } "default subvolume {subvolume} does not exist"

            /// A root item that names another root directory than the usual inode.
            RootDirectory = "root-directory", Loss, Roots {
                /// The id of the subvolume.
                subvolume: SubvolumeId,
                /// The inode that the root item names as root directory.
                directory: InodeNumber,
            } "subvolume {subvolume}: wrong root directory in its root item (found inode {directory}, expected inode 256)"
        }
    };
}

pub(super) use roots;
