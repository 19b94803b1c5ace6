//! Replacements of names of at most four bytes, each with another hash that keeps all keys in order.
//!
//! No other name of at most four bytes has the hash of such a name, so its keys change. Keys lead the
//! walk of every tree, so a changed key must stay in its leaf, in each version of the tree:
//!
//! 1. A first pass over all blocks gathers the short names. A second pass gathers the hashes of their
//!    directories, and the *borders*: the hashes of the first items of leaves. `INODE_EXTREF` items of
//!    an inode are gathered in this way, too.
//! 2. A hash that is no border stays between its neighbouring borders. Its leaf is sorted again.
//! 3. A hash at a border moves up, at most half of the way to the next hash. Other hashes stay above
//!    that half. The keys in parent nodes change with it.
//! 4. No replacement has a hash that the directory had before, or that another replacement has.
//!
//! The choice depends on the inode number of the directory and on the name, so all snapshots, logs and
//! items of a name agree.
//!
//! Memory: some 300 bytes for each short name, and 4 bytes for each entry of a directory with a short
//! name.
//!
//! Left out: a name for which no replacement fits stays. A short name stays, too, if it shares its item
//! with a longer name of the same hash in any tree, or has `INODE_EXTREF` items of too many inodes.

use super::algebra::{NAME_STATE, short_name, steps};
use super::alphabet::Alphabet;
use super::keyed::Keyed;
use buttress_exact::Exact as _;
use buttress_format::{InodeNumber, ItemType, Key, ObjectId, extref_hash};
use buttress_fs::Progress;
use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The length up to which a name has no other name of the same hash.
pub(super) const LENGTH_MAX: usize = 4;

/// The most names that are tried in one alphabet.
const TRIES_MAX: u64 = 1 << 18;

/// The most names of four bytes that are tried. Each try has a hash in the range, and nearly all
/// of them have allowed bytes.
const SOLVED_TRIES_MAX: u64 = 1 << 10;

/// The most inodes that may have an `INODE_EXTREF` of a name. Linux makes names of a directory unique,
/// so more than one inode means versions of the directory.
const EXTREFS_MAX: usize = 64;

/// The items of one kind whose keys share an object: the entries of a directory, or the
/// `INODE_EXTREF` items of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct GroupId {
    object: u64,
    item_type: u8,
}

/// The hashes of a group.
#[derive(Debug, Default)]
struct Group {
    hashes: Vec<u32>,
    /// The length of `hashes` when duplicates were last removed.
    distinct: usize,
    borders: BTreeSet<u32>,
    /// The hashes of replacements.
    taken: BTreeSet<u32>,
}

impl Group {
    fn add(&mut self, hash: u32) {
        self.hashes.push(hash);
        if self.hashes.len() >= self.distinct.exact_mul(2).exact_add(1024) {
            self.settle();
        }
    }

    fn settle(&mut self) {
        self.hashes.sort_unstable();
        self.hashes.dedup();
        self.distinct = self.hashes.len();
    }

    /// Returns the first hash above `hash`, or the end of all hashes.
    fn next(&self, hash: u32) -> u64 {
        let after = self.hashes.partition_point(|other| *other <= hash);
        // Clamp: the last hash of a group has all numbers above it.
        self.hashes.get(after).map_or(1 << 32, |next| u64::from(*next))
    }

    /// Returns the lowest hash that others than the border may have.
    fn above(&self, border: u32) -> u64 {
        let start = u64::from(border);
        let gap = self.next(border).exact_sub(start);
        start.exact_add(gap.quotient(2)).exact_add(1)
    }

    /// Returns the hashes to which a hash may move.
    fn range(&self, hash: u32) -> Range<u64> {
        if self.borders.contains(&hash) {
            return u64::from(hash).exact_add(1)..self.above(hash);
        }
        let below = self.borders.range(..hash).next_back();
        let above = self.borders.range(hash..).next();
        // Clamp: without a border, the range of all hashes has no end.
        let start = below.map_or(0, |border| self.above(*border));
        start..above.map_or(1 << 32, |border| u64::from(*border))
    }

