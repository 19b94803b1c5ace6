//! A device begins to fail at a write or a flush of a run, on volumes that can do without it. The
//! run must end as if no device had failed, with only redundancy lost. The failed device's
//! statistics count its errors, and the kernel reads the same content without that device and with
//! the stale device.
//!
//! The device fails in one of three ways: its writes fail, its flushes fail, or everything fails.
//! In every second run, the device works again right after it was dropped, and must still receive
//! no requests. Every third run is abandoned between two commits: then the committed state must be
//! present.

mod several;

use crate::subject::{Subject, without_volume_number};
use anyhow::{Context, Result, ensure};
use buttress::mkfs::Options;
use buttress::unstable::volume::{DeviceErrors, DeviceSlot};
use buttress::{Profile, Progress};
use buttress_lab::Fault;
use buttress_lab::crash::CrashLab;
use buttress_oracle::seeds::budget;
use buttress_oracle::tools::kernel_missing;
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::writing::degraded::{expect_kernel_reads, open_degraded, statistics_of};
use buttress_proof::writing::recorded::Recorded;
use buttress_proof::writing::state::{describe, first_difference};
use buttress_proof::writing::volume::{Backends, open_for_writing};
use buttress_proof::writing::workload::Workload;
use std::ops::Range;
use std::sync::Arc;

const DEVICE_BYTES: usize = 128 << 20;

/// Number of operations between two commits.
const COMMIT_EVERY: u64 = 8;

/// In abandoned runs, the number of operations after the volume dropped a device.
const ABANDONED_AFTER: u64 = 5;

#[derive(Clone, Copy, Debug)]
struct Shape {
    name: &'static str,
    data: Profile,
    metadata: Profile,
    devices: usize,
    operations: u64,
    /// Number of runs for each device and way of failing, in the suite and in a nightly run; `None`
    /// means a run for every request.
    runs: (u64, Option<u64>),
}

/// Number of runs for profiles whose every request fails at night.
const EVERY_REQUEST: (u64, Option<u64>) = (12, None);

const SHAPES: [Shape; 10] = [
    Shape {
        runs: EVERY_REQUEST,
        ..Shape::of("raid1", Profile::Raid1, 3)
    },
    // No new chunk can be allocated without the failed device.
    Shape {
        runs: EVERY_REQUEST,
        ..Shape::of("raid1_on_two", Profile::Raid1, 2)
    },
    Shape::of("raid1c3", Profile::Raid1C3, 4),
    Shape::of("raid1c4", Profile::Raid1C4, 5),
    Shape::of("raid10", Profile::Raid10, 5),
    Shape {
        runs: EVERY_REQUEST,
        ..Shape::of("raid5", Profile::Raid5, 3)
    },
    Shape::of("raid6", Profile::Raid6, 4),
    Shape {
        metadata: Profile::Raid1,
        ..Shape::of("raid5_data_beside_raid1", Profile::Raid5, 4)
    },
    Shape {
        metadata: Profile::Raid1C3,
        ..Shape::of("raid6_data_beside_raid1c3", Profile::Raid6, 4)
    },
    Shape {
        metadata: Profile::Raid1C3,
        ..Shape::of("raid1_data_beside_raid1c3", Profile::Raid1, 3)
    },
];

impl Shape {
    const fn of(name: &'static str, profile: Profile, devices: usize) -> Self {
        Self {
            name,
            data: profile,
            metadata: profile,
            devices,
            operations: 32,
            runs: (4, Some(6)),
        }
    }

    fn subject(&self, seed: u64, lab: Option<&CrashLab>) -> Result<Subject> {
        let options = Options {
            data: Some(self.data),
            metadata: Some(self.metadata),
            ..Options::default()
        };
        let subject = Subject::new(&vec![DEVICE_BYTES; self.devices], &options, seed, lab)?;
        Ok(subject.committing_every(COMMIT_EVERY))
    }
}

