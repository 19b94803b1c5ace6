//! Writing a laid out tree to its devices.
//!
//! The order is: devices are wiped, data is written while contents are read, then tree blocks, a
//! flush, and superblocks. After a failure at any moment, the devices hold no volume, neither the
//! old one nor a half of the new one.

use crate::blocks::BlockLog;
use crate::builder::Gathered;
use crate::content::{Shop, inline_bytes_max, work};
use crate::data::DataWriter;
use crate::emit::{EmitRules, Emitter};
use crate::error::{Error, Result};
use crate::finish::{Finish, Finished, Sizes};
use crate::layout::{GENERATION, Totals};
use crate::options::Size;
use crate::sharing::{self, Sharing};
use crate::space::{DataSpace, Placer};
use buttress_device::{Buffer, Device};
use buttress_exact::{Exact as _, at_most};
use buttress_format::{BlockGroupFlags, ByteCount, Logical, Profile};
use buttress_fs::Progress;
use buttress_mkfs::parts::{
    Settings, device_items, empty_superblock, forget_superblocks, usable_sizes, wipe,
};
use buttress_mkfs::{self as mkfs, Identity, Made, PlannedChunk};
use buttress_packing::BlockFormat;
use buttress_packing::Sorter;
use buttress_packing::{Spool, Spooled};
use buttress_volume::{ExtentWrite, StripeGeometry, Volume};
use crossbeam_channel::{Receiver, bounded, unbounded};
use std::thread;

/// The address of the system chunk, which is the first chunk address.
const SYSTEM_LOGICAL: Logical = Logical::new(1 << 20);

/// The address of the first data chunk; the system chunk ends before it.
const DATA_LOGICAL: Logical = Logical::new(1 << 30);

/// The alignment of the first metadata address.
const METADATA_ALIGNMENT: u64 = 1 << 30;

/// The maximum size of a chunk item with its head and related items, without its stripes.
const CHUNK_ITEM_BYTES: u64 = 256;

/// The number of queued data writes of two MiB.
const WRITES_WAITING: usize = 4;

/// The approximate number of bytes of tree blocks that are written at once.
const BLOCKS_BYTES: usize = 4 << 20;

/// The free bytes in the metadata block groups of a volume of minimal size. The kernel needs these
/// free bytes to begin a transaction, and thus to grow and write the volume.
const LEAST_HEADROOM_BYTES: u64 = 2 << 20;

/// The maximum number of spare bytes left in the last data block group.
const DATA_ROOM_BYTES: u64 = 64 << 20;

/// The facts that are known before any write.
struct Plan {
    sizes: Vec<u64>,
    /// The placer, with the sizes that chunks may use.
    placer: Placer,
    system: PlannedChunk,
    metadata: Logical,
}

/// Returns an upper bound on the bytes of tree blocks, counted in one copy.
fn metadata_bound(totals: &Totals, settings: &Settings) -> u64 {
    let sectors = totals
        .data_bytes
        .checked_div(u64::from(settings.sector_bytes))
        .unwrap_or(0);
    let checksums = sectors.saturating_mul(settings.checksum.size_bytes() as u64);
    // The bound on items counts a file extent and an extent item for each file and for each 128
    // KiB.
    let extents = totals
        .files
        .saturating_add(totals.data_bytes >> 17)
        .saturating_mul(256);
    // Inline content is part of a tree item, and then has no extent.
    let inline = totals
        .files
        .saturating_mul(u64::from(settings.sector_bytes))
        .min(totals.data_bytes);
    let items = totals.item_bytes.saturating_add(inline);
    let all = items.saturating_add(checksums).saturating_add(extents);
    // Leaves of a packed tree are never quite full.
    all.saturating_add(all >> 2).saturating_add(4 << 20)
}

pub(crate) fn enough_bytes(gathered: &Gathered) -> ByteCount {
    let (totals, settings) = (&gathered.layout.totals, &gathered.settings);
    let copies = |profile: Profile| if profile == Profile::Dup { 2 } else { 1 };
    let metadata = metadata_bound(totals, settings).saturating_mul(copies(settings.metadata));
    let data = totals.data_bytes.saturating_mul(copies(settings.data));
    let slack = match gathered.options.size {
        Size::Least { slack } => slack.get(),
        Size::Devices => 0,
    };
    let sum = data.saturating_add(metadata).saturating_add(slack);
    // The estimated sum also covers superblock copies, the system chunk, and the ends of chunks.
    let sum = sum.saturating_add(data >> 8).saturating_add(128 << 20);
    ByteCount::new(sum.checked_next_multiple_of(1 << 20).unwrap_or(sum))
}

