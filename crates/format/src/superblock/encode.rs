//! The superblock as bytes, with its checksum.

use super::{
    BackupRoot, Incompat, RawBackupRoot, RawSuperblock, SUPERBLOCK_BYTES, SUPERBLOCK_MAGIC,
    SYSTEM_CHUNK_ARRAY_BYTES, Superblock, SuperblockError,
};
use crate::checksum::{CHECKSUM_FIELD_BYTES, ChecksumType};
use crate::chunk::{Chunk, RawChunk, RawStripe};
use crate::device_item::DeviceItem;
use crate::key::{Key, RawKey};
use crate::units::Physical;
use buttress_exact::Exact as _;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

/// The bytes of a chunk in the array beside its stripes.
const BYTES_WITHOUT_STRIPES: usize = size_of::<RawKey>() + size_of::<RawChunk>();

impl BackupRoot {
    /// Returns the backup root in its on-disk layout.
    #[must_use]
    pub fn to_raw(self) -> RawBackupRoot {
        RawBackupRoot {
            tree_root: U64::new(self.tree_root.logical.get()),
            tree_root_gen: U64::new(self.tree_root.generation.get()),
            chunk_root: U64::new(self.chunk_root.logical.get()),
            chunk_root_gen: U64::new(self.chunk_root.generation.get()),
            extent_root: U64::new(self.extent_root.logical.get()),
            extent_root_gen: U64::new(self.extent_root.generation.get()),
            fs_root: U64::new(self.fs_root.logical.get()),
            fs_root_gen: U64::new(self.fs_root.generation.get()),
            dev_root: U64::new(self.dev_root.logical.get()),
            dev_root_gen: U64::new(self.dev_root.generation.get()),
            csum_root: U64::new(self.csum_root.logical.get()),
            csum_root_gen: U64::new(self.csum_root.generation.get()),
            total_bytes: U64::new(self.total_bytes.get()),
            bytes_used: U64::new(self.bytes_used.get()),
            num_devices: U64::new(self.num_devices),
            unused_64: [U64::ZERO; 4],
            tree_root_level: self.tree_root.level,
            chunk_root_level: self.chunk_root.level,
            extent_root_level: self.extent_root.level,
            fs_root_level: self.fs_root.level,
            dev_root_level: self.dev_root.level,
            csum_root_level: self.csum_root.level,
            unused_8: [0; 10],
        }
    }
}

impl Superblock {
    /// Returns the superblock's bytes at [`Superblock::physical`], with a correct checksum. The
    /// fields `checksum` and `system_chunk_array_bytes` are computed. A label of 256 bytes or more
    /// is cut to 255 bytes.
    ///
    /// # Errors
    /// Returns [`SuperblockError::SystemArraySize`] if the system chunks do not fit their array.
    pub fn encode(&self) -> Result<Vec<u8>, SuperblockError> {
        self.encode_for(&self.device_item, self.physical)
    }

    /// Returns the superblock's bytes for the copy at `at` of the device that `device` describes.
    /// All other fields are those of [`Superblock::encode`].
    ///
    /// # Errors
    /// Fails as [`Superblock::encode`] does.
    pub fn encode_for(&self, device: &DeviceItem, at: Physical) -> Result<Vec<u8>, SuperblockError> {
        let (sys_chunk_array, array_bytes) = self.encode_system_chunks()?;
        let mut raw = self.to_raw();
        raw.bytenr = U64::new(at.get());
        raw.dev_item = device.to_raw();
        raw.sys_chunk_array = sys_chunk_array;
        raw.sys_chunk_array_size = U32::new(array_bytes);
        let mut bytes = raw.as_bytes().to_vec();
        seal(&mut bytes, self.checksum_type);
        Ok(bytes)
    }

    /// Returns the bytes that a chunk takes in the array: key and item.
    #[must_use]
    pub fn system_chunk_bytes(chunk: &Chunk) -> usize {
        size_of::<RawKey>().saturating_add(chunk.encoded_bytes())
    }

    /// Returns the bytes that a chunk with this many stripes takes in the array.
    #[must_use]
    pub fn system_chunk_bytes_of(stripes: usize) -> usize {
        size_of::<RawStripe>()
            .exact_mul(stripes)
            .exact_add(BYTES_WITHOUT_STRIPES)
    }

