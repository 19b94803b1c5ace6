//! Tests of maps against an independent map of sectors, while a volume changes at random.

use crate::WritableFilesystem;
use crate::operations::NewInode;
use crate::operations::tests::volume::{Image, ROOT, open_with};
use crate::{AllocateMode, DataOptions};
use buttress_accounts::{FiemapExtent, FiemapFlags, Maps as _};
use buttress_format::compression::CompressionMethod;
use buttress_format::{ByteCount, Compression, FileOffset, ItemType, Logical, SubvolumeId, TreeId};
use buttress_fs::error::Error;
use buttress_fs::extents::RangeKind;
use buttress_fs::filesystem::Filesystem;
use buttress_fs::location::Location;
use buttress_fs::progress::Progress;
use buttress_lab::gate::SetOnDrop;
use buttress_oracle::content::Random;
use buttress_tree::ReadAhead;
use std::collections::{BTreeMap, HashMap, HashSet};

const SECTOR: u64 = 4096;
const SECTORS: u64 = 200;
const FILES: u64 = 4;
const ALL: core::ops::Range<FileOffset> = FileOffset::MIN..FileOffset::new(u64::MAX);

/// The address of each sector of a file, and its flags other than [`FiemapFlags::LAST`].
type Sectors = BTreeMap<u64, (Option<Logical>, FiemapFlags)>;

/// The users of each extent: tree, inode, and the file offset at which the extent would begin.
type Users = HashMap<Logical, HashSet<(TreeId, u64, u64)>>;

/// Reads every item of every subvolume, including deleted ones.
fn users_of(view: &Filesystem) -> Users {
    let mut users = Users::new();
    for subvolume in view.subvolumes().unwrap() {
        let tree = view.subvolume_tree(subvolume.id).unwrap();
        for item in tree.range(.., ReadAhead::None) {
            let item = item.unwrap();
            let key = item.key();
            if key.item_type != ItemType::EXTENT_DATA {
                continue;
            }
            let extent = buttress_format::FileExtent::parse(&key, item.data(), 4096).unwrap();
            if let Some(slice) = extent.slice().filter(|slice| !slice.is_hole()) {
                let base = key.offset.wrapping_sub(slice.offset.get());
                let user = (subvolume.id.tree(), key.objectid.get(), base);
                users.entry(slice.disk).or_default().insert(user);
            }
        }
    }
    users
}

/// Returns the sectors of a file from its items, its dirty data, and the users of its extents.
fn model(writer: &WritableFilesystem, file: Location) -> Sectors {
    let state = writer.contents().look_at(file, 0, usize::MAX).unwrap();
    let users = users_of(&state.view);
    let shared = |extent: Logical| {
        if users[&extent].len() > 1 {
            FiemapFlags::SHARED
        } else {
            FiemapFlags::empty()
        }
    };
    let mut sectors = Sectors::new();
    for range in state.waiting {
        for sector in range.start / SECTOR..range.end / SECTOR {
            sectors.insert(sector, (None, FiemapFlags::DELALLOC | FiemapFlags::UNKNOWN));
        }
    }
    for range in state.view.open_file(file).unwrap().extents().unwrap() {
        let range = range.unwrap();
        let first = range.offset.get() / SECTOR;
        for sector in first..range.end().get() / SECTOR {
            let skipped = ByteCount::new((sector - first) * SECTOR);
            match &range.kind {
                RangeKind::Hole => {}
                RangeKind::Inline(inline) => {
                    let mut flags = FiemapFlags::INLINE | FiemapFlags::NOT_ALIGNED;
                    flags.set(FiemapFlags::ENCODED, inline.compression != Compression::None);
                    sectors.insert(sector, (None, flags));
                }
                RangeKind::Data(extent) if extent.compression != Compression::None => {
                    let flags = FiemapFlags::ENCODED | shared(extent.logical);
                    sectors.insert(sector, (Some(extent.logical), flags));
                }
                RangeKind::Data(extent) => {
                    let address = extent
                        .logical
                        .saturating_add(extent.offset)
                        .saturating_add(skipped);
                    sectors.insert(sector, (Some(address), shared(extent.logical)));
                }
                RangeKind::Preallocated(extent) => {
                    let address = extent
                        .logical
                        .saturating_add(extent.offset)
                        .saturating_add(skipped);
                    let flags = FiemapFlags::UNWRITTEN | shared(extent.logical);
                    sectors.entry(sector).or_insert((Some(address), flags));
                }
            }
        }
    }
    sectors
}

/// Returns the sectors of a map.
fn sectors_of(map: &[FiemapExtent]) -> Sectors {
    let mut sectors = Sectors::new();
    for extent in map {
        let first = extent.offset.get() / SECTOR;
        for sector in first..extent.end().get() / SECTOR {
            let skipped = ByteCount::new((sector - first) * SECTOR);
            let address = extent.address.map(|start| {
                if extent.flags.contains(FiemapFlags::ENCODED) {
                    start
                } else {
                    start.saturating_add(skipped)
                }
            });
            let flags = extent.flags - FiemapFlags::LAST;
            assert_eq!(
                sectors.insert(sector, (address, flags)),
                None,
                "sector {sector} comes twice"
            );
        }
    }
    sectors
}

