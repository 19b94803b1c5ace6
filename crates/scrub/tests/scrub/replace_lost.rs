//! Tests that replace a device whose bytes no copy has: lost metadata stops the replacement, lost
//! data still reads as an error.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "tests compute with known numbers, and a panic is how a test fails"
)]

use crate::support;

use buttress_device::Backend as _;
use buttress_format::{
    ByteCount, DeviceId, FileOffset, Logical, Profile, ReplaceState, SUPERBLOCK_OFFSETS, SubvolumeId,
};
use buttress_fs::{Filesystem, Follow, Location};
use buttress_scrub::{Cause, Error, Lost, Outcome, Part, Replaced};
use buttress_writer::operations::NewInode;
use buttress_writer::replacement_item;
use std::sync::Arc;
use support::blocks::{change_extent_item, leaves_of, places_of};
use support::replacing::{finished, lab_with_target, open, run, writable};
use support::{Lab, Make, Spy, Use};

/// Profiles, each with a number of devices.
const PROFILES: [(Profile, usize); 7] = [
    (Profile::Single, 1),
    (Profile::Dup, 1),
    (Profile::Raid0, 2),
    (Profile::Raid1, 2),
    (Profile::Raid10, 4),
    (Profile::Raid5, 3),
    (Profile::Raid6, 5),
];

fn spoil_all(lab: &Lab, logical: Logical) {
    for used in places_of(lab, logical) {
        lab.spies[used.device].put(used.physical + 300, &[0xee; 64]);
    }
}

/// Returns the device ranges of a file's first data extent.
fn data_of(lab: &Lab, name: &str) -> Vec<Use> {
    let filesystem = lab.open().unwrap();
    let file = filesystem.open_file(location(&filesystem, name)).unwrap();
    let mut ranges = file.extents_from(FileOffset::MIN).unwrap();
    let range = ranges.next().unwrap().unwrap();
    let buttress_fs::RangeKind::Data(extent) = range.kind else {
        panic!("{name}: {range:?}");
    };
    let places = places_of(lab, extent.logical);
    assert!(!places.is_empty(), "{name}");
    places
}

fn location(filesystem: &Filesystem, name: &str) -> Location {
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    let path = format!("/{name}");
    filesystem.resolve(root, path.as_bytes(), Follow::All).unwrap()
}

/// Returns a sector of a file, or the error of its read.
fn sector(filesystem: &Filesystem, name: &str, number: u64) -> buttress_fs::Result<Vec<u8>> {
    let file = filesystem.open_file(location(filesystem, name))?;
    let mut bytes = vec![0; 4096];
    file.read_at(FileOffset::new(number * 4096), &mut bytes)?;
    Ok(bytes)
}

/// Returns all sectors of the lab's files.
fn all_sectors(filesystem: &Filesystem) -> Vec<Option<Vec<u8>>> {
    let sectors = [("a", 170), ("c", 17), ("bare", 36)];
    let read = |(name, count)| (0..count).map(move |number| sector(filesystem, name, number).ok());
    sectors.into_iter().flat_map(read).collect()
}

fn lab(profile: Profile, devices: usize) -> Lab {
    Lab::new(&Make {
        bare: true,
        ..Make::new(profile, devices)
    })
    .unwrap()
}

/// Replaces a device. Returns the target device, and the result of the replacement.
fn replace(lab: &Lab, device: usize) -> (Arc<Spy>, Result<Replaced, Error>) {
    let target = Spy::all_of_noise("target", lab.spies[device].size_bytes());
    let filesystem = writable(lab.devices()).unwrap();
    let id = DeviceId::new(device as u64 + 1);
    filesystem
        .replacements()
        .start(id, target.device(), false)
        .unwrap();
    let ended = run(&filesystem);
    filesystem.close().unwrap();
    (target, ended)
}

#[test]
fn lost_metadata_stops_the_replacement_before_the_exchange() {
    for (profile, devices) in PROFILES {
        let lab = lab(profile, devices);
        let leaf = leaves_of(&lab, 5).pop().unwrap();
        spoil_all(&lab, leaf.logical);
        let before = all_sectors(&lab.open().unwrap());
        let what = format!("{profile}, block {}", leaf.logical);
        let (target, ended) = replace(&lab, leaf.device);
        let error = ended.unwrap_err();
        let Error::MetadataLost { device, blocks } = &error else {
            panic!("{what}: {error}");
        };
        assert_eq!(*device, DeviceId::new(leaf.device as u64 + 1), "{what}");
        let named = format!("block {}", leaf.logical);
        assert_eq!(blocks.len(), 1, "{what}: {error}");
        assert!(
            blocks[0].starts_with("tree 5") && blocks[0].contains(&named),
            "{what}: {error}"
        );
        // The volume still uses the source device, and the target belongs to no volume.
        assert!(open(vec![target.device()]).is_err(), "{what}");
        let filesystem = lab.open().unwrap();
        let item = replacement_item(&filesystem).unwrap().unwrap();
        assert_eq!(item.state, ReplaceState::Canceled, "{what}");
        assert!(all_sectors(&filesystem) == before, "{what}");
        drop(filesystem);
        writable(lab.devices()).unwrap().close().unwrap();
    }
}

