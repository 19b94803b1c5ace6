//! Several concurrent threads, each of which writes and syncs its own file. After a cut each file
//! is in a state that its thread synced last, or synced later.

use anyhow::{Context, Result, ensure};
use buttress::mkfs::Options;
use buttress::unstable::fs::OpenOptions;
use buttress::unstable::writer::{WritableFilesystem, WriteOptions};
use buttress::{Device, DeviceEngine as Engine, FileOffset, Location, NewInode};
use buttress_lab::crash::{CrashLab, Outcome};
use buttress_oracle::content::Random;
use buttress_oracle::seeds::budget;
use buttress_proof::writing::volume::{Backends, Ticking, open_checked_but_for_holes, open_for_writing};
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::{TOP, base, cuts};

/// Number of threads, each with its own file.
const THREADS: usize = 4;

/// Size of each thread's writes in bytes.
const PIECE_BYTES: usize = 6000;

/// A run of several threads: its history, and at each mark the last synced round of each thread.
struct Threads {
    history: buttress_lab::crash::History,
    synced: Vec<[u64; THREADS]>,
}

fn run_threads(base: Backends, seed: u64) -> Result<Threads> {
    let lab = CrashLab::new();
    let recorded = base
        .into_iter()
        .map(|backend| Device::with_backend(lab.device(backend), Engine::Inline));
    let options = WriteOptions {
        environment: Arc::new(Ticking::default()),
        ..WriteOptions::default()
    };
    let filesystem = WritableFilesystem::new(OpenOptions::new(recorded.collect()).open()?, options)?;
    let create = |thread| {
        let name = format!("thread-{thread}");
        filesystem.create(TOP, name.as_bytes(), &NewInode::of_root(0o644))
    };
    let files = (0..THREADS).map(create).collect::<Result<Vec<_>, _>>()?;
    filesystem.commit()?;
    let synced = std::sync::Mutex::new(vec![[0; THREADS]]);
    lab.mark(0);
    let work = |thread: usize, file: Location| -> Result<()> {
        let mut random = Random::new(seed * 1000 + thread as u64);
        for round in 1..=25_u64 {
            let piece: Vec<u8> = round.to_le_bytes().repeat(PIECE_BYTES / 8);
            filesystem.write_at(file, FileOffset::MIN, &piece)?;
            match random.below(12) {
                0 => drop(filesystem.commit()?),
                1..4 => drop(filesystem.log_tree().fdatasync(file)?),
                _ => drop(filesystem.log_tree().fsync(file)?),
            }
            let mut synced = synced.lock().expect("no thread panics");
            let mut now = *synced.last().expect("there is a first one");
            now[thread] = round;
            synced.push(now);
            lab.mark(synced.len() as u64 - 1);
        }
        Ok(())
    };
    std::thread::scope(|scope| -> Result<()> {
        let work = &work;
        let running: Vec<_> = files
            .iter()
            .enumerate()
            .map(|(thread, file)| scope.spawn(move || work(thread, *file)))
            .collect();
        for thread in running {
            thread.join().expect("no thread panics")?;
        }
        Ok(())
    })?;
    let history = lab.history();
    filesystem.abandon();
    Ok(Threads {
        history,
        synced: synced.into_inner()?,
    })
}

/// Asserts that each file's content is completely of one round, no older than its thread's last
/// sync.
fn expect_rounds(filesystem: &WritableFilesystem, least: &[u64; THREADS]) -> Result<()> {
    for (thread, least) in least.iter().enumerate() {
        let name = format!("thread-{thread}");
        let entry = filesystem.live().lookup(TOP, name.as_bytes())?;
        let file = entry.with_context(|| format!("{name} is not there"))?.target;
        let mut content = vec![0; PIECE_BYTES + 1];
        let read = filesystem.live().read_at(file, FileOffset::MIN, &mut content)?;
        let rounds: BTreeSet<u64> = content[..read]
            .chunks_exact(8)
            .map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()))
            .collect();
        let is_whole = read == 0 || read == PIECE_BYTES && rounds.len() == 1;
        let round = rounds.first().copied().unwrap_or(0);
        ensure!(
            is_whole && round >= *least,
            "{name} has {read} bytes of the rounds {rounds:?}, and had synced round {least}"
        );
    }
    Ok(())
}

pub(crate) fn threads(devices: &[usize], options: &Options, salt: u64) {
    let count = budget("BUTTRESS_FSYNC_HISTORIES", 2, 8);
    let first = buttress_oracle::seeds::seed("fsync_crash", "BUTTRESS_CRASH_SEED", 1) + salt * 1_000_003;
    for seed in first..first + count {
        let run = run_threads(base(devices, options, seed), seed).unwrap();
        let mut random = Random::new(seed ^ 0x7eed);
        for _ in 0..cuts() {
            let cut = usize::try_from(random.below(run.history.len() as u64 + 1)).unwrap();
            let Some(done) = run.history.last_mark(cut) else {
                continue;
            };
            let seed_of_losses = random.number();
            let images = run
                .history
                .images_at(cut, Outcome::Drawn { seed: seed_of_losses });
            let told = format!("seed {seed}, cut at event {cut}, losses {seed_of_losses}");
            let filesystem = open_for_writing(&images).context(told.clone()).unwrap();
            expect_rounds(&filesystem, &run.synced[done as usize])
                .context(told.clone())
                .unwrap();
            // The label gives the commit a change to write, and the commit repairs torn
            // superblocks.
            filesystem.set_label(b"after the cut").unwrap();
            filesystem.close().unwrap();
            open_checked_but_for_holes(&images).context(told).unwrap();
        }
    }
}
