//! A required device fails during a run: one flush, or all writes from one on (a failed merged
//! write is retried in its parts, so a single failure would have no effect). After the failure, the
//! error names the device, nothing more is written, and everything in memory stays readable. After
//! reopening, the volume is in a committed state, checks clean, and works.

use crate::subject::{Subject, without_volume_number};
use anyhow::{Context, Result, bail, ensure};
use buttress::mkfs::Options;
use buttress::unstable::format::ErrorKind;
use buttress::unstable::format::block_group::BlockGroupFlags;
use buttress::{Profile, Progress};
use buttress_lab::Fault;
use buttress_lab::crash::CrashLab;
use buttress_oracle::seeds::budget;
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::writing::recorded::Recorded;
use buttress_proof::writing::state::{describe, first_difference};
use buttress_proof::writing::volume::{open_after_crash, open_checked, open_for_writing};
use buttress_proof::writing::workload::Workload;
use std::ops::Range;

/// Number of operations in a run.
const OPERATIONS: u64 = 160;

/// Number of faults of each kind, spread over a run: in the suite, and in a nightly run.
const FAULTS: (u64, u64) = (8, 24);

/// Returns the numbers of writes and of flushes on one device in a run without faults.
fn reference(subject: &mut Subject, device: usize) -> Result<(Range<u64>, Range<u64>)> {
    let (_, first_write, first_flush) = subject.faulty(device)?.request_counts();
    while subject.steps < OPERATIONS {
        subject.step()?;
    }
    let (_, writes, flushes) = subject.faulty(device)?.request_counts();
    Ok((first_write..writes, first_flush..flushes))
}

/// Runs until the fault occurs, and verifies the state.
fn fail(mut subject: Subject, device: usize, fault: &Fault, recorded: &Recorded) -> Result<()> {
    let faulty = subject.faulty(device)?.clone();
    faulty.inject(fault.clone());
    let mut promised = 0;
    let failure = loop {
        promised = promised.max(subject.filesystem.committed_generation().get());
        match subject.step() {
            Ok(()) if subject.steps >= OPERATIONS => {
                bail!("the fault never struck: {:?}", faulty.request_counts())
            }
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    let error = failure
        .downcast_ref::<buttress::unstable::fs::Error>()
        .with_context(|| format!("an error of another kind: {failure:#}"))?;
    ensure!(
        error.kind() == ErrorKind::Io,
        "{error} is of kind {:?}",
        error.kind()
    );
    let name = format!("memory-{device}");
    ensure!(error.to_string().contains(&name), "{error} does not name {name}");
    // After the fault is over, the volume still writes nothing, and the error still names the
    // cause.
    faulty.heal();
    let (_, before, _) = faulty.request_counts();
    let refused = subject
        .filesystem
        .commit()
        .err()
        .context("a commit after a failure")?;
    let (_, after, _) = faulty.request_counts();
    ensure!(before == after, "{} writes after the failure", after - before);
    ensure!(
        refused.to_string().contains(&name),
        "{refused} does not say what failed first"
    );
    let Subject {
        backends,
        filesystem,
        workload,
        ..
    } = subject;
    drop((workload, filesystem));
    let found = open_after_crash(&backends)?;
    let generation = found.superblock().generation.get();
    ensure!(
        generation >= promised,
        "generation {generation}, though {promised} had been committed"
    );
    let expected = without_volume_number(&recorded.state_of(generation)?);
    let seen = without_volume_number(&describe(&found)?);
    ensure!(
        expected == seen,
        "not what generation {generation} held: {}",
        first_difference(&expected, &seen)
    );
    drop(found);
    let filesystem = open_for_writing(&backends)?;
    let mut workload = Workload::on(&filesystem, generation)?;
    for _ in 0..20 {
        workload.step(&filesystem)?;
    }
    filesystem.subvolumes().drop_deleted(&Progress::new())?;
    filesystem.commit()?;
    drop((workload, filesystem));
    open_checked(&backends)?;
    Ok(())
}

fn run(device_bytes: &[usize], options: &Options, seed: u64) -> Result<()> {
    let lab = CrashLab::new();
    let mut subject = Subject::new(device_bytes, options, seed, Some(&lab))?;
    let device = needed_device(&subject)?;
    let (writes, flushes) = reference(&mut subject, device)?;
    drop(subject);
    let recorded = Recorded::new(lab.history());
    let faults = budget("BUTTRESS_WRITING_FAULTS", FAULTS.0, FAULTS.1);
    let spread = |numbers: Range<u64>, fault: fn(u64) -> Fault| {
        let step = ((numbers.end - numbers.start) / faults).max(1);
        numbers
            .step_by(usize::try_from(step).unwrap_or(1))
            .map(fault)
            .collect::<Vec<_>>()
    };
    let faults = spread(writes, Fault::FailWritesFrom)
        .into_iter()
        .chain(spread(flushes, Fault::FailFlushNumber));
    for fault in faults {
        let subject = Subject::new(device_bytes, options, seed, None)?;
        fail(subject, device, &fault, &recorded).with_context(|| format!("seed {seed}, {fault:?}"))?;
    }
    Ok(())
}

/// Returns a device that holds a part of a data chunk.
fn needed_device(subject: &Subject) -> Result<usize> {
    let view = subject.filesystem.view();
    let map = view.volume().chunk_map();
    let chunk = map
        .chunks()
        .iter()
        .find(|chunk| chunk.flags().contains(BlockGroupFlags::DATA))
        .context("a chunk for data")?;
    let id = chunk.stripe_device(0).get();
    usize::try_from(id - 1).context("a small id")
}

pub fn cases() -> Vec<Case> {
    let seed = buttress_oracle::seeds::seed("writing::faults", "BUTTRESS_WRITING_SEED", 1);
    let case = |name: &str, devices: usize, options: Options| {
        Case::new(format!("faults::{name}"), move || {
            run(&vec![160 << 20; devices], &options, seed).map(|()| Outcome::Passed)
        })
    };
    let profiles = |data, metadata| Options {
        data: Some(data),
        metadata: Some(metadata),
        ..Options::default()
    };
    vec![
        // The only device holds both copies of metadata.
        case("one_device", 1, Options::default()),
        case(
            "raid0_on_two_devices",
            2,
            profiles(Profile::Raid0, Profile::Raid0),
        ),
        case(
            "single_data_beside_raid1_metadata",
            2,
            profiles(Profile::Single, Profile::Raid1),
        ),
    ]
}
