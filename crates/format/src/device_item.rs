//! Devices: the device item, and the device extents that chunks use.
//!
//! A [`DeviceItem`] lies in the chunk tree under `(1 DEV_ITEM devid)`. Each superblock also holds
//! the item of its own device. A [`DeviceExtent`] lies in the device tree under `(devid DEV_EXTENT
//! physical)`.
//!
//! Source: on-disk format documentation, sections "Device item" and "Device extent".

use crate::item_error::{ItemError, ItemProblem};
use crate::key::{ItemType, Key};
use crate::raw;
use crate::units::{ByteCount, DeviceId, Generation, Logical, ObjectId, Physical, TreeId};
use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The on-disk layout of a device item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(
    missing_docs,
    reason = "the fields are those of DeviceItem, which documents them"
)]
pub struct RawDeviceItem {
    pub devid: U64,
    pub total_bytes: U64,
    pub bytes_used: U64,
    pub io_align: U32,
    pub io_width: U32,
    pub sector_size: U32,
    pub device_type: U64,
    pub generation: U64,
    pub start_offset: U64,
    pub dev_group: U32,
    pub seek_speed: u8,
    pub bandwidth: u8,
    pub uuid: [u8; 16],
    pub fsid: [u8; 16],
}

const _: () = assert!(size_of::<RawDeviceItem>() == 98);

/// A device of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceItem {
    /// The device's id in its volume.
    pub device: DeviceId,
    /// The number of bytes of the device that the volume may use.
    pub total_bytes: ByteCount,
    /// The number of bytes of the device that chunks cover.
    pub bytes_used: ByteCount,
    /// Optimal alignment of requests, in bytes.
    pub io_align: u32,
    /// Optimal size of requests, in bytes.
    pub io_width: u32,
    /// Sector size, in bytes.
    pub sector_bytes: u32,
    /// Not used by any version; zero.
    pub device_type: u64,
    /// The generation in which the device was added; zero for the devices that mkfs was given.
    pub generation: Generation,
    /// Not used by any version; zero.
    pub start_offset: u64,
    /// The device group, which no version uses; zero.
    pub device_group: u32,
    /// Not used by any version; zero.
    pub seek_speed: u8,
    /// Not used by any version; zero.
    pub bandwidth: u8,
    /// The device's own uuid.
    pub uuid: Uuid,
    /// The uuid of the volume, as its tree blocks carry it.
    pub fsid: Uuid,
}

impl DeviceItem {
    /// Returns an item of a volume that names no device.
    #[must_use]
    pub const fn empty(fsid: Uuid, sector_bytes: u32) -> Self {
        Self {
            device: DeviceId::MIN,
            total_bytes: ByteCount::ZERO,
            bytes_used: ByteCount::ZERO,
            io_align: sector_bytes,
            io_width: sector_bytes,
            sector_bytes,
            device_type: 0,
            generation: Generation::MIN,
            start_offset: 0,
            device_group: 0,
            seek_speed: 0,
            bandwidth: 0,
            uuid: Uuid::nil(),
            fsid,
        }
    }

    /// Parses a `DEV_ITEM`.
    ///
    /// # Errors
    /// Fails if the size or the key is wrong, or with the first [`DeviceProblem`] found.
    pub fn parse(key: &Key, data: &[u8]) -> Result<Self, ItemError> {
        if key.objectid != ObjectId::DEVICE_ITEMS {
            let objectid = key.objectid.get();
            return Err(ItemError::new(key, ItemProblem::ObjectIdInvalid { objectid }));
        }
        let item = Self::from_raw(raw::exactly::<RawDeviceItem>(key, data)?);
        if item.device.get() != key.offset {
            let expected = item.device.get();
            return Err(ItemError::new(
                key,
                ItemProblem::OffsetWrong {
                    offset: key.offset,
                    expected,
                },
            ));
        }
        item.check().map_err(|problem| ItemError::new(key, problem))?;
        Ok(item)
    }

