//! A device that fails a flush, or all writes from one on (a merged write that fails is tried again in its parts, so that
//! one alone would do no harm), half-way through a run: a clear error, nothing is written any more, what is in memory can
//! still be read; and when the volume is opened again it is a state that was committed, checks clean, and goes on.

use anyhow::{Context, Result, bail, ensure};
use buttress::device::crash::CrashLab;
use buttress::device::{Backend, Device, Engine, Fault, FaultyBackend};
use buttress::format::{ErrorKind, Profile};
use buttress::fs::mkfs::Options;
use buttress::fs::{WritableFilesystem, WriteOptions};
use buttress::{OpenOptions, Progress};
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::writing::recorded::Recorded;
use buttress_proof::writing::state::{describe, first_difference};
use buttress_proof::writing::volume::{
    Backends, Ticking, empty, open_after_crash, open_checked, open_for_writing,
};
use buttress_proof::writing::workload::Workload;
use std::ops::Range;
use std::sync::Arc;

/// Operations of a run, and how many lie between two commits.
const OPERATIONS: u64 = 160;
const COMMIT_EVERY: u64 = 20;

/// Faults of each kind that are tried, spread over a run.
const FAULTS: u64 = 24;

/// A volume whose first device can be made to fail.
struct Subject {
    backends: Backends,
    faulty: Arc<FaultyBackend>,
    filesystem: WritableFilesystem,
    workload: Workload,
    steps: u64,
}

impl Subject {
    /// A new volume, all of whose writes are recorded where there is a laboratory.
    fn new(device_bytes: &[usize], options: &Options, seed: u64, lab: Option<&CrashLab>) -> Result<Self> {
        let mut backends = empty(device_bytes, options)?;
        if let Some(lab) = lab {
            backends = backends
                .into_iter()
                .map(|backend| lab.device(backend) as Arc<dyn Backend>)
                .collect();
        }
        let first = backends.first().context("a device")?;
        let faulty = FaultyBackend::new(Arc::clone(first), seed);
        let devices = backends.iter().enumerate().map(|(number, backend)| {
            let backend: Arc<dyn Backend> = if number == 0 {
                Arc::clone(&faulty) as Arc<dyn Backend>
            } else {
                Arc::clone(backend)
            };
            Device::with_backend(backend, Engine::Inline)
        });
        let options = WriteOptions {
            environment: Arc::new(Ticking::default()),
            ..WriteOptions::default()
        };
        let filesystem = WritableFilesystem::new(OpenOptions::new(devices.collect()).open()?, options)?;
        let workload = Workload::on(&filesystem, seed)?;
        Ok(Self {
            backends,
            faulty,
            filesystem,
            workload,
            steps: 0,
        })
    }

    fn step(&mut self) -> Result<()> {
        self.steps += 1;
        self.workload.step(&self.filesystem)?;
        if self.steps.is_multiple_of(COMMIT_EVERY) {
            self.filesystem.commit()?;
        }
        Ok(())
    }
}

/// The numbers of the writes and of the flushes of a run without faults.
fn reference(subject: &mut Subject) -> Result<(Range<u64>, Range<u64>)> {
    let (_, first_write, first_flush) = subject.faulty.request_counts();
    while subject.steps < OPERATIONS {
        subject.step()?;
    }
    let (_, writes, flushes) = subject.faulty.request_counts();
    Ok((first_write..writes, first_flush..flushes))
}

/// Runs until the fault strikes, and looks at what is left.
fn fail(mut subject: Subject, fault: &Fault, recorded: &Recorded) -> Result<()> {
    subject.faulty.inject(fault.clone());
    let mut promised = 0;
    let failure = loop {
        promised = promised.max(subject.filesystem.committed_generation().get());
        match subject.step() {
            Ok(()) if subject.steps >= OPERATIONS => {
                bail!("the fault never struck: {:?}", subject.faulty.request_counts())
            }
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    let error = failure
        .downcast_ref::<buttress::fs::Error>()
        .with_context(|| format!("an error of another kind: {failure:#}"))?;
    ensure!(
        error.kind() == ErrorKind::Io,
        "{error} is of kind {:?}",
        error.kind()
    );
    // The fault is over; nothing is written all the same, and the error still says why.
    subject.faulty.heal();
    let (_, before, _) = subject.faulty.request_counts();
    let refused = subject
        .filesystem
        .commit()
        .err()
        .context("a commit after a failure")?;
    let (_, after, _) = subject.faulty.request_counts();
    ensure!(before == after, "{} writes after the failure", after - before);
    ensure!(!refused.to_string().is_empty(), "no reason is given");
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
    filesystem.drop_deleted_subvolumes(&Progress::new())?;
    filesystem.commit()?;
    drop((workload, filesystem));
    open_checked(&backends)?;
    Ok(())
}

/// A state without what tells one volume of this process from another in uuids: the reference and each run are volumes of
/// their own, to which the same was done.
fn without_volume_number(state: &str) -> String {
    const PREFIX: &str = "c4a50000-";
    /// Where in a uuid's text the number of the volume stands.
    const NUMBER: std::ops::Range<usize> = 24..32;
    let mut parts = state.split(PREFIX);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (start, end) = (NUMBER.start - PREFIX.len(), NUMBER.end - PREFIX.len());
        text.push_str(PREFIX);
        text.push_str(&part[..start]);
        text.push_str(&part[end..]);
    }
    text
}

fn run(device_bytes: &[usize], options: &Options, seed: u64) -> Result<()> {
    let lab = CrashLab::new();
    let (writes, flushes) = reference(&mut Subject::new(device_bytes, options, seed, Some(&lab))?)?;
    let recorded = Recorded::new(lab.history());
    let spread = |numbers: Range<u64>, fault: fn(u64) -> Fault| {
        let step = ((numbers.end - numbers.start) / FAULTS).max(1);
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
        fail(subject, &fault, &recorded).with_context(|| format!("seed {seed}, {fault:?}"))?;
    }
    Ok(())
}

pub fn cases() -> Vec<Case> {
    let seed = super::number("BUTTRESS_WRITING_SEED", 1);
    let one = move || run(&[128 << 20], &Options::default(), seed);
    let two = move || {
        let options = Options {
            data: Some(Profile::Raid1),
            metadata: Some(Profile::Raid1),
            ..Options::default()
        };
        run(&[160 << 20; 2], &options, seed)
    };
    vec![
        Case::new("faults::one_device", move || one().map(|()| Outcome::Passed)),
        Case::new("faults::one_of_two_devices", move || {
            two().map(|()| Outcome::Passed)
        }),
    ]
}
