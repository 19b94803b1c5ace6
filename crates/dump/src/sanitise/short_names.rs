//! Replacements of names of at most four bytes, each with another hash that keeps all keys in order.
//!
//! No other name of at most four bytes has the hash of such a name, so its keys change. Keys lead the
//! walk of every tree, so a changed key must stay in its leaf, in each version of the tree:
//!
//! 1. A first pass over all blocks gathers the hashes of each directory, and its *borders*: the hashes
//!    of the first items of leaves. `INODE_EXTREF` items of an inode are gathered in this way, too.
//! 2. A hash that is no border stays between its neighbouring borders. Its leaf is sorted again.
//! 3. A hash at a border moves up, at most half of the way to the next hash. Other hashes stay above
//!    that half. The keys in parent nodes change with it.
//! 4. No replacement has a hash that the directory had before, or that another replacement has.
//!
//! The choice depends on the inode number of the directory and on the name, so all snapshots, logs and
//! items of a name agree.
//!
//! Memory: 4 bytes for each directory entry, and some 100 bytes for each short name.
//!
//! Left out: a name for which no replacement fits stays. A short name that shares its item with a
//! longer name of the same hash stays, too.

use super::algebra::{NAME_STATE, last_bytes, steps, unshifted};
use super::alphabet::Alphabet;
use super::keyed::Keyed;
use buttress_exact::Exact as _;
use buttress_format::{InodeNumber, ItemType, Key, ObjectId, extref_hash};
use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The length up to which a name has no other name of the same hash.
pub(super) const LENGTH_MAX: usize = 4;

/// The most names that are tried in one alphabet.
const TRIES_MAX: u64 = 1 << 18;