    /// Converts the fields without any check. The superblock's copy of a device item has no key to
    /// check the fields against.
    #[must_use]
    pub fn from_raw(raw: &RawDeviceItem) -> Self {
        Self {
            device: DeviceId::new(raw.devid.get()),
            total_bytes: ByteCount::new(raw.total_bytes.get()),
            bytes_used: ByteCount::new(raw.bytes_used.get()),
            io_align: raw.io_align.get(),
            io_width: raw.io_width.get(),
            sector_bytes: raw.sector_size.get(),
            device_type: raw.device_type.get(),
            generation: Generation::new(raw.generation.get()),
            start_offset: raw.start_offset.get(),
            device_group: raw.dev_group.get(),
            seek_speed: raw.seek_speed,
            bandwidth: raw.bandwidth,
            uuid: Uuid::from_bytes(raw.uuid),
            fsid: Uuid::from_bytes(raw.fsid),
        }
    }

    pub(crate) fn check(&self) -> Result<(), DeviceProblem> {
        if self.bytes_used > self.total_bytes {
            return Err(DeviceProblem::UsedExceedsTotal {
                used_bytes: self.bytes_used.get(),
                total_bytes: self.total_bytes.get(),
            });
        }
        Ok(())
    }
}

impl DeviceItem {
    /// Returns the key `(1 DEV_ITEM devid)`, used in the chunk tree.
    #[must_use]
    pub const fn key(&self) -> Key {
        Key::new(ObjectId::DEVICE_ITEMS, ItemType::DEV_ITEM, self.device.get())
    }

    /// Returns the item's fields in their on-disk layout. The superblock holds the same fields of
    /// the device item.
    #[must_use]
    pub fn to_raw(self) -> RawDeviceItem {
        RawDeviceItem {
            devid: U64::new(self.device.get()),
            total_bytes: U64::new(self.total_bytes.get()),
            bytes_used: U64::new(self.bytes_used.get()),
            io_align: U32::new(self.io_align),
            io_width: U32::new(self.io_width),
            sector_size: U32::new(self.sector_bytes),
            device_type: U64::new(self.device_type),
            generation: U64::new(self.generation.get()),
            start_offset: U64::new(self.start_offset),
            dev_group: U32::new(self.device_group),
            seek_speed: self.seek_speed,
            bandwidth: self.bandwidth,
            uuid: self.uuid.into_bytes(),
            fsid: self.fsid.into_bytes(),
        }
    }

    /// Returns the item's bytes in their on-disk layout.
    #[must_use]
    pub fn to_bytes(self) -> [u8; size_of::<RawDeviceItem>()] {
        zerocopy::transmute!(self.to_raw())
    }
}

/// The on-disk layout of a device extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(
    missing_docs,
    reason = "the fields are those of DeviceExtent, which documents them"
)]
pub struct RawDeviceExtent {
    pub chunk_tree: U64,
    pub chunk_objectid: U64,
    pub chunk_offset: U64,
    pub length: U64,
    pub chunk_tree_uuid: [u8; 16],
}

const _: () = assert!(size_of::<RawDeviceExtent>() == 48);

/// The range `[physical, physical + length)` of one device, which a chunk uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceExtent {
    /// The device's id, from the item's key.
    pub device: DeviceId,
    /// The first byte of the range on the device, from the key.
    pub physical: Physical,
    /// The id of the tree that holds the chunk: always the chunk tree.
    pub chunk_tree: TreeId,
    /// The object id of the chunk's key, which is the same for all chunks.
    pub chunk_objectid: ObjectId,
    /// The logical address of the chunk.
    pub chunk: Logical,
    /// The length of the range in bytes.
    pub length: ByteCount,
    /// The uuid of the chunk tree.
    pub chunk_tree_uuid: Uuid,
}

