//! Tests of devices that missed commits: reads, scrubs and healing use no stale data of these
//! devices.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::print_stderr,
    reason = "tests compute with known numbers, and a panic is how a test fails; what was tried is printed"
)]

use crate::support;

use buttress_format::{FileOffset, Profile};
use buttress_fs::{Follow, Progress};
use buttress_oracle::content::Random;
use buttress_scrub::{Healer, Options, Scrub};
use support::away::{Away, content_of, require_up_to_date, resync, root};
use support::replacing::{open, writable};
use support::{Lab, Make, Use};

/// Data without checksums that is newer than a stale device is read from that device only after the
/// device's return.
fn bare_data_of_a_stale_device(profile: Profile, devices: usize) {
    let make = Make {
        bare: true,
        ..Make::new(profile, devices)
    };
    let lab = Lab::new(&make).unwrap();
    let old = content_of(&lab.open().unwrap(), "bare");
    let filesystem = writable(Away::present(&lab, &[1])).unwrap();
    let file = filesystem.view().resolve(root(), b"/bare", Follow::All).unwrap();
    let new = Random::new(3).bytes(old.len(), false);
    filesystem.write_at(file, FileOffset::MIN, &new).unwrap();
    filesystem.close().unwrap();
    let uses = lab.uses().unwrap();
    let bare: Vec<_> = uses
        .iter()
        .filter(|used| used.is_data && used.is_copy() && used.device == 0)
        .filter(|used| {
            let bytes = lab.spies[0].read(used.physical, 4096);
            new.chunks(4096).any(|sector| sector == bytes)
        })
        .collect();
    assert!(!bare.is_empty(), "{profile}");
    for used in &bare {
        let end = used.physical + used.length as u64;
        lab.spies[0].make_unreadable(used.physical..end);
    }
    let filesystem = open(lab.devices()).unwrap();
    let location = filesystem.resolve(root(), b"/bare", Follow::All).unwrap();
    let mut read = vec![0; old.len()];
    let result = filesystem
        .open_file(location)
        .and_then(|file| file.read_at(FileOffset::MIN, &mut read));
    assert!(result.is_err(), "{profile}: old data was read");
    drop(filesystem);
    // The sectors become readable when the device returns.
    for used in &bare {
        let bytes = lab.spies[0].read(used.physical, used.length);
        lab.spies[0].device().write(used.physical, &bytes).unwrap();
    }
    let filesystem = writable(lab.devices()).unwrap();
    resync(&filesystem);
    filesystem.close().unwrap();
    require_up_to_date(lab.devices(), &profile.to_string());
    for used in &bare {
        let end = used.physical + used.length as u64;
        lab.spies[0].make_unreadable(used.physical..end);
    }
    assert!(
        content_of(&open(lab.devices()).unwrap(), "bare") == new,
        "{profile}"
    );
}

#[test]
fn a_stale_copy_serves_no_data_without_checksums() {
    bare_data_of_a_stale_device(Profile::Raid1, 2);
}

#[test]
fn a_stale_column_rebuilds_no_data_without_checksums() {
    bare_data_of_a_stale_device(Profile::Raid5, 3);
}

