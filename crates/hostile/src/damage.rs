//! Damage of whole volumes as accidents make it: lost blocks, lost trees, another mkfs, cut power.
//!
//! A [`Subject`] is a sound volume. [`Subject::draw`] makes a [`Damage`] of one [`Kind`] from random
//! numbers of the caller, so a seed reproduces it. [`Subject::damaged`] returns the volume with any
//! number of damages. A damage concerns all copies of a block, because a sound copy hides it.
//!
//! Invariants:
//! - A damage depends on the sound volume only, never on damages before it. The order of damages
//!   therefore decides only which one wins at a place.
//! - Plants come first, because a plant edits items of a volume that opens.
//!
//! Left out: damage of the devices of a volume of several devices, which redundancy answers.

use crate::editor::Editor;
use crate::mutation::{Aims, Place};
use crate::plants;
use crate::seed_volume::{BLOCK_BYTES, SeedDevice};
use buttress_format::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, SubvolumeId, TreeId};
use std::collections::BTreeSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A plant that Linux must not read: its compressed extent has no length on disk.
const NOT_FOR_LINUX: &str = "file-extent-lengths-zero";

/// The unit of [`Kind::Megabyte`].
const MEGABYTE: u64 = 1 << 20;

/// A tree, or all trees of one purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// The root tree.
    Root,
    /// The chunk tree.
    Chunk,
    /// The extent tree.
    Extent,
    /// The device tree.
    Device,
    /// The top level.
    TopLevel,
    /// All other subvolumes.
    Subvolume,
    /// The checksum tree.
    Checksum,
    /// The free-space tree.
    FreeSpace,
}

impl Family {
    /// All families.
    pub const ALL: [Self; 8] = [
        Self::Root,
        Self::Chunk,
        Self::Extent,
        Self::Device,
        Self::TopLevel,
        Self::Subvolume,
        Self::Checksum,
        Self::FreeSpace,
    ];

    /// Returns the family of a tree.
    #[must_use]
    pub fn of(tree: TreeId) -> Option<Self> {
        match tree {
            TreeId::ROOT => Some(Self::Root),
            TreeId::CHUNK => Some(Self::Chunk),
            TreeId::EXTENT => Some(Self::Extent),
            TreeId::DEVICE => Some(Self::Device),
            TreeId::CHECKSUM => Some(Self::Checksum),
            TreeId::FREE_SPACE => Some(Self::FreeSpace),
            _ => tree.as_subvolume().map(|subvolume| match subvolume {
                SubvolumeId::TOP_LEVEL => Self::TopLevel,
                _ => Self::Subvolume,
            }),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Root => "root tree",
            Self::Chunk => "chunk tree",
            Self::Extent => "extent tree",
            Self::Device => "device tree",
            Self::TopLevel => "top level",
            Self::Subvolume => "subvolume",
            Self::Checksum => "checksum tree",
            Self::FreeSpace => "free-space tree",
        }
    }
}

/// The lost part of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// A leaf.
    Leaf,
    /// A node: a block above the leaves.
    Node,
    /// All blocks.
    All,
}

/// The kind of a damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A random one of the [plants] for this volume.
    Plant,
    /// Zeros in place of blocks of a tree.
    Lost(Family, Part),
    /// Zeros in place of the primary superblock.
    PrimarySuperblock,
    /// Zeros in place of all superblocks.
    AllSuperblocks,
    /// Zeros in place of a megabyte that is in use.
    Megabyte,
    /// Another mkfs ran over the volume.
    SecondFormat,
    /// The power failed, and the device had kept some writes of the last commit in its cache although
    /// it had confirmed their flush.
    PowerCut,
    /// The device wrote a tree block to the place of another one.
    Misdirected,
}

