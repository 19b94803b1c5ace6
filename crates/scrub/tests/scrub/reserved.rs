//! Tests of data without checksums whose copies differ, beside writers. The scrub asks a function
//! which preallocated data was ever written, in the scrub's state, while it holds no lock.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests compute with known numbers, and a panic is how a test fails"
)]

use crate::support;

use buttress_format::{ByteCount, Logical, Profile, SubvolumeId};
use buttress_fs::{Filesystem, Follow, Location, Progress};
use buttress_scrub::{Options, Report, Scrub};
use buttress_volume::MappingContent;
use buttress_writer::operations::NewInode;
use buttress_writer::{WritableFilesystem, WriteOptions};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use support::{Lab, Make, Use};

/// Scrubs beside a writer. The test's answering function makes a file and commits, so it acquires
/// the edit lock and waits for devices. With debug assertions, a locked row during this call ends
/// the test. Returns how often the scrub called the function, and the report.
fn scrub_that_asks(filesystem: &WritableFilesystem, was_written: bool) -> (u64, Report) {
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    let asked = AtomicU64::new(0);
    let written = |state: &Filesystem, logical: Logical, length: ByteCount| -> Vec<Range<Logical>> {
        assert!(state.resolve(root, b"/bare", Follow::All).is_ok());
        let number = asked.fetch_add(1, Ordering::SeqCst);
        let name = format!("asked-{was_written}-{number}");
        let made = filesystem.create(root, name.as_bytes(), &NewInode::of_root(0o644));
        made.unwrap();
        filesystem.commit().unwrap();
        match was_written {
            true => vec![logical..logical.saturating_add(length)],
            false => Vec::new(),
        }
    };
    let views = || filesystem.committed_view();
    let options = Options {
        read_only: true,
        ..Options::default()
    };
    let scrub = Scrub::new(&views(), options, Progress::new()).unwrap();
    let scrub = scrub.asking(&written).beside(&views);
    scrub.run().unwrap();
    (asked.load(Ordering::SeqCst), scrub.report())
}

/// Returns a copy of the first block of the file `bare`.
fn bare_copy(lab: &Lab) -> Use {
    let filesystem = lab.open().unwrap();
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    let file = filesystem.resolve(root, b"/bare", Follow::All).unwrap();
    let mut ranges = filesystem.open_file(file).unwrap().extents().unwrap();
    let first = ranges.find_map(|range| match range.unwrap().kind {
        buttress_fs::RangeKind::Data(extent) => Some(extent.logical),
        _ => None,
    });
    let is_it = |used: &Use| Some(used.logical) == first && used.content == MappingContent::Data { copy: 1 };
    lab.uses().unwrap().into_iter().find(is_it).unwrap()
}

#[test]
fn written_ranges_are_queried_before_rows_are_locked() {
    for (profile, devices) in [(Profile::Raid1, 2), (Profile::Raid5, 3)] {
        let lab = Lab::new(&Make {
            bare: true,
            ..Make::new(profile, devices)
        })
        .unwrap();
        let bare = bare_copy(&lab);
        lab.spies[bare.device].put(bare.physical, &[0xa5; 4096]);
        let filesystem = WritableFilesystem::new(lab.open().unwrap(), WriteOptions::default()).unwrap();
        let (asked, report) = scrub_that_asks(&filesystem, true);
        assert!(asked > 0, "{profile}");
        assert_eq!(
            report.totals().unverified_errors,
            1,
            "{profile}: {:#?}",
            report.damages
        );
        // The preallocated data was never written, so its copies may differ.
        let (asked, report) = scrub_that_asks(&filesystem, false);
        assert!(asked > 0, "{profile}");
        assert_eq!(
            report.totals().unverified_errors,
            0,
            "{profile}: {:#?}",
            report.damages
        );
        filesystem.close().unwrap();
    }
}
