//! Changes that lost a device for good, at cuts of their writes: the change is finished without the
//! device, or had not begun.

use super::*;

/// Finishes a change after each of about `most` cuts at which one device is lost for good.
fn finish_without_a_device(change: &Change, base: &Base, most: usize) {
    let history = change.record(base).unwrap();
    let (mut finished, mut ordinary) = (0, 0);
    for cut in (0..=history.len()).step_by(history.len().div_ceil(most)) {
        for lost in 0..base.backends.len() {
            let mut images = history.images_at(cut, Outcome::Drawn { seed: cut as u64 });
            let _lost = images.remove(lost);
            let place = format!("{}: cut {cut} of {}, device {lost}", change.name, history.len());
            let is_unfinished = change.is_unfinished(&images);
            let without = (change.run)(&whole(devices(&images))).map_err(|error| error.to_string());
            let told = without.unwrap_err();
            assert!(
                told.contains("degraded") || told.contains("already"),
                "{place}: {told}"
            );
            let run = (change.run)(&whole(devices(&images)).degraded(true));
            if is_unfinished {
                run.context(place.clone()).unwrap();
                finished += 1;
            } else {
                let told = run.unwrap_err().to_string();
                assert!(
                    told.contains("missing") || told.contains("already"),
                    "{place}: {told}"
                );
                ordinary += 1;
            }
            let opened = OpenOptions::new(devices(&images)).degraded(true).open();
            let found = opened.context(place.clone()).unwrap();
            assert_eq!(found.superblock().flags, SuperblockFlags::WRITTEN, "{place}");
            assert!(!is_unfinished || (change.is_done)(&found.superblock()), "{place}");
            assert!(describe(&found).unwrap() == base.state, "{place}");
        }
    }
    eprintln!(
        "{}: {finished} finished without a device, {ordinary} needed no end",
        change.name
    );
    assert!(finished > 0 && ordinary > 0, "{}", change.name);
}

#[test]
fn change_that_lost_a_device_is_finished_without_it() {
    let base = Base::new(&[160 * MIB, 160 * MIB], &mirror()).unwrap();
    finish_without_a_device(&REWRITE_FSID, &base, 8);
    finish_without_a_device(&TO_SHA256, &base, 10);
    finish_without_a_device(&SET_FSID, &base, 6);
}
