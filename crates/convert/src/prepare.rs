//! Writes the trees of the new volume to free space, beside the old file system.
//!
//! Until the superblocks are written, the device holds the old file system unchanged: only blocks
//! that it does not use were written.

use crate::checksums::Checksums;
use crate::chunks::{DataChunks, placed};
use crate::error::{Error, Result};
use crate::extents::{IMAGE, Parts, Pass, Pieces};
use crate::inodes::{Translation, content_flags, index_of_saved, inline};
use crate::layout::Layout;
use crate::log::{Addresses, Log};
use crate::options::Options;
use crate::publish::publish;
use crate::record::Record;
use crate::records::Items;
use crate::saved::IMAGE_MODE;
use crate::survey::survey;
use crate::trees::Finish;
use crate::{GENERATION, SAVED_TREE, source, zeros};
use buttress_device::Device;
use buttress_exact::{Defect, Exact as _, u64_of};
use buttress_extfs::{Ext, FileKind};
use buttress_format::limits::inline_content_bytes_max;
use buttress_format::{
    BlockGroupFlags, ByteCount, DeviceItem, DirItem, ExtentItem, InodeItem, InodeNumber, InodeRefs, ItemType,
    Logical, Superblock, TreeId, UuidItem, uuid_key,
};
use buttress_fs::Progress;
use buttress_mkfs::parts::{Settings, device_items, directory, directory_inode, empty_superblock, in_order};
use buttress_packing::{BlockFormat, PackedRoot, Packer, Sorted, SpoolFolder};
use buttress_volume::Volume;
use core::ops::Range;

/// A new volume without superblocks.
pub struct Prepared {
    device: Device,
    layout: Layout,
    volume: Volume,
    superblock: Superblock,
    devices: Vec<DeviceItem>,
    old_bytes: u64,
}

impl Prepared {
    /// Makes the new volume the content of the device. A power cut leaves the old file system, the
    /// new volume, or a device that [`resume`](crate::resume) makes one of them.
    ///
    /// # Errors
    /// Fails if the device fails. Then call [`resume`](crate::resume).
    pub fn publish(self) -> Result<()> {
        publish(
            &self.device,
            &self.volume,
            &self.layout,
            &self.superblock,
            &self.devices,
            self.old_bytes,
        )
    }
}

/// Writes all trees of the new volume to the free space of the ext2, ext3 or ext4 volume on
/// `device`, which is open for writing.
///
/// # Errors
/// Fails if the old file system is damaged or has refused features, or if the free space is too
/// small. Also fails if btrfs cannot hold an object, if the device fails, or if `progress` is
/// cancelled. The old file system is unchanged.
pub fn prepare(device: &Device, options: &Options, progress: &Progress) -> Result<Prepared> {
    if Record::read(device)?.is_some() {
        return Err(Error::Unfinished);
    }
    options.check()?;
    let old = source::open(device)?;
    let mut make = options.make.clone();
    make.sector_bytes = Some(old.superblock().block_bytes);
    if make.label.is_empty() {
        make.label.clone_from(&old.superblock().label);
    }
    let settings = Settings::new(&make, 1)?;
    let checksum_bytes = u64_of(settings.checksum.size_bytes());
    let survey = survey(
        device,
        &old,
        checksum_bytes,
        u64::from(settings.node_bytes),
        progress,
    )?;
    progress.expect(survey.used_bytes);
    let layout = Layout::new(&survey.used, survey.needs)?;
    let device_bytes = survey.used.device_bytes();
    let volume = empty_volume(device, &settings, options, &layout, device_bytes)?;
    let job = Job {
        old: &old,
        device,
        settings: &settings,
        options,
        layout: &layout,
        device_bytes,
        folder: SpoolFolder::new(options.folder.as_deref()),
        progress,
        zeros: &survey.zeros,
    };
    let (superblock, devices) = job.run(&volume)?;
    volume.flush()?;
    Ok(Prepared {
        device: device.clone(),
        layout,
        volume,
        superblock,
        devices,
        old_bytes: device_bytes,
    })
}

