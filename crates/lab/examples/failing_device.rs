//! Fails each write of a program in turn: with EIO once, with EIO permanently, and with ENOSPC.
//!
//! The program adds notes to a volume and syncs each. If a note's sync returned, the note must be
//! readable from the device after the fault ends. If a note's sync failed, the note may exist or
//! not. The library reports a run's lost changes on standard error.

use std::error::Error;
use std::sync::Arc;

use buttress::{Volume, WritableSubvolume};
use buttress_lab::{Backend, Device, Engine, Fault, FaultyBackend, MemoryBackend, strike_each};

const NOTES: usize = 4;
const BYTES: usize = 128 << 20;

fn note(number: usize) -> Vec<u8> {
    vec![b'a'.saturating_add(u8::try_from(number).unwrap_or(0)); 20_000]
}

fn device(backend: Arc<dyn Backend>) -> Vec<Device> {
    vec![Device::with_backend(backend, Engine::Inline)]
}

/// Adds one note. Once this function returns, the note is durable.
fn add(root: &WritableSubvolume, number: usize) -> buttress::Result<()> {
    let name = format!("note.{number}");
    root.write(&name, note(number))?;
    root.sync_path(&name)
}

/// The program under test. Returns the number of notes that were durable before a request failed.
fn program(device: Vec<Device>) -> usize {
    let Ok(volume) = Volume::options().open_writable_devices(device) else {
        return 0;
    };
    let root = volume.root();
    (0..NOTES)
        .take_while(|number| add(&root, *number).is_ok())
        .count()
}

fn judge(devices: Vec<Device>, promised: usize) -> Result<(), Box<dyn Error>> {
    let volume = Volume::options().open_writable_devices(devices)?;
    for number in 0..promised {
        if volume.root().read(format!("note.{number}"))? != note(number) {
            return Err(format!("note {number} of {promised} is damaged").into());
        }
    }
    // The volume still works: the program can repeat the failed call.
    add(&volume.root(), NOTES)?;
    Ok(volume.sync()?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let template = MemoryBackend::new("disk", vec![0; BYTES]);
    let template: Arc<dyn Backend> = Arc::new(template);
    drop(Volume::create().on_devices(device(Arc::clone(&template)))?);

    type Strike = (&'static str, fn(u64) -> Fault);
    let kinds: [Strike; 3] = [
        ("EIO once", Fault::FailWriteNumber),
        ("EIO from there on", Fault::FailWritesFrom),
        ("ENOSPC from there on", Fault::FullFromWrite),
    ];
    for (what, fault) in kinds {
        // Each run of the example has a copy of the volume: an image of a history without events.
        let copy = || buttress_lab::crash::copy_of(Arc::clone(&template));
        let run = |_: u64, faulty: &Arc<FaultyBackend>| {
            let backend = Arc::clone(faulty) as Arc<dyn Backend>;
            let promised = program(device(Arc::clone(&backend)));
            faulty.heal();
            judge(device(backend), promised)
        };
        let runs = strike_each(copy, fault, run)
            .map_err(|(number, error)| format!("{what} at write {number}: {error}"))?;
        println!("{what}: {runs} writes failed, one in each run; all right");
    }
    Ok(())
}
