//! The steps of the tour.

use buttress::unstable::accounts::Accounts as _;
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use buttress::accounting::Options as AccountOptions;
use buttress::stream::send::{Options as SendOptions, Snapshot};
use buttress::stream::{Decoder, Version, send};
use buttress::unstable::device::VirtualClock;
use buttress::unstable::format::{ItemType, Key};
use buttress::unstable::fs::{Filesystem, OpenOptions};
use buttress::unstable::tree::Tree;
use buttress::unstable::volume::ExtentRead;
use buttress::{
    Backend, BlockGroupFlags, Compression, Content, Device, DeviceEngine as Engine, DeviceOptions, FileKind,
    Location, Logical, Progress, RangeKind, ReadAhead, SubvolumeId, TreeId, WalkItem, WalkOptions,
};
use buttress_lab::{Fault, FaultyBackend, Model};

use crate::output::size::Units;

/// A step: does its work and returns a description of the result.
pub(super) type Step = fn(&mut Tour) -> Result<String>;

/// The steps in their order.
pub(super) const STEPS: &[(&str, Step)] = &[
    ("open the volume", Tour::open),
    ("list its subvolumes", Tour::list_subvolumes),
    ("list all directories", Tour::walk),
    ("read and verify every file", Tour::read_files),
    ("verify every metadata block", Tour::verify_blocks),
    ("show the space by profile", Tour::space),
    ("compute the space of deletions", Tour::give_back),
    ("send a snapshot", Tour::send_full),
    ("send an incremental stream", Tour::send_changes),
    ("send in each read-ahead mode", Tour::send_read_ahead),
];

/// Steps that need the volume in a file of its own, to inject faults.
const ROTTEN: [(&str, Step); 2] = [
    ("read with a damaged copy", Tour::read_rotten),
    ("scrub and repair it", Tour::scrub_rotten),
];

/// State that the steps share.
#[derive(Default)]
pub(super) struct Tour {
    pub(super) devices: Vec<Device>,
    /// File of the volume, if the tour created it.
    file: Option<Arc<dyn Backend>>,
    filesystem: Option<Filesystem>,
    contents: Option<Contents>,
}

/// Result of reading everything.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    files: u64,
    bytes: u64,
    hole_bytes: u64,
    /// Checksum over all names and contents, in walk order.
    checksum: u32,
    /// Number of ranges by kind of storage.
    stored: BTreeMap<&'static str, u64>,
}

impl Tour {
    /// Returns the result of the step that reads everything.
    pub(super) const fn contents(&self) -> Option<&Contents> {
        self.contents.as_ref()
    }

    /// Returns the file of the volume, if the tour created it.
    pub(super) fn file(&self) -> Option<Arc<dyn Backend>> {
        self.file.clone()
    }

    /// Opens the volume in a file.
    pub(super) fn use_file(&mut self, image: &Path) -> Result<()> {
        let options = DeviceOptions::default();
        self.devices = vec![Device::open(image, &options)?];
        self.file = Some(Device::open_backend(image, &options)?);
        Ok(())
    }

    /// Returns the steps that are possible.
    pub(super) fn steps(&self) -> Vec<(&'static str, Step)> {
        STEPS
            .iter()
            .copied()
            .chain(ROTTEN.into_iter().filter(|_| self.file.is_some()))
            .collect()
    }

    pub(super) fn filesystem(&self) -> Result<&Filesystem> {
        self.filesystem.as_ref().context("the volume is not open")
    }

    fn top() -> Location {
        Location::root_of(SubvolumeId::TOP_LEVEL)
    }

    fn open(&mut self) -> Result<String> {
        let filesystem = OpenOptions::new(self.devices.clone()).open()?;
        let superblock = filesystem.superblock();
        let text = format!(
            "label {}, devices {}, chunks {}, generation {}, checksums {}",
            crate::output::escape_controls(&superblock.label),
            superblock.num_devices,
            filesystem.volume().chunk_map().chunks().len(),
            superblock.generation,
            superblock.checksum_type.name(),
        );
        self.filesystem = Some(filesystem);
        Ok(text)
    }

    fn list_subvolumes(&mut self) -> Result<String> {
        let all = self.filesystem()?.subvolumes()?;
        let names: Vec<String> = all
            .iter()
            .filter(|info| info.id != SubvolumeId::TOP_LEVEL)
            .filter_map(|info| {
                let path = crate::output::escape_controls(info.path.as_deref()?);
                let kind = match (info.parent_uuid().is_some(), info.is_read_only()) {
                    (true, true) => " (read-only snapshot)",
                    (true, false) => " (snapshot)",
                    (false, true) => " (read-only)",
                    (false, false) => "",
                };
                Some(format!("{path}{kind}"))
            })
            .collect();
        Ok(names.join(", "))
    }