/// Way in which a device fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Writes,
    Flushes,
    Everything,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Writes, Self::Flushes, Self::Everything];

    const fn from(self, number: u64) -> Fault {
        match self {
            Self::Writes => Fault::FailWritesFrom(number),
            Self::Flushes => Fault::FailFlushesFrom(number),
            Self::Everything => Fault::MissingFromWrite(number),
        }
    }
}

/// A run without faults: its content, and the requests of each device.
struct Reference {
    recorded: Recorded,
    state: String,
    writes: Vec<Range<u64>>,
    flushes: Vec<Range<u64>>,
}

impl Reference {
    fn of(shape: &Shape, seed: u64) -> Result<Self> {
        let lab = CrashLab::new();
        let mut subject = shape.subject(seed, Some(&lab))?;
        let counts = |subject: &Subject| -> Vec<(u64, u64, u64)> {
            subject
                .faulty
                .iter()
                .map(|faulty| faulty.request_counts())
                .collect()
        };
        let before = counts(&subject);
        while subject.steps < shape.operations {
            subject.step()?;
        }
        subject.filesystem.commit()?;
        let after = counts(&subject);
        let state = comparable(&describe(&subject.filesystem.view())?);
        drop(subject);
        let between = before.iter().zip(&after);
        Ok(Self {
            recorded: Recorded::new(lab.history()),
            state,
            writes: between.clone().map(|(before, after)| before.1..after.1).collect(),
            flushes: between.map(|(before, after)| before.2..after.2).collect(),
        })
    }

    fn expect(&self, found: &str, what: &str) -> Result<()> {
        let found = comparable(found);
        ensure!(
            self.state == found,
            "{what}: {}",
            first_difference(&self.state, &found)
        );
        Ok(())
    }
}

/// Returns a state without volume numbers and generations: the device's statistics need a further
/// commit, in which the reference had nothing to commit.
fn comparable(state: &str) -> String {
    let mut text = String::new();
    for line in without_volume_number(state).lines() {
        let (mut before, mut left) = ("", 0);
        for word in line.split(' ') {
            let names_generations = ["made", "changed", "sent", "received", "snapshot"].contains(&before);
            let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
            before = word;
            if word == "transactions" {
                left = 2;
            } else if left > 0 {
                left -= 1;
                continue;
            } else if names_generations && is_number {
                continue;
            }
            text.push_str(word);
            text.push(' ');
        }
        text.push('\n');
    }
    text
}

/// A run in which a device fails.
#[derive(Clone, Copy, Debug)]
struct Failing {
    device: usize,
    kind: Kind,
    /// Number of the first failing request.
    from: u64,
    works_again: bool,
    is_abandoned: bool,
    kernel_looks: bool,
}

impl Failing {
    fn slot(&self, subject: &Subject) -> Result<Arc<DeviceSlot>> {
        let slots = subject.filesystem.view().volume().devices();
        let wanted = u64::try_from(self.device)? + 1;
        let slot = slots.into_iter().find(|slot| slot.id().get() == wanted);
        slot.context("the slot of the device")
    }

    fn run(&self, shape: &Shape, seed: u64, reference: &Reference) -> Result<()> {
        let mut subject = shape.subject(seed, None)?;
        let slot = self.slot(&subject)?;
        let faulty = Arc::clone(subject.faulty(self.device)?);
        faulty.inject(self.kind.from(self.from));
        let mut left_out = None;
        // The last explicit commit: its generation, and the writer's view at that time.
        let mut last = (0, String::new());
        while subject.steps < shape.operations {
            subject
                .step()
                .context("a step, with a device that the volume can do without")?;
            if self.is_abandoned && subject.steps.is_multiple_of(COMMIT_EVERY) {
                let generation = subject.filesystem.committed_generation().get();
                last = (generation, describe(&subject.filesystem.view())?);
            }
            if slot.failure().is_some() && left_out.is_none() {
                left_out = Some((subject.steps, faulty.request_counts()));
                if self.works_again {
                    faulty.heal();
                }
            }
            if self.is_abandoned && left_out.is_some_and(|(at, _)| subject.steps >= at + ABANDONED_AFTER) {
                return self.require_committed(subject, reference, &last);
            }
        }
        subject.filesystem.commit()?;
        let failure = slot.failure().context("the device was never left out")?;
        ensure!(
            failure.to_string().contains(&format!("memory-{}", self.device)),
            "{failure} does not name the device"
        );
        if let Some((_, counts)) = left_out {
            let now = faulty.request_counts();
            ensure!(
                now == counts,
                "asked for {counts:?}, and for {now:?} after it was left out"
            );
        }
        let view = subject.filesystem.view();
        reference.expect(&describe(&view)?, "the writer itself")?;
        let told = view
            .notices()
            .iter()
            .any(|notice| notice.to_string().contains(&failure.to_string()));
        ensure!(told, "no notice tells of {failure}");
        drop(view);
        // Errors in the last commit are stored by the next one.
        subject.filesystem.commit()?;
        let errors = slot.errors();
        let Subject {
            backends,
            filesystem,
            workload,
            ..
        } = subject;
        drop((workload, filesystem));
        self.require_whole(&backends, reference, errors)?;
        if self.kernel_looks {
            self.require_kernels_word(&backends, errors)?;
        }
        self.go_on(&backends)
    }