#[test]
fn lost_metadata_of_another_device_does_not_stop_it() {
    let lab = lab(Profile::Raid0, 2);
    let leaf = leaves_of(&lab, 5).pop().unwrap();
    spoil_all(&lab, leaf.logical);
    let before = all_sectors(&lab.open().unwrap());
    let other = 1 - leaf.device;
    let (target, ended) = replace(&lab, other);
    let (lost, places, _) = finished(ended, "another device");
    assert_eq!((lost, places), (ByteCount::ZERO, Vec::new()));
    let lab = lab_with_target(&lab, other, target);
    assert!(all_sectors(&lab.open().unwrap()) == before);
}

/// How a sector of data is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    Rot,
    Unreadable,
}

/// Replaces a device after a sector of a file is lost in all places, and compares the content before and after.
fn with_lost_sector(profile: Profile, devices: usize, name: &str, loss: Loss) {
    let what = format!("{profile}, {name}, {loss:?}");
    let lab = lab(profile, devices);
    let places = data_of(&lab, name);
    // The lost sector is the second of the extent.
    let (source, logical) = (
        places[0].device,
        places[0].logical.saturating_add(ByteCount::new(4096)),
    );
    let mut found = None;
    for used in &places {
        let at = used.physical + 4096;
        match loss {
            Loss::Rot => lab.spies[used.device].put(at + 7, &[0xee; 3]),
            Loss::Unreadable => lab.spies[used.device].make_unreadable(at..at + 4096),
        }
        if used.device == source {
            found = Some((at, lab.spies[source].read(at, 4096)));
        }
    }
    let (at, held) = found.unwrap();
    let before = all_sectors(&lab.open().unwrap());
    assert!(
        before.iter().filter(|sector| sector.is_none()).count() >= 1,
        "{what}"
    );
    let (target, ended) = replace(&lab, source);
    let (lost, places, report) = finished(ended, &what);
    assert_eq!(lost, ByteCount::new(4096), "{what}");
    let is_bare = name == "bare";
    let expected = Lost {
        logical,
        length: lost,
        part: Part::Data,
        has_checksum: !is_bare,
    };
    assert_eq!(places, vec![expected], "{what}");
    let listed = report.damages.iter().filter(|damage| {
        damage.logical <= logical && matches!(damage.outcome, Outcome::Uncorrectable { .. })
    });
    assert!(listed.count() > 0, "{what}: {:#?}", report.damages);
    let copied = target.read(at, 4096);
    let lab = lab_with_target(&lab, source, target);
    let after = all_sectors(&lab.open().unwrap());
    if is_bare {
        let lost = after.iter().zip(&before).filter(|(_, before)| before.is_none());
        for (after, _) in lost {
            let text = after.as_ref().unwrap();
            assert!(text.starts_with(b"buttress replace: no device gave"), "{what}");
        }
        let kept = after.iter().zip(&before).filter(|(_, before)| before.is_some());
        assert!(kept.clone().all(|(after, before)| after == before), "{what}");
        return;
    }
    assert!(
        after == before,
        "{what}: what was lost is an error, the rest as it was"
    );
    if loss == Loss::Rot {
        assert!(
            copied == held,
            "{what}: the bytes that the source has, for whoever wants them"
        );
    }
}

#[test]
fn lost_data_still_reads_as_an_error() {
    for (profile, devices) in PROFILES {
        with_lost_sector(profile, devices, "a", Loss::Rot);
        with_lost_sector(profile, devices, "c", Loss::Unreadable);
    }
}

#[test]
fn lost_data_without_checksums_reads_as_filler() {
    for (profile, devices) in PROFILES {
        with_lost_sector(profile, devices, "bare", Loss::Unreadable);
    }
}

