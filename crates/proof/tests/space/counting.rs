//! Verification of the account by a count without any notion of sharing: it walks every subvolume
//! separately, item by item, and adds each reached extent and block to sets.

use anyhow::{Context, Result, ensure};
use buttress::accounting::{Accounting, Occupied, Options, Parts, Share};
use buttress::unstable::accounts::Accounts as _;
use buttress::unstable::format::{FileExtent, FileExtentBody, ItemType};
use buttress::unstable::fs::Filesystem;
use buttress::{
    FileKind, InodeNumber, Location, Logical, Progress, ReadAhead, SubvolumeId, TreeId, WalkItem, WalkOptions,
};
use buttress_oracle::content::Random;
use std::collections::{BTreeMap, BTreeSet};

/// A file of a subvolume.
type File = (SubvolumeId, InodeNumber);

/// Result of the independent count.
#[derive(Default)]
pub struct Counted {
    /// Data extents: their size on disk, and the files that refer to them.
    extents: BTreeMap<Logical, (u64, BTreeSet<File>)>,
    /// Tree blocks, and the subvolumes that reach them.
    blocks: BTreeMap<Logical, BTreeSet<SubvolumeId>>,
    /// Total length of all items with content, by file.
    logical: BTreeMap<File, u64>,
    node_bytes: u64,
}

/// Walks all subvolumes.
pub fn count(filesystem: &Filesystem) -> Result<Counted> {
    let mut counted = Counted {
        node_bytes: filesystem.superblock().node_bytes.into(),
        ..Counted::default()
    };
    for info in filesystem.subvolumes()? {
        let tree = filesystem.subvolume_tree(info.id)?;
        for visit in tree.blocks(ReadAhead::None) {
            let logical = visit?.pointer.logical;
            counted.blocks.entry(logical).or_default().insert(info.id);
        }
        let mut symlinks = BTreeSet::new();
        for item in tree.range(.., ReadAhead::None) {
            let item = item?;
            let key = item.key();
            let inode = InodeNumber::new(key.objectid.get());
            if key.item_type == ItemType::INODE_ITEM {
                let metadata = filesystem.metadata(Location::new(info.id, inode))?;
                if metadata.kind == FileKind::Symlink {
                    symlinks.insert(inode);
                }
            }
            if key.item_type != ItemType::EXTENT_DATA || symlinks.contains(&inode) {
                continue;
            }
            let extent = FileExtent::parse(&key, item.data(), filesystem.sector_bytes())?;
            let bytes = match extent.body {
                FileExtentBody::Inline(_) => extent.ram_bytes.get(),
                FileExtentBody::Regular(slice) | FileExtentBody::Preallocated(slice) => {
                    if slice.is_hole() {
                        continue;
                    }
                    let entry = counted.extents.entry(slice.disk).or_default();
                    entry.0 = slice.disk_bytes.get();
                    entry.1.insert((info.id, inode));
                    slice.num_bytes.get()
                }
            };
            *counted.logical.entry((info.id, inode)).or_default() += bytes;
        }
    }
    Ok(counted)
}

/// Data and metadata in bytes.
type Bytes = (u64, u64);

fn bytes(occupied: &Occupied) -> Bytes {
    (occupied.data().get(), occupied.metadata.get())
}

impl Counted {
    fn subvolumes_of(files: &BTreeSet<File>) -> BTreeSet<SubvolumeId> {
        files.iter().map(|(subvolume, _)| *subvolume).collect()
    }

    /// Sums the extents and blocks whose set of subvolumes satisfies `is_wanted`.
    pub fn sum(&self, is_wanted: impl Fn(&BTreeSet<SubvolumeId>) -> bool) -> Bytes {
        let data = self.extents.values();
        let data = data.filter(|(_, files)| is_wanted(&Self::subvolumes_of(files)));
        let metadata = self.blocks.values().filter(|owners| is_wanted(owners)).count();
        let metadata = u64::try_from(metadata).unwrap_or(u64::MAX) * self.node_bytes;
        (data.map(|(disk, _)| disk).sum(), metadata)
    }

