//! System block groups across many devices: the superblock has an array of 2048 bytes for all
//! system chunks, and an item of a wide chunk takes much of it.

use anyhow::{Context, Result, ensure};
use buttress::Logical;
use buttress::mkfs::Options;
use buttress::unstable::format::{BlockGroupFlags, Profile};
use buttress::unstable::fs::Error;
use buttress::unstable::writer::WritableFilesystem;
use buttress::unstable::writer::relocation::RelocationOptions;
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::writing::volume::{Backends, empty, open_checked, open_for_writing};

const DEVICE_BYTES: usize = 40 << 20;

/// Two system chunks of this many stripes do not fit into the array: each takes 1153 bytes.
const WIDE: usize = 34;

/// Beside a chunk of this many stripes, which takes 1985 bytes, none of one stripe fits.
const WIDEST: usize = 60;

fn volume(devices: usize) -> Result<Backends> {
    let options = Options {
        data: Some(Profile::Single),
        metadata: Some(Profile::Raid0),
        ..Options::default()
    };
    empty(&vec![DEVICE_BYTES; devices], &options)
}

/// Returns the address and the number of stripes of each system chunk.
fn system_chunks(filesystem: &WritableFilesystem) -> Vec<(Logical, usize)> {
    let map = filesystem.view().volume().chunk_map();
    let chunks = map.chunks().iter();
    chunks
        .filter(|chunk| chunk.flags().contains(BlockGroupFlags::SYSTEM))
        .map(|chunk| (chunk.start(), chunk.chunk().stripes.len()))
        .collect()
}

/// The new system chunk has as many stripes as fit beside the old one.
fn moves_to_fewer_stripes() -> Result<()> {
    let backends = volume(WIDE)?;
    let filesystem = open_for_writing(&backends)?;
    let before = system_chunks(&filesystem);
    let [(start, WIDE)] = before[..] else {
        anyhow::bail!("{before:?}");
    };
    filesystem
        .relocations()
        .relocate(&[start], &RelocationOptions::default())?;
    let after = system_chunks(&filesystem);
    filesystem.close()?;
    open_checked(&backends)?;
    let [(moved, stripes)] = after[..] else {
        anyhow::bail!("{after:?}");
    };
    ensure!(moved != start && stripes == 25, "{after:?}");
    Ok(())
}

/// A move without space in the array is refused with the figures, before anything changes.
fn refuses_before_any_change() -> Result<()> {
    let backends = volume(WIDEST)?;
    let filesystem = open_for_writing(&backends)?;
    let before = (
        system_chunks(&filesystem),
        filesystem.view().superblock().generation,
    );
    let [(start, WIDEST)] = before.0[..] else {
        anyhow::bail!("{before:?}");
    };
    let refused = filesystem
        .relocations()
        .relocate(&[start], &RelocationOptions::default());
    let message = refused.as_ref().err().map(ToString::to_string);
    ensure!(
        matches!(refused, Err(Error::SystemArrayFull { .. })),
        "{message:?}"
    );
    let message = message.context("a refusal")?;
    for figure in ["1985 of 2048 bytes", "takes 97"] {
        ensure!(message.contains(figure), "{message}");
    }
    let after = (
        system_chunks(&filesystem),
        filesystem.view().superblock().generation,
    );
    ensure!(before == after, "{before:?} became {after:?}");
    filesystem.close()?;
    open_checked(&backends).map(drop)
}

pub(super) fn cases() -> Vec<Case> {
    type Judge = fn() -> Result<()>;
    let cases: [(&str, Judge); 2] = [
        ("moves_to_fewer_stripes", moves_to_fewer_stripes),
        ("refuses_before_any_change", refuses_before_any_change),
    ];
    cases
        .into_iter()
        .map(|(name, judge)| {
            Case::new(format!("wide::system_group_{name}"), move || {
                judge().map(|()| Outcome::Passed)
            })
        })
        .collect()
}
