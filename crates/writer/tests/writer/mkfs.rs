//! Compares new volumes with those of mkfs.btrfs, item by item, and checks them by the kernel and
//! `btrfs check`.
//!
//! The comparison needs mkfs.btrfs 6.14 or newer, root for mounting, and a kernel with btrfs. On
//! other machines, each test reports that it was skipped, and why.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "tests compute with known numbers, and a panic is how a test fails"
)]

use anyhow::{Context, Result, bail};
use buttress_device::{Device, Engine, MemoryBackend, OpenOptions as DeviceOptions};
use buttress_format::{
    BlockGroupFlags, ByteCount, ChecksumType, FileOffset, InodeItem, InodeNumber, Key, Profile, RootItem,
    SubvolumeId, Superblock, Timestamp, TreeId, Uuid,
};
use buttress_fs::{Filesystem, Location, OpenOptions};
use buttress_lab::crash::{CrashLab, Outcome};
use buttress_mkfs::{self as mkfs, Feature, Identity, Options};
use buttress_oracle::btrfs_check::btrfs_check;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::needs::{REFERENCE_PROGS, missing};
use buttress_oracle::skip::skips;
use buttress_oracle::tools::{kernel_missing, newest, run};
use buttress_oracle::volumes::scratch;
use buttress_tree::ReadAhead;
use buttress_writer::operations::NewInode;
use buttress_writer::{WritableFilesystem, WriteOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// A volume of the test matrix, for both programs.
#[derive(Clone, Debug)]
struct Case {
    mib: u64,
    devices: usize,
    data: Option<Profile>,
    metadata: Option<Profile>,
    node_bytes: Option<u32>,
    checksum: ChecksumType,
    features: Vec<(Feature, bool)>,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            mib: 512,
            devices: 1,
            data: None,
            metadata: None,
            node_bytes: None,
            checksum: ChecksumType::Crc32c,
            features: Vec::new(),
        }
    }
}

impl Case {
    fn options(&self) -> Options {
        Options {
            label: b"new".to_vec(),
            node_bytes: self.node_bytes,
            checksum: Some(self.checksum),
            data: self.data,
            metadata: self.metadata,
            features: self.features.clone(),
            ..Options::default()
        }
    }

    /// Makes the same volume with mkfs.btrfs, of which older versions do not make a block group
    /// tree by default.
    fn by_progs(&self, images: &[PathBuf]) -> Result<()> {
        let mut command = Command::new(newest("mkfs.btrfs"));
        command.args(["-q", "-f", "-L", "new", "--csum", self.checksum.name()]);
        for (flag, profile) in [("-d", self.data), ("-m", self.metadata)] {
            if let Some(profile) = profile {
                command.args([flag, &profile.name().to_lowercase()]);
            }
        }
        if let Some(bytes) = self.node_bytes {
            command.args(["-n", &bytes.to_string()]);
        }
        let options = self.options();
        for feature in Feature::ALL {
            if feature == Feature::MixedBlockGroups {
                if options.has(feature) {
                    command.arg("-M");
                }
            } else if !matches!(
                feature,
                Feature::Raid56 | Feature::Raid1C34 | Feature::Quotas | Feature::SimpleQuotas
            ) {
                let word = if options.has(feature) { "" } else { "^" };
                command.args(["-O", &format!("{word}{}", feature.name())]);
            }
        }
        run(command.args(images)).map(|_| ())
    }
}

