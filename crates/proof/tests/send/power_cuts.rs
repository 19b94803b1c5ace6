//! Power cuts during receives, at every write: the volume has the state before a stream or after
//! it. The next opening drops an unfinished subvolume, even if that opening is cut itself. After a
//! power cut, kept parts of a stream can be resumed.
//!
//! The target volumes are in memory and recorded by the crash laboratory. `BUTTRESS_RECEIVE_CUTS`
//! (number of cuts) and `BUTTRESS_SOAK_SEED` (seed of the first recording) request runs beyond the
//! suite.

use super::broken::{DEVICE_BYTES, content, golden, kept, names, take, take_keeping};
use anyhow::{Context, Result, ensure};
use buttress::mkfs;
use buttress::unstable::format::RootFlags;
use buttress::unstable::fs::OpenOptions;
use buttress_lab::crash::{CrashLab, History, Outcome as Kept};
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::writing::state::describe;
use buttress_proof::writing::volume::{
    Backends, devices, empty, open_after_crash, open_checked, open_for_writing,
};
use buttress_writer::{WritableFilesystem, WriteOptions};
use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};

const STREAMS: [&str; 2] = ["kernel-full-v2.stream", "kernel-incremental-v2.stream"];

/// A stream reader that commits the volume in the middle of the stream.
struct Committing<'a> {
    filesystem: &'a WritableFilesystem,
    rest: &'a [u8],
    /// Number of remaining bytes at the commit.
    at: usize,
}

impl Read for Committing<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.rest.len() <= self.at {
            self.at = 0;
            self.filesystem.commit().map_err(std::io::Error::other)?;
        }
        // Read small pieces, so that the received part is in the volume.
        let length = buffer.len().min(64);
        self.rest.read(buffer.get_mut(..length).unwrap_or_default())
    }
}

/// Describes a volume: every path with all properties of its inode, without root items.
fn shown(filesystem: &buttress::unstable::fs::Filesystem) -> Result<String> {
    let all = describe(filesystem)?;
    let is_path = |line: &&str| !line.starts_with("subvolume ") && !line.starts_with("deleted subvolume ");
    Ok(all.lines().filter(is_path).collect::<Vec<_>>().join("\n"))
}

/// Returns the number of unfinished subvolumes in the volume.
fn unfinished(filesystem: &buttress::unstable::fs::Filesystem) -> Result<u64> {
    let all = filesystem.subvolumes()?;
    let found = all
        .iter()
        .filter(|info| info.is_deleted() && !info.root_item.flags.contains(RootFlags::DEAD));
    Ok(u64::try_from(found.count())?)
}

/// Opens devices that a laboratory records.
fn recorded(lab: &CrashLab, base: &Backends) -> Result<WritableFilesystem> {
    let backends: Backends = base.iter().map(|backend| lab.device(backend.clone())).collect();
    let filesystem = OpenOptions::new(devices(&backends)).open()?;
    Ok(WritableFilesystem::new(filesystem, WriteOptions::default())?)
}

/// Receives two streams with a commit in their middle, and two truncated ones.
fn received(seed: u64) -> Result<(History, Vec<String>)> {
    let lab = CrashLab::new();
    let filesystem = recorded(&lab, &empty(&[DEVICE_BYTES], &mkfs::Options::default())?)?;
    let mut states = vec![shown(&filesystem.view())?];
    for (number, name) in (1..).zip(STREAMS) {
        let stream = golden(name)?;
        let part = |of: usize| of * usize::try_from(1 + seed % 7).unwrap_or(1) / 8;
        let whole = Committing {
            filesystem: &filesystem,
            rest: &stream,
            at: part(stream.len()),
        };
        take(&filesystem, whole)?;
        lab.mark(number);
        states.push(shown(&filesystem.view())?);
        // The kept part of a truncated stream must not disturb the next receive.
        let rest = &stream[..stream.len() - 30];
        let cut_short = Committing {
            filesystem: &filesystem,
            rest,
            at: part(rest.len()),
        };
        ensure!(take(&filesystem, cut_short).is_err());
        filesystem.commit()?;
    }
    filesystem.close()?;
    Ok((lab.history(), states))
}

/// Numbers of the states that were found after cuts.
#[derive(Default)]
struct Found {
    cuts: u64,
    unfinished: u64,
    cuts_of_sweeps: u64,
    resumed: u64,
}

