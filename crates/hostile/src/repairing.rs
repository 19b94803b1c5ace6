//! The target of repairs: a changed volume, checked and repaired.
//!
//! An input is the number of a volume, a byte of choices (consent to losses), and the changes (see
//! [`crate::mutation`]). The volume is on devices that keep writes in memory.
//!
//! The target requires, for any volume:
//!
//! - A repair ends, and its error is no defect of the program.
//! - A repair that calls itself better has fewer or less severe findings by a check of its own, and
//!   lost no file.

use crate::input::Input;
use crate::{Depth, image, mutation, seeds};
use buttress_check::{Options as CheckOptions, Report, check};
use buttress_device::overlay::VolatileOverlay;
use buttress_device::{Backend, Device, VirtualClock};
use buttress_format::ByteCount;
use buttress_fs::{Filesystem, OpenOptions, Progress};
use buttress_lab::Model;
use buttress_repair::{Kept, Options, severity};
use std::collections::BTreeSet;
use std::hint::black_box;
use std::sync::Arc;

const CACHE: ByteCount = ByteCount::new(8 << 20);

fn open(devices: &[Device]) -> Option<Filesystem> {
    let options = OpenOptions::new(devices.to_vec()).cache(CACHE);
    match options.for_inspection(true).open() {
        Ok(filesystem) => Some(filesystem),
        Err(error) => {
            black_box(error.to_string());
            None
        }
    }
}

fn report(devices: &[Device]) -> Option<Report> {
    check(&open(devices)?, &CheckOptions::default(), &Progress::new()).ok()
}

/// The target of a changed volume, repaired.
pub fn repair(bytes: &[u8]) -> Depth {
    let mut input = Input::new(bytes);
    let volumes = seeds::volumes();
    let aims = &volumes[usize::from(input.byte()) % volumes.len()];
    let choices = input.byte();
    // Simulated devices run everything on this thread, so that an input always gives the same run.
    let clock = VirtualClock::new();
    let devices: Vec<Device> = mutation::apply(aims, &mut input)
        .into_iter()
        .map(|overlay| {
            let kept: Arc<dyn Backend> = Arc::new(VolatileOverlay::new(Arc::new(overlay)));
            buttress_lab::simulated(kept, &Model::Null, &clock)
        })
        .collect();
    let Some(before) = report(&devices) else {
        return Depth::Refused;
    };
    let consent = (choices & 1 == 1).then(|| "all".to_owned());
    let options = Options {
        yes_to: BTreeSet::from_iter(consent),
        cache: CACHE,
        ..Options::default()
    };
    let repaired = buttress_repair::run(&devices, &before, &options, &mut |_| false, &Progress::new());
    let outcome = match repaired {
        Ok(outcome) => outcome,
        Err(error) => {
            let text = error.to_string();
            assert!(!text.contains("defect"), "a volume has the repair fail: {text}");
            return Depth::Passed;
        }
    };
    if outcome.kept == Kept::Better {
        let after = report(&devices).expect("a better volume can be checked");
        assert!(outcome.lost.is_empty(), "files are lost: {:?}", outcome.lost);
        assert!(
            severity(&after) < severity(&before),
            "the volume is not better: {:?} after {:?}",
            after.counts,
            before.counts
        );
        image::read_all(&open(&devices).expect("a better volume can be opened"));
    }
    Depth::Passed
}

/// Returns first inputs.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for volume in 0..10 {
        seeds.push(vec![volume, 0]);
        for place in [volume, volume + 3] {
            seeds.push(vec![volume, 1, 2, place, 0, 3, 20, 0, 0, 1]);
            seeds.push(vec![volume, 0, 2, place, 0, 7, 9, 0, 0, 0x55]);
            seeds.push(vec![volume, 1, 4, place, 0, 1, place + 1, 0, 0]);
        }
    }
    seeds
}
