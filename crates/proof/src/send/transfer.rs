//! Sends one history in one format, and makes the kernel receive it.

use super::tree::{Tree, add_places, of_snapshot, open};
use super::volumes::{Mounted, Pair, unused_name};
use super::{Format, Sender};
use anyhow::{Context, Result};
use buttress_oracle::history::{History, Made, Transfer, remove_subvolumes};
use buttress_oracle::tools::{buttress, newest, run};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes a stream for each transfer of `history`, in `folder`, and returns their paths.
pub fn send(
    sender: Sender,
    format: Format,
    source: &Mounted,
    history: &History,
    made: &Made,
    folder: &Path,
) -> Result<Vec<PathBuf>> {
    let who = if sender == Sender::Kernel {
        "kernel"
    } else {
        "buttress"
    };
    let mut streams = Vec::new();
    for (number, transfer) in history.transfers.iter().enumerate() {
        let stream = folder.join(format!(
            "{who}-{}-{number}-s{}.stream",
            format.name, transfer.snapshot
        ));
        let mut command = command(sender, source, made, transfer)?;
        run(command.args(format.options).arg("-f").arg(&stream))
            .with_context(|| format!("{transfer:?}, {}", format.name))?;
        streams.push(stream);
    }
    Ok(streams)
}

/// Builds the `send` command without the format and the output file.
fn command(sender: Sender, source: &Mounted, made: &Made, transfer: &Transfer) -> Result<Command> {
    let target = |number: usize| -> Result<OsString> {
        let path = made.snapshots.get(number).context("a snapshot that exists")?;
        if sender == Sender::Kernel {
            return Ok(path.clone().into_os_string());
        }
        let mut target = source.image().as_os_str().to_owned();
        target.push(":/");
        target.push(path.strip_prefix(source.top())?);
        Ok(target)
    };
    let mut command = match sender {
        Sender::Kernel => Command::new(newest("btrfs")),
        Sender::Buttress => Command::new(buttress()?),
    };
    command.args(["send", "-q"]);
    if let Some(parent) = transfer.parent {
        command.arg("-p").arg(target(parent)?);
    }
    for clone in &transfer.clones {
        command.arg("-c").arg(target(*clone)?);
    }
    command.arg(target(transfer.snapshot)?);
    Ok(command)
}

/// Receives the streams of `history` one after another, and returns the result of each, by
/// snapshot. The test removes all received snapshots afterwards, because a second copy would be
/// another possible parent.
pub fn receive(pair: &Pair, history: &History, streams: &[PathBuf]) -> Result<Vec<Option<Tree>>> {
    let name = unused_name("received");
    let folder = pair.target.top().join(&name);
    std::fs::create_dir(&folder)?;
    let trees = receive_in(pair, history, streams, Path::new(&name));
    remove_subvolumes(&folder)?;
    trees
}

fn receive_in(pair: &Pair, history: &History, streams: &[PathBuf], name: &Path) -> Result<Vec<Option<Tree>>> {
    let folder = pair.target.top().join(name);
    for stream in streams {
        let shown = stream
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        run(Command::new(newest("btrfs"))
            .args(["receive", "-q", "-f"])
            .arg(stream)
            .arg(&folder))
        .with_context(|| format!("receiving {shown}"))?;
    }
    pair.target.commit()?;
    let filesystem = open(pair.target.image())?;
    let mut trees: Vec<Option<Tree>> = vec![None; history.steps.len()];
    for transfer in &history.transfers {
        let snapshot = format!("s{}", transfer.snapshot);
        let mut tree = of_snapshot(&folder.join(&snapshot))?;
        add_places(&mut tree, &filesystem, pair.target.top(), &name.join(&snapshot))
            .with_context(|| format!("extents of received {snapshot}"))?;
        *trees
            .get_mut(transfer.snapshot)
            .context("a snapshot of the history")? = Some(tree);
    }
    Ok(trees)
}
