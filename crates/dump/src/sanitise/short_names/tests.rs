//! Replacements keep the order of keys.

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
    for name in &ordered {
        noted.note_name(&key(name), DIRECTORY, name, true);
    }
    for (number, name) in ordered.iter().enumerate() {
        noted.note_key(&key(name), number % leaf_items == 0);
    }
    (noted, ordered)
}

/// Requires that all names change, and that each leaf has the hashes between its own first hash and
/// that of the next leaf.
fn requires_order(names: &[Vec<u8>], leaf_items: usize, kept: u64) {
    let (noted, ordered) = noted(names, leaf_items);
    let found = noted
        .solve(&Keyed::new(&[5; SECRET_BYTES]), &Progress::new())
        .unwrap();
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
    noted.note_name(&key(b"a"), DIRECTORY, b"a", true);
    for offset in [hash, hash + 1] {
        noted.note_key(
            &Key::new(ObjectId::new(DIRECTORY), ItemType::DIR_ITEM, offset),
            true,
        );
    }
    let found = noted
        .solve(&Keyed::new(&[5; SECRET_BYTES]), &Progress::new())
        .unwrap();
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
    noted.note_name(&key(b"ab"), DIRECTORY, b"ab", true);
    noted.note_name(&extref, DIRECTORY, b"ab", true);
    assert!(noted.note_key(&key(b"ab"), false));
    assert!(noted.note_key(&extref, false));
    let found = noted
        .solve(&Keyed::new(&[5; SECRET_BYTES]), &Progress::new())
        .unwrap();
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
    for name in &names {
        let name = name.as_bytes();
        for key in [key(name), extref(name)] {
            noted.note_name(&key, DIRECTORY, name, true);
        }
    }
    for (number, name) in names.iter().enumerate() {
        let name = name.as_bytes();
        for key in [key(name), extref(name)] {
            assert!(noted.note_key(&key, number % 100 == 0));
        }
    }
    let found = noted
        .solve(&Keyed::new(&[5; SECRET_BYTES]), &Progress::new())
        .unwrap();
    assert!(found.kept <= 40, "{} of 1000 names stay", found.kept);
}

#[test]
fn name_that_shares_its_item_stays() {
    let mut noted = ShortNames::default();
    noted.note_name(&key(b"ab"), DIRECTORY, b"ab", false);
    noted.note_key(&key(b"ab"), false);
    assert_eq!(
        noted
            .solve(&Keyed::new(&[5; SECRET_BYTES]), &Progress::new())
            .unwrap()
            .kept,
        1
    );
}

/// Returns names of three bytes, each at a border whose next hash is adjacent.
fn crowded(count: u32) -> ShortNames {
    let mut noted = ShortNames::default();
    for number in 0..count {
        let directory = u64::from(number) + 1000;
        let name = [b'a', b'a' + (number % 26) as u8, b'b'];
        let hash = name_hash(&name);
        let key = Key::new(ObjectId::new(directory), ItemType::DIR_ITEM, hash);
        noted.note_name(&key, directory, &name, true);
        for offset in [hash, hash + 1] {
            let key = Key::new(ObjectId::new(directory), ItemType::DIR_ITEM, offset);
            noted.note_key(&key, true);
        }
    }
    noted
}

#[test]
fn names_without_a_place_cost_no_tries() {
    let started = std::time::Instant::now();
    let found = crowded(20_000)
        .solve(&Keyed::new(&[5; SECRET_BYTES]), &Progress::new())
        .unwrap();
    assert_eq!(found.kept, 20_000);
    assert!(started.elapsed().as_secs() < 60, "each name was tried");
}

#[test]
fn cancelled_choice_ends() {
    let progress = Progress::new();
    progress.cancel();
    let ended = crowded(1).solve(&Keyed::new(&[5; SECRET_BYTES]), &progress);
    assert!(ended.is_err());
}

#[test]
fn name_of_many_inodes_stays() {
    let mut noted = ShortNames::default();
    for inode in 0..=EXTREFS_MAX as u64 {
        let extref = Key::new(ObjectId::new(400 + inode), ItemType::INODE_EXTREF, 7);
        noted.note_name(&extref, DIRECTORY, b"ab", true);
    }
    let found = noted.solve(&Keyed::new(&[5; SECRET_BYTES]), &Progress::new());
    assert_eq!(found.unwrap().kept, 1);
}

#[test]
fn directories_without_short_names_take_no_memory() {
    let mut noted = ShortNames::default();
    noted.note_name(&key(b"ab"), DIRECTORY, b"ab", true);
    for object in 0..1_000_000_u64 {
        for item_type in [ItemType::DIR_ITEM, ItemType::INODE_EXTREF] {
            noted.note_key(&Key::new(ObjectId::new(object), item_type, 7), false);
        }
    }
    assert_eq!(noted.groups.len(), 1);
}

#[test]
fn name_whose_key_has_a_long_name_in_another_tree_stays() {
    let mut noted = ShortNames::default();
    noted.note_name(&key(b"ab"), DIRECTORY, b"ab", true);
    assert!(noted.note_key(&key(b"ab"), false));
    noted.note_long_name(&key(b"ab"), DIRECTORY);
    let found = noted.solve(&Keyed::new(&[5; SECRET_BYTES]), &Progress::new());
    assert_eq!(found.unwrap().kept, 1);
}
