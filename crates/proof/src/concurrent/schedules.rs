//! A few calls of a few threads on a volume, with `shuttle` choosing the next thread at each lock
//! and shared atomic.
//!
//! The volume of a scene is a complete volume in memory. The library's own code runs; its locks are
//! `shuttle`'s in this build (`buttress_locks`). The volume is prepared once, and each schedule
//! begins with a [fork](super::fork) of it. The answers must have an order, as in
//! [`rounds`](super::rounds). A missing lock therefore shows as a record without an order, and a
//! cycle of locks as a deadlock.
//!
//! Half of the explored schedules are random. In the other half, priorities change at a few points
//! (PCT), which finds errors that need one long delay. Both follow from the seed; a failure also
//! prints the schedule.

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

/// Smallest size of a volume with two copies of both kinds of block groups, in bytes.
const VOLUME_BYTES: usize = 160 << 20;

/// Stack size of threads in bytes, because calls nest deeply.
const STACK_BYTES: usize = 1 << 20;

/// Number of points at which a schedule by priorities changes the priorities.
const CHANGES: usize = 4;

/// A volume before the threads begin, and its model.
#[derive(Debug)]
pub struct Stage {
    backends: Backends,
    filesystem: WritableFilesystem,
    model: Model,
}

/// Function that prepares a volume and returns the calls of each thread.
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
            // The device is new, so its undiscarded parts take no memory.
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

    /// Makes a change. Returns the new inode.
    ///
    /// # Errors
    /// The model and the volume disagree, or no inode is new.
    pub fn make(&mut self, operation: Operation) -> Result<Location> {
        let made = operation.apply(&mut self.model, &self.filesystem, 0)?;
        made.location().context("something new")
    }

    /// Makes a change that creates no inode.
    ///
    /// # Errors
    /// Fails if the model and the volume disagree.
    pub fn change(&mut self, operation: Operation) -> Result<()> {
        operation.apply(&mut self.model, &self.filesystem, 0).map(drop)
    }

    /// Returns the target of a name.
    #[must_use]
    pub fn target(&self, directory: Location, name: &[u8]) -> Option<Location> {
        let names = names(&self.model, directory)?;
        names
            .into_iter()
            .find(|(found, _)| found == name)
            .map(|(_, target)| target)
    }
}

/// Parameters of an exploration.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Seed of all schedules.
    pub seed: u64,
    /// Number of schedules.
    pub schedules: usize,
    /// Cache size for trees.
    pub cache: ByteCount,
    /// True if the cache is empty when the threads begin.
    pub cold: bool,
}

/// A volume in its initial state, its model, and the calls of each thread.
type Prepared = (Backends, Model, Vec<Vec<Call>>);

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config
}

/// Explores schedules of a scene. Panics at the first schedule whose results no order explains.
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

/// Runs the scene once, under the checker because its locks are used there, too.
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
    // The committed state equals the live state.
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