    fn walk(&mut self) -> Result<String> {
        let (mut directories, mut files, mut links, mut others, mut xattrs) = (0u64, 0u64, 0u64, 0u64, 0u64);
        let count = |counter: &mut u64| *counter = counter.saturating_add(1);
        for item in self
            .filesystem()?
            .walk(Self::top(), WalkOptions::without_content())
        {
            match item {
                WalkItem::Entry(entry) => {
                    match entry.metadata().kind {
                        FileKind::Directory => count(&mut directories),
                        FileKind::Regular if entry.hard_link.is_some() => count(&mut links),
                        FileKind::Regular => count(&mut files),
                        FileKind::Symlink => count(&mut links),
                        _ => count(&mut others),
                    }
                    xattrs = xattrs.saturating_add(entry.xattrs().len() as u64);
                }
                WalkItem::Failed(error) => return Err(error.into()),
                WalkItem::Enter(_) | WalkItem::Leave(_) => {}
            }
        }
        Ok(format!(
            "{directories} directories, {files} files, {links} links, {others} special files, {xattrs} xattrs"
        ))
    }

    fn read_files(&mut self) -> Result<String> {
        let contents = read_everything(self.filesystem()?)?;
        let units = Units::default();
        let stored: Vec<String> = contents
            .stored
            .iter()
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        let text = format!(
            "{} files, {} and {} of holes; extents: {}",
            contents.files,
            units.text(contents.bytes),
            units.text(contents.hole_bytes),
            stored.join(", ")
        );
        self.contents = Some(contents);
        Ok(text)
    }

    fn verify_blocks(&mut self) -> Result<String> {
        let filesystem = self.filesystem()?;
        let trees = all_trees(filesystem)?;
        let mut seen: HashSet<Logical> = HashSet::new();
        let (mut visits, mut copies) = (0u64, 0u64);
        for tree in &trees {
            for visit in tree.blocks(ReadAhead::sweep()) {
                let visit = visit?;
                visits = visits.saturating_add(1);
                if seen.insert(visit.pointer.logical) {
                    copies = copies.saturating_add(verify_copies(filesystem, &visit)?);
                }
            }
        }
        Ok(format!(
            "{} trees, {visits} blocks, {} of them shared; each of {copies} copies verified",
            trees.len(),
            visits.saturating_sub(seen.len() as u64)
        ))
    }

    fn space(&mut self) -> Result<String> {
        let space = self.filesystem()?.space()?;
        let units = Units::default();
        let groups = space.groups.iter().map(|group| {
            let profile = group.flags.profile().map_or("unknown", buttress::Profile::name);
            format!(
                "{} ({profile}) {}",
                group.flags.type_name(),
                units.text(group.used.get())
            )
        });
        Ok(groups.collect::<Vec<_>>().join(", "))
    }

    /// Computes the space that deleting the read-only snapshots would free, each snapshot alone and
    /// all together.
    fn give_back(&mut self) -> Result<String> {
        let filesystem = self.filesystem()?;
        let mut subvolumes = filesystem.subvolumes()?;
        subvolumes.retain(|subvolume| subvolume.is_read_only() && !subvolume.is_deleted());
        let accounting = filesystem.account_space(&AccountOptions::default(), &Progress::new())?;
        let units = Units::default();
        let freed = |ids: &[SubvolumeId]| {
            let freed = accounting.freed_by(&accounting.subvolumes(ids));
            units.text(freed.data().saturating_add(freed.metadata).get())
        };
        let alone = subvolumes.iter().map(|subvolume| {
            let path = subvolume.path.as_deref().unwrap_or_default();
            format!("{} {}", path.escape_ascii(), freed(&[subvolume.id]))
        });
        let alone: Vec<String> = alone.collect();
        let all: Vec<SubvolumeId> = subvolumes.iter().map(|subvolume| subvolume.id).collect();
        Ok(match alone.len() {
            0 => "there is no read-only snapshot".to_owned(),
            1 => alone.concat(),
            _ => format!("{}, together {}", alone.join(", "), freed(&all)),
        })
    }

    /// Returns the read-only snapshots in creation order.
    fn snapshots(&self) -> Result<Vec<Snapshot>> {
        let filesystem = self.filesystem()?;
        let mut subvolumes = filesystem.subvolumes()?;
        subvolumes.retain(|subvolume| subvolume.is_read_only() && !subvolume.is_deleted());
        subvolumes.sort_by_key(buttress::SubvolumeInfo::created_generation);
        let open = |subvolume: &buttress::SubvolumeInfo| Ok(Snapshot::open(filesystem, subvolume.id)?);
        subvolumes.iter().map(open).collect()
    }

