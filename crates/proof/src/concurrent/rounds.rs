//! Threads in rounds. In each round, each thread makes some calls as fast as possible. After each
//! round, all threads wait, the search finds an order, and the quiet volume is compared with the
//! model.
//!
//! Concurrently with rounds and barriers, another thread commits, writes back, takes views and
//! drops deleted subvolumes; none of this may be visible. This thread pauses while the other
//! threads check the volume.

use super::call::{Answer, Call};
use super::drawing::{Drawing, Hot};
use super::observation::Observation;
use super::order::explain;
use super::record::{Counter, Record};
use crate::writing::comparing::{expect_model_by_another_clock, expect_nothing_found};
use crate::writing::model::Model;
use crate::writing::operation::{Mode, Operation};
use crate::writing::unsteady::Unsteady;
use crate::writing::volume::{Backends, Ticking, devices, empty, write_images};
use anyhow::{Context, Result, anyhow};
use buttress::unstable::fs::OpenOptions;
use buttress::unstable::writer::operations::OpenInode;
use buttress::unstable::writer::{WritableFilesystem, WriteOptions};
use buttress::{Backend, ByteCount, DataOptions, Location, Progress, SubvolumeId, mkfs};
use buttress_lab::gate::SetOnDrop;
use buttress_oracle::btrfs_check::btrfs_check;
use buttress_oracle::content::Random;
use buttress_oracle::volumes::scratch;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seed of all calls. The scheduling of threads does not depend on the seed.
    pub seed: u64,
    /// Number of concurrent threads.
    pub threads: usize,
    /// Number of calls per thread in a round.
    pub calls: usize,
    /// Number of rounds.
    pub rounds: u64,
    /// Number of rounds after which the volume is committed, opened a second time, and checked.
    pub check_every: u64,
    /// Number of volume checks after which `btrfs check` also runs. `None`: never.
    pub btrfs_check_every: Option<u64>,
    /// Cache size for trees.
    pub cache: ByteCount,
    /// Options for writing content.
    pub data: DataOptions,
}

/// Counts of a run's events.
#[derive(Debug, Default)]
pub struct Account {
    /// Numbers of successful and of refused calls, by kind.
    calls: BTreeMap<&'static str, [u64; 2]>,
    /// Number of pairs of overlapping calls in a round.
    pub overlaps: u64,
    /// Number of commits, views and similar operations that run concurrently with calls.
    pub beside: u64,
    /// Number of checks of the volume.
    pub checks: u64,
}

impl Account {
    /// Returns the number of counted calls.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.values().flatten().sum()
    }

    fn count(&mut self, records: &[Record]) {
        for (number, record) in records.iter().enumerate() {
            let is_refused = matches!(record.answer, Answer::Refused(..));
            self.calls.entry(word(&record.call)).or_default()[usize::from(is_refused)] += 1;
            let overlaps = |other: &&Record| other.begin < record.end && record.begin < other.end;
            self.overlaps += records[..number].iter().filter(overlaps).count() as u64;
        }
    }

    /// Fails if no call of some kind succeeded, or if calls hardly overlapped.
    ///
    /// # Errors
    /// Fails with the kind of the missing call, or the number of overlaps.
    pub fn expect_everything(&self) -> Result<()> {
        for word in EVERYTHING {
            let [succeeded, _] = self.calls.get(word).copied().unwrap_or_default();
            anyhow::ensure!(succeeded > 0, "no {word} succeeded: {self}");
        }
        anyhow::ensure!(self.overlaps > self.calls() / 2, "threads hardly met: {self}");
        Ok(())
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} calls, {} pairs at once, {} commits and views beside them, {} checks:",
            self.calls(),
            self.overlaps,
            self.beside,
            self.checks
        )?;
        for (word, [succeeded, refused]) in &self.calls {
            write!(f, " {word} {succeeded} (and {refused} refused)")?;
        }
        Ok(())
    }
}

/// Kinds of calls that must succeed at least once in every run.
const EVERYTHING: [&str; 27] = [
    "create",
    "mkdir",
    "link",
    "unlink",
    "rmdir",
    "rename",
    "exchange",
    "setxattr",
    "chmod",
    "hold",
    "release",
    "subvolume",
    "snapshot",
    "delete subvolume",
    "write",
    "append",
    "truncate",
    "punch",
    "clone",
    "copy",
    "lookup",
    "stat",
    "readdir",
    "read",
    "getxattr",
    "write back",
    "commit",
];