    /// Returns the most stripes of a chunk that takes at most this many bytes of the array.
    #[must_use]
    pub fn system_chunk_stripes_max(bytes: usize) -> usize {
        // Clamp: an array without space for a chunk's head has space for no stripe.
        bytes
            .saturating_sub(BYTES_WITHOUT_STRIPES)
            .quotient(size_of::<RawStripe>())
    }

    fn encode_system_chunks(&self) -> Result<([u8; SYSTEM_CHUNK_ARRAY_BYTES], u32), SuperblockError> {
        let mut bytes = Vec::with_capacity(SYSTEM_CHUNK_ARRAY_BYTES);
        for (key, chunk) in &self.system_chunks {
            let key: &Key = key;
            bytes.extend_from_slice(RawKey::from(*key).as_bytes());
            bytes.extend_from_slice(&chunk.encode());
        }
        let size_bytes = bytes.len().narrow::<u32>();
        let mut array = [0; SYSTEM_CHUNK_ARRAY_BYTES];
        match array.get_mut(..bytes.len()) {
            Some(room) => room.copy_from_slice(&bytes),
            None => {
                return Err(SuperblockError::SystemArraySize {
                    size_bytes,
                    least_bytes: 0,
                    capacity_bytes: SYSTEM_CHUNK_ARRAY_BYTES,
                });
            }
        }
        Ok((array, size_bytes))
    }

    fn to_raw(&self) -> RawSuperblock {
        let mut raw = RawSuperblock::new_zeroed();
        raw.fsid = self.fsid.into_bytes();
        raw.flags = U64::new(self.flags.bits());
        raw.magic = SUPERBLOCK_MAGIC;
        raw.generation = U64::new(self.generation.get());
        raw.root = U64::new(self.root.get());
        raw.chunk_root = U64::new(self.chunk_root.get());
        raw.log_root = U64::new(self.log_root.get());
        raw.log_root_transid = U64::new(self.log_root_transid.get());
        raw.total_bytes = U64::new(self.total_bytes.get());
        raw.bytes_used = U64::new(self.bytes_used.get());
        raw.root_dir_objectid = U64::new(self.root_dir_objectid.get());
        raw.num_devices = U64::new(self.num_devices);
        raw.sectorsize = U32::new(self.sector_bytes);
        raw.nodesize = U32::new(self.node_bytes);
        raw.leafsize = U32::new(self.node_bytes);
        raw.stripesize = U32::new(self.stripe_bytes);
        raw.chunk_root_generation = U64::new(self.chunk_root_generation.get());
        raw.compat_flags = U64::new(self.compat);
        raw.compat_ro_flags = U64::new(self.compat_ro.bits());
        raw.incompat_flags = U64::new(self.incompat.bits());
        raw.csum_type = U16::new(self.checksum_type.to_raw());
        raw.root_level = self.root_level;
        raw.chunk_root_level = self.chunk_root_level;
        raw.log_root_level = self.log_root_level;
        let label_room = raw.label.len().saturating_sub(1);
        raw.label
            .iter_mut()
            .zip(self.label.iter().take(label_room))
            .for_each(|(to, from)| *to = *from);
        raw.cache_generation = U64::new(self.cache_generation.get());
        raw.uuid_tree_generation = U64::new(self.uuid_tree_generation.get());
        if self.incompat.contains(Incompat::METADATA_UUID) {
            raw.metadata_uuid = self.metadata_uuid.into_bytes();
        }
        raw.nr_global_roots = U64::new(self.global_root_count);
        raw.remap_root = U64::new(self.remap_root.logical.get());
        raw.remap_root_generation = U64::new(self.remap_root.generation.get());
        raw.remap_root_level = self.remap_root.level;
        raw.super_roots = self.backup_roots.map(BackupRoot::to_raw);
        raw
    }
}

/// Writes the checksum at the beginning of a superblock. The checksum covers all bytes after the
/// checksum field.
fn seal(bytes: &mut [u8], checksum_type: ChecksumType) {
    let covered = bytes
        .get(CHECKSUM_FIELD_BYTES..SUPERBLOCK_BYTES)
        .unwrap_or_default();
    let checksum = checksum_type.compute(covered);
    bytes
        .iter_mut()
        .zip(checksum.as_bytes())
        .for_each(|(to, from)| *to = *from);
}
