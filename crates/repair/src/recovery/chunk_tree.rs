//! The chunk tree, from all records except its own.
//!
//! The chunks come from [`recover_chunks`], which names the evidence for each of them. They are
//! written only if every chunk is proved, and if no readable chunk item contradicts them.

use super::error::{Error, Result};
use super::packed::{self, Target};
use super::volume::{RecoveryOptions, account, newest, state_of};
use buttress_device::Device;
use buttress_format::{BackupTree, BlockGroupFlags, Chunk, Key, Superblock};
use buttress_fs::Progress;
use buttress_packing::BlockFormat;
use buttress_salvage::{BlockIndex, Identity, RecoveredChunk, RecoveredChunks, recover_chunks};
use buttress_volume::Volume;
use buttress_volume::superblocks::choose;

/// A recovered chunk tree, ready to be written.
#[derive(Debug)]
pub struct ChunkRecovery<'a> {
    devices: &'a [Device],
    index: &'a BlockIndex,
    superblock: Superblock,
    recovered: RecoveredChunks,
}

impl<'a> ChunkRecovery<'a> {
    /// Recovers the chunks of the last commit. Writes nothing. `index` is of the devices as they are
    /// now.
    ///
    /// # Errors
    /// Fails if a device is missing or behind, if the volume has an unsupported state, or if no
    /// device extent is left.
    pub fn plan(
        devices: &'a [Device],
        identity: &Identity,
        index: &'a BlockIndex,
        progress: &Progress,
    ) -> Result<Self> {
        let superblock = newest(devices)?;
        let state = state_of(devices, &superblock)?;
        let recovered = recover_chunks(devices, identity, index, &state, progress)?;
        Ok(Self {
            devices,
            index,
            superblock,
            recovered,
        })
    }

    /// Returns the chunks, with the evidence for each.
    #[must_use]
    pub const fn recovered(&self) -> &RecoveredChunks {
        &self.recovered
    }

    /// Returns whether the volume lacks a chunk, or a system chunk of the superblock.
    #[must_use]
    pub fn is_needed(&self) -> bool {
        let chunks = &self.recovered.chunks;
        let lacks = |found: &RecoveredChunk| !self.recovered.readable.contains_key(&found.start);
        !self.recovered.has_chunk_tree || chunks.iter().any(lacks) || self.lacks_system_chunk()
    }

    /// Returns whether the superblock leads to no copy of a system chunk.
    fn lacks_system_chunk(&self) -> bool {
        let array = &self.superblock.system_chunks;
        let is_listed = |found: &RecoveredChunk| {
            array
                .iter()
                .any(|(key, chunk)| key.offset == found.start.get() && has_places(chunk, &found.chunk))
        };
        let mut system = self.recovered.chunks.iter().filter(|found| is_system(found));
        !system.all(is_listed)
    }

    /// Returns why the recovered chunks must not be written.
    ///
    /// # Errors
    /// Fails if a chunk is not proved, or if a readable chunk item contradicts the device extents.
    pub fn require_proof(&self) -> Result<()> {
        let recovered = &self.recovered;
        if let Some(((start, reason), others)) = recovered.unproven.split_first() {
            return Err(Error::Unproven {
                start: *start,
                reason: *reason,
                others: others.len(),
            });
        }
        if !recovered.is_whole {
            return Err(Error::DeviceTree);
        }
        for (start, chunk) in &recovered.readable {
            let found = recovered.chunks.iter().find(|found| found.start == *start);
            if !found.is_some_and(|found| has_places(chunk, &found.chunk)) {
                return Err(Error::Contradiction { start: *start });
            }
        }
        Ok(())
    }

    /// Writes the chunk tree, and rebuilds the trees that account for space. Tries both in memory
    /// before.
    ///
    /// # Errors
    /// Fails as [`require_proof`](Self::require_proof) does, if the recovered volume does not open, if
    /// its accounts cannot be rebuilt, or with an error of a device.
    pub fn run(&self, options: &RecoveryOptions, progress: &Progress) -> Result<()> {
        self.require_proof()?;
        let trial: Vec<Device> = self.devices.iter().map(Device::with_changes_in_memory).collect();
        self.write(&trial)?;
        account(&trial, options, progress)?;
        drop(trial);
        self.write(self.devices)?;
        account(self.devices, options, progress)
    }

    /// Writes the chunk tree, and the superblocks that name it.
    fn write(&self, devices: &[Device]) -> Result<()> {
        let recovered = &self.recovered;
        let own = |device: &Device| {
            let chosen = choose(device)?.superblock.device_item.uuid;
            let item = recovered.devices.iter().find(|item| item.uuid == chosen);
            Ok::<_, Error>(item.map(|item| (device.clone(), *item)))
        };
        let members = devices.iter().filter_map(|device| own(device).transpose());
        let members: Vec<_> = members.collect::<Result<_>>()?;
        let volume = Volume::create(members, self.superblock.clone())?;
        for found in &recovered.chunks {
            volume.add_chunk(found.start, found.chunk.clone())?;
        }
        let generation = self.superblock.generation;
        let format = BlockFormat {
            fsid: self.superblock.metadata_uuid,
            chunk_tree_uuid: recovered.chunk_tree_uuid,
            node_bytes: self.superblock.node_bytes,
            checksum: self.superblock.checksum_type,
            generation,
        };
        let mut target = Target {
            volume: &volume,
            index: &mut self.index.reader(),
        };
        let root = packed::write(&mut target, &self.items(), format)?;
        volume.flush()?;
        let named = BackupTree {
            logical: root.logical,
            generation,
            level: root.level,
        };
        volume.write_superblocks(&self.next_superblock(named), &recovered.devices)?;
        Ok(())
    }

    /// Returns the items of the chunk tree, in order.
    fn items(&self) -> Vec<(Key, Vec<u8>)> {
        let devices = self.recovered.devices.iter();
        let devices = devices.map(|item| (item.key(), item.to_bytes().to_vec()));
        let chunks = self.recovered.chunks.iter();
        let chunks = chunks.map(|found| (Chunk::key(found.start), found.chunk.encode()));
        let mut items: Vec<_> = devices.chain(chunks).collect();
        items.sort_unstable_by_key(|(key, _)| *key);
        items
    }

    fn next_superblock(&self, root: BackupTree) -> Superblock {
        let last = &self.superblock;
        let mut backup_roots = last.backup_roots;
        let own = backup_roots
            .iter_mut()
            .find(|backup| backup.tree_root.logical == last.root);
        if let Some(own) = own {
            own.chunk_root = root;
        }
        let system = self.recovered.chunks.iter().filter(|found| is_system(found));
        Superblock {
            chunk_root: root.logical,
            chunk_root_level: root.level,
            chunk_root_generation: root.generation,
            system_chunks: system
                .map(|found| (Chunk::key(found.start), found.chunk.clone()))
                .collect(),
            backup_roots,
            ..last.clone()
        }
    }
}

const fn is_system(found: &RecoveredChunk) -> bool {
    found.chunk.profile.contains(BlockGroupFlags::SYSTEM)
}

/// Returns whether two chunks map all addresses to the same places.
fn has_places(one: &Chunk, other: &Chunk) -> bool {
    let places = |chunk: &Chunk| {
        let stripes = chunk.stripes.iter();
        stripes
            .map(|stripe| (stripe.device, stripe.physical, stripe.device_uuid))
            .collect::<Vec<_>>()
    };
    (one.length, one.profile) == (other.length, other.profile) && places(one) == places(other)
}