fn matrix() -> Vec<Case> {
    let mut cases = vec![Case::default()];
    for (devices, data, metadata) in [
        (1, Profile::Single, Profile::Single),
        (1, Profile::Dup, Profile::Dup),
        (1, Profile::Raid0, Profile::Raid0),
        (2, Profile::Single, Profile::Raid1),
        (2, Profile::Raid0, Profile::Raid1),
        (2, Profile::Raid1, Profile::Raid1),
        (2, Profile::Raid10, Profile::Raid10),
        (3, Profile::Single, Profile::Raid1),
        (3, Profile::Raid5, Profile::Raid1C3),
        (3, Profile::Raid5, Profile::Raid5),
        (3, Profile::Raid1C3, Profile::Raid0),
        (4, Profile::Raid6, Profile::Raid1C4),
        (4, Profile::Raid6, Profile::Raid6),
        (4, Profile::Raid10, Profile::Raid10),
        (5, Profile::Raid10, Profile::Dup),
        (6, Profile::Raid1C4, Profile::Raid10),
    ] {
        cases.push(Case {
            devices,
            data: Some(data),
            metadata: Some(metadata),
            ..Case::default()
        });
    }
    for node_bytes in [4096, 8192, 32768, 65536] {
        cases.push(Case {
            node_bytes: Some(node_bytes),
            ..Case::default()
        });
    }
    for checksum in [
        ChecksumType::Xxhash64,
        ChecksumType::Sha256,
        ChecksumType::Blake2b,
    ] {
        cases.push(Case {
            checksum,
            ..Case::default()
        });
    }
    for features in [
        vec![(Feature::BlockGroupTree, false)],
        vec![(Feature::FreeSpaceTree, false)],
        vec![(Feature::NoHoles, false)],
        vec![(Feature::SkinnyMetadata, false)],
        vec![(Feature::ExtendedReferences, false)],
        vec![(Feature::MixedBlockGroups, true)],
        vec![
            (Feature::MixedBlockGroups, true),
            (Feature::BlockGroupTree, false),
        ],
    ] {
        cases.push(Case {
            features,
            ..Case::default()
        });
    }
    cases.push(Case {
        devices: 2,
        mib: 1024,
        data: Some(Profile::Raid1),
        metadata: Some(Profile::Raid1),
        features: vec![(Feature::MixedBlockGroups, true)],
        ..Case::default()
    });
    cases
}

fn images(folder: &Path, case: &Case) -> Result<Vec<PathBuf>> {
    (0..case.devices)
        .map(|number| {
            let path = folder.join(format!("device-{number}"));
            File::create(&path)?.set_len(case.mib << 20)?;
            Ok(path)
        })
        .collect()
}

fn open_devices(images: &[PathBuf], write: bool) -> Result<Vec<Device>> {
    let options = DeviceOptions {
        write,
        ..DeviceOptions::default()
    };
    images
        .iter()
        .map(|image| Device::open(image, &options).map_err(Into::into))
        .collect()
}

fn identity(devices: usize) -> Identity {
    Identity {
        fsid: Uuid::from_u128(0x1111),
        chunk_tree: Uuid::from_u128(0x2222),
        top_level: Uuid::from_u128(0x3333),
        devices: (0..devices as u128)
            .map(|number| Uuid::from_u128(0x4444 + number))
            .collect(),
        time: Timestamp {
            seconds: 1_700_000_000,
            nanoseconds: 0,
        },
    }
}

/// Returns uuids that no earlier run used: the kernel remembers the devices of volumes that it has
/// seen.
fn identity_of_its_own(devices: usize) -> Identity {
    let uuid = || -> Uuid {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap();
        text.trim().parse().unwrap()
    };
    Identity {
        fsid: uuid(),
        devices: (0..devices).map(|_| uuid()).collect(),
        ..identity(devices)
    }
}

type Items = BTreeMap<Key, Vec<u8>>;

/// The items of a volume.
struct Contents {
    superblock: Superblock,
    chunk_tree_uuid: Uuid,
    trees: BTreeMap<TreeId, Items>,
}

fn contents(devices: Vec<Device>) -> Result<Contents> {
    contents_of(devices, true)
}

fn contents_of(devices: Vec<Device>, without_notices: bool) -> Result<Contents> {
    let filesystem = OpenOptions::new(devices).open()?;
    let notices = filesystem.notices();
    assert!(!without_notices || notices.is_empty(), "{notices:?}");
    let mut ids = vec![TreeId::ROOT, TreeId::CHUNK];
    let (roots, chunk_tree_uuid) = items(&filesystem, TreeId::ROOT)?;
    let root_items = roots
        .keys()
        .filter(|key| key.item_type == buttress_format::ItemType::ROOT_ITEM);
    ids.extend(root_items.map(|key| TreeId::new(key.objectid.get())));
    let mut trees = BTreeMap::new();
    for id in ids {
        trees.insert(id, items(&filesystem, id)?.0);
    }
    Ok(Contents {
        superblock: (*filesystem.superblock()).clone(),
        chunk_tree_uuid,
        trees,
    })
}