impl Kind {
    /// Returns all kinds.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let lost = Family::ALL
            .into_iter()
            .flat_map(|family| [Part::Leaf, Part::Node, Part::All].map(|part| Self::Lost(family, part)));
        let others = [
            Self::PrimarySuperblock,
            Self::AllSuperblocks,
            Self::Megabyte,
            Self::SecondFormat,
            Self::PowerCut,
            Self::Misdirected,
        ];
        core::iter::once(Self::Plant).chain(lost).chain(others).collect()
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plant => f.write_str("planted damage"),
            Self::Lost(family, Part::Leaf) => write!(f, "{}: a leaf is lost", family.name()),
            Self::Lost(family, Part::Node) => write!(f, "{}: a node is lost", family.name()),
            Self::Lost(family, Part::All) => write!(f, "{}: all blocks are lost", family.name()),
            Self::PrimarySuperblock => f.write_str("the primary superblock is lost"),
            Self::AllSuperblocks => f.write_str("all superblocks are lost"),
            Self::Megabyte => f.write_str("a megabyte is zeroed"),
            Self::SecondFormat => f.write_str("mkfs ran over the volume"),
            Self::PowerCut => f.write_str("power cut without flushes"),
            Self::Misdirected => f.write_str("misdirected write"),
        }
    }
}

/// A single damage.
#[derive(Clone, Debug)]
pub struct Damage {
    /// The kind.
    pub kind: Kind,
    /// A description with numbers.
    pub what: String,
    change: Change,
}

#[derive(Clone, Debug)]
enum Change {
    /// The name of a plant.
    Plant(&'static str),
    /// Bytes by device and offset.
    Writes(Vec<(usize, u64, Vec<u8>)>),
}

/// A sound volume, and what accidents need to know of it.
#[derive(Clone, Debug)]
pub struct Subject<'a> {
    /// The volume.
    pub aims: &'a Aims,
    /// The first device as the commit before the last one left it.
    pub before: Option<&'a SeedDevice>,
    /// A device of the same size on which another mkfs ran.
    pub formatted: Option<&'a SeedDevice>,
}