#[test]
fn block_that_only_its_extent_item_contradicts_is_copied() {
    for (profile, devices) in [(Profile::Single, 1), (Profile::Raid1, 2), (Profile::Raid0, 2)] {
        let lab = lab(profile, devices);
        let leaf = leaves_of(&lab, 5).pop().unwrap();
        // Change the generation in a tree block's extent item.
        change_extent_item(&lab, leaf.logical, |item| {
            item[8..16].copy_from_slice(&3_u64.to_le_bytes())
        });
        let before = all_sectors(&lab.open().unwrap());
        assert!(before.iter().all(Option::is_some));
        let (target, ended) = replace(&lab, leaf.device);
        let (lost, places, report) = finished(ended, &profile.to_string());
        assert_eq!((lost, places), (ByteCount::ZERO, Vec::new()), "{profile}");
        let of_block = |damage: &&buttress_scrub::Damage| damage.logical == leaf.logical;
        let damage = report.damages.iter().find(of_block).unwrap();
        assert!(
            matches!(damage.cause, Cause::Generation { .. }),
            "{profile}: {damage}"
        );
        assert_eq!(damage.outcome, Outcome::Unverified, "{profile}: {damage}");
        let lab = lab_with_target(&lab, leaf.device, target);
        assert!(all_sectors(&lab.open().unwrap()) == before, "{profile}");
        assert_eq!(
            leaves_of(&lab, 5).pop().unwrap().logical,
            leaf.logical,
            "{profile}"
        );
    }
}

fn replaced_by_a_target_that_loses_writes(profile: Profile, devices: usize) {
    let lab = lab(profile, devices);
    let before = all_sectors(&lab.open().unwrap());
    let target = Spy::all_of_noise("target", lab.spies[0].size_bytes());
    let filesystem = writable(lab.devices()).unwrap();
    filesystem
        .replacements()
        .start(DeviceId::new(1), target.device(), false)
        .unwrap();
    target.lose_writes();
    let error = run(&filesystem).unwrap_err();
    let is_named = matches!(error, Error::MetadataLost { .. } | Error::NotOpened(_));
    assert!(is_named, "{profile}: {error}");
    filesystem.close().unwrap();
    assert!(all_sectors(&lab.open().unwrap()) == before, "{profile}");
    lab.require_sound();
}

#[test]
fn target_that_loses_writes_does_not_take_the_place() {
    replaced_by_a_target_that_loses_writes(Profile::Single, 1);
}

#[test]
fn target_that_loses_half_a_volume_does_not_take_the_place() {
    replaced_by_a_target_that_loses_writes(Profile::Raid0, 2);
}

/// The target drops the superblocks that the exchange writes, so the volume does not open through
/// the target. The source device keeps its superblocks, and still opens at the commit before the
/// exchange.
#[test]
fn target_that_loses_superblocks_leaves_the_source_unwiped() {
    let lab = lab(Profile::Single, 1);
    let before = all_sectors(&lab.open().unwrap());
    let target = Spy::all_of_noise("target", lab.spies[0].size_bytes());
    for at in SUPERBLOCK_OFFSETS {
        target.lose_writes_to(at.get()..at.get() + 4096);
    }
    let filesystem = writable(lab.devices()).unwrap();
    filesystem
        .replacements()
        .start(DeviceId::new(1), target.device(), false)
        .unwrap();
    let ended = run(&filesystem);
    let Ok(Replaced::Finished { unwiped, .. }) = ended else {
        panic!("{ended:?}");
    };
    assert!(unwiped.is_some(), "the source was wiped");
    filesystem.close().unwrap();
    assert!(all_sectors(&lab.open().unwrap()) == before);
    lab.require_sound();
}

/// The source missed a commit, and has the only good copy of older content.
#[test]
fn source_that_missed_commits_is_read_as_a_last_resort() {
    let lab = lab(Profile::Raid1, 2);
    let before = all_sectors(&lab.open().unwrap());
    assert!(before.iter().all(Option::is_some));
    let alone = writable(vec![lab.spies[0].device()]).unwrap();
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    alone.create(root, b"missed", &NewInode::of_root(0o644)).unwrap();
    alone.close().unwrap();
    let used = data_of(&lab, "a")
        .into_iter()
        .find(|used| used.device == 0)
        .unwrap();
    lab.spies[0].put(used.physical + 4096, &[0xee; 64]);
    let (target, ended) = replace(&lab, 1);
    let (lost, places, _) = finished(ended, "the source missed a commit");
    assert_eq!((lost, places), (ByteCount::ZERO, Vec::new()));
    let lab = lab_with_target(&lab, 1, target);
    assert!(all_sectors(&lab.open().unwrap()) == before);
}