fn plan(gathered: &Gathered, devices: &[Device]) -> Result<Plan> {
    let settings = &gathered.settings;
    let totals = &gathered.layout.totals;
    let sizes = usable_sizes(devices, settings)?;
    let mut placer = Placer::new(&sizes);
    let bound = totals.data_bytes.saturating_add(metadata_bound(totals, settings));
    let items = (bound >> 24).saturating_add(16).saturating_mul(CHUNK_ITEM_BYTES);
    let items = items.saturating_mul(devices.len() as u64).saturating_mul(2);
    let least = match gathered.options.size {
        Size::Least { .. } => 1 << 20,
        Size::Devices => {
            let smallest = sizes.iter().copied().min().unwrap_or(0);
            (8 << 20).min(smallest.checked_div(32).unwrap_or(0)).max(1 << 20)
        }
    };
    let most = DATA_LOGICAL.get().saturating_sub(SYSTEM_LOGICAL.get());
    let bytes = items.max(least).min(most);
    let system = placer.chunk(SYSTEM_LOGICAL, BlockGroupFlags::SYSTEM, settings.metadata, bytes);
    let system = system.ok_or(Error::NoRoom {
        what: "the system chunk",
        needed: ByteCount::new(bytes),
    })?;
    let margin = (64_u64 << 20)
        .saturating_add(DATA_ROOM_BYTES)
        .saturating_add(totals.data_bytes >> 6);
    let end = DATA_LOGICAL
        .get()
        .saturating_add(totals.data_bytes)
        .saturating_add(margin);
    let metadata = end
        .checked_next_multiple_of(METADATA_ALIGNMENT)
        .unwrap_or(u64::MAX);
    Ok(Plan {
        sizes,
        placer,
        system,
        metadata: Logical::new(metadata),
    })
}

pub(crate) fn write(
    gathered: Gathered,
    devices: &[Device],
    identity: &Identity,
    progress: &Progress,
) -> Result<Made> {
    if identity.devices.len() != devices.len() {
        return Err(mkfs::Error::Uuids {
            uuids: identity.devices.len(),
            devices: devices.len(),
        }
        .into());
    }
    let profile = gathered.settings.data;
    if gathered.options.share_files && !sharing::is_possible(profile) {
        return Err(Error::SharedProfile { profile });
    }
    let plan = plan(&gathered, devices)?;
    progress.expect(ByteCount::new(gathered.layout.totals.content_bytes));
    for device in devices {
        wipe(device, &gathered.settings)?;
    }
    let items = device_items(
        &gathered.settings,
        identity,
        &plan.sizes,
        core::slice::from_ref(&plan.system),
    );
    let superblock = empty_superblock(&gathered.settings, identity, &items);
    let volume = Volume::create(devices.iter().cloned().zip(items).collect(), superblock)?;
    let item = |chunk: &PlannedChunk| chunk.item(&identity.devices, gathered.settings.sector_bytes);
    volume.add_chunk(plan.system.logical, item(&plan.system))?;
    let job = Writing {
        gathered: &gathered,
        identity,
        volume: &volume,
        devices,
        progress,
    };
    let (finished, log) = job.contents(plan)?;
    for chunk in &finished.new_chunks {
        volume.add_chunk(chunk.logical, item(chunk))?;
    }
    let base = log.base();
    let chunk_base = finished.chunk_blocks.base();
    job.blocks(base, &log.finish())?;
    job.blocks(chunk_base, &finished.chunk_blocks.finish())?;
    progress.check()?;
    volume.flush()?;
    progress.check()?;
    if let Err(error) = volume.write_superblocks(&finished.superblock, &finished.devices) {
        devices.iter().for_each(forget_superblocks);
        return Err(error.into());
    }
    Ok(Made {
        superblock: finished.superblock,
        devices: finished.devices,
        chunks: finished.chunks,
        quotas: gathered.settings.quotas,
    })
}

struct Writing<'a> {
    gathered: &'a Gathered,
    identity: &'a Identity,
    volume: &'a Volume,
    devices: &'a [Device],
    progress: &'a Progress,
}