fn map_of(writer: &WritableFilesystem, file: Location) -> Vec<FiemapExtent> {
    writer
        .live()
        .fiemap(file, ALL)
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap()
}

/// Compares all maps and seeks of a file with the model.
fn compare(writer: &WritableFilesystem, file: Location, random: &mut Random) {
    let expected = model(writer, file);
    let map = map_of(writer, file);
    assert_eq!(sectors_of(&map), expected, "{map:#?}");
    for pair in map.windows(2) {
        let follows = pair[0].end() == pair[1].offset
            && pair[0].flags == pair[1].flags - FiemapFlags::LAST
            && pair[0]
                .address
                .is_some_and(|start| Some(start.saturating_add(pair[0].length)) == pair[1].address);
        assert!(
            !follows || pair[1].flags.contains(FiemapFlags::LAST),
            "{pair:#?} are one"
        );
    }
    let lasts: Vec<bool> = map
        .iter()
        .map(|extent| extent.flags.contains(FiemapFlags::LAST))
        .collect();
    assert!(
        lasts
            .iter()
            .rev()
            .enumerate()
            .all(|(place, last)| *last == (place == 0)),
        "{map:#?}"
    );
    let (start, end) = (random.below(SECTORS), random.below(SECTORS + 50));
    let range = FileOffset::new(start * SECTOR + 17)..FileOffset::new(end * SECTOR + 17);
    let part: Vec<FiemapExtent> = writer
        .live()
        .fiemap(file, range)
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    let inside = |sectors: Sectors| -> Sectors {
        sectors
            .into_iter()
            .filter(|(sector, _)| (start..=end).contains(sector) && start <= end)
            .collect()
    };
    assert_eq!(
        inside(sectors_of(&part)),
        inside(expected.clone()),
        "{start} to {end}: {part:#?}"
    );
    let size = writer.contents().size_of(file).unwrap();
    let is_data = |at: u64| {
        let sector = expected.get(&(at / SECTOR));
        sector.is_some_and(|(_, flags)| !flags.contains(FiemapFlags::UNWRITTEN))
    };
    for at in [0, start * SECTOR + 5, end * SECTOR, size.saturating_sub(1), size] {
        let places = || core::iter::once(at).chain((at / SECTOR + 1..).map(|sector| sector * SECTOR));
        let inside = || places().take_while(|place| *place < size);
        let data = inside().find(|place| is_data(*place)).map(FileOffset::new);
        assert_eq!(
            writer.live().seek_data(file, FileOffset::new(at)).unwrap(),
            data,
            "data from {at}: {map:#?}"
        );
        let hole = inside().find(|place| !is_data(*place)).unwrap_or(size);
        let hole = (at < size).then_some(FileOffset::new(hole));
        assert_eq!(
            writer.live().seek_hole(file, FileOffset::new(at)).unwrap(),
            hole,
            "hole from {at}: {map:#?}"
        );
    }
}

struct Changing {
    writer: WritableFilesystem,
    random: Random,
    files: Vec<Location>,
    /// The subvolumes; the first is the top level.
    subvolumes: Vec<SubvolumeId>,
    number: u64,
}

impl Changing {
    fn file(&mut self) -> Location {
        self.files[self.random.below(self.files.len() as u64) as usize]
    }

    fn range(&mut self) -> core::ops::Range<FileOffset> {
        let start = self.random.below(SECTORS);
        let end = start + 1 + self.random.below(SECTORS - start);
        FileOffset::new(start * SECTOR)..FileOffset::new(end * SECTOR)
    }

    fn step(&mut self) {
        let (file, range) = (self.file(), self.range());
        match self.random.below(20) {
            0..6 => {
                let length = 1 + self.random.below(120_000) as usize;
                let compressible = self.random.one_in(2);
                let bytes = self.random.bytes(length, compressible);
                self.writer.write_at(file, range.start, &bytes).unwrap();
            }
            6..9 => {
                // A small overwrite in the middle makes two file extent items of one extent.
                let bytes = self.random.bytes(4096, false);
                self.writer.write_at(file, range.start, &bytes).unwrap();
                self.writer.writeback().write_file(file).unwrap();
            }
            9 | 10 => self
                .writer
                .allocate(file, range, AllocateMode::AllocateKeepSize)
                .unwrap(),
            11 => {
                let size = self.random.below(SECTORS * SECTOR);
                self.writer.truncate(file, ByteCount::new(size)).unwrap();
            }
            12..15 => {
                let target = self.file();
                let size = self.writer.contents().size_of(file).unwrap() / SECTOR * SECTOR;
                let range = range.start..range.end.min(FileOffset::new(size));
                let place = self.range().start;
                if range.start < range.end {
                    let _ = self.writer.clone_range(file, range, target, place);
                }
            }
            15 | 16 => self.writer.writeback().write_all().unwrap(),
            17 => {
                self.number += 1;
                let name = format!("snapshot-{}", self.number);
                let source = self.subvolumes[self.random.below(self.subvolumes.len() as u64) as usize];
                let made = self
                    .writer
                    .subvolumes()
                    .snapshot(source, ROOT, name.as_bytes(), false)
                    .unwrap();
                self.subvolumes.push(made);
                let copies: Vec<Location> = self
                    .files
                    .iter()
                    .filter(|file| file.subvolume == source)
                    .copied()
                    .collect();
                self.files
                    .extend(copies.iter().map(|file| Location::new(made, file.inode)));
            }
            18 if self.subvolumes.len() > 2 => {
                let place = 1 + self.random.below(self.subvolumes.len() as u64 - 1) as usize;
                let gone = self.subvolumes.swap_remove(place);
                self.files.retain(|file| file.subvolume != gone);
                self.writer.subvolumes().delete(gone).unwrap();
                if self.random.one_in(2) {
                    self.writer.subvolumes().drop_deleted(&Progress::new()).unwrap();
                }
            }
            _ => drop(self.writer.commit().unwrap()),
        }
    }
}

