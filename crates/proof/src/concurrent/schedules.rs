//! A few calls of a few threads on a volume, with `shuttle` choosing at each lock and shared atomic who goes on.
//!
//! The volume is a whole one, in memory: what runs is the library's own code, whose locks are `shuttle`'s in this build
//! (`buttress_locks`). It is prepared once; each schedule begins with a [fork](super::fork) of it. What the calls answer must have an order, as in
//! [`rounds`](super::rounds); so a lock that is missing shows as a record without one, and locks in a circle as a deadlock.
//!
//! Half of the schedules are random, half by priorities that change at a few places (PCT), which finds what needs one thread
//! to be held up for long. Both follow from the seed; a failure prints the schedule, too.

use super::agreement::names;
use super::call::Call;
use super::fork::Forked;
use super::observation::Observation;
use super::order::explain;
use super::record::{Counter, Record};
use crate::writing::model::Model;
use crate::writing::operation::Operation;
use crate::writing::volume::{Backends, Ticking, devices, empty};
use anyhow::{Context, Result};
use buttress::unstable::fs::OpenOptions;
use buttress::unstable::writer::{WritableFilesystem, WriteOptions};
use buttress::{ByteCount, Location, SubvolumeId, mkfs};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};
use std::sync::{Arc, OnceLock};

/// The root directory of the top level.
pub const TOP: Location = Location::root_of(SubvolumeId::TOP_LEVEL);

/// The least that a volume with both kinds of block groups twice takes.
const VOLUME_BYTES: usize = 160 << 20;

/// Stacks of threads: calls go deep.
const STACK_BYTES: usize = 1 << 20;

/// Places at which a schedule by priorities changes them.
const CHANGES: usize = 4;

/// A volume before the threads begin, and its model.
#[derive(Debug)]
pub struct Stage {
    backends: Backends,
    filesystem: WritableFilesystem,
    model: Model,
}

/// Prepares a volume, and says what threads call. Run for each schedule.
pub type Scene = fn(&mut Stage) -> Result<Vec<Vec<Call>>>;

fn open(backends: &Backends, cache: ByteCount) -> Result<WritableFilesystem> {
    let options = WriteOptions {
        environment: Arc::new(Ticking::default()),
        ..WriteOptions::default()
    };
    let opened = OpenOptions::new(devices(backends)).cache(cache).open()?;
    Ok(WritableFilesystem::new(opened, options)?)
}

impl Stage {
    fn new(cache: ByteCount) -> Result<Self> {
        let options = mkfs::Options {
            // Nothing was there before: what is not discarded takes no memory.
            keep_contents: true,
            ..mkfs::Options::default()
        };
        let backends = empty(&[VOLUME_BYTES], &options)?;
        Ok(Self {
            filesystem: open(&backends, cache)?,
            backends,
            model: Model::new(0),
        })
    }

    /// Makes a change. Gives what is new.
    ///
    /// # Errors
    /// That the model and the volume disagree, or nothing is new.
    pub fn make(&mut self, operation: Operation) -> Result<Location> {
        let made = operation.apply(&mut self.model, &self.filesystem, 0)?;
        made.location().context("something new")
    }

    /// Makes a change that makes nothing new.
    ///
    /// # Errors
    /// That the model and the volume disagree.
    pub fn change(&mut self, operation: Operation) -> Result<()> {
        operation.apply(&mut self.model, &self.filesystem, 0).map(drop)
    }

    /// Where a name leads.
    #[must_use]
    pub fn target(&self, directory: Location, name: &[u8]) -> Option<Location> {
        let names = names(&self.model, directory)?;
        names
            .into_iter()
            .find(|(found, _)| found == name)
            .map(|(_, target)| target)
    }
}

/// How schedules are explored.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Seed of all schedules.
    pub seed: u64,
    /// How many there are.
    pub schedules: usize,
    /// How much of trees is kept in memory.
    pub cache: ByteCount,
    /// Whether nothing of them is in memory when the threads begin.
    pub cold: bool,
}

/// A volume as threads find it, its model, and what they call.
type Prepared = (Backends, Model, Vec<Vec<Call>>);

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config
}

/// Explores schedules of a scene. Panics with the first that has no order.
pub fn explore(plan: Plan, scene: Scene) {
    let prepared = prepare(&plan, scene);
    let run = move || {
        if let Err(error) = once(&plan, &prepared) {
            panic!("seed {}: {error:?}", plan.seed);
        }
    };
    let half = plan.schedules.div_ceil(2);
    Runner::new(RandomScheduler::new_from_seed(plan.seed, half), config()).run(run.clone());
    Runner::new(PctScheduler::new_from_seed(plan.seed, CHANGES, half), config()).run(run);
}

/// Runs the scene once, by itself: locks are the checker's there, too.
fn prepare(plan: &Plan, scene: Scene) -> Arc<Prepared> {
    let (cache, prepared) = (plan.cache, Arc::new(OnceLock::new()));
    let kept = Arc::clone(&prepared);
    let run = move || {
        let prepare = || -> Result<Prepared> {
            let mut stage = Stage::new(cache)?;
            let threads = scene(&mut stage)?;
            stage.filesystem.close()?;
            Ok((stage.backends, stage.model, threads))
        };
        let _once = kept.set(Arc::new(
            prepare().unwrap_or_else(|error| panic!("preparing: {error:?}")),
        ));
    };
    Runner::new(RandomScheduler::new_from_seed(plan.seed, 1), config()).run(run);
    Arc::clone(prepared.get().unwrap_or_else(|| panic!("nothing was prepared")))
}

fn once(plan: &Plan, prepared: &Prepared) -> Result<()> {
    let (backends, model, threads) = prepared;
    let backends: Backends = backends.iter().map(|backend| Forked::of(backend) as _).collect();
    let mut stage = Stage {
        filesystem: open(&backends, plan.cache)?,
        backends,
        model: model.clone(),
    };
    if !plan.cold {
        Observation::of(&stage.filesystem, core::iter::empty())?;
    }
    let clock = Arc::new(Counter::default());
    let callers: Vec<_> = threads
        .iter()
        .cloned()
        .enumerate()
        .map(|(thread, calls)| {
            let (filesystem, clock) = (stage.filesystem.clone(), Arc::clone(&clock));
            thread::spawn(move || call_in_turn(&filesystem, thread, calls, &clock))
        })
        .collect();
    let mut records = Vec::new();
    for caller in callers {
        let called = caller.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?;
        records.extend(called?);
    }
    records.sort_by_key(|record: &Record| record.begin);
    let seen = Observation::of(&stage.filesystem, core::iter::empty())?;
    stage.model =
        explain(&stage.model, &records, &seen).map_err(|no_order| anyhow::anyhow!("{}", no_order.0))?;
    // What was committed is the same.
    stage.filesystem.close()?;
    let filesystem = open(&stage.backends, plan.cache)?;
    let seen = Observation::of(&filesystem, core::iter::empty())?;
    match seen.difference(&stage.model) {
        Some(difference) => anyhow::bail!("after a commit {difference}"),
        None => Ok(filesystem.close().map(drop)?),
    }
}

fn call_in_turn(
    filesystem: &WritableFilesystem,
    thread: usize,
    calls: Vec<Call>,
    clock: &Counter,
) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    for call in calls {
        let begin = clock.next();
        let (answer, held) = call.perform(filesystem).with_context(|| call.to_string())?;
        drop(held);
        let end = clock.next();
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
