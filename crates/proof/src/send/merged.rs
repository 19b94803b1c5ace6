//! Chains of streams merged into one, and streams rebased to a copy of their parent: received by
//! Buttress and by the kernel, and compared with the sent snapshots.

use super::compare::same_content;
use super::received::Target;
use super::tree::Tree;
use anyhow::{Context, Result, ensure};
use buttress_fs::Progress;
use buttress_oracle::history::History;
use buttress_stream::merge::{last_subvolume, merge, rebase};
use buttress_stream::view::{Options, Series};
use buttress_stream::{Command, Decoder, Encoder};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Writes one stream with the final state of a chain.
fn merge_to(streams: &[PathBuf], to: &Path) -> Result<()> {
    let mut series = Series::new(Options::default());
    for stream in streams {
        series.add(stream.display().to_string(), Box::new(File::open(stream)?))?;
    }
    let last = series.snapshots().last().context("a snapshot")?;
    let mut file = File::create(to)?;
    Ok(merge(&series, last, &mut file, &Progress::new())?)
}

/// Writes the same stream with another uuid of the subvolume.
fn with_other_uuid(stream: &Path, to: &Path) -> Result<()> {
    let bytes = std::fs::read(stream)?;
    let mut decoder = Decoder::new(bytes.as_slice());
    let mut out = Vec::new();
    while let Some(frame) = decoder.next_command()? {
        let encoder = Encoder::new(frame.version());
        let mut command = *frame.command();
        match &mut command {
            Command::Subvolume { uuid, path, .. } => {
                encoder.header(&mut out);
                *uuid = buttress::Uuid::from_bytes([0x77; 16]);
                *path = b"copy";
            }
            Command::Clone { source_uuid, .. } => {
                *source_uuid = buttress::Uuid::from_bytes([0x77; 16]);
            }
            _ => {}
        }
        encoder.encode(&command, &mut out)?;
    }
    Ok(std::fs::write(to, out)?)
}

/// Receives streams on both sides into new volumes, and compares the last one's snapshot.
fn received_is(number: u64, streams: &[PathBuf], snapshot: &str, source: &Tree) -> Result<()> {
    for by_kernel in [false, true] {
        let target = Target::new(number)?;
        for stream in streams {
            let received = match by_kernel {
                false => target.receive(stream).map(drop),
                true => target.receive_by_kernel(stream),
            };
            let who = if by_kernel { "the kernel" } else { "Buttress" };
            received.with_context(|| format!("{who} receiving {}", stream.display()))?;
        }
        let tree = target.tree(snapshot)?;
        same_content(snapshot, source, &tree)
            .with_context(|| format!("received by the kernel: {by_kernel}"))?;
        target.expect_clean()?;
    }
    Ok(())
}

/// Merges all streams of a history. Rebases the last stream if it is incremental and builds on the
/// previous stream.
pub fn compare(number: u64, history: &History, streams: &[PathBuf], sources: &[Tree]) -> Result<()> {
    let Some((last, before)) = history.transfers.split_last() else {
        return Ok(());
    };
    let stream = streams.last().context("a stream")?;
    let folder = stream.parent().context("a folder")?;
    let (merged, copy, rebased) = (
        folder.join("merged.stream"),
        folder.join("copy.stream"),
        folder.join("rebased.stream"),
    );
    let source = sources.get(last.snapshot).context("what was sent")?;
    let name = format!("s{}", last.snapshot);
    merge_to(streams, &merged)?;
    received_is(number, std::slice::from_ref(&merged), &name, source).context("merged")?;
    let is_alone = last.clones.is_empty();
    let builds_on_last = before
        .last()
        .is_some_and(|before| last.parent == Some(before.snapshot));
    if !is_alone || !builds_on_last {
        return Ok(());
    }
    merge_to(streams.get(..before.len()).context("streams")?, &merged)?;
    with_other_uuid(&merged, &copy)?;
    let onto = last_subvolume(File::open(&copy)?)?.context("the copy")?;
    rebase(
        File::open(stream)?,
        onto,
        &mut File::create(&rebased)?,
        &Progress::new(),
    )?;
    ensure!(std::fs::read(&rebased)? != std::fs::read(stream)?);
    received_is(number, &[copy, rebased], &name, source).context("rebased")
}