impl DeviceExtent {
    /// Parses a `DEV_EXTENT`.
    ///
    /// # Errors
    /// Fails if the size is wrong, if an address or the length is not whole sectors, or with a
    /// [`DeviceProblem`].
    pub fn parse(key: &Key, data: &[u8], sector_bytes: u32) -> Result<Self, ItemError> {
        let raw = raw::exactly::<RawDeviceExtent>(key, data)?;
        let extent = Self {
            device: DeviceId::new(key.objectid.get()),
            physical: Physical::new(key.offset),
            chunk_tree: TreeId::new(raw.chunk_tree.get()),
            chunk_objectid: ObjectId::new(raw.chunk_objectid.get()),
            chunk: Logical::new(raw.chunk_offset.get()),
            length: ByteCount::new(raw.length.get()),
            chunk_tree_uuid: Uuid::from_bytes(raw.chunk_tree_uuid),
        };
        let fail = |problem: DeviceProblem| Err(ItemError::new(key, problem));
        if extent.chunk_tree != TreeId::CHUNK {
            return fail(DeviceProblem::ExtentChunkTree {
                tree: extent.chunk_tree.get(),
            });
        }
        if extent.chunk_objectid != ObjectId::FIRST_CHUNK_TREE {
            return fail(DeviceProblem::ExtentChunkObjectId {
                objectid: extent.chunk_objectid.get(),
            });
        }
        raw::require_aligned_offset(key, sector_bytes)?;
        if !extent.chunk.is_aligned(u64::from(sector_bytes)) {
            return fail(DeviceProblem::ExtentChunkUnaligned {
                logical: extent.chunk.get(),
                sector_bytes,
            });
        }
        let length_bytes = extent.length.get();
        if length_bytes == 0 || !raw::is_aligned(length_bytes, sector_bytes) {
            return fail(DeviceProblem::ExtentLength {
                length_bytes,
                sector_bytes,
            });
        }
        raw::range_end(key, key.offset, length_bytes)?;
        Ok(extent)
    }

    /// The end of the range, exclusive.
    #[must_use]
    pub const fn end(&self) -> Physical {
        self.physical.saturating_add(self.length)
    }
}

impl DeviceExtent {
    /// Returns the key `(devid DEV_EXTENT physical)`, used in the device tree.
    #[must_use]
    pub const fn key(&self) -> Key {
        Key::new(self.device.object_id(), ItemType::DEV_EXTENT, self.physical.get())
    }

    /// Returns the item's bytes in their on-disk layout.
    #[must_use]
    pub fn to_bytes(self) -> [u8; size_of::<RawDeviceExtent>()] {
        zerocopy::transmute!(RawDeviceExtent {
            chunk_tree: U64::new(self.chunk_tree.get()),
            chunk_objectid: U64::new(self.chunk_objectid.get()),
            chunk_offset: U64::new(self.chunk.get()),
            length: U64::new(self.length.get()),
            chunk_tree_uuid: self.chunk_tree_uuid.into_bytes(),
        })
    }
}