impl Subject<'_> {
    /// Draws a damage of a kind; `None` if the volume has no place for it. `below` returns a random
    /// number below its argument.
    pub fn draw(&self, kind: Kind, below: &mut dyn FnMut(u64) -> u64) -> Option<Damage> {
        let (what, change) = match kind {
            Kind::Plant => self.plant(below)?,
            Kind::Lost(family, part) => self.lost(family, part, below)?,
            Kind::PrimarySuperblock => self.superblocks(1),
            Kind::AllSuperblocks => self.superblocks(SUPERBLOCK_OFFSETS.len()),
            Kind::Megabyte => self.megabyte(below)?,
            Kind::SecondFormat => self.second_format()?,
            Kind::PowerCut => self.power_cut(below)?,
            Kind::Misdirected => self.misdirected(below)?,
        };
        Some(Damage { kind, what, change })
    }

    /// Returns the volume with damages. A plant without a place after the plants before it changes
    /// nothing.
    #[must_use]
    pub fn damaged(&self, damages: &[Damage]) -> Editor {
        let mut editor = Editor::new(self.aims);
        for damage in damages {
            if let Change::Plant(name) = damage.change {
                let planted = catch_unwind(AssertUnwindSafe(|| {
                    let mut changed = editor.clone();
                    (plants::named(name).change)(&mut changed);
                    changed
                }));
                editor = planted.unwrap_or(editor);
            }
        }
        for damage in damages {
            if let Change::Writes(writes) = &damage.change {
                for (device, offset, bytes) in writes {
                    editor.write_raw(*device, *offset, bytes);
                }
            }
        }
        editor
    }

    fn plant(&self, below: &mut dyn FnMut(u64) -> u64) -> Option<(String, Change)> {
        let name = &self.aims.volume.name;
        // Names of volumes are words with hyphens.
        let is_for = |plant: &plants::Plant| name.split('-').any(|word| word == plant.volume);
        let is_damage = |plant: &plants::Plant| !plant.codes.is_empty() && plant.name != NOT_FOR_LINUX;
        let fits = |plant: &plants::Plant| is_damage(plant) && is_for(plant);
        let plants: Vec<_> = plants::all().into_iter().filter(fits).collect();
        let plant = pick(&plants, below)?;
        Some((plant.what.to_owned(), Change::Plant(plant.name)))
    }

    /// Returns the tree blocks of a family and a part.
    fn places(&self, family: Family, part: Part) -> Vec<&Place> {
        let is_wanted = |place: &&Place| {
            let is_in_part = match part {
                Part::Leaf => place.level == 0,
                Part::Node => place.level > 0,
                Part::All => true,
            };
            is_in_part && self.owner(place).and_then(Family::of) == Some(family)
        };
        self.aims.places.iter().filter(is_wanted).collect()
    }

    /// Returns the tree in the header of a block.
    fn owner(&self, place: &Place) -> Option<TreeId> {
        let block = self.aims.read(place);
        let owner = block.get(88..)?.first_chunk()?;
        Some(TreeId::new(u64::from_le_bytes(*owner)))
    }

    fn lost(
        &self,
        family: Family,
        part: Part,
        below: &mut dyn FnMut(u64) -> u64,
    ) -> Option<(String, Change)> {
        let places = self.places(family, part);
        let lost = match part {
            Part::All => places,
            Part::Leaf | Part::Node => vec![*pick(&places, below)?],
        };
        let first = lost.first()?.logical;
        let zeros = vec![0; self.aims.node_bytes];
        let writes = lost.iter().flat_map(|place| copies(place, &zeros)).collect();
        let what = format!("{} blocks of the {} from {first} on", lost.len(), family.name());
        Some((what, Change::Writes(writes)))
    }

    fn superblocks(&self, count: usize) -> (String, Change) {
        let lost = SUPERBLOCK_OFFSETS.iter().take(count).map(|at| at.get());
        let lost: BTreeSet<u64> = lost.collect();
        let places = self.aims.superblocks.iter().filter(|(_, at)| lost.contains(at));
        let writes: Vec<_> = places
            .map(|(device, at)| (*device, *at, vec![0; SUPERBLOCK_BYTES]))
            .collect();
        (format!("{} superblocks", writes.len()), Change::Writes(writes))
    }

    /// Returns the first device, and the sorted numbers of its blocks that are not zero.
    fn blocks(&self) -> Option<(&Arc<SeedDevice>, Vec<u64>)> {
        let device = self.aims.volume.devices.first()?;
        let mut blocks: Vec<u64> = device.blocks.keys().copied().collect();
        blocks.sort_unstable();
        Some((device, blocks))
    }

    fn megabyte(&self, below: &mut dyn FnMut(u64) -> u64) -> Option<(String, Change)> {
        let (device, blocks) = self.blocks()?;
        let start = pick(&blocks, below)? * BLOCK_BYTES as u64 / MEGABYTE * MEGABYTE;
        let length = usize::try_from(MEGABYTE.min(device.size_bytes - start)).ok()?;
        let writes = vec![(0, start, vec![0; length])];
        Some((format!("the megabyte at {start}"), Change::Writes(writes)))
    }

    /// Copies the blocks that the other mkfs wrote. It also zeroes the places of superblocks that it
    /// does not use.
    fn second_format(&self) -> Option<(String, Change)> {
        let formatted = self.formatted?;
        let (_, change) = self.superblocks(SUPERBLOCK_OFFSETS.len());
        let Change::Writes(mut writes) = change else {
            return None;
        };
        let blocks = formatted.blocks.iter();
        writes.extend(blocks.map(|(number, block)| (0, number * BLOCK_BYTES as u64, block.to_vec())));
        Some((
            format!("{} blocks of another mkfs", formatted.blocks.len()),
            Change::Writes(writes),
        ))
    }

    /// Returns blocks of the last commit to their content before it, except superblocks.
    fn power_cut(&self, below: &mut dyn FnMut(u64) -> u64) -> Option<(String, Change)> {
        let before = self.before?;
        let (device, blocks) = self.blocks()?;
        let of_superblocks = SUPERBLOCK_OFFSETS.map(|at| at.get() / BLOCK_BYTES as u64);
        let is_changed = |number: &u64| {
            before.blocks.get(number) != device.blocks.get(number) && !of_superblocks.contains(number)
        };
        let changed: Vec<u64> = blocks.into_iter().filter(is_changed).collect();
        // Between one and seven of eight blocks are not on the device.
        let share = 1 + below(7);
        let unit = self.aims.node_bytes / BLOCK_BYTES;
        let units: BTreeSet<u64> = changed.iter().map(|number| number / unit.max(1) as u64).collect();
        let missing: BTreeSet<u64> = units.into_iter().filter(|_| below(8) < share).collect();
        let is_missing = |number: &&u64| missing.contains(&(*number / unit.max(1) as u64));
        let writes: Vec<_> = changed
            .iter()
            .filter(is_missing)
            .map(|number| {
                let at = number * BLOCK_BYTES as u64;
                (0, at, before.read(at, BLOCK_BYTES))
            })
            .collect();
        let what = format!("{} of {} written blocks", writes.len(), changed.len());
        (!writes.is_empty()).then_some((what, Change::Writes(writes)))
    }

    /// Writes a tree block over another one. Its own place keeps the content before the last commit,
    /// or zeros.
    fn misdirected(&self, below: &mut dyn FnMut(u64) -> u64) -> Option<(String, Change)> {
        let places: Vec<&Place> = self.aims.places.iter().collect();
        let (moved, hit) = (*pick(&places, below)?, *pick(&places, below)?);
        if moved.logical == hit.logical {
            return None;
        }
        let length = self.aims.node_bytes;
        let mut writes = copies(hit, &self.aims.read(moved));
        for (device, at) in &moved.copies {
            let old = self.before.filter(|_| *device == 0);
            let old = old.map_or_else(|| vec![0; length], |before| before.read(*at, length));
            writes.push((*device, *at, old));
        }
        let what = format!("the block {} is at the place of {}", moved.logical, hit.logical);
        Some((what, Change::Writes(writes)))
    }
}