    fn send_full(&mut self) -> Result<String> {
        let Some(snapshot) = self.snapshots()?.into_iter().next() else {
            return Ok("there is no read-only snapshot".to_owned());
        };
        let options = SendOptions {
            version: Version::V2,
            compressed_data: true,
            ..SendOptions::default()
        };
        let sent = send_and_decode(&snapshot, &options)?;
        Ok(format!("{}: {sent}", snapshot.name().escape_ascii()))
    }

    fn send_changes(&mut self) -> Result<String> {
        let snapshots = self.snapshots()?;
        let [first, second, ..] = snapshots.as_slice() else {
            return Ok("there are no two read-only snapshots".to_owned());
        };
        let options = SendOptions {
            parent: Some(first.clone()),
            version: Version::V2,
            compressed_data: true,
            ..SendOptions::default()
        };
        let sent = send_and_decode(second, &options)?;
        let (from, to) = (first.name().escape_ascii(), second.name().escape_ascii());
        Ok(format!("{from} to {to}: {sent}"))
    }

    /// Sends the first snapshot in each readahead mode as if the volume were on spinning disks, and
    /// compares the requests to the disks. (A new volume is in the page cache, so a real device
    /// would get no requests.)
    fn send_read_ahead(&mut self) -> Result<String> {
        let Some(snapshot) = self.snapshots()?.into_iter().next() else {
            return Ok("there is no read-only snapshot".to_owned());
        };
        let modes = [
            ("none", ReadAhead::None),
            ("forward", ReadAhead::Forward),
            ("sweep", ReadAhead::sweep()),
        ];
        let mut parts = Vec::new();
        for (name, read_ahead) in modes {
            let clock = VirtualClock::new();
            let model = Model::spinning_7200();
            let disks: Vec<Device> = self
                .devices
                .iter()
                .map(|device| buttress_lab::as_if_on(device, &model, &clock))
                .collect();
            let filesystem = OpenOptions::new(disks.clone()).open()?;
            let fresh = Snapshot::open(&filesystem, snapshot.id())?;
            let before: Vec<_> = disks.iter().map(Device::statistics).collect();
            let options = SendOptions {
                read_ahead,
                no_data: true,
                ..SendOptions::default()
            };
            send_and_decode(&fresh, &options)?;
            let (mut requests, mut bytes, mut elapsed) = (0_u64, 0_u64, Duration::ZERO);
            for (disk, before) in disks.iter().zip(&before) {
                let during = disk.statistics().since(before);
                requests = requests.saturating_add(during.reads.requests);
                bytes = bytes.saturating_add(during.reads.bytes);
                elapsed = elapsed.max(during.elapsed);
            }
            parts.push(format!(
                "{name} {requests} requests of {} in {:.0} ms",
                Units::default().text(bytes.checked_div(requests).unwrap_or(0)),
                elapsed.as_secs_f64() * 1e3,
            ));
        }
        Ok(format!("on a simulated 7200 rpm disk: {}", parts.join(", ")))
    }

    /// Reads the whole volume again with bit rot in the first copy of all metadata; the second copy
    /// replaces the first.
    fn read_rotten(&mut self) -> Result<String> {
        let expected = self.contents.as_ref().context("the files were not read before")?;
        let filesystem = self.filesystem()?;
        let ranges = first_copies(filesystem);
        let inner = self
            .file
            .clone()
            .context("the volume is not in a file of its own")?;
        let rotten = FaultyBackend::new(inner, ROT_SEED);
        for range in ranges {
            rotten.inject(Fault::RotBits {
                range,
                every_bytes: ROT_EVERY_BYTES,
            });
        }
        let filesystem = OpenOptions::new(vec![Device::with_backend(rotten, Engine::Inline)]).open()?;
        let contents = read_everything(&filesystem)?;
        ensure!(
            &contents == expected,
            "what was read differs: {contents:?} instead of {expected:?}"
        );
        let faults = filesystem.volume().faults().total();
        ensure!(faults > 0, "no fault was noticed");
        Ok(format!(
            "{faults} damaged blocks skipped, every name and byte is equal"
        ))
    }
}

/// Returns the device ranges of the first copy of all chunks with two copies.
pub(super) fn first_copies(filesystem: &Filesystem) -> Vec<Range<u64>> {
    let mut ranges = Vec::new();
    for chunk in filesystem.volume().chunk_map().chunks() {
        let mirrored = chunk.flags().contains(BlockGroupFlags::DUP);
        if let Some(stripe) = chunk.chunk().stripes.first().filter(|_| mirrored) {
            let start = stripe.physical.get();
            ranges.push(start..start.saturating_add(chunk.length().get()));
        }
    }
    ranges
}

