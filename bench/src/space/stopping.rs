//! The time from a signal to the end of a command, which must leave nothing behind.

use crate::Scale;
use crate::read::{command, target};
use anyhow::{Result, ensure};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The number of places in its run at which each command is stopped.
const PLACES: u32 = 9;

/// The length from which a run is stopped once at each place, not in every round.
const LONG: Duration = Duration::from_secs(10);

/// Stops each command at several places of its run, and prints the longest time until its end.
pub(crate) fn run(scale: Scale, image: &Path) -> Result<()> {
    println!("\n| stopped half-way by SIGINT | times | longest ms until the end | goal |\n|---|---|---|---|");
    for words in [
        &["-q", "space"][..],
        &["-q", "compression"],
        &["-q", "filesystem", "du"],
        &["-q", "space", "--export", "ncdu"],
    ] {
        let start = || -> Result<(tempfile::TempDir, Child)> {
            let folder = tempfile::tempdir()?;
            let mut command: Command = command(words)?;
            command.env("TMPDIR", folder.path()).current_dir(folder.path());
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            command.arg(target(image, if words.contains(&"du") { "/snap0" } else { "/" }));
            Ok((folder, command.spawn()?))
        };
        let began = Instant::now();
        let (_folder, mut whole) = start()?;
        ensure!(whole.wait()?.success(), "{words:?} fails");
        let whole = began.elapsed();
        let (mut longest, mut times) = (Duration::ZERO, 0);
        let rounds = if whole > LONG { 1 } else { scale.rounds };
        for place in (1..=PLACES).cycle().take(PLACES as usize * rounds) {
            let (folder, mut child) = start()?;
            std::thread::sleep(whole * place / (PLACES + 1));
            if child.try_wait()?.is_some() {
                continue;
            }
            let asked = Instant::now();
            let id = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process(id, rustix::process::Signal::INT)?;
            child.wait()?;
            longest = longest.max(asked.elapsed());
            times += 1;
            let left = std::fs::read_dir(folder.path())?.count();
            ensure!(left == 0, "{words:?} left {left} files behind");
        }
        let milliseconds = longest.as_secs_f64() * 1e3;
        let words = words.get(1..).unwrap_or_default().join(" ");
        let missed = if milliseconds <= 100.0 { "" } else { " missed" };
        println!("| {words} | {times} | {milliseconds:.1} | 100{missed} |");
    }
    Ok(())
}