    /// Returns the remaining devices.
    fn rest(&self, backends: &Backends) -> Backends {
        let mut rest = backends.clone();
        drop(rest.remove(self.device));
        rest
    }

    /// Asserts that the committed state is present: `last`, or a later commit by an operation.
    fn require_committed(&self, subject: Subject, reference: &Reference, last: &(u64, String)) -> Result<()> {
        let promised = subject.filesystem.committed_generation().get();
        let Subject {
            backends,
            filesystem,
            workload,
            ..
        } = subject;
        drop(workload);
        let _forgotten = filesystem.abandon();
        for backends in [self.rest(&backends), backends] {
            let found = open_degraded(&backends)?;
            let generation = found.superblock().generation.get();
            ensure!(
                generation >= promised,
                "generation {generation}, though {promised} had been committed"
            );
            let seen = describe(&found)?;
            if generation == last.0 {
                ensure!(
                    last.1 == seen,
                    "on {} devices not what generation {generation} held: {}",
                    backends.len(),
                    first_difference(&last.1, &seen)
                );
                continue;
            }
            let seen = comparable(&seen);
            let expected = [generation, generation - 1].map(|number| reference.recorded.state_of(number));
            let is_one = |state: &Result<String>| state.as_ref().is_ok_and(|state| comparable(state) == seen);
            ensure!(
                expected.iter().any(is_one),
                "on {} devices, generation {generation}, {promised} promised: neither that nor the one before",
                backends.len()
            );
        }
        Ok(())
    }

    /// Asserts that all content is present without the device, and with the stale device. The
    /// statistics of the failed device count its errors.
    fn require_whole(&self, backends: &Backends, reference: &Reference, errors: DeviceErrors) -> Result<()> {
        let rest = open_degraded(&self.rest(backends)).context("without the device")?;
        reference.expect(&describe(&rest)?, "without the device")?;
        let id = u64::try_from(self.device)? + 1;
        for slot in rest.volume().devices() {
            let statistics = statistics_of(&rest, slot.id())?;
            let found = DeviceErrors {
                writes: statistics.write_errors,
                reads: statistics.read_errors,
                flushes: statistics.flush_errors,
                corruptions: statistics.corruption_errors,
                generations: statistics.generation_errors,
            };
            let is_failed = slot.id().get() == id;
            let expected = if is_failed {
                errors
            } else {
                DeviceErrors::default()
            };
            ensure!(
                found == expected,
                "device {}: {found:?}, not {expected:?}",
                slot.id()
            );
            let counted = match self.kind {
                Kind::Flushes => found.flushes,
                Kind::Writes | Kind::Everything => found.writes,
            };
            ensure!(!is_failed || counted > 0, "device {}: {found:?}", slot.id());
        }
        let all = open_degraded(backends).context("with the device")?;
        reference.expect(&describe(&all)?, "with the device")?;
        // A device without device extents lacks nothing, whatever commits it missed.
        let map = all.volume().chunk_map();
        let is_used = |slot: &Arc<DeviceSlot>| {
            let mut used = map.chunks().iter().flat_map(|chunk| chunk.devices());
            used.any(|device| Arc::ptr_eq(device, slot))
        };
        let is_known =
            |slot: &Arc<DeviceSlot>| slot.id().get() == id && slot.stale().is_some() == is_used(slot);
        ensure!(
            all.volume().devices().iter().any(is_known),
            "the device is not known to be behind, or counts as behind without device extents"
        );
        Ok(())
    }