fn items(filesystem: &Filesystem, id: TreeId) -> Result<(Items, Uuid)> {
    let tree = filesystem.tree(id).with_context(|| format!("tree {id}"))?;
    let mut cursor = tree.cursor(ReadAhead::None);
    let mut items = Items::new();
    let mut more = cursor.seek_first()?;
    let uuid = cursor.current_leaf().map(|leaf| leaf.header().chunk_tree_uuid);
    while more {
        let item = cursor.current().context("an item")?;
        items.insert(item.key, item.data.to_vec());
        more = cursor.next()?;
    }
    Ok((items, uuid.unwrap_or_default()))
}

impl Contents {
    /// Returns the uuids and the time with which this volume was made.
    fn identity(&self, devices: &[Device]) -> Result<Identity> {
        let key = RootItem::key(TreeId::FS, 0);
        let sector_bytes = self.superblock.sector_bytes;
        let root = RootItem::parse(&key, &self.trees[&TreeId::ROOT][&key], sector_bytes)?;
        let key = InodeItem::key(InodeNumber::ROOT_DIRECTORY);
        let inode = InodeItem::parse(&key, &self.trees[&TreeId::FS][&key])?;
        let uuid = |device: &Device| -> Result<Uuid> {
            let bytes = device.read(65536, 4096)?;
            Ok(Superblock::check(&bytes, buttress_format::Physical::new(65536))?
                .device_item
                .uuid)
        };
        Ok(Identity {
            fsid: self.superblock.fsid,
            chunk_tree: self.chunk_tree_uuid,
            top_level: root.uuid,
            devices: devices.iter().map(uuid).collect::<Result<_>>()?,
            time: inode.otime,
        })
    }

    /// Returns whether all inodes and subvolumes have one second as their time.
    fn has_one_time(&self) -> Result<bool> {
        let mut seconds = BTreeSet::new();
        for (key, data) in self.trees.values().flatten() {
            if key.item_type == buttress_format::ItemType::INODE_ITEM {
                let inode = InodeItem::parse(key, data)?;
                seconds.extend([inode.atime, inode.ctime, inode.mtime, inode.otime].map(|time| time.seconds));
            } else if key.item_type == buttress_format::ItemType::ROOT_ITEM {
                let root = RootItem::parse(key, data, self.superblock.sector_bytes)?;
                seconds.extend([root.ctime, root.otime].map(|time| time.seconds));
            }
        }
        // Trees without files have no time.
        seconds.remove(&0);
        Ok(seconds.len() == 1)
    }

    /// Removes everything that depends on block addresses: the addresses, and the free space around
    /// them.
    fn without_places(mut self) -> Result<Self> {
        let sector_bytes = self.superblock.sector_bytes;
        for (key, data) in self.trees.get_mut(&TreeId::ROOT).unwrap() {
            if key.item_type == buttress_format::ItemType::ROOT_ITEM {
                let mut item = RootItem::parse(key, data, sector_bytes)?;
                item.logical = buttress_format::Logical::MIN;
                *data = item.to_bytes().to_vec();
            }
        }
        // Of the extent items of tree blocks, the comparison keeps only the number for each tree
        // and generation.
        let extents = self.trees.get_mut(&TreeId::EXTENT).unwrap();
        let mut counted = Items::new();
        let mut count: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        for (key, data) in std::mem::take(extents) {
            if key.item_type == buttress_format::ItemType::BLOCK_GROUP_ITEM {
                counted.insert(key, data);
            } else {
                let info = if key.item_type == buttress_format::ItemType::EXTENT_ITEM {
                    24..42
                } else {
                    0..0
                };
                let mut data = data;
                // The first key of a tree block may have been different when the block was
                // allocated.
                data[info].fill(0);
                *count.entry(data).or_default() += 1;
            }
        }
        for (number, (data, count)) in count.into_iter().enumerate() {
            let key = Key::new(
                buttress_format::ObjectId::new(count),
                buttress_format::ItemType::EXTENT_ITEM,
                number as u64,
            );
            counted.insert(key, data);
        }
        *extents = counted;
        self.trees.remove(&TreeId::FREE_SPACE);
        let none = self.superblock.backup_roots[0];
        self.superblock.backup_roots = [none; 4];
        self.superblock.root = buttress_format::Logical::MIN;
        self.superblock.chunk_root = buttress_format::Logical::MIN;
        self.superblock.checksum = buttress_format::Checksum::of(&[]);
        self.superblock.backup_roots = [zero_backup(); 4];
        Ok(self)
    }
}

