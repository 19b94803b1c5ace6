//! Several devices that fail, and several threads that write while one does.
//!
//! As many devices as the profiles tolerate fail one after the other, and everything is on the others. Then one more fails,
//! which each chunk needs: writing stops, with that device in the error, and what was committed is there. Not so with parity:
//! rows that lack as many columns as they may are beyond help when a write of one more fails half-way, the write hole.

use super::{COMMIT_EVERY, Shape, comparable};
use crate::subject::Subject;
use anyhow::{Context, Result, ensure};
use buttress::OpenOptions;
use buttress::device::{Backend, Device, Engine, Fault, FaultyBackend};
use buttress::format::{ErrorKind, Profile};
use buttress::fs::{WritableFilesystem, WriteOptions};
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::writing::degraded::open_degraded;
use buttress_proof::writing::state::{describe, first_difference};
use buttress_proof::writing::unsteady::Unsteady;
use buttress_proof::writing::volume::Ticking;
use buttress_proof::writing::workload::Workload;
use std::sync::Arc;

/// Operations between two failures.
const BETWEEN: u64 = 11;

/// Every chunk lies on all devices of these.
const WHOLE_WIDTH: [Shape; 7] = [
    Shape::of("raid1", Profile::Raid1, 2),
    Shape::of("raid1c3", Profile::Raid1C3, 3),
    Shape::of("raid1c4", Profile::Raid1C4, 4),
    Shape::of("raid10", Profile::Raid10, 4),
    Shape::of("raid5", Profile::Raid5, 3),
    Shape::of("raid6", Profile::Raid6, 4),
    Shape {
        metadata: Profile::Raid1C4,
        ..Shape::of("raid6_data_beside_raid1c4", Profile::Raid6, 4)
    },
];

/// How many devices may fail.
fn tolerated(shape: &Shape) -> usize {
    let least = shape
        .data
        .tolerated_failures()
        .min(shape.metadata.tolerated_failures());
    usize::from(least)
}

fn one_after_the_other(shape: &Shape, seed: u64) -> Result<()> {
    let mut reference = shape.subject(seed, None)?;
    let mut subject = shape.subject(seed, None)?;
    let tolerated = tolerated(shape);
    for device in 0..tolerated {
        for _ in 0..BETWEEN {
            reference.step()?;
            subject.step()?;
        }
        subject.faulty(device)?.inject(Fault::FailWritesFrom(0));
    }
    for _ in 0..2 * COMMIT_EVERY {
        reference.step()?;
        subject.step().context("a step without the devices that failed")?;
    }
    reference.filesystem.commit()?;
    subject.filesystem.commit()?;
    let slots = subject.filesystem.view().volume().devices();
    for slot in &slots {
        let is_failed = slot.id().get() <= u64::try_from(tolerated)?;
        ensure!(
            slot.failure().is_some() == is_failed,
            "device {}: {:?}",
            slot.id(),
            slot.failure()
        );
    }
    let expected = comparable(&describe(&reference.filesystem.view())?);
    let committed = describe(&subject.filesystem.view())?;
    let seen = comparable(&committed);
    ensure!(expected == seen, "{}", first_difference(&expected, &seen));
    let has_hole = [shape.data, shape.metadata]
        .iter()
        .any(|profile| profile.parity_stripes() > 0);
    one_too_many(subject, tolerated, (!has_hole).then_some(&committed))
}