    fn require_kernels_word(&self, backends: &Backends, errors: DeviceErrors) -> Result<()> {
        expect_kernel_reads(&self.rest(backends)).context("the kernel, without the device")?;
        let printed = expect_kernel_reads(backends).context("the kernel, with the device")?;
        for (name, count) in [
            ("write_io_errs", errors.writes),
            ("flush_io_errs", errors.flushes),
        ] {
            let counts: Vec<u64> = printed
                .lines()
                .filter(|line| line.contains(name))
                .filter_map(|line| line.split_whitespace().last()?.parse().ok())
                .collect();
            ensure!(
                counts.get(self.device) == Some(&count) && counts.iter().sum::<u64>() == count,
                "{name} of device {} is {count}; btrfs device stats prints\n{printed}",
                self.device + 1
            );
        }
        Ok(())
    }

    /// Continues to use the volume with the failed device present: the device receives no writes,
    /// and the other devices are complete.
    fn go_on(&self, backends: &Backends) -> Result<()> {
        let filesystem = open_for_writing(backends)?;
        let mut workload = Workload::on(&filesystem, self.from)?;
        for _ in 0..COMMIT_EVERY {
            workload.step(&filesystem)?;
        }
        filesystem.subvolumes().drop_deleted(&Progress::new())?;
        filesystem.commit()?;
        let shown = describe(&filesystem.view())?;
        drop((workload, filesystem));
        for backends in [self.rest(backends), backends.clone()] {
            let found = describe(&open_degraded(&backends)?)?;
            ensure!(
                shown == found,
                "after going on, on {} devices: {}",
                backends.len(),
                first_difference(&shown, &found)
            );
        }
        Ok(())
    }
}

fn run(shape: &Shape, seed: u64) -> Result<Outcome> {
    let kernel = kernel_missing();
    let reference = Reference::of(shape, seed)?;
    for device in [0, shape.devices - 1] {
        for kind in Kind::ALL {
            let numbers = match kind {
                Kind::Flushes => &reference.flushes,
                Kind::Writes | Kind::Everything => &reference.writes,
            };
            let numbers = numbers.get(device).context("counts of the device")?.clone();
            ensure!(
                numbers.end - numbers.start > 6,
                "hardly any requests: {numbers:?}"
            );
            let all = numbers.end - numbers.start;
            let runs = shape.runs.1.unwrap_or(all);
            let runs = budget("BUTTRESS_DEVICES_RUNS", shape.runs.0, runs);
            let step = all.div_ceil(runs).max(1);
            for (number, from) in numbers.step_by(usize::try_from(step)?).enumerate() {
                let failing = Failing {
                    device,
                    kind,
                    from,
                    works_again: number.is_multiple_of(2),
                    is_abandoned: number % 3 == 2,
                    // The kernel's check takes much longer than the other checks, so few images get
                    // it.
                    kernel_looks: kernel.is_none()
                        && number == 1
                        && (device == 0) == (kind != Kind::Everything),
                };
                let ran = failing.run(shape, seed, &reference);
                ran.with_context(|| format!("seed {seed}, {failing:?}"))?;
            }
        }
    }
    Ok(kernel.map_or(Outcome::Passed, Outcome::Skipped))
}

pub fn cases() -> Vec<Case> {
    let seed = buttress_oracle::seeds::seed("writing::devices", "BUTTRESS_WRITING_SEED", 1);
    let case = |shape: Shape| Case::new(format!("devices::{}", shape.name), move || run(&shape, seed));
    SHAPES.into_iter().map(case).chain(several::cases(seed)).collect()
}
