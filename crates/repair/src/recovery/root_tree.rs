//! The root tree, with the newest root of each tree.
//!
//! The roots come from [`recover_roots`], which reads all blocks below each of them. The new root
//! tree is written only if every tree has a root. A root that is older than lost blocks of its tree
//! needs consent, because the last changes of the tree are lost.

use super::error::{Error, Result};
use super::packed::{self, Target};
use super::volume::{RecoveryOptions, account, newest, state_of};
use buttress_device::Device;
use buttress_format::{ByteCount, Generation, Incompat, TreeId};
use buttress_fs::{Progress, load_chunks};
use buttress_packing::BlockFormat;
use buttress_salvage::{
    BlockIndex, Identity, RecoveredRoot, RecoveredRoots, RootEvidence, State, recover_roots,
};
use buttress_tree::{BlockPointer, Forest, RootPointer};
use buttress_volume::{OpenOptions, Volume};
use std::sync::Arc;

/// A recovered root tree, ready to be written.
#[derive(Debug)]
pub struct RootRecovery<'a> {
    devices: &'a [Device],
    index: &'a BlockIndex,
    state: State,
    recovered: RecoveredRoots,
}

impl<'a> RootRecovery<'a> {
    /// Recovers the root tree of the last commit. Writes nothing. `index` is of the devices as they
    /// are now.
    ///
    /// # Errors
    /// Fails if a device is missing or behind, or if the volume has an unsupported state.
    pub fn plan(
        devices: &'a [Device],
        identity: &Identity,
        index: &'a BlockIndex,
        progress: &Progress,
    ) -> Result<Self> {
        let superblock = newest(devices)?;
        if superblock.incompat.contains(Incompat::MIXED_GROUPS) {
            return Err(Error::Unsupported {
                what: "a root tree beside data in one chunk",
            });
        }
        let state = state_of(devices, &superblock)?;
        let recovered = recover_roots(devices, identity, index, &state, progress)?;
        Ok(Self {
            devices,
            index,
            state,
            recovered,
        })
    }

    /// Returns the items and roots, with the evidence for each.
    #[must_use]
    pub const fn recovered(&self) -> &RecoveredRoots {
        &self.recovered
    }

    /// Returns whether a block of the root tree is lost.
    #[must_use]
    pub const fn is_needed(&self) -> bool {
        !self.recovered.has_root_tree
    }

    /// Returns the trees whose last changes are lost, each with the generation of its root.
    pub fn losses(&self) -> impl Iterator<Item = (TreeId, Generation)> + '_ {
        let roots = self.recovered.roots.values();
        let older = roots.filter(|root| root.evidence == RootEvidence::Older);
        older.map(|root| (root.pointer.tree, root.pointer.generation))
    }

    /// Returns why the recovered root tree must not be written.
    ///
    /// # Errors
    /// Fails if a tree has no root. Also fails, unless `gives_up`, if the last changes of a tree are
    /// lost.
    pub fn require_proof(&self, gives_up: bool) -> Result<()> {
        if let Some(((tree, reason), others)) = self.recovered.unproven.split_first() {
            return Err(Error::NoRoot {
                tree: *tree,
                reason: *reason,
                others: others.len(),
            });
        }
        match self.losses().next() {
            Some((tree, generation)) if !gives_up => Err(Error::OlderRoot { tree, generation }),
            _ => Ok(()),
        }
    }

    /// Writes the root tree, and rebuilds the trees that account for space. Tries both in memory
    /// before. Returns the reason why the accounts could not be rebuilt, if there is one.
    ///
    /// # Errors
    /// Fails as [`require_proof`](Self::require_proof) does, if the recovered volume does not open,
    /// or with an error of a device.
    pub fn run(
        &self,
        options: &RecoveryOptions,
        gives_up: bool,
        progress: &Progress,
    ) -> Result<Option<String>> {
        self.require_proof(gives_up)?;
        let trial: Vec<Device> = self.devices.iter().map(Device::with_changes_in_memory).collect();
        self.write(&trial)?;
        let refused = account(&trial, options, progress)?;
        drop(trial);
        self.write(self.devices)?;
        match refused {
            None => account(self.devices, options, progress),
            refused => Ok(refused),
        }
    }

    /// Writes the root tree, and the superblocks that name it.
    fn write(&self, devices: &[Device]) -> Result<()> {
        let volume = Arc::new(Volume::open(devices.to_vec(), OpenOptions::default())?);
        let superblock = volume.superblock();
        let forest = Forest::new(Arc::clone(&volume), ByteCount::ZERO);
        let chunk_root = RootPointer {
            tree: TreeId::CHUNK,
            logical: superblock.chunk_root,
            generation: superblock.chunk_root_generation,
            level: superblock.chunk_root_level,
        };
        load_chunks(&volume, &forest.tree(chunk_root))?;
        let block = forest.read_block(&BlockPointer::root(&chunk_root));
        let chunk_tree_uuid = block.map_err(buttress_fs::Error::from)?.header().chunk_tree_uuid;
        let generation = self.state.generation();
        let format = BlockFormat {
            fsid: superblock.metadata_uuid,
            chunk_tree_uuid,
            node_bytes: superblock.node_bytes,
            checksum: superblock.checksum_type,
            generation,
        };
        let items = self.recovered.items.iter();
        let items: Vec<_> = items.map(|(key, data)| (*key, data.clone())).collect();
        let mut target = Target {
            volume: &volume,
            index: &mut self.index.reader(),
            extents: self.root_of(TreeId::EXTENT).map(|root| forest.tree(root.pointer)),
            taken: Vec::new(),
        };
        let root = packed::write(&mut target, TreeId::ROOT, &items, format)?;
        packed::publish_root(&volume, &superblock, &root)
    }

    fn root_of(&self, tree: TreeId) -> Option<&RecoveredRoot> {
        let mut roots = self.recovered.roots.values();
        roots.find(|root| root.pointer.tree == tree)
    }
}