/// Returns writes of bytes to all copies of a block.
fn copies(place: &Place, bytes: &[u8]) -> Vec<(usize, u64, Vec<u8>)> {
    let copies = place.copies.iter();
    copies
        .map(|(device, at)| (*device, *at, bytes.to_vec()))
        .collect()
}

fn pick<'a, T>(list: &'a [T], below: &mut dyn FnMut(u64) -> u64) -> Option<&'a T> {
    if list.is_empty() {
        return None;
    }
    list.get(usize::try_from(below(list.len() as u64)).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use buttress_oracle::content::Random;

    fn subject() -> Subject<'static> {
        let aims = crate::seeds::volumes().iter();
        Subject {
            aims: aims
                .clone()
                .find(|aims| aims.volume.name.contains("kinds"))
                .unwrap(),
            before: None,
            formatted: None,
        }
    }

    fn bytes(editor: &Editor) -> Vec<Vec<u8>> {
        let devices = editor.devices().iter();
        devices.map(|device| device.read(0, 16 << 20)).collect()
    }

    #[test]
    fn seed_reproduces_each_damage_which_changes_the_volume() {
        let subject = subject();
        let sound = bytes(&subject.damaged(&[]));
        let mut drawn = 0;
        for kind in Kind::all() {
            let draw = || {
                let mut random = Random::new(7);
                subject.draw(kind, &mut |end| random.below(end))
            };
            let (Some(first), Some(second)) = (draw(), draw()) else {
                continue;
            };
            drawn += 1;
            assert_eq!(first.what, second.what);
            let damaged = bytes(&subject.damaged(&[first]));
            assert!(damaged != sound, "{kind}: {}", second.what);
            assert!(damaged == bytes(&subject.damaged(&[second])), "{kind}");
        }
        assert!(drawn > 15, "{drawn} kinds");
    }

    #[test]
    fn power_cut_takes_blocks_back_but_no_superblock() {
        let subject = subject();
        let before = SeedDevice {
            size_bytes: subject.aims.volume.devices[0].size_bytes,
            blocks: std::collections::HashMap::new(),
        };
        let cut = Subject {
            before: Some(&before),
            ..subject.clone()
        };
        let mut random = Random::new(1);
        let damage = cut.draw(Kind::PowerCut, &mut |end| random.below(end)).unwrap();
        let editor = cut.damaged(&[damage]);
        let device = &editor.devices()[0];
        let sound = &subject.aims.volume.devices[0];
        let superblock = SUPERBLOCK_OFFSETS[0].get();
        assert_eq!(device.read(superblock, 4096), sound.read(superblock, 4096));
        let is_zero = |number: &u64| device.read(number * 4096, 4096).iter().all(|byte| *byte == 0);
        let lost = sound.blocks.keys().filter(|number| is_zero(number)).count();
        assert!(lost > 0 && lost < sound.blocks.len(), "{lost} blocks");
    }
}
