//! Several failing devices, and several threads that write during a failure.
//!
//! Devices fail one after another, as many as the profiles tolerate; the remaining devices have all
//! content. After as many failures as the profiles tolerate, one more device fails: writing stops,
//! the error names that device, and the committed state is present. Parity profiles are an
//! exception: a row that already lacks the largest tolerable number of columns is lost if a write
//! of one more column fails midway (the write hole).

use super::{COMMIT_EVERY, Shape, comparable};
use crate::subject::Subject;
use anyhow::{Context, Result, ensure};
use buttress::unstable::format::ErrorKind;
use buttress::unstable::fs::OpenOptions;
use buttress::unstable::writer::{WritableFilesystem, WriteOptions};
use buttress::{
    Backend, Device, DeviceEngine as Engine, FileAttributes, FileOffset, Location, NewInode, Profile,
    SubvolumeId,
};
use buttress_lab::{Fault, FaultyBackend};
use buttress_oracle::content::Random;
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::writing::degraded::open_degraded;
use buttress_proof::writing::state::{describe, first_difference};
use buttress_proof::writing::unsteady::Unsteady;
use buttress_proof::writing::volume::Ticking;
use std::sync::Arc;

const TOP: Location = Location::root_of(SubvolumeId::TOP_LEVEL);

/// Number of operations between two failures.
const BETWEEN: u64 = 11;

/// Shapes in which every chunk uses all devices.
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

/// Returns the number of devices that may fail without loss.
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

/// Makes one more device of the volume fail. `committed` is the content at the last commit, if it
/// must be present.
fn one_too_many(mut subject: Subject, device: usize, committed: Option<&String>) -> Result<()> {
    let promised = subject.filesystem.committed_generation();
    subject.faulty(device)?.inject(Fault::FailWritesFrom(0));
    // Setting the label gives the commit a change to write.
    subject.filesystem.set_label(b"one device too few")?;
    let mut stopped = Ok(());
    for _ in 0..COMMIT_EVERY {
        stopped = stopped.and_then(|()| subject.workload.step(&subject.filesystem).map(drop));
    }
    // After a commit inside an operation, memory also has the operation's later changes.
    let is_in_operation = stopped.is_err();
    let stopped = stopped.and_then(|()| Ok(subject.filesystem.commit().map(drop)?));
    let failed = stopped.err().context("writing goes on with one device too few")?;
    let error = failed
        .downcast_ref::<buttress::unstable::fs::Error>()
        .with_context(|| format!("an error of another kind: {failed:#}"))?;
    let name = format!("memory-{device}");
    ensure!(error.kind() == ErrorKind::Io, "{error}");
    ensure!(
        error.to_string().contains(&name) && error.to_string().contains("expected at most"),
        "{error} does not say which device is needed, and why"
    );
    let Subject {
        backends,
        filesystem,
        workload,
        ..
    } = subject;
    drop(workload);
    // After the failure, memory still has all changes.
    let last = describe(&filesystem.view())?;
    let _forgotten = filesystem.abandon();
    let Some(committed) = committed else {
        return Ok(());
    };
    let rest = backends.get(device..).context("the devices that stay")?;
    let found = open_degraded(rest)?;
    // If the failed device had nothing to write before its superblock, the other devices have their
    // new superblocks, and the commit is complete.
    let is_next = found.superblock().generation.get() == promised.get() + 1;
    ensure!(
        is_next || found.superblock().generation == promised,
        "not the last commit"
    );
    let expected = if is_next { &last } else { committed };
    let seen = describe(&found)?;
    ensure!(
        *expected == seen || is_next && is_in_operation,
        "{}",
        first_difference(expected, &seen)
    );
    Ok(())
}

/// Number of concurrent threads, each with its own file.
const THREADS: u64 = 3;

/// Number of writes of each thread.
const WRITES: u64 = 60;

const FILE_BYTES: usize = 1 << 20;

/// Writes randomly to a file, with occasional commits. Returns the file's expected content.
fn write_file(filesystem: &WritableFilesystem, number: u64, seed: u64) -> Result<(Location, Vec<u8>)> {
    let mut random = Random::new(seed * 100 + number);
    let name = format!("file-{number}").into_bytes();
    let file = filesystem.create(TOP, &name, &NewInode::of_root(0o600))?;
    if number.is_multiple_of(2) {
        // The file is nodatacow without checksums: only the known state of the device prevents old
        // content from reappearing.
        filesystem.set_flags(file, FileAttributes::NOCOW)?;
    }
    let mut content = vec![0; FILE_BYTES];
    filesystem.write_at(file, FileOffset::MIN, &content)?;
    for count in 1..=WRITES {
        let start = usize::try_from(random.below(240))? * 4096;
        let length = usize::try_from(random.below(16) + 1)? * 4096;
        let bytes = random.bytes(length, false);
        content[start..start + length].copy_from_slice(&bytes);
        filesystem.write_at(file, FileOffset::new(u64::try_from(start)?), &bytes)?;
        if count.is_multiple_of(COMMIT_EVERY) {
            filesystem.commit()?;
        }
    }
    Ok((file, content))
}

/// Threads write to devices whose requests end in any order, and one device begins to fail.
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
    let (_, before, _) = failing.request_counts();
    failing.inject(Fault::FailWritesFrom(before + from));
    let files: Vec<(Location, Vec<u8>)> = std::thread::scope(|scope| {
        let start = |number| {
            let filesystem = filesystem.clone();
            scope.spawn(move || write_file(&filesystem, number, seed))
        };
        let writers: Vec<_> = (0..THREADS).map(start).collect();
        let written = writers.into_iter().map(|writer| match writer.join() {
            Ok(outcome) => outcome,
            Err(_) => anyhow::bail!("a writer panicked"),
        });
        written.collect::<Result<_>>()
    })?;
    filesystem.commit()?;
    let view = filesystem.view();
    let slots = view.volume().devices();
    let failed = slots.iter().find(|slot| slot.failure().is_some());
    ensure!(
        failed.is_some_and(|slot| slot.id().get() == device as u64 + 1),
        "the device was not left out, of whose writes {} came",
        failing.request_counts().1 - before
    );
    let expected = describe(&view)?;
    drop(view);
    filesystem.commit()?;
    drop(filesystem);
    let rest = backends.get(..device).context("the devices that stay")?;
    for backends in [rest, &backends[..]] {
        let found = open_degraded(backends)?;
        let seen = describe(&found)?;
        let what = format!("on {} devices", backends.len());
        ensure!(expected == seen, "{what}: {}", first_difference(&expected, &seen));
        for (file, content) in &files {
            let mut read = Vec::new();
            std::io::copy(&mut found.open_file(*file)?.reader(), &mut read)?;
            ensure!(read == *content, "{what}: another content in {file:?}");
        }
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
            for from in [0, 3, 8, 13] {
                threads(&shape, seed, from).with_context(|| format!("seed {seed}, from write {from} on"))?;
            }
            Ok(Outcome::Passed)
        })
    });
    in_turn.chain(at_once).collect()
}
