//! Compares the extents of every file of a volume with the kernel's, and with a count of all
//! references.
//!
//! - [`of_kernel`] and [`of_writer`] create random volumes of extents: snapshots, clones,
//!   compression, preallocation, overwrites, deleted subvolumes;
//! - [`compare`] mounts a volume, and compares `FIEMAP` and `lseek(2)` with the library for each
//!   file.
//!
//! Every flag, length and address of an extent must equal the kernel's. Sharedness must also follow
//! from all items of all trees: an extent is shared if two files use it, or one file at two
//! offsets. If the kernel's sharedness differs from this count, the kernel is wrong, and the file
//! is counted ([`Compared::kernel_differs`]). `docs/fiemap.md` describes the known cases.

pub mod of_kernel;
pub mod of_writer;

use anyhow::{Context, Result, ensure};
use buttress::unstable::accounts::Maps as _;
use buttress::unstable::format::{FileExtent, ItemType, Key};
use buttress::unstable::fs::{Filesystem, OpenOptions};
use buttress::{FiemapExtent, FiemapFlags, FileOffset, Location, Logical, RangeKind, ReadAhead, TreeId};
use buttress_oracle::loop_device::Mount;
use rustix::fs::SeekFrom;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Counts of a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Number of compared files.
    pub files: u64,
    /// Number of the files' extents, as the library reports them.
    pub extents: u64,
    /// Number of these extents that are shared.
    pub shared: u64,
    /// Number of files for which the kernel's sharedness differs from the count of references.
    pub kernel_differs: u64,
}

impl std::ops::AddAssign for Compared {
    fn add_assign(&mut self, other: Self) {
        self.files += other.files;
        self.extents += other.extents;
        self.shared += other.shared;
        self.kernel_differs += other.kernel_differs;
    }
}

/// An extent as both sides report it: offset, address, length, flags.
type Plain = (u64, u64, u64, u32);

/// Users of each extent: tree, inode, and the file offset at which the extent would begin.
type Users = HashMap<Logical, HashSet<(TreeId, u64, u64)>>;

/// Sectors of a file: address, and flags except the one for the last extent.
type Sectors = BTreeMap<u64, (u64, u32)>;

/// Number of empty files per file with content; they give trees several levels.
const FILLERS: u64 = 8;

const SECTOR: u64 = 4096;
const LAST: u32 = 0x1;
const SHARED: u32 = 0x2000;
const ENCODED: u32 = 0x8;

/// Returns a long name, so that a leaf holds few of them.
fn filler_name(number: u64, filler: u64) -> String {
    format!("filler-{number}-{filler:0>80}")
}

/// Compares all files of the unmounted volume on `image`.
pub fn compare(image: &Path) -> Result<Compared> {
    let filesystem = OpenOptions::new(vec![buttress::Device::open(
        image,
        &buttress::DeviceOptions::default(),
    )?])
    .open()?;
    let users = users_of(&filesystem)?;
    // Mount read-only, so that background work of the mount does not change the volume.
    let mount = Mount::new(&[image.to_path_buf()], "ro,noatime")?;
    let mut compared = Compared::default();
    let mut waiting = vec![(
        PathBuf::new(),
        Location::root_of(buttress::SubvolumeId::TOP_LEVEL),
    )];
    while let Some((path, location)) = waiting.pop() {
        for entry in filesystem.read_dir(location)? {
            let entry = entry?;
            let name = std::ffi::OsStr::new(std::str::from_utf8(&entry.name)?);
            let (path, target) = (path.join(name), entry.target);
            if filesystem.metadata(target)?.is_directory() {
                waiting.push((path, target));
            } else {
                let place = mount.path().join(&path);
                let file = compare_file(&filesystem, target, &place, &users);
                compared += file.with_context(|| path.display().to_string())?;
            }
        }
    }
    mount.close()?;
    Ok(compared)
}

/// Reads every item of every subvolume, including the remaining items of a partly dropped
/// subvolume.
fn users_of(filesystem: &Filesystem) -> Result<Users> {
    let mut users = Users::new();
    for subvolume in filesystem.subvolumes()? {
        let tree = filesystem.subvolume_tree(subvolume.id)?;
        let first = if subvolume.is_half_dropped() {
            subvolume.root_item.drop_progress
        } else {
            Key::MIN
        };
        for item in tree.range(first.., ReadAhead::None) {
            let item = item?;
            let key = item.key();
            if key.item_type != ItemType::EXTENT_DATA {
                continue;
            }
            let extent = FileExtent::parse(&key, item.data(), filesystem.sector_bytes())?;
            if let Some(slice) = extent.slice().filter(|slice| !slice.is_hole()) {
                let base = key.offset.wrapping_sub(slice.offset.get());
                let user = (subvolume.id.tree(), key.objectid.get(), base);
                users.entry(slice.disk).or_default().insert(user);
            }
        }
    }
    Ok(users)
}