fn zero_backup() -> buttress_format::BackupRoot {
    let raw: buttress_format::superblock::RawBackupRoot = zerocopy::FromZeros::new_zeroed();
    buttress_format::BackupRoot::from_raw(&raw)
}

fn compare(case: &Case, theirs: &Contents, ours: &Contents) -> Result<()> {
    let mut differences = Vec::new();
    for id in theirs
        .trees
        .keys()
        .chain(ours.trees.keys())
        .collect::<BTreeSet<_>>()
    {
        let (empty_one, empty_two) = (Items::new(), Items::new());
        let one = theirs.trees.get(id).unwrap_or(&empty_one);
        let two = ours.trees.get(id).unwrap_or(&empty_two);
        for key in one.keys().chain(two.keys()).collect::<BTreeSet<_>>() {
            if one.get(key) != two.get(key) {
                differences.push(format!(
                    "tree {id} {key}:\n  theirs {:?}\n  ours   {:?}",
                    one.get(key),
                    two.get(key)
                ));
            }
        }
    }
    if theirs.superblock != ours.superblock {
        differences.push(format!(
            "superblock:\n  theirs {:?}\n  ours   {:?}",
            theirs.superblock, ours.superblock
        ));
    }
    if !differences.is_empty() {
        bail!("{case:?}:\n{}", differences.join("\n"));
    }
    Ok(())
}

#[test]
fn items_equal_those_of_mkfs_btrfs() {
    if skips(missing(REFERENCE_PROGS)) {
        return;
    }
    for case in matrix() {
        let folder = scratch().unwrap();
        let images = images(folder.path(), &case).unwrap();
        let devices = || open_devices(&images, false).unwrap();
        // mkfs.btrfs reads the clock several times, and a second may end between two of them.
        let made = (0..10).find_map(|_| {
            case.by_progs(&images).unwrap();
            Some(contents(devices()).unwrap()).filter(|theirs| theirs.has_one_time().unwrap())
        });
        let theirs = made.unwrap_or_else(|| panic!("{case:?}: mkfs.btrfs never used one time"));
        let identity = theirs.identity(&devices()).unwrap();
        mkfs::make(&open_devices(&images, true).unwrap(), &case.options(), &identity).unwrap();
        let ours = contents(devices()).unwrap();
        let theirs = theirs.without_places().unwrap();
        compare(&case, &theirs, &ours.without_places().unwrap()).unwrap();
    }
}

#[test]
fn kernel_mounts_and_writes_every_new_volume() {
    if skips(kernel_missing()) {
        return;
    }
    for case in matrix() {
        let folder = scratch().unwrap();
        let images = images(folder.path(), &case).unwrap();
        let identity = identity_of_its_own(case.devices);
        mkfs::make(&open_devices(&images, true).unwrap(), &case.options(), &identity).unwrap();
        check(&case, &images).unwrap();
        use_it(&images).with_context(|| format!("{case:?}")).unwrap();
        check(&case, &images).unwrap();
        let filesystem = OpenOptions::new(open_devices(&images, false).unwrap())
            .open()
            .unwrap();
        assert_eq!(filesystem.superblock().label, b"new");
    }
}

fn check(case: &Case, images: &[PathBuf]) -> Result<()> {
    let text = btrfs_check(images).with_context(|| format!("{case:?}"))?;
    for word in ["ERROR", "error(s) found", "WARNING", "cache and super generation"] {
        if text.contains(word) && !text.contains("no error found") {
            bail!("{case:?}: {text}");
        }
    }
    Ok(())
}

/// Mounts the volume, writes files, and reads them back after another mount.
fn use_it(images: &[PathBuf]) -> Result<()> {
    let bytes: Vec<u8> = (0..3_000_000_u32)
        .map(|number| (number / 7).to_le_bytes()[0])
        .collect();
    let mount = Mount::new(images, "")?;
    std::fs::create_dir(mount.path().join("directory"))?;
    std::fs::write(mount.path().join("directory/file"), &bytes)?;
    for number in 0..500 {
        std::fs::write(mount.path().join(format!("directory/{number}")), b"small")?;
    }
    let mut command = Command::new(newest("btrfs"));
    run(command
        .args(["subvolume", "snapshot"])
        .arg(mount.path())
        .arg(mount.path().join("snapshot")))?;
    mount.close()?;
    let mount = Mount::new(images, "ro")?;
    let found = std::fs::read(mount.path().join("snapshot/directory/file"))?;
    assert!(found == bytes);
    mount.close()
}