    fn groups(&self) -> BTreeMap<BTreeSet<SubvolumeId>, Bytes> {
        let mut groups: BTreeMap<BTreeSet<SubvolumeId>, Bytes> = BTreeMap::new();
        for (disk, files) in self.extents.values() {
            groups.entry(Self::subvolumes_of(files)).or_default().0 += disk;
        }
        for owners in self.blocks.values() {
            groups.entry(owners.clone()).or_default().1 += self.node_bytes;
        }
        groups
    }

    /// Returns the files that use each of some extents.
    pub fn users(&self) -> impl Iterator<Item = (Logical, &BTreeSet<File>)> {
        self.extents.iter().map(|(logical, (_, files))| (*logical, files))
    }
}

/// Compares the account of a volume with all values of the count: with default memory, and with
/// very little memory, which needs many passes.
pub fn compare(filesystem: &Filesystem, seed: u64) -> Result<Accounting> {
    let counted = count(filesystem)?;
    let small = Options {
        extents_max: 37,
        leaves_max: 5,
        ..Options::default()
    };
    let progress = Progress::new();
    let accounting = filesystem.account_space(&Options::default(), &progress)?;
    let in_passes = filesystem.account_space(&small, &progress)?;
    for account in [&accounting, &in_passes] {
        ensure!(account.failure_count() == 0, "{:?}", account.failures());
        expect_groups(account, &counted)?;
        expect_subvolumes(filesystem, account, &counted)?;
    }
    expect_deletions(filesystem, &accounting, &counted, seed)?;
    expect_directories(filesystem, &counted, seed)?;
    expect_users(filesystem, &counted, seed)?;
    expect_totals(filesystem, &accounting)?;
    Ok(accounting)
}

fn expect_groups(accounting: &Accounting, counted: &Counted) -> Result<()> {
    let mut found: BTreeMap<BTreeSet<SubvolumeId>, Bytes> = BTreeMap::new();
    let (groups, rest) = accounting.groups(usize::MAX);
    ensure!(rest == Occupied::default(), "{rest:?} is in no group");
    for group in groups {
        let owners = group.owners.iter().map(|owner| {
            let owner = accounting.owners().get(usize::try_from(*owner)?);
            Ok(owner.context("an owner that is listed")?.subvolume())
        });
        let owners: Vec<Option<SubvolumeId>> = owners.collect::<Result<_>>()?;
        // The root tree owns everything that no subvolume owns.
        if owners.iter().all(Option::is_none) {
            continue;
        }
        let sum = found.entry(owners.into_iter().flatten().collect()).or_default();
        let (data, metadata) = bytes(&group.occupied);
        *sum = (sum.0 + data, sum.1 + metadata);
    }
    let expected = counted.groups();
    for (owners, sum) in &expected {
        let other = found.get(owners);
        ensure!(
            other == Some(sum),
            "{owners:?} have {sum:?}, the account says {other:?}"
        );
    }
    let more: Vec<_> = found
        .keys()
        .filter(|owners| !expected.contains_key(*owners))
        .collect();
    ensure!(more.is_empty(), "the account has {more:?}");
    Ok(())
}

fn expect_subvolumes(filesystem: &Filesystem, accounting: &Accounting, counted: &Counted) -> Result<()> {
    for info in filesystem.subvolumes()? {
        let scope = accounting.subvolumes(&[info.id]);
        let reached = counted.sum(|owners| owners.contains(&info.id));
        let exclusive = counted.sum(|owners| owners.iter().all(|owner| *owner == info.id));
        let found = (
            bytes(&accounting.occupied_by(&scope)),
            bytes(&accounting.exclusive_to(&scope)),
        );
        ensure!(
            found == (reached, exclusive),
            "subvolume {}: {:?} counted, the account says {found:?}",
            info.id,
            (reached, exclusive)
        );
        let logical = counted
            .logical
            .iter()
            .filter(|((subvolume, _), _)| *subvolume == info.id);
        let logical: u64 = logical.map(|(_, bytes)| bytes).sum();
        let found = accounting.files_of(&scope).logical().get();
        ensure!(
            found == logical,
            "subvolume {}: {logical} bytes in files, the account says {found}",
            info.id
        );
    }
    Ok(())
}