    fn is_free(&self, hash: u32) -> bool {
        self.hashes.binary_search(&hash).is_err() && !self.taken.contains(&hash)
    }
}

/// A name of at most four bytes in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ShortName {
    directory: u64,
    length: u8,
    bytes: [u8; LENGTH_MAX],
}

impl ShortName {
    /// Returns the name, if it is short.
    pub(super) fn new(directory: u64, name: &[u8]) -> Option<Self> {
        let mut bytes = [0; LENGTH_MAX];
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        Some(Self {
            directory,
            length: u8::try_from(name.len()).ok()?,
            bytes,
        })
    }

    /// Returns the initial state of the hash in a group.
    fn state(&self, id: &GroupId) -> u32 {
        let [b0, b1, b2, b3, ..] = self.directory.to_le_bytes();
        match id.item_type == ItemType::DIR_ITEM.0 {
            true => NAME_STATE,
            false => u32::from_le_bytes([b0, b1, b2, b3]),
        }
    }

    fn name(&self) -> &[u8] {
        // Clamp: the length is at most that of the bytes.
        self.bytes.get(..usize::from(self.length)).unwrap_or(&self.bytes)
    }
}

/// The uses of a short name.
#[derive(Debug, Default)]
struct Uses {
    /// The inodes with an `INODE_EXTREF` of this name.
    extrefs: BTreeSet<u64>,
    /// Whether the name shares an item, or the key of an item in another tree, with another name.
    is_shared: bool,
}

/// The short names of a volume, and the hashes between which they lie.
#[derive(Debug, Default)]
pub(super) struct ShortNames {
    groups: HashMap<GroupId, Group>,
    names: BTreeMap<ShortName, Uses>,
}

fn is_hashed(key: &Key) -> bool {
    matches!(key.item_type, ItemType::DIR_ITEM | ItemType::INODE_EXTREF)
}

fn group_of(key: &Key) -> GroupId {
    GroupId {
        object: key.objectid.get(),
        item_type: key.item_type.0,
    }
}

impl ShortNames {
    /// Notes the key of an item, after all names. `is_border` says whether the item is the first of
    /// its leaf. Returns whether the key is in the group of a short name.
    pub(super) fn note_key(&mut self, key: &Key, is_border: bool) -> bool {
        let (true, Ok(hash)) = (is_hashed(key), u32::try_from(key.offset)) else {
            return false;
        };
        let Some(group) = self.groups.get_mut(&group_of(key)) else {
            return false;
        };
        group.add(hash);
        if is_border {
            group.borders.insert(hash);
        }
        true
    }

    /// Notes that an item with this key has a name that is not short, after all names.
    pub(super) fn note_long_name(&mut self, key: &Key, directory: u64) {
        let Ok(hash) = u32::try_from(key.offset) else {
            return;
        };
        for length in 1..=LENGTH_MAX {
            let mut short = ShortName {
                directory,
                // Clamp: a short name has at most four bytes.
                length: u8::try_from(length).unwrap_or(0),
                bytes: [0; LENGTH_MAX],
            };
            let Some(bytes) = short_name(short.state(&group_of(key)), hash, length) else {
                continue;
            };
            short.bytes = bytes;
            if let Some(uses) = self.names.get_mut(&short) {
                uses.is_shared = true;
            }
        }
    }

    /// Notes a short name in the item with this key. `is_alone` says whether the item has no other name.
    pub(super) fn note_name(&mut self, key: &Key, directory: u64, name: &[u8], is_alone: bool) {
        let Some(short) = ShortName::new(directory, name) else {
            return;
        };
        let entries = GroupId {
            object: directory,
            item_type: ItemType::DIR_ITEM.0,
        };
        self.groups.entry(entries).or_default();
        let uses = self.names.entry(short).or_default();
        uses.is_shared |= is_hashed(key) && !is_alone;
        if key.item_type == ItemType::INODE_EXTREF {
            uses.extrefs.insert(key.objectid.get());
            self.groups.entry(group_of(key)).or_default();
        }
    }

