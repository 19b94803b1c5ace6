//! An account by brute force. It walks every subvolume alone, item by item and block by block, and
//! gives each extent and tree block a bit for every subvolume that reaches it. The count makes no
//! use of sharing.

use anyhow::{Context, Result, ensure};
use buttress::accounting::{Occupied, Options};
use buttress::unstable::accounts::Accounts as _;
use buttress::unstable::format::{FileExtent, FileExtentBody, ItemType};
use buttress::unstable::fs::{Filesystem, OpenOptions};
use buttress::{ByteCount, Logical, Progress, ReadAhead, SubvolumeId};
use buttress_device::Device;
use std::collections::HashMap;
use std::path::Path;

/// The reached extents and blocks, each with its size and a bit for each subvolume.
type Reached = HashMap<Logical, (u64, Box<[u64]>)>;

/// The bytes of data and of metadata that a set of subvolumes reaches.
type Bytes = (u64, u64);

struct Counted {
    subvolumes: Vec<SubvolumeId>,
    extents: Reached,
    blocks: Reached,
}

/// Compares the account of `image` with the brute-force count. Returns a description of the
/// comparison.
pub(crate) fn compare(image: &Path) -> Result<String> {
    let device = Device::open(image, &buttress_device::OpenOptions::default())?;
    let filesystem = OpenOptions::new(vec![device]).open()?;
    let accounting = filesystem.account_space(&Options::default(), &Progress::new())?;
    ensure!(accounting.failure_count() == 0, "{:?}", accounting.failures());
    let counted = Counted::of(&filesystem)?;
    for (bit, id) in counted.subvolumes.iter().enumerate() {
        let scope = accounting.subvolumes(&[*id]);
        let alone = counted.mask(|other| other == bit);
        let found = (
            bytes(&accounting.occupied_by(&scope)),
            bytes(&accounting.exclusive_to(&scope)),
        );
        let expected = (
            counted.sum(|owners| intersects(owners, &alone)),
            counted.sum(|owners| *owners == *alone),
        );
        ensure!(
            found == expected,
            "subvolume {id}: reached and exclusive are {expected:?}, the account says {found:?}"
        );
    }
    for step in [2, 3, 7] {
        let chosen = counted.mask(|bit| bit % step == 0);
        let ids: Vec<SubvolumeId> = counted.subvolumes.iter().copied().step_by(step).collect();
        let found = bytes(&accounting.freed_by(&accounting.subvolumes(&ids)));
        let expected = counted.sum(|owners| owners.iter().zip(&chosen).all(|(own, gone)| own & !gone == 0));
        ensure!(
            found == expected,
            "deleting every {step}th frees {expected:?}, the account says {found:?}"
        );
    }
    Ok(format!(
        "{} extents and {} tree blocks of {} subvolumes: as counted by brute force",
        counted.extents.len(),
        counted.blocks.len(),
        counted.subvolumes.len()
    ))
}

fn bytes(occupied: &Occupied) -> Bytes {
    (occupied.data().get(), occupied.metadata.get())
}

fn intersects(owners: &[u64], others: &[u64]) -> bool {
    owners.iter().zip(others).any(|(a, b)| a & b != 0)
}

impl Counted {
    fn of(filesystem: &Filesystem) -> Result<Self> {
        let infos = filesystem.subvolumes()?;
        let mut counted = Self {
            subvolumes: infos.iter().map(|info| info.id).collect(),
            extents: Reached::new(),
            blocks: Reached::new(),
        };
        let words = counted.subvolumes.len().div_ceil(64);
        let node_bytes = u64::from(filesystem.superblock().node_bytes);
        for (bit, info) in infos.iter().enumerate() {
            let reach = |reached: &mut Reached, logical: Logical, bytes: u64| {
                let entry = reached
                    .entry(logical)
                    .or_insert_with(|| (bytes, vec![0; words].into()));
                entry.1[bit / 64] |= 1 << (bit % 64);
            };
            let tree = filesystem.subvolume_tree(info.id)?;
            for visit in tree.blocks(ReadAhead::sweep()) {
                reach(&mut counted.blocks, visit?.pointer.logical, node_bytes);
            }
            for item in tree.range(.., ReadAhead::sweep()) {
                let item = item?;
                let key = item.key();
                if key.item_type != ItemType::EXTENT_DATA {
                    continue;
                }
                let extent = FileExtent::parse(&key, item.data(), filesystem.sector_bytes())?;
                if let FileExtentBody::Regular(slice) | FileExtentBody::Preallocated(slice) = extent.body
                    && slice.disk_bytes != ByteCount::ZERO
                {
                    reach(&mut counted.extents, slice.disk, slice.disk_bytes.get());
                }
            }
        }
        Ok(counted)
    }

    /// Returns the bits of the chosen subvolumes.
    fn mask(&self, is_wanted: impl Fn(usize) -> bool) -> Vec<u64> {
        let mut mask = vec![0; self.subvolumes.len().div_ceil(64)];
        for bit in (0..self.subvolumes.len()).filter(|bit| is_wanted(*bit)) {
            mask[bit / 64] |= 1 << (bit % 64);
        }
        mask
    }

    /// Returns the bytes that are reached by exactly the sets of subvolumes that the caller
    /// accepts.
    fn sum(&self, is_wanted: impl Fn(&[u64]) -> bool) -> Bytes {
        let of = |reached: &Reached| {
            let wanted = reached.values().filter(|(_, owners)| is_wanted(owners));
            wanted.map(|(bytes, _)| bytes).sum()
        };
        (of(&self.extents), of(&self.blocks))
    }
}

/// Compares the output of two programs, word by word.
pub(crate) fn same_words(ours: &[u8], theirs: &[u8]) -> Result<()> {
    let words = |text: &[u8]| -> Result<Vec<String>> {
        let text = String::from_utf8(text.to_vec()).context("output that is no text")?;
        Ok(text.split_whitespace().map(str::to_owned).collect())
    };
    let (ours, theirs) = (words(ours)?, words(theirs)?);
    ensure!(ours == theirs, "ours\n    {ours:?}\ntheirs\n    {theirs:?}");
    Ok(())
}