/// Compares the space that deletions would free, for random sets of subvolumes.
fn expect_deletions(
    filesystem: &Filesystem,
    accounting: &Accounting,
    counted: &Counted,
    seed: u64,
) -> Result<()> {
    let all = filesystem.subvolumes()?;
    let deleted: BTreeSet<SubvolumeId> = all
        .iter()
        .filter(|info| info.is_deleted())
        .map(|info| info.id)
        .collect();
    let mut random = Random::new(seed);
    for _ in 0..32 {
        let chosen: Vec<SubvolumeId> = all
            .iter()
            .map(|info| info.id)
            .filter(|_| random.one_in(2))
            .collect();
        let is_gone = |owner: &SubvolumeId| deleted.contains(owner) || chosen.contains(owner);
        let expected = counted
            .sum(|owners| owners.iter().all(is_gone) && !owners.iter().all(|owner| deleted.contains(owner)));
        let found = bytes(&accounting.freed_by(&accounting.subvolumes(&chosen)));
        ensure!(
            found == expected,
            "deleting {chosen:?} frees {expected:?}, the account says {found:?}"
        );
    }
    Ok(())
}

/// Returns the files below a directory, without nested subvolumes.
fn files_below(filesystem: &Filesystem, directory: Location) -> Result<BTreeSet<File>> {
    let options = WalkOptions {
        one_file_system: true,
        ..WalkOptions::without_content()
    };
    let mut files = BTreeSet::new();
    for item in filesystem.walk(directory, options) {
        match item {
            WalkItem::Entry(entry) if entry.location().subvolume == directory.subvolume => {
                files.insert((directory.subvolume, entry.location().inode));
            }
            WalkItem::Failed(error) => return Err(error.into()),
            _ => {}
        }
    }
    Ok(files)
}

/// Compares random directories: as a whole, and entry by entry.
fn expect_directories(filesystem: &Filesystem, counted: &Counted, seed: u64) -> Result<()> {
    let mut directories = Vec::new();
    for info in filesystem.subvolumes()? {
        if info.is_deleted() {
            continue;
        }
        for item in filesystem.walk(Location::root_of(info.id), WalkOptions::without_content()) {
            if let WalkItem::Entry(entry) = item
                && entry.metadata().kind == FileKind::Directory
                && entry.location().inode >= InodeNumber::ROOT_DIRECTORY
            {
                directories.push(entry.location());
            }
        }
    }
    let mut random = Random::new(seed ^ 0xd1);
    for _ in 0..6 {
        let choice = usize::try_from(random.below(u64::try_from(directories.len())?))?;
        let directory = *directories.get(choice).context("a directory")?;
        let mut entries: Vec<InodeNumber> = Vec::new();
        for entry in filesystem.read_dir(directory)? {
            let target = entry?.target;
            // A placeholder for a nested subvolume in a snapshot has no inode.
            let is_inode = target.inode >= InodeNumber::ROOT_DIRECTORY;
            if is_inode && target.subvolume == directory.subvolume && !entries.contains(&target.inode) {
                entries.push(target.inode);
            }
        }
        expect_parts(filesystem, counted, directory, &entries)
            .with_context(|| format!("the entries of {directory}"))?;
    }
    Ok(())
}