    /// Chooses the replacements.
    ///
    /// # Errors
    /// Fails if `progress` is cancelled.
    pub(super) fn solve(mut self, keyed: &Keyed, progress: &Progress) -> buttress_fs::Result<Replacements> {
        self.groups.values_mut().for_each(Group::settle);
        let mut replacements = Replacements::default();
        for (short, uses) in core::mem::take(&mut self.names) {
            progress.check()?;
            let stays = uses.is_shared || uses.extrefs.len() > EXTREFS_MAX;
            let found = match stays || !Alphabet::Any.has_all(short.name()) {
                true => None,
                false => self.replacement(keyed, &short, &uses),
            };
            let Some(new) = found else {
                replacements.kept = replacements.kept.exact_add(1);
                continue;
            };
            let own = self.hashes(&short, &uses);
            let changed = ShortName { bytes: new, ..short };
            for ((id, old), (_, hash)) in own.into_iter().zip(self.hashes(&changed, &uses)) {
                let object = ObjectId::new(id.object);
                let key = Key::new(object, ItemType(id.item_type), u64::from(old));
                replacements.keys.insert(key, u64::from(hash));
                self.groups.entry(id).or_default().taken.insert(hash);
            }
            replacements.names.insert(short, changed);
        }
        Ok(replacements)
    }

    /// Returns the groups of a name, with its hash in each.
    fn hashes(&self, short: &ShortName, uses: &Uses) -> Vec<(GroupId, u32)> {
        let entry = GroupId {
            object: short.directory,
            item_type: ItemType::DIR_ITEM.0,
        };
        let hash = steps(NAME_STATE, short.name());
        let extref = extref_hash(InodeNumber::new(short.directory), short.name());
        let extrefs = uses.extrefs.iter().filter_map(|inode| {
            let id = GroupId {
                object: *inode,
                item_type: ItemType::INODE_EXTREF.0,
            };
            Some((id, u32::try_from(extref).ok()?))
        });
        core::iter::once((entry, hash)).chain(extrefs).collect()
    }

    fn replacement(&self, keyed: &Keyed, short: &ShortName, uses: &Uses) -> Option<[u8; LENGTH_MAX]> {
        let none = Group::default();
        let own = self.hashes(short, uses);
        let place = |(id, hash): &(GroupId, u32)| {
            // Clamp: a group without items has no hashes.
            let group = self.groups.get(id).unwrap_or(&none);
            let range = group.range(*hash);
            let length = range.end.checked_sub(range.start).filter(|length| *length > 0)?;
            Some(Place {
                group,
                range,
                length,
                state: short.state(id),
            })
        };
        let mut places: Vec<Place<'_>> = own.iter().map(place).collect::<Option<_>>()?;
        places.sort_by_key(|place| place.length);
        let narrowest = places.first()?;
        let fits = |bytes: [u8; LENGTH_MAX]| {
            let changed = ShortName { bytes, ..*short };
            changed != *short
                && !is_reserved(changed.name())
                && places.iter().all(|place| place.has_room_for(changed.name()))
        };
        let message = [&short.directory.to_le_bytes()[..], short.name()].concat();
        let start = keyed.number(&message);
        match short.name().len() {
            0 => None,
            LENGTH_MAX => solved(start, LENGTH_MAX, narrowest, SOLVED_TRIES_MAX, fits),
            // Fewer hashes than names: each hash has at most one name.
            length if narrowest.length < names_of(length) => {
                solved(start, length, narrowest, TRIES_MAX, fits)
            }
            length => tried(start, length, fits),
        }
    }
}

/// The hashes to which a name may move in one group.
struct Place<'a> {
    group: &'a Group,
    range: Range<u64>,
    /// The number of hashes in the range, not zero.
    length: u64,
    /// The initial state of hashes in the group.
    state: u32,
}