/// Returns the new volume with its chunks, without blocks.
fn empty_volume(
    device: &Device,
    settings: &Settings,
    options: &Options,
    layout: &Layout,
    device_bytes: u64,
) -> Result<Volume> {
    let items = device_items(settings, &options.identity, &[device_bytes], &[]);
    let superblock = empty_superblock(settings, &options.identity, &items);
    let devices = core::iter::once(device.clone()).zip(items).collect();
    let volume = Volume::create(devices, superblock)?;
    let system = placed(&layout.system, BlockGroupFlags::SYSTEM);
    let metadata = layout
        .metadata
        .iter()
        .filter_map(|chunk| placed(chunk, BlockGroupFlags::METADATA));
    let data = DataChunks::new(layout)
        .finish()
        .into_iter()
        .map(|data| data.chunk);
    for chunk in system.into_iter().chain(metadata).chain(data) {
        let item = chunk.item(&options.identity.devices, settings.sector_bytes);
        volume.add_chunk(chunk.logical, item)?;
    }
    Ok(volume)
}

/// Adds a file of the saved image's subvolume, with its name and index.
fn saved_file(
    items: &mut Items,
    number: InodeNumber,
    (name, index): (&[u8], u64),
    inode: &InodeItem,
) -> Result<()> {
    let root = InodeNumber::ROOT_DIRECTORY;
    let entry = DirItem {
        location: InodeItem::key(number),
        transid: GENERATION,
        kind: buttress_format::FileKind::Regular,
        name,
        data: &[],
    };
    let data = entry.encode().map_err(|problem| Error::of_item(0, problem))?;
    items.push(SAVED_TREE, &DirItem::key(root, name), &data)?;
    items.push(SAVED_TREE, &DirItem::index_key(root, index), &data)?;
    let mut reference = Vec::new();
    InodeRefs::push(&mut reference, index, name).map_err(|problem| Error::of_item(0, problem))?;
    items.push(SAVED_TREE, &InodeRefs::key(number, root), &reference)?;
    items.push(SAVED_TREE, &InodeItem::key(number), &inode.to_bytes())
}

struct Job<'a> {
    old: &'a Ext,
    device: &'a Device,
    settings: &'a Settings,
    options: &'a Options,
    layout: &'a Layout,
    device_bytes: u64,
    folder: SpoolFolder,
    progress: &'a Progress,
    zeros: &'a [Range<u64>],
}

