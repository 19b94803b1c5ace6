//! Tests of writes into rows of RAID5 and RAID6 with other damaged data: parity can still rebuild
//! that data afterwards.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests compute with known numbers, and a panic is how a test fails"
)]

use crate::support;

use buttress_format::{FileOffset, Profile};
use buttress_fs::Progress;
use buttress_oracle::content::Random;
use buttress_scrub::{Options, Scrub};
use buttress_writer::operations::NewInode;
use support::away::{files_of, root};
use support::replacing::{check_files, open, spoil, writable};
use support::{Lab, Make};

/// Damages data on one device, writes small files into the rows beside it, and repairs the volume.
fn damage_survives_writes(profile: Profile, devices: usize, mixed: bool) {
    for damaged in 0..devices {
        let what = format!("{profile} on {devices}, mixed {mixed}, device {damaged} damaged");
        let lab = Lab::new(&Make {
            mixed,
            ..Make::new(profile, devices)
        })
        .unwrap();
        let files = files_of(&lab.open().unwrap(), &["a", "b", "c"]);
        let uses = lab.uses().unwrap();
        let data: Vec<_> = uses
            .into_iter()
            .filter(|used| used.is_data && used.is_copy())
            .collect();
        spoil(&lab.spies[damaged], &data, damaged, 23);
        let filesystem = writable(lab.devices()).unwrap();
        for number in 0..60 {
            let name = format!("beside-{number}");
            let file = filesystem
                .create(root(), name.as_bytes(), &NewInode::of_root(0o644))
                .unwrap();
            let content = Random::new(number).bytes(8192, false);
            filesystem.write_at(file, FileOffset::MIN, &content).unwrap();
            filesystem.writeback().write_all().unwrap();
        }
        filesystem.close().unwrap();
        let filesystem = open(lab.devices()).unwrap();
        check_files(&filesystem, &files);
        let scrub = Scrub::new(&filesystem, Options::default(), Progress::new()).unwrap();
        scrub.run().unwrap();
        let totals = scrub.report().totals();
        assert_eq!(totals.uncorrectable_errors, 0, "{what}");
        assert!(totals.corrected_errors > 0, "{what}");
        drop(scrub);
        check_files(&open(lab.devices()).unwrap(), &files);
    }
}

#[test]
fn writes_beside_damaged_data_keep_raid5_parity() {
    damage_survives_writes(Profile::Raid5, 3, false);
}

#[test]
fn writes_beside_damaged_data_keep_raid6_parity() {
    damage_survives_writes(Profile::Raid6, 4, false);
}
