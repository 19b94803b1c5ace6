//! Cuts a program at every write, and judges the remaining state.
//!
//! The program keeps a letter in a volume: each save writes a new file, syncs it, and renames it
//! over the old file. After each save the program marks its promise. After any cut, the letter must
//! be whole, and no older than the last promise.

use std::error::Error;
use std::sync::Arc;

use buttress::{Progress, Volume, WritableSubvolume};
use buttress_lab::crash::{CrashLab, CutState, Cuts};
use buttress_lab::{Backend, Device, Engine, MemoryBackend};

const SAVES: u64 = 6;
const BYTES: usize = 128 << 20;

/// Returns the letter of a save: long enough for its own extent.
fn letter(save: u64) -> Vec<u8> {
    format!("Dear Bob, this is letter {save}.\n")
        .repeat(400)
        .into_bytes()
}

fn save(root: &WritableSubvolume, number: u64) -> buttress::Result<()> {
    root.write("letter.new", letter(number))?;
    root.sync_path("letter.new")?;
    root.rename("letter.new", "letter")?;
    root.sync_path("letter")
}

/// The program under test.
fn program(lab: &CrashLab, devices: Vec<Device>) -> buttress::Result<()> {
    let volume = Volume::options().open_writable_devices(devices)?;
    for number in 1..=SAVES {
        save(&volume.root(), number)?;
        lab.mark(number);
    }
    volume.sync()
}

/// Opens the state after a cut, as the program would after a reboot, and returns its problem, if
/// any.
fn judge(state: &CutState<'_>) -> Result<(), Box<dyn Error>> {
    let volume = Volume::options().open_writable_devices(state.devices())?;
    let promised = state.last_mark().unwrap_or(0);
    let found = match volume.root().exists("letter")? {
        true => volume.root().read("letter")?,
        false if promised == 0 => return Ok(()),
        false => return Err(format!("letter {promised} is gone").into()),
    };
    // After a cut, the next save may be complete although its call had not returned.
    let allowed = promised.max(1)..=promised.saturating_add(1);
    if !allowed.clone().any(|number| letter(number) == found) {
        return Err(format!("the letter is none of {allowed:?}").into());
    }
    // The program still works on this state, and the volume is sound afterwards.
    save(&volume.root(), SAVES)?;
    volume.sync()?;
    drop(volume);
    let volume = Volume::options().open_devices(state.devices())?;
    let report = volume.check(&buttress::CheckOptions::default(), &Progress::new())?;
    match report.findings.first() {
        Some(finding) => Err(format!("{finding:?}").into()),
        None => Ok(()),
    }
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
