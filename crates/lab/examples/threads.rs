//! Cuts a program with several threads, each of which writes and syncs separately.
//!
//! Each thread appends records to its own file, syncs the file, and marks the number of durable
//! records. The history records the order in which the requests of all threads reached the device.
//! After each cut, every thread must find its own promises.

use std::error::Error;
use std::sync::Arc;
use std::thread;

use buttress::{Volume, WritableSubvolume};
use buttress_lab::crash::{CrashLab, CutState, Cuts};
use buttress_lab::{Backend, Device, Engine, MemoryBackend};

const THREADS: u64 = 4;
const RECORDS: u64 = 8;
const RECORD_BYTES: usize = 3000;
const BYTES: usize = 128 << 20;

/// Returns the label of a mark: a thread, and its number of durable records.
fn label(thread: u64, records: u64) -> u64 {
    thread << 32 | records
}

fn record(thread: u64, number: u64) -> Vec<u8> {
    let line = format!("thread {thread}, record {number}\n");
    line.bytes().cycle().take(RECORD_BYTES).collect()
}

fn name(thread: u64) -> String {
    format!("log.{thread}")
}

fn append(lab: &CrashLab, root: &WritableSubvolume, thread: u64) -> buttress::Result<()> {
    let file = root.create_new(name(thread))?;
    for number in 0..RECORDS {
        file.append(&record(thread, number))?;
        file.sync()?;
        lab.mark(label(thread, number.saturating_add(1)));
    }
    Ok(())
}

/// The example program under test.
fn program(lab: &CrashLab, devices: Vec<Device>) -> buttress::Result<()> {
    let volume = Volume::options().open_writable_devices(devices)?;
    let root = &volume.root();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || append(lab, root, thread)))
            .collect();
        for thread in threads {
            match thread.join() {
                Ok(done) => done?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        volume.sync()
    })
}

/// Returns the number of durable records that a thread marked before a cut.
fn promised(state: &CutState<'_>, thread: u64) -> u64 {
    let own = state.marks().filter(|mark| mark >> 32 == thread);
    own.map(|mark| mark & u64::from(u32::MAX)).max().unwrap_or(0)
}

fn judge(state: &CutState<'_>) -> Result<(), Box<dyn Error>> {
    let volume = Volume::options().open_writable_devices(state.devices())?;
    for thread in 0..THREADS {
        let promised = promised(state, thread);
        let found = match volume.root().exists(name(thread))? {
            true => volume.root().read(name(thread))?,
            false => Vec::new(),
        };
        let records: Vec<u8> = (0..promised).flat_map(|number| record(thread, number)).collect();
        if !found.starts_with(&records) {
            let bytes = found.len();
            return Err(format!("thread {thread}: {promised} records promised, {bytes} bytes found").into());
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let disk: Arc<dyn Backend> = Arc::new(MemoryBackend::new("disk", vec![0; BYTES]));
    let device = Device::with_backend(Arc::clone(&disk), Engine::Inline);
    drop(Volume::create().on_devices(vec![device])?);

    let history = CrashLab::record([disk], program)?;
    let states = history.judge(&Cuts::every().threads(2), judge).accepted()?;
    println!("{} events, {states} states after a cut: all right", history.len());
    Ok(())
}
