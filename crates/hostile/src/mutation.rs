//! Changes to a seed volume that keep all checksums correct.
//!
//! An input names a volume and a list of changes. A change replaces bytes of tree blocks, headers,
//! keys, items, superblocks or any block, leads a pointer to another block, or puts a block in the
//! place of another. A change applies to every copy of a tree block, because a sound copy would
//! replace a bad one. Changed blocks get a correct checksum, so that only the checks after the
//! checksum can refuse them.

use crate::blocks::{mend_checksum, mend_superblock};
use crate::input::Input;
use crate::seed_volume::{BLOCK_BYTES, Overlay, SeedVolume};
use buttress_format::{ChecksumType, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const HEADER_BYTES: usize = 101;
const ITEM_BYTES: usize = 25;
const POINTER_BYTES: usize = 33;
const ROOT_ITEM: u8 = 132;
/// The largest number of changes of an input; more changes show nothing new.
const CHANGES_MAX: usize = 64;

/// A tree block that is reachable from the superblock, and the places of its copies.
#[derive(Clone, Debug)]
pub struct Place {
    /// The block's address.
    pub logical: u64,
    /// The block's level.
    pub level: u8,
    /// The number of items or pointers in the block.
    pub item_count: usize,
    /// The device index and offset of each copy.
    pub copies: Vec<(usize, u64)>,
}

/// The parts of a volume that changes apply to.
#[derive(Debug)]
pub struct Aims {
    /// The volume.
    pub volume: SeedVolume,
    /// The volume's checksum type.
    pub checksum_type: ChecksumType,
    /// The size of the volume's tree blocks.
    pub node_bytes: usize,
    /// The volume's reachable tree blocks, by address.
    pub places: Vec<Place>,
    /// The device index and offset of each superblock.
    pub superblocks: Vec<(usize, u64)>,
}

fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
    bytes[at..at + length]
        .iter()
        .rev()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

impl Aims {
    /// Finds the places of changes in a volume.
    #[must_use]
    pub fn new(volume: SeedVolume) -> Self {
        let superblock = volume.devices[0].read(SUPERBLOCK_OFFSETS[0].get(), SUPERBLOCK_BYTES);
        let node_bytes = number(&superblock, 0x94, 4) as usize;
        let checksum_type = u16::try_from(number(&superblock, 0xc4, 2))
            .ok()
            .and_then(ChecksumType::from_raw);
        let mut superblocks = Vec::new();
        for (index, device) in volume.devices.iter().enumerate() {
            for offset in SUPERBLOCK_OFFSETS.map(|offset| offset.get()) {
                if device.blocks.contains_key(&(offset / BLOCK_BYTES as u64)) {
                    superblocks.push((index, offset));
                }
            }
        }
        let mut aims = Self {
            volume,
            checksum_type: checksum_type.unwrap_or(ChecksumType::Crc32c),
            node_bytes,
            places: Vec::new(),
            superblocks,
        };
        let found = aims.scan(&superblock[0x20..0x30]);
        let roots = [0x50, 0x58, 0x60].map(|at| number(&superblock, at, 8));
        aims.places = aims.reachable(&found, &roots);
        aims
    }

    /// Finds the places of changes in a volume's log alone.
    #[must_use]
    pub fn of_log(volume: SeedVolume) -> Self {
        let mut aims = Self::new(volume);
        let superblock = aims.volume.devices[0].read(SUPERBLOCK_OFFSETS[0].get(), SUPERBLOCK_BYTES);
        let found = aims.scan(&superblock[0x20..0x30]);
        aims.places = aims.reachable(&found, &[number(&superblock, 0x60, 8)]);
        aims.superblocks.clear();
        aims
    }

    /// Finds every block with the volume's uuid and a correct checksum: the newest at each address.
    fn scan(&self, fsid: &[u8]) -> BTreeMap<u64, Place> {
        let mut found: BTreeMap<u64, (u64, Place)> = BTreeMap::new();
        for (index, device) in self.volume.devices.iter().enumerate() {
            let superblocks = SUPERBLOCK_OFFSETS.map(|offset| offset.get() / BLOCK_BYTES as u64);
            for block in device.blocks.keys().filter(|block| !superblocks.contains(block)) {
                let physical = block * BLOCK_BYTES as u64;
                let bytes = device.read(physical, self.node_bytes);
                if &bytes[32..48] != fsid || !self.is_sound(&bytes) {
                    continue;
                }
                let (logical, generation) = (number(&bytes, 48, 8), number(&bytes, 80, 8));
                let place = Place {
                    logical,
                    level: bytes[100],
                    item_count: number(&bytes, 96, 4) as usize,
                    copies: vec![(index, physical)],
                };
                match found.get_mut(&logical) {
                    Some((known, place)) if *known == generation => place.copies.push((index, physical)),
                    Some((known, _)) if *known > generation => {}
                    _ => {
                        found.insert(logical, (generation, place));
                    }
                }
            }
        }
        found
            .into_iter()
            .map(|(logical, (_, place))| (logical, place))
            .collect()
    }

    fn is_sound(&self, block: &[u8]) -> bool {
        let checksum = self.checksum_type.compute(&block[32..]);
        block.starts_with(checksum.as_bytes())
    }

    /// Returns the blocks that are reachable from the roots through pointers and root items.
    fn reachable(&self, found: &BTreeMap<u64, Place>, roots: &[u64]) -> Vec<Place> {
        let mut seen = BTreeSet::new();
        let mut open = roots.to_vec();
        while let Some(logical) = open.pop() {
            let Some(place) = found.get(&logical) else {
                continue;
            };
            if !seen.insert(logical) {
                continue;
            }
            let bytes = self.read(place);
            for slot in 0..place.item_count {
                if place.level > 0 {
                    let at = HEADER_BYTES + slot * POINTER_BYTES;
                    open.push(number(&bytes, at + 17, 8));
                } else {
                    let (key_type, data) = item(&bytes, slot);
                    if key_type == ROOT_ITEM && data.len() >= 239 {
                        open.push(number(data, 176, 8));
                    }
                }
            }
        }
        seen.iter()
            .filter_map(|logical| found.get(logical).cloned())
            .collect()
    }

    /// Returns the first copy of a block.
    #[must_use]
    pub fn read(&self, place: &Place) -> Vec<u8> {
        let (device, physical) = place.copies[0];
        self.volume.devices[device].read(physical, self.node_bytes)
    }
}

/// Returns type and data of an item in a sound leaf.
fn item(leaf: &[u8], slot: usize) -> (u8, &[u8]) {
    let head = &leaf[HEADER_BYTES + slot * ITEM_BYTES..][..ITEM_BYTES];
    let offset = HEADER_BYTES + number(head, 17, 4) as usize;
    (head[8], &leaf[offset..offset + number(head, 21, 4) as usize])
}

/// A volume with its changes.
struct Changed<'a> {
    aims: &'a Aims,
    devices: Vec<Overlay>,
    touched: BTreeSet<usize>,
    touched_superblocks: BTreeSet<usize>,
}