#[test]
fn every_profile_is_made_in_memory_and_opens_without_a_notice() {
    for data in Profile::ALL {
        for metadata in Profile::ALL {
            let devices = usize::from(data.min_devices().max(metadata.min_devices()));
            let options = Options {
                data: Some(data),
                metadata: Some(metadata),
                ..Options::default()
            };
            let least = mkfs::least_device_bytes(&options, devices).unwrap();
            let lab: Vec<Device> = (0..devices)
                .map(|_| Device::memory(vec![0xa5; least.to_usize().unwrap()]))
                .collect();
            let made = mkfs::make(&lab, &options, &identity(devices)).unwrap();
            let kinds: Vec<_> = made
                .chunks
                .iter()
                .map(|chunk| (chunk.flags.intersection(BlockGroupFlags::TYPES), chunk.profile()))
                .collect();
            assert!(
                kinds.contains(&(BlockGroupFlags::DATA, data))
                    && kinds.contains(&(BlockGroupFlags::SYSTEM, metadata))
            );
            let found = contents(lab).unwrap();
            assert_eq!(found.superblock.bytes_used, made.superblock.bytes_used);
        }
    }
}

#[test]
fn volume_of_the_named_least_size_holds_a_file() {
    let mut cases = Vec::new();
    for node_bytes in [4096, 16_384, 65_536] {
        for metadata in [Profile::Single, Profile::Dup] {
            cases.push(Options {
                node_bytes: Some(node_bytes),
                metadata: Some(metadata),
                ..Options::default()
            });
        }
    }
    cases.push(Options {
        node_bytes: Some(4096),
        features: vec![(Feature::MixedBlockGroups, true)],
        ..Options::default()
    });
    for options in cases {
        let hard = mkfs::least_device_bytes(&options, 1).unwrap().to_usize().unwrap();
        let small = Device::memory(vec![0; hard - 4096]);
        let refused = mkfs::make(&[small], &options, &identity(1)).unwrap_err();
        let mkfs::Error::TooSmall { least, .. } = refused else {
            panic!("{options:?}: {refused}");
        };
        assert_eq!(least, mkfs::least_device_bytes_for_a_file(&options, 1).unwrap());
        let device = Device::memory(vec![0; least.to_usize().unwrap()]);
        mkfs::make(std::slice::from_ref(&device), &options, &identity(1)).unwrap();
        let volume = OpenOptions::new(vec![device]).open().unwrap();
        let filesystem = WritableFilesystem::new(volume, WriteOptions::default()).unwrap();
        let root = Location::root_of(SubvolumeId::TOP_LEVEL);
        let bytes = buttress_oracle::content::Random::new(3).bytes(100_000, false);
        let written = filesystem
            .create(root, b"file", &NewInode::of_root(0o644))
            .and_then(|file| filesystem.write_at(file, FileOffset::MIN, &bytes))
            .and_then(|()| filesystem.commit());
        written.unwrap_or_else(|error| panic!("{options:?}, {least}: {error}"));
        filesystem.unlink(root, b"file").unwrap();
        filesystem.commit().unwrap();
    }
}

#[test]
fn the_same_input_gives_the_same_bytes_and_other_uuids_others() {
    let make = |identity: &Identity| {
        let device = Device::memory(vec![7; 128 << 20]);
        mkfs::make(std::slice::from_ref(&device), &Options::default(), identity).unwrap();
        device.read(0, 128 << 20).unwrap()
    };
    let (one, two) = (make(&identity(1)), make(&identity(1)));
    assert!(one[..] == two[..]);
    let other = Identity {
        fsid: Uuid::from_u128(9),
        ..identity(1)
    };
    assert!(make(&other)[..] != one[..]);
}