impl Job<'_> {
    fn run(&self, volume: &Volume) -> Result<(Superblock, Vec<DeviceItem>)> {
        let format = BlockFormat {
            fsid: self.options.identity.fsid,
            chunk_tree_uuid: self.options.identity.chunk_tree,
            node_bytes: self.settings.node_bytes,
            checksum: self.settings.checksum,
            generation: GENERATION,
        };
        let addresses = |chunks: &[_]| Addresses::new(chunks, self.settings.node_bytes);
        let mut log = Log::new(volume, format, addresses(&self.layout.metadata));
        let mut system = Log::new(
            volume,
            format,
            addresses(core::slice::from_ref(&self.layout.system)),
        );
        let mut items = Items::new(&self.folder);
        let parts = self.inodes(&mut items)?;
        let mut chunks = DataChunks::new(self.layout);
        let (extents, checksums, image_bytes) =
            self.content(volume, &mut log, &mut items, &mut chunks, &parts)?;
        self.image(&mut items, image_bytes)?;
        let mut roots = self.file_trees(&mut log, items)?;
        roots.push(checksums);
        roots.push(log.pack(TreeId::UUID, self.uuid_items())?);
        let inode = directory_inode(self.settings, self.options.identity.time, GENERATION);
        let relocation = directory(InodeNumber::ROOT_DIRECTORY, &inode)?;
        roots.push(log.pack(TreeId::DATA_RELOCATION, in_order(relocation))?);
        let finish = Finish {
            settings: self.settings,
            identity: &self.options.identity,
            layout: self.layout,
            device_bytes: self.device_bytes,
            data: chunks.finish(),
            extents: &extents,
            roots,
            saved_index: index_of_saved(self.old)?,
            saved_uuid: self.options.saved,
        };
        finish.run(&mut log, &mut system)
    }

    /// Adds the items of all inodes, and returns the parts of files.
    fn inodes(&self, items: &mut Items) -> Result<Sorted> {
        let translation = Translation {
            old: self.old,
            node_bytes: self.settings.node_bytes,
            without: self.options.without,
        };
        let mut parts = Parts::new(&self.folder);
        for inode in self.old.inodes() {
            let inode = inode?;
            if self.old.superblock().is_internal(inode.number) || inode.is_attribute_value() {
                continue;
            }
            let has_parts = inode.kind == FileKind::Regular && !translation.is_inline(&inode);
            let content_bytes = if has_parts {
                parts.add(self.old, self.layout, &inode)?
            } else {
                0
            };
            translation.inode(items, &inode, content_bytes)?;
            self.progress.advance(1, ByteCount::ZERO);
            self.progress.check()?;
        }
        parts.finish()
    }

    /// Adds the extents of files and of the saved image, and packs the checksum tree. Returns the
    /// items of data extents, the checksum tree, and the allocated bytes of the saved image.
    fn content(
        &self,
        volume: &Volume,
        log: &mut Log<'_>,
        items: &mut Items,
        chunks: &mut DataChunks,
        parts: &Sorted,
    ) -> Result<(Sorted, PackedRoot, ByteCount)> {
        let mut extents = Items::new(&self.folder);
        let mut checksums = Checksums::new(
            self.device,
            volume,
            log,
            (self.settings.sector_bytes, !self.options.without.checksums),
            self.progress,
        );
        let mut pass = Pass::new(items, chunks, parts)?;
        let mut pieces = Pieces::new(self.old, self.layout)?;
        let mut image_bytes = ByteCount::ZERO;
        while let Some(piece) = pieces.next()? {
            let references = pass.piece(&piece)?;
            let (logical, length) = (Logical::new(piece.logical), ByteCount::new(piece.length));
            let item = ExtentItem::new_data(logical, length, GENERATION);
            for (key, data) in buttress_mkfs::parts::data_items(self.settings, item, &references)? {
                extents.push(TreeId::EXTENT, &key, &data)?;
            }
            checksums.add(log, &piece)?;
            image_bytes = image_bytes
                .checked_add(length)
                .ok_or_else(|| Defect::new("the image is too large"))?;
        }
        pass.finish()?;
        Ok((
            extents.finish()?.into_sorted(),
            checksums.finish(log)?,
            image_bytes,
        ))
    }

    /// Adds the subvolume of the saved image, except the image's extents.
    fn image(&self, items: &mut Items, image_bytes: ByteCount) -> Result<()> {
        const NAME: &[u8] = b"image";
        let time = self.options.identity.time;
        let root = InodeNumber::ROOT_DIRECTORY;
        let names = u64_of(NAME.len().exact_add(zeros::NAME.len()));
        let inode = InodeItem {
            size: ByteCount::new(names.exact_mul(2)),
            nbytes: ByteCount::ZERO,
            transid: GENERATION,
            ..directory_inode(self.settings, time, GENERATION)
        };
        for (key, data) in directory(root, &inode)? {
            items.push(SAVED_TREE, &key, &data)?;
        }
        let file = InodeItem {
            generation: GENERATION,
            transid: GENERATION,
            nlink: 1,
            mode: IMAGE_MODE,
            ..InodeItem::empty(time)
        };
        let image = InodeItem {
            size: ByteCount::new(self.device_bytes),
            nbytes: image_bytes,
            flags: content_flags(self.options.without),
            ..file
        };
        saved_file(items, IMAGE, (NAME, 2), &image)?;
        let list = zeros::encode(self.zeros, inline_content_bytes_max(self.settings.node_bytes));
        let mut zeros = file;
        inline(items, SAVED_TREE, zeros::ZEROS, &list, &mut zeros)?;
        saved_file(items, zeros::ZEROS, (zeros::NAME, 3), &zeros)
    }

    /// Packs the trees of files.
    fn file_trees(&self, log: &mut Log<'_>, items: Items) -> Result<Vec<PackedRoot>> {
        let items = items.finish()?;
        let mut reader = items.reader(self.settings.node_bytes)?;
        let mut open: Option<(TreeId, Packer)> = None;
        let mut roots = Vec::new();
        while let Some((tree, key, data)) = reader.next()? {
            if let Some((_, done)) = open.take_if(|(open, _)| *open != tree) {
                roots.push(done.finish(log)?.0);
            }
            let (_, packer) = open.get_or_insert_with(|| (tree, Packer::new(tree, *log.format())));
            packer.push(log, &key, &data)?;
        }
        if let Some((_, done)) = open {
            roots.push(done.finish(log)?.0);
        }
        Ok(roots)
    }

    fn uuid_items(&self) -> Vec<(buttress_format::Key, Vec<u8>)> {
        let pairs = [
            (self.options.identity.top_level, TreeId::FS),
            (self.options.saved, SAVED_TREE),
        ];
        let items = pairs.map(|(uuid, tree)| {
            let mut data = Vec::new();
            UuidItem::push(&mut data, tree);
            (uuid_key(uuid, ItemType::UUID_KEY_SUBVOL), data)
        });
        in_order(items.to_vec())
    }
}