fn change(seed: u64, steps: u64, data: DataOptions) {
    let Some(image) = Image::make(&[]) else { return };
    let writer = open_with(&image.path, data);
    let new = NewInode::of_root(0o644);
    let create = |number| {
        writer
            .create(ROOT, format!("file-{number}").as_bytes(), &new)
            .unwrap()
    };
    let files = (0..FILES).map(create).collect();
    let mut changing = Changing {
        writer,
        random: Random::new(seed),
        files,
        subvolumes: vec![SubvolumeId::TOP_LEVEL],
        number: 0,
    };
    for step in 0..steps {
        changing.step();
        let file = changing.file();
        let mut random = Random::new(seed ^ step);
        compare(&changing.writer, file, &mut random);
    }
    changing.writer.commit().unwrap();
    for file in changing.files.clone() {
        let live = map_of(&changing.writer, file);
        let view = changing.writer.view();
        let still = view.open_file(file).unwrap().fiemap(ALL).unwrap();
        assert_eq!(still.collect::<Result<Vec<_>, _>>().unwrap(), live);
    }
}

#[test]
fn maps_of_changing_volume_equal_its_sectors() {
    for seed in buttress_oracle::seeds::seeds("writer::fiemap", "BUTTRESS_SEED", &Vec::from_iter(0..3)) {
        change(seed, 150, DataOptions::default());
    }
}

#[test]
fn maps_of_changing_compressed_volume_equal_its_sectors() {
    let compressed = DataOptions {
        compression: Some(CompressionMethod::new(Compression::Lzo)),
        ..DataOptions::default()
    };
    change(7, 150, compressed);
}

#[test]
fn maps_are_right_beside_edits() {
    let Some(image) = Image::make(&[]) else { return };
    let writer = open_with(&image.path, DataOptions::default());
    let new = NewInode::of_root(0o644);
    let (file, other) = (
        writer.create(ROOT, b"a", &new).unwrap(),
        writer.create(ROOT, b"b", &new).unwrap(),
    );
    for number in 0..300_u64 {
        writer
            .write_at(file, FileOffset::new(number * 2 * SECTOR), &[1; 4096])
            .unwrap();
    }
    writer.writeback().write_all().unwrap();
    let half = FileOffset::MIN..FileOffset::new(300 * SECTOR);
    writer.clone_range(file, half, other, FileOffset::MIN).unwrap();
    let expected = map_of(&writer, file);
    assert_eq!(
        expected
            .iter()
            .filter(|extent| extent.flags.contains(FiemapFlags::SHARED))
            .count(),
        150
    );
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = SetOnDrop::new(&done);
        scope.spawn(|| {
            let mut number = 0_u64;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                number += 1;
                writer
                    .create(ROOT, format!("new-{number}").as_bytes(), &new)
                    .unwrap();
            }
        });
        for _ in 0..20 {
            assert_eq!(map_of(&writer, file), expected);
        }
        drop(over);
    });
}

#[test]
fn a_cancelled_map_ends_and_leaves_nothing() {
    let Some(image) = Image::make(&[]) else { return };
    let writer = open_with(&image.path, DataOptions::default());
    let file = writer.create(ROOT, b"a", &NewInode::of_root(0o644)).unwrap();
    for number in 0..2000_u64 {
        writer
            .write_at(file, FileOffset::new(number * 2 * SECTOR), &[1; 4096])
            .unwrap();
    }
    writer.commit().unwrap();
    let view = writer.view();
    let progress = Progress::new();
    let mut map = view
        .open_file(file)
        .unwrap()
        .fiemap(ALL)
        .unwrap()
        .with_progress(&progress);
    assert!(map.next().unwrap().is_ok());
    progress.cancel();
    let rest: Vec<_> = map.by_ref().collect();
    assert!(
        rest.len() < 1500,
        "{} extents came after it was cancelled",
        rest.len()
    );
    assert!(matches!(rest.last(), Some(Err(Error::Cancelled))));
    assert!(map.next().is_none());
}