/// The check that a device item or device extent fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceProblem {
    /// The bytes in use exceed the device's size.
    #[error("device item has {used_bytes} used bytes, expected at most {total_bytes}")]
    UsedExceedsTotal {
        /// Bytes of the device that chunks cover.
        used_bytes: u64,
        /// The device's size.
        total_bytes: u64,
    },
    /// A device extent names another tree than the chunk tree.
    #[error(
        "device extent belongs to tree {tree}, expected the chunk tree {}",
        TreeId::CHUNK
    )]
    ExtentChunkTree {
        /// The object id of the tree that the extent names.
        tree: u64,
    },
    /// A device extent names a chunk that no chunk key can have.
    #[error(
        "device extent names chunk objectid {objectid}, expected {}",
        ObjectId::FIRST_CHUNK_TREE
    )]
    ExtentChunkObjectId {
        /// The object id of the chunk that the extent names.
        objectid: u64,
    },
    /// A device extent's chunk does not begin at a sector.
    #[error("device extent names a chunk at {logical}, not a multiple of the sector size {sector_bytes}")]
    ExtentChunkUnaligned {
        /// The chunk's address.
        logical: u64,
        /// The volume's sector size.
        sector_bytes: u32,
    },
    /// A device extent's length is zero or not whole sectors.
    #[error("device extent is {length_bytes} bytes long, expected a multiple of {sector_bytes} above zero")]
    ExtentLength {
        /// The length.
        length_bytes: u64,
        /// The volume's sector size.
        sector_bytes: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw_device() -> RawDeviceItem {
        let mut raw = RawDeviceItem::read_from_bytes(&[0; 98]).unwrap();
        raw.devid = U64::new(3);
        raw.total_bytes = U64::new(1 << 30);
        raw.bytes_used = U64::new(1 << 20);
        raw.uuid = [7; 16];
        raw
    }

    fn device_key(objectid: u64, devid: u64) -> Key {
        Key::new(ObjectId::new(objectid), ItemType::DEV_ITEM, devid)
    }

    #[test]
    fn device_items_are_checked() {
        let raw = raw_device();
        let device = DeviceItem::parse(&device_key(1, 3), raw.as_bytes()).unwrap();
        assert_eq!((device.device.get(), device.uuid), (3, Uuid::from_bytes([7; 16])));
        let fault = |key: Key, data: &[u8]| DeviceItem::parse(&key, data).unwrap_err().problem;
        assert_eq!(
            fault(device_key(2, 3), raw.as_bytes()),
            ItemProblem::ObjectIdInvalid { objectid: 2 }
        );
        assert_eq!(
            fault(device_key(1, 4), raw.as_bytes()),
            ItemProblem::OffsetWrong {
                offset: 4,
                expected: 3
            }
        );
        assert_eq!(
            fault(device_key(1, 3), &[0; 97]),
            ItemProblem::SizeWrong {
                size_bytes: 97,
                expected_bytes: 98
            }
        );
        let mut full = raw;
        full.bytes_used = U64::new((1 << 30) + 1);
        assert_eq!(
            fault(device_key(1, 3), full.as_bytes()),
            DeviceProblem::UsedExceedsTotal {
                used_bytes: (1 << 30) + 1,
                total_bytes: 1 << 30
            }
            .into()
        );
    }

    #[test]
    fn device_extents_are_checked() {
        let good = [3, 256, 1 << 20, 1 << 20];
        let parse = |offset: u64, [tree, objectid, chunk, length]: [u64; 4]| {
            let raw = RawDeviceExtent {
                chunk_tree: U64::new(tree),
                chunk_objectid: U64::new(objectid),
                chunk_offset: U64::new(chunk),
                length: U64::new(length),
                chunk_tree_uuid: [0; 16],
            };
            let key = Key::new(ObjectId::new(1), ItemType::DEV_EXTENT, offset);
            DeviceExtent::parse(&key, raw.as_bytes(), 4096).map_err(|error| error.problem)
        };
        assert_eq!(parse(1 << 20, good).map(|extent| extent.end().get()), Ok(2 << 20));
        let sector_bytes = 4096;
        let cases = [
            (
                parse(1 << 20, [4, 256, 0, 4096]),
                DeviceProblem::ExtentChunkTree { tree: 4 }.into(),
            ),
            (
                parse(1 << 20, [3, 255, 0, 4096]),
                DeviceProblem::ExtentChunkObjectId { objectid: 255 }.into(),
            ),
            (
                parse(5, good),
                ItemProblem::OffsetUnaligned {
                    offset: 5,
                    sector_bytes,
                },
            ),
            (
                parse(0, [3, 256, 7, 4096]),
                DeviceProblem::ExtentChunkUnaligned {
                    logical: 7,
                    sector_bytes,
                }
                .into(),
            ),
            (
                parse(0, [3, 256, 0, 0]),
                DeviceProblem::ExtentLength {
                    length_bytes: 0,
                    sector_bytes,
                }
                .into(),
            ),
            (
                parse(4096, [3, 256, 0, 0u64.wrapping_sub(4096)]),
                ItemProblem::RangeOverflow {
                    start: 4096,
                    length_bytes: 0u64.wrapping_sub(4096),
                },
            ),
        ];
        for (found, expected) in cases {
            assert_eq!(found, Err(expected));
        }
    }
}