fn expect_parts(
    filesystem: &Filesystem,
    counted: &Counted,
    directory: Location,
    entries: &[InodeNumber],
) -> Result<()> {
    let progress = Progress::new();
    let parts = Parts::of_entries(filesystem, directory, entries.iter().copied().zip(0..), &progress)?;
    let options = Options {
        parts: Some(parts),
        ..Options::default()
    };
    let accounting = filesystem.account_space(&options, &progress)?;
    // The value `alone` counts the `files` of which no other part has a name.
    let expect =
        |files: &BTreeSet<File>, alone: &BTreeSet<File>, is_wanted: &dyn Fn(Share) -> bool| -> Result<()> {
            let scope = accounting
                .scope(|owner| owner.subvolume() == Some(directory.subvolume) && is_wanted(owner.share));
            let any = |users: &BTreeSet<File>| users.intersection(files).next().is_some();
            let sum = |is_wanted: &dyn Fn(&BTreeSet<File>) -> bool| -> u64 {
                let extents = counted.extents.values();
                extents
                    .filter(|(_, users)| is_wanted(users))
                    .map(|(disk, _)| disk)
                    .sum()
            };
            let logical = counted.logical.iter().filter(|(file, _)| files.contains(*file));
            let expected = (
                sum(&any),
                sum(&|users| users.is_subset(alone)),
                logical.map(|(_, bytes)| *bytes).sum::<u64>(),
            );
            let found = (
                accounting.occupied_by(&scope).data().get(),
                accounting.exclusive_to(&scope).data().get(),
                accounting.files_of(&scope).logical().get(),
            );
            ensure!(
                found == expected,
                "on disk, exclusive, logical: {expected:?}, the account says {found:?}"
            );
            Ok(())
        };
    let locations = entries
        .iter()
        .map(|entry| Location::new(directory.subvolume, *entry));
    let below = locations
        .map(|location| Ok((location, files_below(filesystem, location)?)))
        .collect::<Result<Vec<_>>>()?;
    for ((location, files), part) in below.iter().zip(0..) {
        let others = below.iter().filter(|(other, _)| other != location);
        let others: BTreeSet<File> = others.flat_map(|(_, files)| files).copied().collect();
        let alone = files.difference(&others).copied().collect();
        expect(files, &alone, &|share| share == Share::Part(part))
            .with_context(|| format!("entry {location}"))?;
    }
    let whole = below.iter().flat_map(|(_, files)| files).copied().collect();
    expect(&whole, &whole, &|share| matches!(share, Share::Part(_))).context("all together")
}

/// Compares the files that use extents, found by the extent tree.
fn expect_users(filesystem: &Filesystem, counted: &Counted, seed: u64) -> Result<()> {
    let mut random = Random::new(seed ^ 0xbac);
    for (logical, users) in counted.users() {
        if !random.one_in(7) {
            continue;
        }
        let found = filesystem.data_references(logical, true)?;
        ensure!(found.failures.is_empty(), "{logical}: {:?}", found.failures);
        let found: BTreeSet<File> = found
            .iter()
            .map(|place| (place.location.subvolume, place.location.inode))
            .collect();
        ensure!(
            found == *users,
            "extent {logical} is used by {users:?}, back references say {found:?}"
        );
    }
    Ok(())
}

/// Asserts that all owners together have exactly the used bytes of the block groups.
pub fn expect_totals(filesystem: &Filesystem, accounting: &Accounting) -> Result<()> {
    let all = accounting.all();
    let mut others = 0_u64;
    let mut trees = vec![TreeId::CHUNK];
    for item in filesystem.root_tree().range(.., ReadAhead::None) {
        let key = item?.key();
        let tree = TreeId::new(key.objectid.get());
        if key.item_type == ItemType::ROOT_ITEM && !tree.holds_files() {
            trees.push(tree);
        }
    }
    let node_bytes = u64::from(filesystem.superblock().node_bytes);
    for tree in trees {
        for visit in filesystem.tree(tree)?.blocks(ReadAhead::None) {
            visit?;
            others += node_bytes;
        }
    }
    let found = all.data().get() + all.metadata.get() + others;
    let space = filesystem.space()?;
    let used: u64 = space.groups.iter().map(|group| group.used.get()).sum();
    ensure!(
        found == used,
        "{used} bytes are used in block groups; {} of data, {} and {others} of metadata are accounted for",
        all.data(),
        all.metadata
    );
    Ok(())
}