/// One more fails: `committed` is what the volume held when it was committed last, where that must be there.
fn one_too_many(mut subject: Subject, device: usize, committed: Option<&String>) -> Result<()> {
    let promised = subject.filesystem.committed_generation();
    subject.faulty(device)?.inject(Fault::FailWritesFrom(0));
    let mut failed = None;
    for _ in 0..=COMMIT_EVERY {
        if let Err(error) = subject.step() {
            failed = Some(error);
            break;
        }
    }
    let failed = failed.context("writing goes on with one device too few")?;
    let error = failed
        .downcast_ref::<buttress::fs::Error>()
        .with_context(|| format!("an error of another kind: {failed:#}"))?;
    let name = format!("memory-{device}");
    ensure!(error.kind() == ErrorKind::Io, "{error}");
    ensure!(
        error.to_string().contains(&name) && error.to_string().contains("may be"),
        "{error} does not say which device is needed, and why"
    );
    let Subject {
        backends,
        filesystem,
        workload,
        ..
    } = subject;
    drop(workload);
    let _forgotten = filesystem.abandon();
    let Some(committed) = committed else {
        return Ok(());
    };
    let rest = backends.get(device..).context("the devices that stay")?;
    let found = open_degraded(rest)?;
    ensure!(found.superblock().generation == promised, "not the last commit");
    let seen = describe(&found)?;
    ensure!(*committed == seen, "{}", first_difference(committed, &seen));
    Ok(())
}

/// Threads that write at once.
const THREADS: u64 = 3;

/// What each of them does.
const OPERATIONS: u64 = 60;

/// Threads write to devices whose requests end in any order, and one device begins to fail. What the writer shows at the end
/// is what the others hold.
fn threads(shape: &Shape, seed: u64, from: u64) -> Result<()> {
    let Subject {
        backends,
        filesystem,
        workload,
        ..
    } = shape.subject(seed, None)?;
    drop((workload, filesystem));
    let faulty: Vec<Arc<FaultyBackend>> = backends
        .iter()
        .map(|backend| FaultyBackend::new(Unsteady::over(Arc::clone(backend), seed), seed))
        .collect();
    let devices = faulty
        .iter()
        .map(|backend| Device::with_backend(Arc::clone(backend) as Arc<dyn Backend>, Engine::Threads));
    let options = WriteOptions {
        environment: Arc::new(Ticking::default()),
        ..WriteOptions::default()
    };
    let filesystem = WritableFilesystem::new(OpenOptions::new(devices.collect()).open()?, options)?;
    let device = shape.devices - 1;
    let failing = faulty.get(device).context("a device")?;
    failing.inject(Fault::FailWritesFrom(failing.request_counts().1 + from));
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..THREADS)
            .map(|number| {
                let filesystem = filesystem.clone();
                scope.spawn(move || -> Result<()> {
                    let mut workload = Workload::on(&filesystem, seed * 100 + number)?;
                    for step in 1..=OPERATIONS {
                        workload.step(&filesystem)?;
                        if step.is_multiple_of(2 * COMMIT_EVERY) {
                            filesystem.commit()?;
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        writers.into_iter().try_for_each(|writer| match writer.join() {
            Ok(outcome) => outcome,
            Err(_) => anyhow::bail!("a writer panicked"),
        })
    })?;
    filesystem.commit()?;
    let view = filesystem.view();
    let failed = view.volume().devices();
    let failed = failed.iter().find(|slot| slot.failure().is_some());
    ensure!(
        failed.is_some_and(|slot| slot.id().get() == device as u64 + 1),
        "the device was not left out"
    );
    let expected = describe(&view)?;
    drop(view);
    filesystem.commit()?;
    drop(filesystem);
    let rest = backends.get(..device).context("the devices that stay")?;
    for backends in [rest, &backends[..]] {
        let seen = describe(&open_degraded(backends)?)?;
        ensure!(
            expected == seen,
            "on {} devices: {}",
            backends.len(),
            first_difference(&expected, &seen)
        );
    }
    Ok(())
}

pub(super) fn cases(seed: u64) -> Vec<Case> {
    let in_turn = WHOLE_WIDTH.into_iter().map(move |shape| {
        Case::new(format!("devices::several::{}", shape.name), move || {
            one_after_the_other(&shape, seed).map(|()| Outcome::Passed)
        })
    });
    let at_once = WHOLE_WIDTH.into_iter().map(move |shape| {
        Case::new(format!("devices::threads::{}", shape.name), move || {
            for from in [0, 3, 11, 29] {
                threads(&shape, seed, from).with_context(|| format!("seed {seed}, from write {from} on"))?;
            }
            Ok(Outcome::Passed)
        })
    });
    in_turn.chain(at_once).collect()
}