const fn word(call: &Call) -> &'static str {
    match call {
        Call::Change(Operation::Rename(.., Mode::Exchange)) => "exchange",
        Call::Change(operation) => operation.word(),
        Call::Lookup(..) => "lookup",
        Call::List(_) => "readdir",
        Call::ListInView(_) => "readdir of a view",
        Call::Stat(_) => "stat",
        Call::Read(..) => "read",
        Call::Xattr(..) => "getxattr",
        Call::WriteBack(_) => "write back",
        Call::Commit => "commit",
    }
}

/// Inodes that one thread holds open.
type Held = BTreeMap<Location, OpenInode>;

struct Run<'a> {
    plan: &'a Plan,
    filesystem: &'a WritableFilesystem,
    backends: &'a Backends,
    model: Model,
    held: Vec<Held>,
    account: Account,
}

/// Runs a plan to its end.
///
/// # Errors
/// Fails with the seed, the round, and the smallest part of the round without an order, or with the
/// check's findings.
pub fn run(plan: &Plan) -> Result<Account> {
    let backends = empty(&[256 << 20], &mkfs::Options::default())?;
    let unsteady: Backends = backends
        .iter()
        .map(|backend| Unsteady::over(Arc::clone(backend), plan.seed) as Arc<dyn Backend>)
        .collect();
    let options = WriteOptions {
        environment: Arc::new(Ticking::default()),
        data: plan.data,
        ..WriteOptions::default()
    };
    let opened = OpenOptions::new(devices(&unsteady)).cache(plan.cache).open()?;
    let filesystem = WritableFilesystem::new(opened, options)?;
    let mut run = Run {
        plan,
        filesystem: &filesystem,
        backends: &backends,
        model: Model::new(0),
        held: (0..plan.threads).map(|_| Held::new()).collect(),
        account: Account::default(),
    };
    run.prepare()?;
    let (done, pause, beside) = (AtomicBool::new(false), Mutex::new(()), AtomicU64::new(0));
    let ended = std::thread::scope(|scope| {
        let over = SetOnDrop::new(&done);
        let helper = scope.spawn(|| work_beside(&filesystem, plan.seed, &done, &pause, &beside));
        let ended = (0..plan.rounds).try_for_each(|round| {
            run.round(round)
                .with_context(|| format!("seed {}, round {round}", plan.seed))?;
            if (round + 1).is_multiple_of(plan.check_every) || round + 1 == plan.rounds {
                let _alone = pause.lock().unwrap_or_else(PoisonError::into_inner);
                run.check()
                    .with_context(|| format!("seed {}, after round {round}", plan.seed))?;
            }
            Ok(())
        });
        drop(over);
        let helped = helper.join().map_err(|_| anyhow!("the thread beside panicked"));
        ended.and(helped.flatten())
    });
    run.account.beside = beside.into_inner();
    let account = std::mem::take(&mut run.account);
    drop(run);
    ended?;
    filesystem.close()?;
    Ok(account)
}

/// Commits, writes back, takes views and drops deleted subvolumes until the run ends.
fn work_beside(
    filesystem: &WritableFilesystem,
    seed: u64,
    done: &AtomicBool,
    pause: &Mutex<()>,
    count: &AtomicU64,
) -> Result<()> {
    let mut random = Random::new(seed ^ 0xbe51de);
    let mut views = Vec::new();
    while !done.load(Ordering::Relaxed) {
        {
            let _not_now = pause.lock().unwrap_or_else(PoisonError::into_inner);
            match random.below(8) {
                0..2 => drop(filesystem.commit()?),
                2..4 => filesystem.writeback().write_all()?,
                4 => filesystem.subvolumes().drop_deleted(&Progress::new())?,
                5 => views.clear(),
                _ => views.push(filesystem.view()),
            }
        }
        count.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(std::time::Duration::from_micros(random.below(600)));
    }
    Ok(())
}