impl Place<'_> {
    fn has_room_for(&self, name: &[u8]) -> bool {
        let hash = steps(self.state, name);
        self.range.contains(&u64::from(hash)) && self.group.is_free(hash)
    }
}

/// Returns the number of names of a length that are tried at most.
fn names_of(length: usize) -> u64 {
    match length {
        1 => 1 << 8,
        2 => 1 << 16,
        _ => TRIES_MAX,
    }
}

/// Returns whether a name names a directory itself or its parent.
fn is_reserved(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

/// Tries names of up to three bytes, from a random one on.
fn tried(start: u64, length: usize, fits: impl Fn([u8; LENGTH_MAX]) -> bool) -> Option<[u8; LENGTH_MAX]> {
    for alphabet in Alphabet::ALL {
        let bytes = alphabet.bytes();
        let base = bytes.len() as u64;
        let total = base.checked_pow(u32::try_from(length).ok()?)?;
        for number in 0..total.min(TRIES_MAX) {
            let mut rest = start.checked_rem(total)?.exact_add(number).checked_rem(total)?;
            let mut name = [0; LENGTH_MAX];
            for place in name.get_mut(..length)? {
                *place = *bytes.get(usize::try_from(rest.checked_rem(base)?).ok()?)?;
                rest = rest.checked_div(base)?;
            }
            if fits(name) {
                return Some(name);
            }
        }
    }
    None
}

/// Returns the place of a try in a range: a multiple of the golden ratio, so that tries lie far
/// apart. Hashes that lie close have hashes in other groups that lie close, too.
fn spread(number: u64, length: u64) -> Option<u64> {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let share = u128::from(number.wrapping_mul(GOLDEN)).checked_mul(u128::from(length))?;
    u64::try_from(share >> u64::BITS).ok()
}

/// Solves names for hashes of a range, from a random one on: for all hashes if `tries_max` allows it,
/// else for hashes that lie far apart. Prefers printable names.
fn solved(
    start: u64,
    length: usize,
    place: &Place<'_>,
    tries_max: u64,
    fits: impl Fn([u8; LENGTH_MAX]) -> bool,
) -> Option<[u8; LENGTH_MAX]> {
    let mut second = None;
    for number in 0..place.length.min(tries_max) {
        let distance = match place.length <= tries_max {
            true => number,
            false => spread(number, place.length)?,
        };
        let offset = start.checked_rem(place.length)?.exact_add(distance);
        let offset = offset.checked_rem(place.length)?;
        let hash = u32::try_from(place.range.start.checked_add(offset)?).ok()?;
        let Some(name) = short_name(place.state, hash, length) else {
            continue;
        };
        let used = name.get(..length)?;
        let is_printable = Alphabet::Printable.has_all(used);
        let is_allowed = is_printable || (second.is_none() && Alphabet::Any.has_all(used));
        if !is_allowed || !fits(name) {
            continue;
        }
        if is_printable {
            return Some(name);
        }
        second = Some(name);
    }
    second
}

/// The replacements of short names.
#[derive(Debug, Default)]
pub(super) struct Replacements {
    names: HashMap<ShortName, ShortName>,
    keys: HashMap<Key, u64>,
    /// The number of short names that stay.
    pub(super) kept: u64,
}

impl Replacements {
    /// Returns the replacement of a short name, or `None` if the name stays.
    pub(super) fn name(&self, directory: u64, name: &[u8]) -> Option<&[u8]> {
        let short = ShortName::new(directory, name)?;
        self.names.get(&short).map(ShortName::name)
    }

    /// Returns the new key of an item, or `None` if its key stays.
    pub(super) fn key(&self, key: &Key) -> Option<Key> {
        let offset = self.keys.get(key)?;
        Some(Key::new(key.objectid, key.item_type, *offset))
    }
}

#[cfg(test)]
mod tests;