/// Verifies one power cut: the volume has a guaranteed state, and nothing else after the next
/// opening.
fn look(history: &History, states: &[String], cut: usize, outcome: Kept, found: &mut Found) -> Result<()> {
    let images = history.images_at(cut, outcome);
    let state = shown(&open_after_crash(&images)?)?;
    let least = usize::try_from(history.last_mark(cut).unwrap_or(0))?;
    let which = states.iter().position(|known| *known == state);
    ensure!(
        which.is_some_and(|which| which >= least),
        "state {which:?} after {least} streams were received"
    );
    let waiting = unfinished(&OpenOptions::new(devices(&images)).open()?)?;
    found.cuts += 1;
    found.unfinished += waiting;
    if waiting > 0 && found.unfinished % 16 == 1 {
        cut_sweep(&images, &state, found)?;
    }
    swept(&images, &state)
}

/// Opens the volume for writing: nothing unfinished remains, and everything else is unchanged.
fn swept(images: &Backends, state: &str) -> Result<()> {
    let filesystem = open_for_writing(images)?;
    ensure!(
        unfinished(&filesystem.view())? == 0,
        "an unfinished subvolume is left"
    );
    ensure!(
        shown(&filesystem.view())? == state,
        "opening it for writing changed what it shows"
    );
    filesystem.set_label(b"after the cut")?;
    filesystem.close()?;
    open_checked(images)?;
    Ok(())
}

/// Cuts the opening that drops unfinished subvolumes, at every write.
fn cut_sweep(images: &Backends, state: &str, found: &mut Found) -> Result<()> {
    let lab = CrashLab::new();
    recorded(&lab, images)?.close()?;
    let history = lab.history();
    for cut in 0..=history.len() {
        for outcome in [Kept::AllKept, Kept::NoneKept, Kept::Drawn { seed: cut as u64 }] {
            let images = history.images_at(cut, outcome);
            let looked = || -> Result<()> {
                let now = shown(&open_after_crash(&images)?)?;
                ensure!(now == state, "what it shows is not what it showed before");
                swept(&images, state)
            };
            looked().with_context(|| format!("the sweep's cut {cut} of {}, {outcome:?}", history.len()))?;
            found.cuts_of_sweeps += 1;
        }
    }
    Ok(())
}

fn at_every_write() -> Result<Outcome> {
    let (history, states) = received(3)?;
    let mut found = Found::default();
    for cut in 0..=history.len() {
        for outcome in [Kept::AllKept, Kept::NoneKept, Kept::Drawn { seed: cut as u64 }] {
            look(&history, &states, cut, outcome, &mut found)
                .with_context(|| format!("cut {cut} of {}, {outcome:?}", history.len()))?;
        }
    }
    println!(
        "{} cuts, {} of subvolumes that were being made; {} cuts of openings that drop them",
        found.cuts, found.unfinished, found.cuts_of_sweeps
    );
    ensure!(
        found.unfinished > 20 && found.cuts_of_sweeps > 20,
        "hardly any subvolume was being made when the power went"
    );
    Ok(Outcome::Passed)
}

/// A stream that is kept during its receive, and its result.
struct Keeping {
    history: History,
    stream: Vec<u8>,
    name: Vec<u8>,
    expected: String,
}

/// Receives the last of the streams with keeping, interrupted once.
fn keeping(seed: u64) -> Result<Keeping> {
    let count = usize::try_from(1 + seed % 2)?;
    let streams = STREAMS[..count].iter().map(|name| golden(name));
    let mut streams = streams.collect::<Result<Vec<_>>>()?;
    let stream = streams.pop().context("a stream")?;
    let base = empty(&[DEVICE_BYTES], &mkfs::Options::default())?;
    let filesystem = open_for_writing(&base)?;
    for before in &streams {
        take(&filesystem, before.as_slice())?;
    }
    filesystem.close()?;
    let lab = CrashLab::new();
    let filesystem = recorded(&lab, &base)?;
    let cut = stream.len() * usize::try_from(1 + seed % 5)? / 6;
    ensure!(take_keeping(&filesystem, &stream[..cut], None).is_err());
    let found = kept(&filesystem)?;
    let rest = match &found {
        Some(found) => &stream[usize::try_from(found.trail.bytes())?..],
        None => stream.as_slice(),
    };
    let summary = take_keeping(&filesystem, rest, found)?;
    lab.mark(1);
    let name = summary.subvolumes.first().context("a subvolume")?.name.clone();
    let expected = content(&filesystem, &name)?;
    filesystem.close()?;
    Ok(Keeping {
        history: lab.history(),
        stream,
        name,
        expected,
    })
}

