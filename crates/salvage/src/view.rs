//! A state as a file system that can be read: all calls of [`Filesystem`] work on it.
//!
//! A pointer names a block by address and generation, so a block that a later commit overwrote is an
//! error, never the content of another state. The checksum tree of the state is read in the same
//! way, so its checksums describe the data of the state: data that was overwritten fails them.
//!
//! # Invariants
//!
//! - A view writes nothing, and a pending log does not count.
//! - Data with checksums is the data of the state, or an error. Data without checksums can be the
//!   data of a later state.
//!
//! # Left out
//!
//! Several devices without superblocks.

mod blank;

use crate::chunks::recover_chunks;
use crate::error::{Error, Result};
use crate::geometry::{ChunkItems, chunk_pointer, chunk_roots, no_chunk_tree, read_by_index};
use crate::identity::Identity;
use crate::index::BlockIndex;
use crate::states::{State, superblocks};
use buttress_device::Device;
use buttress_format::superblock::SuperblockFlags;
use buttress_format::{BackupTree, ByteCount, Chunk, Generation, Key, Logical, Superblock, TreeId};
use buttress_fs::open::DEFAULT_CACHE;
use buttress_fs::{Filesystem, Progress, StateRoots, load_chunks};
use buttress_tree::{Forest, RootPointer};
use buttress_volume::superblocks::choose;
use buttress_volume::view::view;
use buttress_volume::{MissingDevice, Rescue, ViewDevice, Volume};
use std::sync::Arc;

/// The options for opening a state.
#[derive(Clone, Debug)]
pub struct ViewOptions {
    /// The budget of the node cache, in bytes.
    pub cache: ByteCount,
    /// The rescue options.
    pub rescue: Rescue,
    /// True if devices may be missing.
    pub degraded: bool,
    /// The index of the devices, which locates chunk trees that the superblock does not lead to.
    pub index: Option<Arc<BlockIndex>>,
}

impl Default for ViewOptions {
    fn default() -> Self {
        Self {
            cache: DEFAULT_CACHE,
            rescue: Rescue::default(),
            degraded: false,
            index: None,
        }
    }
}

/// An open state.
#[derive(Clone, Debug)]
pub struct View {
    /// The file system of the state.
    pub filesystem: Filesystem,
    /// The state.
    pub state: State,
    /// The root of the chunk tree in use.
    pub chunk_root: BackupTree,
}

/// Opens a state for reading.
///
/// # Errors
/// Fails if no chunk tree or not the root tree's root can be read, with missing devices unless the
/// options allow them, and with unsupported features.
pub fn open(devices: &[Device], identity: &Identity, state: &State, options: &ViewOptions) -> Result<View> {
    let wrap = |cause: buttress_fs::Error| Error::State {
        generation: state.generation(),
        cause: Box::new(cause),
    };
    let known = superblocks(devices, identity.fsid).into_iter();
    let newest = known.max_by_key(|(_, superblock)| superblock.generation);
    if let Some((_, superblock)) = newest {
        let readable = superblock.incompat.require_readable();
        readable.map_err(|error| wrap(buttress_volume::Error::from(error).into()))?;
    }
    let geometry = Located::find(devices, identity, state, options.index.as_deref(), options.rescue)?;
    let Located { volume, chunk_root } = geometry;
    let missing = volume.missing_devices();
    if !missing.is_empty() && !options.degraded {
        let missing = buttress_volume::DevicesError::Missing(missing);
        return Err(wrap(buttress_volume::Error::from(missing).into()));
    }
    let forest = Forest::new(volume, options.cache);
    let roots = StateRoots {
        root: RootPointer {
            tree: TreeId::ROOT,
            logical: state.root.logical,
            generation: state.root.generation,
            level: state.root.level,
        },
        chunk: chunk_pointer(&chunk_root),
    };
    let filesystem = Filesystem::assemble(&forest, &roots, options.rescue).map_err(wrap)?;
    Ok(View {
        filesystem,
        state: *state,
        chunk_root,
    })
}

/// A volume with the chunks of a state.
struct Located {
    volume: Arc<Volume>,
    chunk_root: BackupTree,
}

impl Located {
    fn find(
        devices: &[Device],
        identity: &Identity,
        state: &State,
        index: Option<&BlockIndex>,
        rescue: Rescue,
    ) -> Result<Self> {
        let roots = chunk_roots(devices, identity, state, index)?;
        for chunk_root in &roots {
            let view = Plan::new(devices, identity, state, chunk_root, rescue);
            if let Some(volume) = view.by_system_chunks(chunk_root) {
                return Ok(Self {
                    volume,
                    chunk_root: *chunk_root,
                });
            }
            let Some(index) = index else { continue };
            let items = read_by_index(devices, identity, index, chunk_root)?;
            if let Some(volume) = items.and_then(|items| view.by_items(&items)) {
                return Ok(Self {
                    volume,
                    chunk_root: *chunk_root,
                });
            }
        }
        let derived = index.map(|index| Self::without_chunk_tree(devices, identity, state, index, rescue));
        match derived.transpose()?.flatten() {
            Some(located) => Ok(located),
            None => Err(no_chunk_tree(state, roots.len())),
        }
    }