impl Run<'_> {
    /// Creates the initial subvolume, directories and files.
    fn prepare(&mut self) -> Result<()> {
        let top = Location::root_of(SubvolumeId::TOP_LEVEL);
        let made = self.make(Operation::CreateSubvolume(top, b"s".to_vec()))?;
        for root in [Some(top), made].into_iter().flatten() {
            for number in 0..2 {
                self.make(Operation::MakeDirectory(
                    root,
                    format!("d{number}").into_bytes(),
                    0o755,
                ))?;
                self.make(Operation::Create(root, format!("f{number}").into_bytes(), 0o644))?;
            }
        }
        Ok(())
    }

    fn make(&mut self, operation: Operation) -> Result<Option<Location>> {
        let made = operation.apply(&mut self.model, self.filesystem, 0)?;
        Ok(made.location())
    }

    fn round(&mut self, round: u64) -> Result<()> {
        let plan = self.plan;
        let seed = plan.seed.wrapping_mul(0x9e37_79b9).wrapping_add(round) << 8;
        let hot = Hot::draw(&self.model, &mut Random::new(seed | 0xff));
        let (clock, start) = (Counter::default(), Barrier::new(plan.threads));
        let (model, filesystem) = (&self.model, self.filesystem);
        let threads = self.held.iter_mut().enumerate();
        let records: Result<Vec<Vec<Record>>> = std::thread::scope(|scope| {
            let callers: Vec<_> = threads
                .map(|(thread, held)| {
                    let drawing = Drawing {
                        model,
                        hot: &hot,
                        met: Vec::new(),
                        thread: (thread, plan.threads),
                    };
                    let random = Random::new(seed + thread as u64);
                    let (clock, start) = (&clock, &start);
                    scope.spawn(move || {
                        start.wait();
                        call_randomly(filesystem, drawing, random, plan.calls, held, clock)
                    })
                })
                .collect();
            callers
                .into_iter()
                .map(|caller| caller.join().map_err(|_| anyhow!("a thread panicked"))?)
                .collect()
        });
        let mut records = records?.concat();
        records.sort_by_key(|record| record.begin);
        self.account.count(&records);
        let held = self.held.iter().flat_map(|held| held.keys().copied());
        let seen = Observation::of(filesystem, held).with_context(|| told(&records))?;
        self.model = explain(&self.model, &records, &seen).map_err(|no_order| anyhow!("{}", no_order.0))?;
        Ok(())
    }

    /// Commits, opens the volume beside the writer, checks it and compares it with the model.
    fn check(&mut self) -> Result<()> {
        self.filesystem.commit()?;
        let found = OpenOptions::new(devices(self.backends)).open()?;
        expect_nothing_found(&found)?;
        // The walk does not show a held inode without a name.
        let times = |model: &Model| {
            let mut model = model.clone();
            let subvolumes = model.subvolumes.values_mut();
            subvolumes.for_each(|subvolume| {
                subvolume
                    .inodes
                    .values_mut()
                    .for_each(|inode| inode.modified_is_set = false)
            });
            model
        };
        expect_model_by_another_clock("the volume", &times(&self.model), &found)?;
        self.account.checks += 1;
        if self
            .plan
            .btrfs_check_every
            .is_some_and(|every| self.account.checks.is_multiple_of(every))
        {
            let folder = scratch()?;
            btrfs_check(&write_images(self.backends, folder.path())?)?;
        }
        Ok(())
    }
}

fn told(records: &[Record]) -> String {
    records.iter().map(|record| format!("\n    {record}")).collect()
}

fn call_randomly(
    filesystem: &WritableFilesystem,
    mut drawing: Drawing<'_>,
    mut random: Random,
    calls: usize,
    held: &mut Held,
    clock: &Counter,
) -> Result<Vec<Record>> {
    let thread = drawing.thread.0;
    let mut records = Vec::with_capacity(calls);
    for _ in 0..calls {
        let own: BTreeSet<Location> = held.keys().copied().collect();
        let call = drawing.draw(&mut random, &own);
        let begin = clock.next();
        let (answer, opened) = match &call {
            Call::Change(Operation::Release(location)) => {
                drop(held.remove(location));
                (Answer::Done, None)
            }
            call => call.perform(filesystem).with_context(|| call.to_string())?,
        };
        let end = clock.next();
        held.extend(opened.map(|opened| (opened.location(), opened)));
        drawing.meet(match &answer {
            Answer::Inode(location) | Answer::Entry(Some(location)) => Some(*location),
            _ => None,
        });
        records.push(Record {
            thread,
            call,
            answer,
            begin,
            end,
        });
    }
    Ok(records)
}