fn compare_file(
    filesystem: &Filesystem,
    location: Location,
    place: &Path,
    users: &Users,
) -> Result<Compared> {
    let file = filesystem.open_file(location)?;
    let all = FileOffset::MIN..FileOffset::new(u64::MAX);
    let map: Vec<FiemapExtent> = file.fiemap(all)?.collect::<Result<_, _>>()?;
    let ours: Vec<Plain> = map.iter().map(plain).collect();
    let mut theirs = Vec::new();
    for extent in fiemap::fiemap(place)? {
        let extent = extent?;
        theirs.push((
            extent.fe_logical,
            extent.fe_physical,
            extent.fe_length,
            extent.fe_flags.bits(),
        ));
    }
    let (our_sectors, their_sectors) = (sectors_of(&ours)?, sectors_of(&theirs)?);
    let mut kernel_differs = false;
    let counted = shared_sectors(&file, users)?;
    for (sector, (_, flags)) in &our_sectors {
        let expected = counted.contains(sector);
        ensure!(
            (flags & SHARED != 0) == expected,
            "sector {sector} is {}shared by the count of references; map {ours:x?}",
            if expected { "" } else { "not " }
        );
    }
    if ours != theirs {
        // Everything in the two maps except sharedness must be equal.
        let without = |sectors: &Sectors| -> Sectors {
            sectors
                .iter()
                .map(|(at, (address, flags))| (*at, (*address, flags & !SHARED)))
                .collect()
        };
        ensure!(
            our_sectors != their_sectors && without(&our_sectors) == without(&their_sectors),
            "the maps differ: {ours:x?}\nthe kernel's: {theirs:x?}"
        );
        kernel_differs = true;
    }
    compare_seeks(&file, place, &ours)?;
    compare_part(&file, &map)?;
    Ok(Compared {
        files: 1,
        extents: ours.len() as u64,
        shared: ours.iter().filter(|(_, _, _, flags)| flags & SHARED != 0).count() as u64,
        kernel_differs: u64::from(kernel_differs),
    })
}

fn plain(extent: &FiemapExtent) -> Plain {
    let address = extent.address.map_or(0, Logical::get);
    (
        extent.offset.get(),
        address,
        extent.length.get(),
        extent.flags.bits(),
    )
}

fn sectors_of(map: &[Plain]) -> Result<Sectors> {
    let mut sectors = Sectors::new();
    for (offset, address, length, flags) in map {
        for skipped in (0..*length).step_by(SECTOR as usize) {
            let moves = *address != 0 && flags & ENCODED == 0;
            let address = if moves { address + skipped } else { *address };
            let sector = (offset + skipped) / SECTOR;
            let before = sectors.insert(sector, (address, flags & !LAST));
            ensure!(before.is_none(), "sector {sector} comes twice: {map:x?}");
        }
    }
    Ok(sectors)
}

/// Returns the sectors of a file in extents with at least two users.
fn shared_sectors(file: &buttress::unstable::fs::File, users: &Users) -> Result<HashSet<u64>> {
    let mut shared = HashSet::new();
    for range in file.extents()? {
        let range = range?;
        let (RangeKind::Data(extent) | RangeKind::Preallocated(extent)) = &range.kind else {
            continue;
        };
        let count = users.get(&extent.logical).map_or(0, HashSet::len);
        ensure!(count > 0, "nobody was seen to use {}", extent.logical);
        if count > 1 {
            shared.extend(range.offset.get() / SECTOR..range.end().get() / SECTOR);
        }
    }
    Ok(shared)
}

/// Asserts that the extent map of a part of a file equals this part of the whole map.
fn compare_part(file: &buttress::unstable::fs::File, map: &[FiemapExtent]) -> Result<()> {
    let Some(middle) = map.get(map.len() / 2) else {
        return Ok(());
    };
    let inside = middle
        .offset
        .saturating_add(buttress::ByteCount::new(middle.length.get() / 2));
    let part: Vec<FiemapExtent> = file
        .fiemap(inside..FileOffset::new(u64::MAX))?
        .collect::<Result<_, _>>()?;
    let first = inside.get() / SECTOR;
    let behind = |map: &[FiemapExtent]| -> Result<Sectors> {
        let mut sectors = sectors_of(&map.iter().map(plain).collect::<Vec<_>>())?;
        let mut behind = sectors.split_off(&first);
        // The kernel may by chance merge encoded extents, if an extent's address plus file length
        // gives the next address. The extent map of a part that begins with the second extent has
        // the second extent's address, as in the kernel.
        for (address, _) in behind.values_mut().filter(|(_, flags)| flags & ENCODED != 0) {
            *address = 0;
        }
        Ok(behind)
    };
    ensure!(
        behind(&part)? == behind(map)?,
        "from {inside}: {part:x?}, of {map:x?}"
    );
    ensure!(part.last().map(|last| last.flags) == map.last().map(|last| last.flags));
    ensure!(
        part.last()
            .is_none_or(|last| last.flags.contains(FiemapFlags::LAST))
    );
    Ok(())
}

/// Compares seeks from every boundary of the map, and from the adjacent bytes.
fn compare_seeks(file: &buttress::unstable::fs::File, place: &Path, map: &[Plain]) -> Result<()> {
    let opened = File::open(place)?;
    let size = file.size().get();
    let boundaries = map
        .iter()
        .flat_map(|(offset, _, length, _)| [*offset, offset + length]);
    for boundary in boundaries.chain([0, size]) {
        for at in [boundary.saturating_sub(1), boundary, boundary + 1] {
            let answer = |result: rustix::io::Result<u64>| match result {
                Ok(offset) => Ok(Some(offset)),
                Err(rustix::io::Errno::NXIO) => Ok(None),
                Err(error) => Err(error),
            };
            let data = answer(rustix::fs::seek(&opened, SeekFrom::Data(at)))?;
            let hole = answer(rustix::fs::seek(&opened, SeekFrom::Hole(at)))?;
            let offset = FileOffset::new(at);
            let ours = (
                file.seek_data(offset)?.map(FileOffset::get),
                file.seek_hole(offset)?.map(FileOffset::get),
            );
            ensure!(
                ours == (data, hole),
                "data and hole from {at} are at {ours:?}, for the kernel at {:?}; size {size}, {map:x?}",
                (data, hole)
            );
        }
    }
    Ok(())
}