/// Applies the changes that `input` describes, and repairs the checksums.
#[must_use]
pub fn apply(aims: &Aims, input: &mut Input<'_>) -> Vec<Overlay> {
    let devices = aims
        .volume
        .devices
        .iter()
        .enumerate()
        .map(|(index, device)| Overlay::new(format!("{}-{index}", aims.volume.name), Arc::clone(device)));
    let mut changed = Changed {
        aims,
        devices: devices.collect(),
        touched: BTreeSet::new(),
        touched_superblocks: BTreeSet::new(),
    };
    for _ in 0..CHANGES_MAX {
        if input.is_empty() {
            break;
        }
        changed.change(input);
    }
    changed.mend();
    changed.devices
}

impl Changed<'_> {
    fn change(&mut self, input: &mut Input<'_>) {
        let node_bytes = self.aims.node_bytes;
        match input.byte() % 8 {
            0 => {
                let (place, at) = (self.place(input), usize::from(input.u16()) % node_bytes);
                self.put(place, at, bytes(input));
            }
            1 => {
                let index = usize::from(input.byte()) % self.aims.superblocks.len().max(1);
                let at = u64::from(input.u16()) % SUPERBLOCK_BYTES as u64;
                let bytes = bytes(input);
                // A copy of the superblock serves only if the first superblock fails, so all
                // superblocks of a device change.
                for (other, &(device, physical)) in self.aims.superblocks.iter().enumerate() {
                    if device == self.aims.superblocks[index].0 {
                        self.devices[device].write(physical + at, bytes);
                        self.touched_superblocks.insert(other);
                    }
                }
            }
            2 => {
                let (place, slot) = (self.place(input), usize::from(input.byte()));
                let at = usize::from(input.u16());
                let found = &self.aims.places[place];
                if found.level == 0 && found.item_count > 0 {
                    let head = HEADER_BYTES + slot % found.item_count * ITEM_BYTES;
                    let leaf = self.aims.read(found);
                    let (offset, size) = (number(&leaf, head + 17, 4), number(&leaf, head + 21, 4));
                    let inside = at.checked_rem(size as usize).unwrap_or(0);
                    self.put(place, HEADER_BYTES + offset as usize + inside, bytes(input));
                }
            }
            3 => {
                let (place, slot) = (self.place(input), usize::from(input.byte()));
                let inside = usize::from(input.byte());
                let found = &self.aims.places[place];
                let unit = if found.level == 0 {
                    ITEM_BYTES
                } else {
                    POINTER_BYTES
                };
                let head = HEADER_BYTES + slot.checked_rem(found.item_count).unwrap_or(0) * unit;
                self.put(place, head + inside % unit, bytes(input));
            }
            4 => self.lead_elsewhere(input),
            5 => self.put_in_place_of(input),
            // If the changes are limited to some tree blocks, other blocks of a device stay
            // unchanged.
            6 if !self.aims.superblocks.is_empty() => self.change_any_block(input),
            _ => {
                let (place, at) = (
                    self.place(input),
                    32 + usize::from(input.byte()) % (HEADER_BYTES - 32),
                );
                self.put(place, at, bytes(input));
            }
        }
    }

    fn place(&self, input: &mut Input<'_>) -> usize {
        usize::from(input.u16()) % self.aims.places.len().max(1)
    }

    fn put(&mut self, place: usize, at: usize, bytes: &[u8]) {
        let Some(found) = self.aims.places.get(place) else {
            return;
        };
        let bytes = &bytes[..bytes.len().min(self.aims.node_bytes.saturating_sub(at))];
        for &(device, physical) in &found.copies {
            self.devices[device].write(physical + at as u64, bytes);
        }
        self.touched.insert(place);
    }

    /// Points a node's pointer, or the root in a root item, to another block, possibly to its own.
    fn lead_elsewhere(&mut self, input: &mut Input<'_>) {
        let (place, slot) = (self.place(input), usize::from(input.byte()));
        let target = self.place(input);
        let Some(found) = self.aims.places.get(place).filter(|found| found.item_count > 0) else {
            return;
        };
        let block = self.aims.read(found);
        let slot = slot % found.item_count;
        let at = if found.level > 0 {
            HEADER_BYTES + slot * POINTER_BYTES + 17
        } else {
            let head = HEADER_BYTES + slot * ITEM_BYTES;
            if block[head + 8] != ROOT_ITEM {
                return;
            }
            HEADER_BYTES + number(&block, head + 17, 4) as usize + 176
        };
        let logical = self.aims.places[target].logical;
        self.put(place, at, &logical.to_le_bytes());
        if found.level > 0 && input.byte() & 1 == 0 {
            let generation = self.aims.read(&self.aims.places[target])[80..88].to_vec();
            self.put(place, at + 8, &generation);
        }
    }

    /// Puts the content of one block under the address of another.
    fn put_in_place_of(&mut self, input: &mut Input<'_>) {
        let (from, to) = (self.place(input), self.place(input));
        let (Some(source), Some(target)) = (self.aims.places.get(from), self.aims.places.get(to)) else {
            return;
        };
        let mut block = self.aims.read(source);
        block[48..56].copy_from_slice(&target.logical.to_le_bytes());
        if input.byte() & 1 == 0 {
            // The moved block gets the generation that its pointer expects.
            block[80..88].copy_from_slice(&self.aims.read(target)[80..88]);
        }
        self.put(to, 0, &block);
    }

    fn change_any_block(&mut self, input: &mut Input<'_>) {
        let device = usize::from(input.byte()) % self.devices.len();
        let below = &self.aims.volume.devices[device];
        let mut numbers: Vec<_> = below.blocks.keys().copied().collect();
        numbers.sort_unstable();
        let number = numbers[usize::from(input.u16()) % numbers.len()];
        let at = number * BLOCK_BYTES as u64 + u64::from(input.u16()) % BLOCK_BYTES as u64;
        self.devices[device].write(at, bytes(input));
    }

    fn mend(&mut self) {
        for &place in &self.touched {
            for &(device, physical) in &self.aims.places[place].copies {
                let mut block = self.devices[device].read(physical, self.aims.node_bytes);
                mend_checksum(&mut block, self.aims.checksum_type);
                self.devices[device].write(physical, &block);
            }
        }
        for &index in &self.touched_superblocks {
            let (device, physical) = self.aims.superblocks[index];
            let mut block = self.devices[device].read(physical, SUPERBLOCK_BYTES);
            mend_superblock(&mut block, physical);
            self.devices[device].write(physical, &block);
        }
    }
}

/// Draws a replacement of one to eight bytes from the input.
fn bytes<'a>(input: &mut Input<'a>) -> &'a [u8] {
    let length = 1 + usize::from(input.byte() % 8);
    input.bytes(length)
}