/// The most names of four bytes that are tried. Each try has a hash in the range, and nearly all
/// of them have allowed bytes.
const SOLVED_TRIES_MAX: u64 = 1 << 10;

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
    /// Whether the name shares an item with another name.
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
    /// Notes the key of an item. `is_border` says whether the item is the first of its leaf.
    pub(super) fn note_key(&mut self, key: &Key, is_border: bool) {
        let (true, Ok(hash)) = (is_hashed(key), u32::try_from(key.offset)) else {
            return;
        };
        let group = self.groups.entry(group_of(key)).or_default();
        group.add(hash);
        if is_border {
            group.borders.insert(hash);
        }
    }

    /// Notes a name in the item with this key. `is_alone` says whether the item has no other name.
    pub(super) fn note_name(&mut self, key: &Key, directory: u64, name: &[u8], is_alone: bool) {
        let Some(short) = ShortName::new(directory, name) else {
            return;
        };
        let uses = self.names.entry(short).or_default();
        uses.is_shared |= is_hashed(key) && !is_alone;
        if key.item_type == ItemType::INODE_EXTREF {
            uses.extrefs.insert(key.objectid.get());
        }
    }

    /// Chooses the replacements.
    pub(super) fn solve(mut self, keyed: &Keyed) -> Replacements {
        self.groups.values_mut().for_each(Group::settle);
        let mut replacements = Replacements::default();
        for (short, uses) in core::mem::take(&mut self.names) {
            let found = match uses.is_shared || !Alphabet::Any.has_all(short.name()) {
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
        replacements
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
        // Clamp: an item that the survey did not see has no neighbours.
        let group = |id: &GroupId| self.groups.get(id).unwrap_or(&none);
        let own = self.hashes(short, uses);
        let ranges: Vec<Range<u64>> = own.iter().map(|(id, hash)| group(id).range(*hash)).collect();
        let fits = |bytes: [u8; LENGTH_MAX]| {
            let changed = ShortName { bytes, ..*short };
            let hashes = self.hashes(&changed, uses);
            let mut places = hashes.iter().zip(&ranges);
            changed != *short
                && !is_reserved(changed.name())
                && places
                    .all(|((id, hash), range)| range.contains(&u64::from(*hash)) && group(id).is_free(*hash))
        };
        let message = [&short.directory.to_le_bytes()[..], short.name()].concat();
        let start = keyed.number(&message);
        match short.name().len() {
            0 => None,
            LENGTH_MAX => {
                let places = own.iter().map(|(id, _)| short.state(id)).zip(&ranges);
                let (state, range) = places.min_by_key(|(_, range)| range.end.checked_sub(range.start))?;
                solved(start, state, range, fits)
            }
            length => tried(start, length, fits),
        }
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

/// Solves names of four bytes for hashes of a range, from a random one on. Prefers printable names.
fn solved(
    start: u64,
    state: u32,
    range: &Range<u64>,
    fits: impl Fn([u8; LENGTH_MAX]) -> bool,
) -> Option<[u8; LENGTH_MAX]> {
    let length = range.end.checked_sub(range.start)?;
    let mut second = None;
    for number in 0..length.min(SOLVED_TRIES_MAX) {
        let offset = start.checked_rem(length)?.exact_add(spread(number, length)?);
        let offset = offset.checked_rem(length)?;
        let hash = u32::try_from(range.start.checked_add(offset)?).ok()?;
        let name = last_bytes(state, unshifted(hash));
        let is_allowed =
            Alphabet::Any.has_all(&name) && (second.is_none() || Alphabet::Printable.has_all(&name));
        if !is_allowed || !fits(name) {
            continue;
        }
        if Alphabet::Printable.has_all(&name) {
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
mod tests {
    use super::super::keyed::SECRET_BYTES;
    use super::*;
    use buttress_format::name_hash;

    const DIRECTORY: u64 = 300;

    fn key(name: &[u8]) -> Key {
        Key::new(ObjectId::new(DIRECTORY), ItemType::DIR_ITEM, name_hash(name))
    }

    /// Notes names in leaves of `leaf_items` entries, and returns the names in order of their keys.
    fn noted(names: &[Vec<u8>], leaf_items: usize) -> (ShortNames, Vec<Vec<u8>>) {
        let mut noted = ShortNames::default();
        let mut ordered = names.to_vec();
        ordered.sort_by_key(|name| name_hash(name));
        for (number, name) in ordered.iter().enumerate() {
            noted.note_key(&key(name), number % leaf_items == 0);
            noted.note_name(&key(name), DIRECTORY, name, true);
        }
        (noted, ordered)
    }

    /// Requires that all names change, and that each leaf has the hashes between its own first hash and
    /// that of the next leaf.
    fn requires_order(names: &[Vec<u8>], leaf_items: usize, kept: u64) {
        let (noted, ordered) = noted(names, leaf_items);
        let found = noted.solve(&Keyed::new(&[5; SECRET_BYTES]));
        assert_eq!(found.kept, kept);
        let changed: Vec<u64> = ordered
            .iter()
            .map(|name| {
                let new = found.name(DIRECTORY, name);
                assert!(new.is_none_or(|new| new != name && new.len() == name.len()));
                let hash = name_hash(new.unwrap_or(name));
                assert_eq!(
                    found.key(&key(name)).map_or(name_hash(name), |key| key.offset),
                    hash
                );
                hash
            })
            .collect();
        for leaf in changed.chunks(leaf_items) {
            assert!(
                leaf.iter().skip(1).all(|hash| *hash > leaf[0]),
                "the first item stays first"
            );
        }
        for pair in changed.chunks(leaf_items).collect::<Vec<_>>().windows(2) {
            assert!(pair[0].iter().all(|hash| *hash < pair[1][0]), "leaves stay apart");
        }
    }

    #[test]
    fn names_of_each_length_change_within_their_leaves() {
        for length in 2..=4_usize {
            let names: Vec<Vec<u8>> = (0..600_u32)
                .map(|number| {
                    let digits = [number % 26, number / 26 % 26, number % 7, number % 5];
                    digits[..length].iter().map(|digit| b'a' + *digit as u8).collect()
                })
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect();
            requires_order(&names, 40, 0);
        }
    }

    #[test]
    fn letters_of_a_small_directory_all_change() {
        let names: Vec<Vec<u8>> = (b'a'..=b'z').map(|letter| vec![letter]).collect();
        requires_order(&names, 1000, 0);
    }

    #[test]
    fn name_without_a_place_stays_and_counts() {
        // Each letter is the first item of a leaf and its neighbours are close.
        let mut noted = ShortNames::default();
        let hash = name_hash(b"a");
        for offset in [hash, hash + 1] {
            noted.note_key(
                &Key::new(ObjectId::new(DIRECTORY), ItemType::DIR_ITEM, offset),
                true,
            );
        }
        noted.note_name(&key(b"a"), DIRECTORY, b"a", true);
        let found = noted.solve(&Keyed::new(&[5; SECRET_BYTES]));
        assert_eq!((found.kept, found.name(DIRECTORY, b"a")), (1, None));
    }

    #[test]
    fn extrefs_of_a_name_move_with_it() {
        let mut noted = ShortNames::default();
        let parent = InodeNumber::new(DIRECTORY);
        let extref = Key::new(
            ObjectId::new(400),
            ItemType::INODE_EXTREF,
            extref_hash(parent, b"ab"),
        );
        noted.note_key(&key(b"ab"), false);
        noted.note_key(&extref, false);
        noted.note_name(&key(b"ab"), DIRECTORY, b"ab", true);
        noted.note_name(&extref, DIRECTORY, b"ab", true);
        let found = noted.solve(&Keyed::new(&[5; SECRET_BYTES]));
        let new = found.name(DIRECTORY, b"ab").unwrap();
        assert_eq!(found.key(&key(b"ab")).unwrap().offset, name_hash(new));
        assert_eq!(found.key(&extref).unwrap().offset, extref_hash(parent, new));
    }

    #[test]
    fn four_bytes_fit_between_borders_of_two_groups() {
        let mut noted = ShortNames::default();
        let parent = InodeNumber::new(DIRECTORY);
        let extref = |name: &[u8]| {
            let hash = extref_hash(parent, name);
            Key::new(ObjectId::new(400), ItemType::INODE_EXTREF, hash)
        };
        let names: Vec<String> = (1000..2000).map(|number| number.to_string()).collect();
        for (number, name) in names.iter().enumerate() {
            let name = name.as_bytes();
            for key in [key(name), extref(name)] {
                noted.note_key(&key, number % 100 == 0);
                noted.note_name(&key, DIRECTORY, name, true);
            }
        }
        let found = noted.solve(&Keyed::new(&[5; SECRET_BYTES]));
        assert!(found.kept <= 40, "{} of 1000 names stay", found.kept);
    }

    #[test]
    fn name_that_shares_its_item_stays() {
        let mut noted = ShortNames::default();
        noted.note_key(&key(b"ab"), false);
        noted.note_name(&key(b"ab"), DIRECTORY, b"ab", false);
        assert_eq!(noted.solve(&Keyed::new(&[5; SECRET_BYTES])).kept, 1);
    }
}