impl Writing<'_> {
    /// Reads contents, writes data and packs trees.
    fn contents(&self, plan: Plan) -> Result<(Finished, BlockLog)> {
        let (settings, options) = (&self.gathered.settings, &self.gathered.options);
        let memory = options.memory.get().narrow::<usize>();
        let third = memory.checked_div(3).unwrap_or(0);
        let format = BlockFormat {
            fsid: self.identity.fsid,
            chunk_tree_uuid: self.identity.chunk_tree,
            node_bytes: settings.node_bytes,
            checksum: settings.checksum,
            generation: GENERATION,
        };
        let mut log = BlockLog::new(format, plan.metadata, &self.gathered.folder, third);
        let data_kind = match settings.mixed {
            true => BlockGroupFlags::DATA | BlockGroupFlags::METADATA,
            false => BlockGroupFlags::DATA,
        };
        let room = self.data_room(&plan.sizes);
        let space = DataSpace::new(
            plan.placer,
            data_kind,
            settings.data,
            DATA_LOGICAL,
            self.gathered.layout.totals.data_bytes.saturating_add(room),
        );
        let (roots, mut data) = self.data(space, third, &mut log)?;
        if !settings.mixed && settings.data != Profile::Single {
            data.space.keep_profile(room)?;
        }
        let (references, checksums) = (
            core::mem::replace(&mut data.references, Sorter::new(&self.gathered.folder, 0)).finish()?,
            core::mem::replace(&mut data.checksums, Spool::new(self.gathered.folder.clone(), 0)).finish(),
        );
        let DataSpace {
            mut placer,
            mut chunks,
            ..
        } = data.space;
        // The last chunk was sized for the upper bound of data, so shorten it.
        if let Some(last) = chunks.last_mut() {
            let wanted = last.used.saturating_add(room);
            if wanted < last.chunk.length.get() {
                placer.trim(&mut last.chunk, wanted);
            }
        }
        let finish = Finish {
            settings,
            identity: self.identity,
            layout: &self.gathered.layout,
            roots,
            references,
            checksums,
            data: chunks,
            system: plan.system,
            placer,
            sizes: match options.size {
                Size::Least { slack } => Sizes::Least(slack.get()),
                Size::Devices => Sizes::Given(plan.sizes.clone()),
            },
            folder: &self.gathered.folder,
            headroom: match options.size {
                Size::Least { .. } => LEAST_HEADROOM_BYTES,
                Size::Devices => free_of(&plan.sizes).clamp(LEAST_HEADROOM_BYTES, 256 << 20),
            },
        };
        let finished = finish.run(&mut log)?;
        Ok((finished, log))
    }

    /// Returns the number of spare bytes of the last data block group, so that the first writes
    /// need no new one. The space kept free for data is a part of the unused space.
    fn data_room(&self, sizes: &[u64]) -> u64 {
        let smallest = sizes.iter().copied().min().unwrap_or(0);
        let room = free_of(sizes).min(DATA_ROOM_BYTES);
        let needed = enough_bytes(self.gathered)
            .get()
            .saturating_add(room.saturating_mul(4));
        match self.gathered.options.size {
            Size::Devices if needed <= smallest => room,
            _ => 0,
        }
    }

    /// Runs the workers, the writer, and the pass over all items.
    fn data<'b>(
        &'b self,
        space: DataSpace,
        memory: usize,
        log: &'b mut BlockLog,
    ) -> Result<(Vec<buttress_packing::PackedRoot>, DataParts)> {
        let (settings, options) = (&self.gathered.settings, &self.gathered.options);
        let shop = Shop {
            contents: self.gathered.contents.clone(),
            sector_bytes: settings.sector_bytes,
            inline_bytes: inline_bytes_max(settings.sector_bytes),
            checksum: settings.checksum,
            dedupe: options.dedupe,
            progress: self.progress.clone(),
        };
        let available = || thread::available_parallelism().map_or(1, core::num::NonZero::get);
        let workers = options.workers.unwrap_or_else(available).max(1);
        let (jobs, taken) = unbounded();
        let (to_writer, writes) = bounded(WRITES_WAITING);
        let uuids = &self.identity.devices;
        let item = |chunk: &PlannedChunk| chunk.item(uuids, settings.sector_bytes);
        let folder = &self.gathered.folder;
        thread::scope(|scope| {
            let spawn_failed = |_| Error::Defect {
                what: "no thread can be started",
            };
            let mut readers = Vec::new();
            for number in 0..workers {
                let (shop, taken) = (&shop, taken.clone());
                let reader = thread::Builder::new()
                    .name(format!("buttress-build-read-{number}"))
                    .spawn_scoped(scope, move || work(shop, &taken));
                readers.push(reader.map_err(spawn_failed)?);
            }
            // Each thread owns its end of a channel, so this thread drops its receiver. When the
            // last worker or the writer ends, sends and receives on the other end fail instead of
            // blocking.
            drop(taken);
            let writer = thread::Builder::new()
                .name("buttress-build-write".to_owned())
                .spawn_scoped(scope, move || write_data(self.volume, &writes))
                .map_err(spawn_failed)?;
            let mut data = DataWriter::new(
                space,
                Sorter::new(folder, memory),
                Spool::new(folder.clone(), memory),
                self.volume,
                item,
                to_writer,
            );
            if options.share_files {
                let (contents, sector_bytes) = (&self.gathered.contents, settings.sector_bytes);
                data.sharing = Some(Sharing::new(contents, self.devices, sector_bytes));
            }
            let rules = EmitRules {
                compression: options.compression,
                jobs,
                progress: self.progress,
                no_holes: settings.incompat.contains(buttress_format::Incompat::NO_HOLES),
                sector_bytes: settings.sector_bytes,
                snapshots: &self.gathered.layout.snapshots,
            };
            let emitted = Emitter::new(rules, log, data).run(self.gathered.layout.items.reader()?);
            // After an early end of the pass, the remaining elements of the channels are discarded.
            let emitted = emitted.map(|(roots, data)| (roots, data.into_parts()));
            let written = writer.join().unwrap_or(Err(Error::WriterGone));
            for reader in readers {
                reader.join().map_err(|_| Error::Defect {
                    what: "a thread that read contents panicked",
                })?;
            }
            match (emitted, written) {
                (Ok(emitted), Ok(())) => Ok(emitted),
                (Err(Error::WriterGone) | Ok(_), Err(error)) | (Err(error), _) => Err(error),
            }
        })
    }

    /// Writes finished tree blocks to adjacent addresses.
    fn blocks(&self, base: Logical, blocks: &Spooled) -> Result<()> {
        let row = StripeGeometry::new(self.gathered.settings.metadata, self.stripes_of(base))
            .map_or(1, |geometry| geometry.row_bytes().get());
        let rows = (BLOCKS_BYTES as u64).checked_div(row).unwrap_or(1).max(1);
        let step = usize::try_from(rows.saturating_mul(row)).unwrap_or(BLOCKS_BYTES);
        let mut reader = blocks.reader();
        let mut bytes = Vec::new();
        let mut at = base;
        let mut left = blocks.len();
        while left > 0 {
            self.progress.check()?;
            let length = at_most(left, step);
            reader.read(&mut bytes, length)?;
            let write = ExtentWrite {
                logical: at,
                bytes: Buffer::from(bytes.as_slice()).into_bytes(),
            };
            self.volume.write(core::slice::from_ref(&write))?;
            at = at.saturating_add(ByteCount::of(length));
            left = left.saturating_sub(length as u64);
        }
        Ok(())
    }

    /// Returns the number of stripes of the chunk at this address.
    fn stripes_of(&self, logical: Logical) -> usize {
        let map = self.volume.chunk_map();
        map.find(logical).map_or(1, |chunk| chunk.chunk().stripes.len())
    }
}

/// The results of the thread that writes data.
pub(crate) struct DataParts {
    pub(crate) space: DataSpace,
    pub(crate) references: Sorter,
    pub(crate) checksums: Spool,
}

/// Returns how much space oversized block groups must leave free on devices of these sizes.
fn free_of(sizes: &[u64]) -> u64 {
    sizes
        .iter()
        .copied()
        .min()
        .unwrap_or(0)
        .checked_div(32)
        .unwrap_or(0)
}

/// Writes the received extents until the channel ends. Each write takes all queued extents, so the
/// device is always busy.
fn write_data(volume: &Volume, writes: &Receiver<ExtentWrite>) -> Result<()> {
    let mut batch = Vec::with_capacity(WRITES_WAITING);
    for write in writes {
        batch.push(write);
        batch.extend(writes.try_iter().take(WRITES_WAITING));
        volume.write(&batch)?;
        batch.clear();
    }
    Ok(())
}