#[test]
fn many_devices_need_trees_of_several_levels() {
    let devices: Vec<Device> = (0..60).map(|_| Device::memory(vec![0; 160 << 20])).collect();
    let options = Options {
        node_bytes: Some(4096),
        data: Some(Profile::Raid0),
        metadata: Some(Profile::Raid1C4),
        ..Options::default()
    };
    let least = mkfs::least_device_bytes(&options, 60).unwrap();
    assert!(least <= ByteCount::new(160 << 20), "{least}");
    let made = mkfs::make(&devices, &options, &identity(60)).unwrap();
    assert!(made.superblock.chunk_root_level > 0);
    let found = contents(devices).unwrap();
    let stripes: usize = made.chunks.iter().map(|chunk| chunk.stripes.len()).sum();
    assert_eq!(found.trees[&TreeId::DEVICE].len(), 60 + stripes);
}

#[test]
fn a_crash_leaves_the_old_volume_none_or_the_new_one() {
    let old = Device::memory(vec![0; 112 << 20]);
    mkfs::make(std::slice::from_ref(&old), &Options::default(), &identity(1)).unwrap();
    let base = MemoryBackend::new("disk", old.read(0, 112 << 20).unwrap().to_vec());
    let lab = CrashLab::new();
    let device = Device::with_backend(lab.device(Arc::new(base)), Engine::Inline);
    let new = Identity {
        fsid: Uuid::from_u128(0x9999),
        ..identity(1)
    };
    mkfs::make(&[device], &Options::default(), &new).unwrap();
    lab.mark(1);
    let history = lab.history();
    let mut seen = BTreeMap::new();
    let seeds = buttress_oracle::seeds::seeds("writer::mkfs", "BUTTRESS_SEED", &Vec::from_iter(0..6));
    for cut in 0..=history.len() {
        for seed in seeds.iter().copied() {
            let image = history.images_at(cut, Outcome::Drawn { seed }).remove(0);
            let device = || Device::with_backend(Arc::clone(&image), Engine::Inline);
            let opens = OpenOptions::new(vec![device()]).open().is_ok();
            let found = opens.then(|| contents_of(vec![device()], false).unwrap().superblock.fsid);
            *seen.entry(found).or_insert(0) += 1;
            let made = history.last_mark(cut).is_some();
            assert!(
                !made || found == Some(new.fsid),
                "cut {cut}, seed {seed}: {found:?}"
            );
        }
    }
    assert_eq!(seen.len(), 3, "the old one, none, the new one: {seen:?}");
}

#[test]
fn contradicting_options_are_refused() {
    let refused = |options: &Options, devices: usize, words: &str| {
        let devices: Vec<Device> = (0..devices).map(|_| Device::memory(vec![0; 16 << 20])).collect();
        let error = mkfs::make(&devices, options, &identity(devices.len())).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    };
    let options = Options::default;
    refused(&options(), 0, "no device");
    refused(&options(), 1, "expected at least 105906176");
    refused(
        &Options {
            data: Some(Profile::Raid6),
            ..options()
        },
        2,
        "RAID6 needs at least 3 devices (found 2)",
    );
    refused(
        &Options {
            node_bytes: Some(5000),
            ..options()
        },
        1,
        "node size (found 5000",
    );
    refused(
        &Options {
            node_bytes: Some(4096),
            sector_bytes: Some(8192),
            ..options()
        },
        1,
        "sector size 8192",
    );
    refused(
        &Options {
            sector_bytes: Some(2048),
            ..options()
        },
        1,
        "sector size (found 2048",
    );
    refused(
        &Options {
            label: vec![b'x'; 256],
            ..options()
        },
        1,
        "256 bytes",
    );
    let mixed = vec![(Feature::MixedBlockGroups, true)];
    refused(
        &Options {
            data: Some(Profile::Dup),
            features: mixed.clone(),
            ..options()
        },
        1,
        "found DUP and single",
    );
    refused(
        &Options {
            node_bytes: Some(16384),
            features: mixed,
            ..options()
        },
        1,
        "mixed block groups need a node size",
    );
    let bare = vec![(Feature::FreeSpaceTree, false), (Feature::BlockGroupTree, true)];
    refused(
        &Options {
            features: bare,
            ..options()
        },
        1,
        "needs free-space-tree",
    );
    refused(
        &Options {
            device_bytes: Some(ByteCount::new(17 << 20)),
            ..options()
        },
        1,
        "expected at least 17825792",
    );
}