/// Sends a snapshot to memory, decodes the stream, and describes its content.
fn send_and_decode(snapshot: &Snapshot, options: &SendOptions) -> Result<String> {
    let mut stream = Vec::new();
    let summary = send::send(snapshot, options, &mut stream, &Progress::new())?;
    let mut decoder = Decoder::new(stream.as_slice());
    let mut commands = 0_u64;
    let mut kinds: BTreeMap<&'static str, u64> = BTreeMap::new();
    while let Some(frame) = decoder.next_command()? {
        commands = commands.saturating_add(1);
        let kind = kinds.entry(frame.command().kind().name()).or_default();
        *kind = kind.saturating_add(1);
    }
    ensure!(
        commands == summary.commands,
        "{commands} commands were decoded, {} were sent",
        summary.commands
    );
    let shown = ["mkfile", "rename", "clone", "write", "encoded_write"];
    let shown: Vec<String> = shown
        .into_iter()
        .filter_map(|name| kinds.get(name).map(|count| format!("{count} {name}")))
        .collect();
    Ok(format!(
        "{} of stream, {commands} commands decoded again ({})",
        Units::default().text(summary.stream_bytes.get()),
        shown.join(", ")
    ))
}

/// Seed of the positions of the bit rot.
pub(super) const ROT_SEED: u64 = 1;

/// Distance of flipped bits in bytes; every block has at least one.
pub(super) const ROT_EVERY_BYTES: u64 = 4096;

/// Reads all files of all subvolumes, and verifies their checksums.
pub(super) fn read_everything(filesystem: &Filesystem) -> Result<Contents> {
    let mut contents = Contents::default();
    for item in filesystem.walk(Tour::top(), WalkOptions::default()) {
        let mut entry = match item {
            WalkItem::Entry(entry) => entry,
            WalkItem::Failed(error) => return Err(error.into()),
            WalkItem::Enter(_) | WalkItem::Leave(_) => continue,
        };
        let path = entry.path();
        contents.checksum = buttress::unstable::format::crc32c(contents.checksum, &path);
        if entry.metadata().kind != FileKind::Regular || entry.hard_link.is_some() {
            continue;
        }
        contents.files = contents.files.saturating_add(1);
        for range in entry.record.extents.iter().flatten() {
            let count = contents.stored.entry(stored_as(&range.kind)).or_default();
            *count = count.saturating_add(1);
        }
        let mut reader = entry.reader()?;
        while let Some(chunk) = reader.next_chunk()? {
            match chunk.content {
                Content::Data(bytes) => {
                    contents.bytes = contents.bytes.saturating_add(bytes.len() as u64);
                    contents.checksum = buttress::unstable::format::crc32c(contents.checksum, &bytes);
                }
                Content::Hole => {
                    contents.hole_bytes = contents.hole_bytes.saturating_add(chunk.length.get());
                }
                Content::Damaged(error) => {
                    return Err(anyhow::Error::new(error).context(path.escape_ascii().to_string()));
                }
            }
        }
    }
    Ok(contents)
}

/// Returns the kind of storage of a range as a word.
fn stored_as(kind: &RangeKind) -> &'static str {
    let compression = match kind {
        RangeKind::Hole => return "hole",
        RangeKind::Preallocated(_) => return "preallocated",
        RangeKind::Inline(inline) => inline.compression,
        RangeKind::Data(extent) => extent.compression,
    };
    match (compression, kind) {
        (Compression::None, RangeKind::Inline(_)) => "inline",
        (Compression::None, _) => "plain",
        (Compression::Zlib, _) => "zlib",
        (Compression::Lzo, _) => "lzo",
        (Compression::Zstd, _) => "zstd",
    }
}

/// Returns the chunk tree, the root tree, and all trees with a root item.
fn all_trees(filesystem: &Filesystem) -> Result<Vec<Tree>> {
    let mut trees = vec![filesystem.tree(TreeId::CHUNK)?, filesystem.root_tree().clone()];
    for item in filesystem
        .root_tree()
        .range(Key::MIN..=Key::MAX, ReadAhead::Forward)
    {
        let key = item?.key();
        if key.item_type == ItemType::ROOT_ITEM {
            trees.push(filesystem.tree(TreeId::new(key.objectid.get()))?);
        }
    }
    Ok(trees)
}

/// Reads each copy of a block separately and verifies that all are equal. Returns the number of
/// copies.
fn verify_copies(filesystem: &Filesystem, visit: &buttress::unstable::tree::Visit) -> Result<u64> {
    let volume = filesystem.volume();
    let logical = visit.pointer.logical;
    let copies = volume.copies(logical)?;
    for copy in 1..=copies {
        let length = visit.block.bytes().len();
        let bytes = volume.read_copy(ExtentRead { logical, length }, copy)?;
        ensure!(
            bytes.as_ref() == visit.block.bytes().as_ref(),
            "copy {copy} of the block at {logical} differs from the first"
        );
    }
    Ok(u64::from(copies))
}