    /// Derives the chunks from all other records. Chunks without proof are left out: their content
    /// is unreadable.
    fn without_chunk_tree(
        devices: &[Device],
        identity: &Identity,
        state: &State,
        index: &BlockIndex,
        rescue: Rescue,
    ) -> Result<Option<Self>> {
        let recovered = match recover_chunks(devices, identity, index, state, &Progress::new()) {
            Ok(recovered) => recovered,
            Err(Error::NoDeviceExtents { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        // A view reads no block of the chunk tree, so its root need not exist.
        let chunk_root = state.chunk_root.unwrap_or_default(); // Clamp: see above.
        let plan = Plan::new(devices, identity, state, &chunk_root, rescue);
        let volume = plan.by_items(&recovered.items());
        Ok(volume.map(|volume| Self { volume, chunk_root }))
    }
}

/// The parts of a volume whose chunks are not known yet.
struct Plan {
    superblock: Superblock,
    newest: Generation,
    members: Vec<ViewDevice>,
    /// The devices without a superblock of the file system.
    strangers: Vec<Device>,
    rescue: Rescue,
}

impl Plan {
    fn new(
        devices: &[Device],
        identity: &Identity,
        state: &State,
        chunk_root: &BackupTree,
        rescue: Rescue,
    ) -> Self {
        let all = superblocks(devices, identity.fsid).into_iter();
        let found = all
            .map(|(_, superblock)| superblock)
            .max_by_key(|superblock| superblock.generation);
        let base = found.unwrap_or_else(|| blank::superblock(identity));
        let (mut members, mut strangers) = (Vec::new(), Vec::new());
        for device in devices {
            match choose(device) {
                Ok(chosen) if belongs(&chosen.superblock, identity) => {
                    let own = chosen.superblock;
                    members.push(ViewDevice {
                        device: device.clone(),
                        id: own.device_item.device,
                        uuid: own.device_item.uuid,
                        fsid: own.fsid,
                    });
                }
                _ => strangers.push(device.clone()),
            }
        }
        let generation = state.generation();
        Self {
            newest: base.generation.max(generation).max(chunk_root.generation),
            superblock: Superblock {
                generation,
                root: state.root.logical,
                root_level: state.root.level,
                chunk_root: chunk_root.logical,
                chunk_root_level: chunk_root.level,
                chunk_root_generation: chunk_root.generation,
                log_root: Logical::MIN,
                log_root_level: 0,
                ..base
            },
            members,
            strangers,
            rescue,
        }
    }

    /// Returns a volume without chunks. If one device has no superblock, and `named` holds one device
    /// that was not given, the device is that one.
    fn volume(&self, named: &[MissingDevice]) -> Option<Volume> {
        let mut members = self.members.clone();
        let is_given = |device: &MissingDevice| self.members.iter().any(|member| member.uuid == device.uuid);
        let mut absent = named.iter().filter(|device| !is_given(device));
        let only = absent.next().filter(|_| absent.next().is_none());
        if let ([device], Some(only)) = (self.strangers.as_slice(), only) {
            members.push(ViewDevice {
                device: device.clone(),
                id: only.device,
                uuid: only.uuid,
                fsid: self.superblock.fsid,
            });
        }
        view(members, self.superblock.clone(), self.newest, self.rescue).ok()
    }

    /// Returns a volume that `fill` gave its chunks. `named` holds devices of the volume. If the
    /// chunks name the device that has no superblock, fills a second volume with that device.
    fn filled(
        &self,
        mut named: Vec<MissingDevice>,
        fill: &dyn Fn(&Arc<Volume>) -> bool,
    ) -> Option<Arc<Volume>> {
        let mut volume = Arc::new(self.volume(&named)?);
        let mut is_filled = fill(&volume);
        let absent = volume.missing_devices();
        if self.strangers.len() == 1 && absent.len() == 1 && absent != named {
            named = absent;
            volume = Arc::new(self.volume(&named)?);
            is_filled = fill(&volume);
        }
        if !is_filled {
            return None;
        }
        let slots = volume.devices().into_iter();
        let listed = slots.filter(|slot| slot.item().is_some()).count();
        volume.set_superblock(Superblock {
            num_devices: ByteCount::of(listed).get(),
            ..self.superblock.clone()
        });
        volume.finish_bootstrap().ok()?;
        Some(volume)
    }

    /// Reads the chunk tree through the superblock's system chunks.
    fn by_system_chunks(&self, chunk_root: &BackupTree) -> Option<Arc<Volume>> {
        let chunks = &self.superblock.system_chunks;
        if chunks.is_empty() {
            return None;
        }
        let stripes = chunks.iter().flat_map(|(_, chunk)| &chunk.stripes);
        let mut named: Vec<MissingDevice> = Vec::new();
        for stripe in stripes {
            if named.iter().all(|known| known.uuid != stripe.device_uuid) {
                named.push(MissingDevice {
                    device: stripe.device,
                    uuid: stripe.device_uuid,
                });
            }
        }
        self.filled(named, &|volume| {
            let add = |(key, chunk): &(Key, Chunk)| {
                volume.add_chunk(Logical::new(key.offset), chunk.clone()).is_ok()
            };
            let forest = Forest::new(Arc::clone(volume), ByteCount::ZERO);
            chunks.iter().all(add) && load_chunks(volume, &forest.tree(chunk_pointer(chunk_root))).is_ok()
        })
    }

    /// Uses the chunks and devices of a chunk tree that was read already.
    fn by_items(&self, items: &ChunkItems) -> Option<Arc<Volume>> {
        let devices = items.devices.iter();
        let named = devices.map(|item| MissingDevice {
            device: item.device,
            uuid: item.uuid,
        });
        self.filled(named.collect(), &|volume| {
            let devices = items.devices.iter().all(|item| volume.add_device(*item).is_ok());
            let add = |(start, chunk): &(Logical, Chunk)| volume.add_chunk(*start, chunk.clone()).is_ok();
            devices && items.chunks.iter().all(add)
        })
    }
}

/// Returns whether a superblock is one of the file system's, or of a seed device below it.
fn belongs(superblock: &Superblock, identity: &Identity) -> bool {
    superblock.fsid == identity.fsid || superblock.flags.contains(SuperblockFlags::SEEDING)
}