/// A device that failed a write keeps old data of overwrites in place. A scrub of the volume
/// repairs nothing from the stale device, and writes nothing to it.
fn scrub_beside_a_device_that_failed_a_write(volumes: &[(Profile, usize)]) {
    for (profile, devices) in volumes.iter().copied() {
        let make = Make {
            bare: true,
            ..Make::new(profile, devices)
        };
        let lab = Lab::new(&make).unwrap();
        let filesystem = writable(lab.devices()).unwrap();
        let file = filesystem.view().resolve(root(), b"/bare", Follow::All).unwrap();
        let old = content_of(&filesystem.view(), "bare");
        lab.spies[1].fail_writes(true);
        let new = Random::new(3).bytes(old.len(), false);
        filesystem.write_at(file, FileOffset::MIN, &new).unwrap();
        filesystem.commit().unwrap();
        // The device works again, but the volume still does not use it.
        lab.spies[1].fail_writes(false);
        lab.take_writes();
        let bare = places_of(&lab, &new);
        assert!(!bare.is_empty(), "{profile}");
        for used in &bare {
            let end = used.physical + used.length as u64;
            lab.spies[used.device].make_unreadable(used.physical..end);
        }
        let views = || filesystem.committed_view();
        let scrub = Scrub::new(&views(), Options::default(), Progress::new()).unwrap();
        scrub.beside(&views).run().unwrap();
        assert_eq!(lab.spies[1].take_writes(), Vec::new(), "{profile}");
        let mut read = vec![0; old.len()];
        let reader = views().open_file(file).unwrap();
        if reader.read_at(FileOffset::MIN, &mut read).is_ok() {
            assert!(
                read == new,
                "{profile}: old data was put in the place of new data"
            );
        }
        drop(filesystem);
    }
}

#[test]
fn scrub_uses_no_copy_of_a_device_that_failed_a_write() {
    scrub_beside_a_device_that_failed_a_write(&[
        (Profile::Raid1, 2),
        (Profile::Raid1C3, 3),
        (Profile::Raid10, 4),
    ]);
}

#[test]
fn scrub_uses_no_column_of_a_device_that_failed_a_write() {
    scrub_beside_a_device_that_failed_a_write(&[(Profile::Raid5, 3), (Profile::Raid5, 2)]);
}

/// Returns places on the devices except the second that hold some content without checksums.
fn places_of(lab: &Lab, content: &[u8]) -> Vec<Use> {
    let uses = lab.uses().unwrap();
    let holds = |used: &Use| {
        let bytes = lab.spies[used.device].read(used.physical, 4096);
        content.chunks(4096).any(|sector| sector == bytes)
    };
    let copies = uses
        .into_iter()
        .filter(|used| used.is_data && used.is_copy() && used.device != 1);
    copies.filter(holds).collect()
}

/// Neither a scrub nor healing repairs data without checksums from a stale device's copy.
#[test]
fn scrub_repairs_no_bare_data_from_a_stale_copy() {
    for (profile, devices) in [(Profile::Raid1, 2), (Profile::Raid1C3, 3), (Profile::Raid10, 4)] {
        let make = Make {
            bare: true,
            ..Make::new(profile, devices)
        };
        let lab = Lab::new(&make).unwrap();
        let old = content_of(&lab.open().unwrap(), "bare");
        let filesystem = writable(Away::present(&lab, &[1])).unwrap();
        let file = filesystem.view().resolve(root(), b"/bare", Follow::All).unwrap();
        let new = Random::new(3).bytes(old.len(), false);
        filesystem.write_at(file, FileOffset::MIN, &new).unwrap();
        filesystem.close().unwrap();
        for used in places_of(&lab, &new) {
            let end = used.physical + used.length as u64;
            lab.spies[used.device].make_unreadable(used.physical..end);
        }
        lab.take_writes();
        let filesystem = writable(lab.devices()).unwrap();
        let healer = Healer::start(&filesystem).unwrap();
        let mut read = vec![0; old.len()];
        let reader = filesystem.view().open_file(file).unwrap();
        assert!(
            reader.read_at(FileOffset::MIN, &mut read).is_err() || read == new,
            "{profile}: old data was read"
        );
        healer.wait();
        drop(healer);
        let views = || filesystem.committed_view();
        let scrub = Scrub::new(&views(), Options::default(), Progress::new()).unwrap();
        let scrub = scrub.beside(&views);
        scrub.run().unwrap();
        let after = views()
            .open_file(file)
            .unwrap()
            .read_at(FileOffset::MIN, &mut read);
        assert!(
            after.is_err() || read == new,
            "{profile}: old data was put in the place of new data"
        );
        assert_eq!(lab.spies[1].take_writes(), Vec::new(), "{profile}");
        drop(scrub);
        drop(filesystem);
    }
}