/// Verifies one cut: the kept part is resumed, and the result equals an uninterrupted receive.
/// Returns whether the receive kept a part of the stream.
fn go_on(keeping: &Keeping, cut: usize, outcome: Kept) -> Result<bool> {
    let Keeping {
        history,
        stream,
        name,
        expected,
    } = keeping;
    let images = history.images_at(cut, outcome);
    let filesystem = open_for_writing(&images)?;
    let is_there = names(&filesystem)?.contains(name);
    ensure!(
        is_there || history.last_mark(cut).is_none(),
        "what was received is gone"
    );
    let mut was_kept = false;
    if !is_there {
        let found = kept(&filesystem)?;
        was_kept = found.is_some();
        let rest = match &found {
            Some(found) if cut.is_multiple_of(2) => &stream[usize::try_from(found.trail.bytes())?..],
            _ => stream.as_slice(),
        };
        take_keeping(&filesystem, rest, found)?;
    }
    ensure!(content(&filesystem, name)? == *expected, "not as it is uncut");
    ensure!(is_there || kept(&filesystem)?.is_none(), "what was kept is left");
    // The commit rewrites torn copies of superblocks.
    filesystem.set_label(b"after the cut")?;
    filesystem.close()?;
    open_checked(&images)?;
    Ok(was_kept)
}

fn resumed_after_every_write() -> Result<Outcome> {
    let mut resumed = 0_u64;
    for seed in [1, 2] {
        let keeping = keeping(seed)?;
        for cut in 0..=keeping.history.len() {
            let outcome = match cut % 3 {
                0 => Kept::AllKept,
                1 => Kept::NoneKept,
                _ => Kept::Drawn { seed: cut as u64 },
            };
            let went_on = go_on(&keeping, cut, outcome).with_context(|| {
                format!("seed {seed}, cut {cut} of {}, {outcome:?}", keeping.history.len())
            })?;
            resumed += u64::from(went_on);
        }
    }
    println!("{resumed} streams were gone on with");
    ensure!(resumed > 100, "only {resumed} streams were gone on with");
    Ok(Outcome::Passed)
}

/// Makes this number of cuts, half of them in kept and resumed streams, over recordings with
/// consecutive seeds.
fn soak(cuts: u64, first: u64) -> Result<Outcome> {
    let (next, done) = (AtomicU64::new(first), AtomicU64::new(0));
    let gathered = std::sync::Mutex::new(Found::default());
    let worker = || -> Result<()> {
        while done.load(Ordering::Relaxed) < cuts {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let mut found = Found::default();
            let (history, states) = received(seed)?;
            for cut in 0..=history.len() {
                let outcome = Kept::Drawn {
                    seed: seed ^ cut as u64,
                };
                look(&history, &states, cut, outcome, &mut found)
                    .with_context(|| format!("seed {seed}, cut {cut} of {}, {outcome:?}", history.len()))?;
            }
            let keeping = keeping(seed)?;
            for cut in 0..=keeping.history.len() {
                let outcome = Kept::Drawn {
                    seed: seed ^ cut as u64,
                };
                let went_on = go_on(&keeping, cut, outcome).with_context(|| {
                    format!(
                        "resumed: seed {seed}, cut {cut} of {}, {outcome:?}",
                        keeping.history.len()
                    )
                })?;
                found.resumed += u64::from(went_on);
                found.cuts += 1;
            }
            done.fetch_add(found.cuts + found.cuts_of_sweeps, Ordering::Relaxed);
            let mut all = gathered.lock().unwrap_or_else(|poison| poison.into_inner());
            all.cuts += found.cuts;
            all.unfinished += found.unfinished;
            all.cuts_of_sweeps += found.cuts_of_sweeps;
            all.resumed += found.resumed;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| {
            let done = worker.join();
            done.map_err(|_| anyhow::anyhow!("a thread panicked"))?
        })
    })?;
    let found = gathered.into_inner().unwrap_or_else(|poison| poison.into_inner());
    println!(
        "seeds from {first}: {} cuts and {} of openings that drop; {} subvolumes were being made, {} streams were gone on with",
        found.cuts, found.cuts_of_sweeps, found.unfinished, found.resumed
    );
    Ok(Outcome::Passed)
}

pub fn cases() -> Vec<Case> {
    let mut cases = vec![
        Case::new("power_cuts::at_every_write", at_every_write),
        Case::new("power_cuts::resumed_after_every_write", resumed_after_every_write),
    ];
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(cuts) = number("BUTTRESS_RECEIVE_CUTS") {
        let first = buttress_oracle::seeds::seed("send::power_cuts", "BUTTRESS_SOAK_SEED", 1);
        cases.push(Case::new("soak::receive_cuts", move || soak(cuts, first)));
    }
    cases
}
