//! Tests of volumes whose extent or free-space trees are damaged: scrub and trim leave the affected
//! ranges unchanged.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests compute with known numbers, and a panic is how a test fails"
)]

use crate::support;

use buttress_format::{ByteCount, FileOffset, Logical, Profile, SubvolumeId};
use buttress_fs::{Filesystem, Follow, Location, RangeKind};
use buttress_volume::MappingContent;
use buttress_writer::{WritableFilesystem, WriteOptions};
use std::collections::HashSet;
use support::blocks::{change_extent_length, change_free_space};
use support::{Lab, Make, Use};

fn content(filesystem: &Filesystem, name: &str) -> buttress_fs::Result<Vec<u8>> {
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    let location = filesystem.resolve(root, name.as_bytes(), Follow::All)?;
    let file = filesystem.open_file(location)?;
    let mut bytes = vec![0; 1 << 20];
    let length = file.read_at(FileOffset::MIN, &mut bytes)?;
    bytes.truncate(length);
    Ok(bytes)
}

/// The sectors of a file that a test damages.
#[derive(Clone, Copy)]
enum Damaged {
    /// All sectors of the file are damaged: RAID6 rebuilds two columns of a row.
    All,
    /// A single sector: RAID5 rebuilds one column. The parity of the damaged sector also covers
    /// another extent, and no other sector of the file.
    OneBesideAnother,
}

const STRIPE_BYTES: u64 = 64 << 10;

/// Returns the indexes and offsets of the sectors of a data extent.
fn sectors(used: &Use) -> impl Iterator<Item = (usize, u64)> {
    let (device, physical) = (used.device, used.physical);
    (0..used.length as u64)
        .step_by(4096)
        .map(move |at| (device, physical + at))
}

/// A row has damaged data of a file, and the extent tree lacks the file's extent. Reads of the file
/// need the row's parity, so a scrub must keep it.
fn scrub_beside_an_unknown_extent(profile: Profile, devices: usize, damaged: Damaged) {
    let lab = Lab::new(&Make::new(profile, devices)).unwrap();
    let filesystem = lab.open().unwrap();
    let expected = content(&filesystem, "/c").unwrap();
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    let location = filesystem.resolve(root, b"/c", Follow::All).unwrap();
    let file = filesystem.open_file(location).unwrap();
    let range = file
        .extents_from(FileOffset::MIN)
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let RangeKind::Data(extent) = range.kind else {
        panic!("{range:?}");
    };
    let end = extent.logical.saturating_add(extent.disk_bytes);
    let is_own = |used: &&Use| extent.logical <= used.logical && used.logical < end;
    let all = lab.uses().unwrap();
    let own: Vec<&Use> = all.iter().filter(is_own).collect();
    let others: HashSet<(usize, u64)> = all
        .iter()
        .filter(|used| used.content == MappingContent::P)
        .filter(|used| !is_own(used))
        .flat_map(sectors)
        .collect();
    // The offsets in the parity stripe at which parity also covers another extent.
    let shared: Vec<u64> = own
        .iter()
        .filter(|used| used.content == MappingContent::P)
        .flat_map(|used| sectors(used))
        .filter(|place| others.contains(place))
        .map(|(_, at)| at % STRIPE_BYTES)
        .collect();
    assert!(!shared.is_empty(), "{profile}: no row is shared");
    let places: Vec<(usize, u64)> = own
        .iter()
        .filter(|used| used.is_copy())
        .flat_map(|used| sectors(used))
        .collect();
    let is_alone = |(_, at): &(usize, u64)| {
        let offset = at % STRIPE_BYTES;
        let same = places.iter().filter(|(_, other)| other % STRIPE_BYTES == offset);
        shared.contains(&offset) && same.count() == 1
    };
    let places = match damaged {
        Damaged::All => places,
        Damaged::OneBesideAnother => vec![*places.iter().find(|place| is_alone(place)).unwrap()],
    };
    for (device, at) in places {
        lab.spies[device].put(at + 100, &[0xee; 16]);
    }
    assert_eq!(
        content(&lab.open().unwrap(), "/c").unwrap(),
        expected,
        "{profile}"
    );
    // A scrub cannot use an extent item that extends past its chunk.
    change_extent_length(&lab, extent.logical, 1 << 40);
    let report = lab.scrub().unwrap();
    assert_eq!(report.unwalked.len(), 1, "{profile}: {:?}", report.unwalked);
    assert_eq!(
        content(&lab.open().unwrap(), "/c").unwrap(),
        expected,
        "{profile}"
    );
}

#[test]
fn parity_of_raid6_beside_an_unknown_extent_stays() {
    scrub_beside_an_unknown_extent(Profile::Raid6, 5, Damaged::All);
}

#[test]
fn parity_of_raid5_beside_an_unknown_extent_stays() {
    scrub_beside_an_unknown_extent(Profile::Raid5, 3, Damaged::OneBesideAnother);
}

/// The free-space tree lists a part of a file as free, and an equal range after the file as used.
fn trim_by_a_wrong_free_space_tree(profile: Profile, devices: usize) {
    let lab = Lab::new(&Make::new(profile, devices)).unwrap();
    let filesystem = lab.open().unwrap();
    let expected = content(&filesystem, "/a").unwrap();
    // The extents of the file with the lowest address begin at the start of the data chunk.
    let map = filesystem.volume().chunk_map();
    let is_data = |used: &Use| used.is_data;
    let uses = lab.uses().unwrap();
    let first = uses
        .iter()
        .filter(|used| is_data(used))
        .map(|used| used.logical)
        .min()
        .unwrap();
    assert_eq!(map.find(first).unwrap().start(), first);
    drop(filesystem);
    change_free_space(&lab, first);
    let writable = WritableFilesystem::new(lab.open().unwrap(), WriteOptions::default()).unwrap();
    let error = writable
        .trims()
        .trim(Logical::MIN..Logical::MAX, ByteCount::ZERO)
        .unwrap_err();
    assert!(
        error.to_string().contains("disagrees with the extent tree"),
        "{error}"
    );
    writable.abandon();
    assert_eq!(content(&lab.open().unwrap(), "/a").unwrap(), expected);
}

#[test]
fn trim_stops_where_the_extent_tree_has_an_extent() {
    trim_by_a_wrong_free_space_tree(Profile::Single, 1);
}

#[test]
fn trim_stops_where_a_mirror_has_an_extent() {
    trim_by_a_wrong_free_space_tree(Profile::Raid1, 2);
}
