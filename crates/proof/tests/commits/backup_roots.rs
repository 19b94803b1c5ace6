//! The four backup roots of a superblock: each commit uses the next slot, as in the kernel. If a
//! volume's newer root trees are destroyed, it opens from the newest remaining one, with that
//! commit's content.

use anyhow::{Context, Result, ensure};
use buttress::mkfs::Options;
use buttress::unstable::format::Superblock;
use buttress::unstable::fs::{Filesystem, OpenOptions};
use buttress::unstable::writer::WritableFilesystem;
use buttress::{ByteCount, Location, NewInode, Notice, Profile, Rescue, SubvolumeId};
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::writing::volume::{Backends, devices, empty, open_for_writing};

const ROOT: Location = Location::root_of(SubvolumeId::TOP_LEVEL);
const COMMITS: usize = 9;

/// Creates a volume with one copy of its trees, and returns the superblocks of some commits that
/// created a file each.
fn history() -> Result<(Backends, Vec<Superblock>)> {
    let options = Options {
        metadata: Some(Profile::Single),
        ..Options::default()
    };
    let backends = empty(&[128 << 20], &options)?;
    let filesystem = open_for_writing(&backends)?;
    let mut superblocks = Vec::new();
    for number in 0..COMMITS {
        commit_one(&filesystem, number)?;
        superblocks.push((*filesystem.view().superblock()).clone());
    }
    Ok((backends, superblocks))
}

fn name(number: usize) -> String {
    format!("file-{number}")
}

fn commit_one(filesystem: &WritableFilesystem, number: usize) -> Result<()> {
    filesystem.create(ROOT, name(number).as_bytes(), &NewInode::of_root(0o644))?;
    filesystem.commit()?;
    Ok(())
}

/// Returns the slot that a commit wrote: the one that differs from the previous superblock.
fn slot_of(before: &Superblock, after: &Superblock) -> Result<usize> {
    let slots = before.backup_roots.iter().zip(&after.backup_roots);
    let changed: Vec<usize> = slots
        .enumerate()
        .filter(|(_, (old, new))| old != new)
        .map(|(slot, _)| slot)
        .collect();
    match changed.as_slice() {
        [slot] => Ok(*slot),
        other => anyhow::bail!("one commit changed the slots {other:?}"),
    }
}

fn rotation() -> Result<Outcome> {
    let (_, superblocks) = history()?;
    let mut last: Option<usize> = None;
    for pair in superblocks.windows(2) {
        let [before, after] = pair else { continue };
        let slot = slot_of(before, after)?;
        if let Some(last) = last {
            ensure!(slot == (last + 1) % 4, "slot {slot} after slot {last}");
        }
        last = Some(slot);
        let written = &after.backup_roots[slot];
        ensure!(
            written.tree_root.logical == after.root
                && written.tree_root.generation == after.generation
                && written.tree_root.level == after.root_level
                && written.chunk_root.logical == after.chunk_root
                && written.total_bytes == after.total_bytes
                && written.bytes_used == after.bytes_used
                && written.num_devices == after.num_devices,
            "slot {slot} is not that of generation {}: {written:?}",
            after.generation
        );
    }
    let newest = superblocks.last().context("commits")?;
    let mut generations: Vec<u64> = newest
        .backup_roots
        .iter()
        .map(|root| root.tree_root.generation.get())
        .collect();
    generations.sort_unstable();
    let wanted: Vec<u64> = superblocks
        .iter()
        .rev()
        .take(4)
        .rev()
        .map(|superblock| superblock.generation.get())
        .collect();
    ensure!(
        generations == wanted,
        "{generations:?} instead of the last four, {wanted:?}"
    );
    Ok(Outcome::Passed)
}

/// Overwrites the root block of the root tree of a committed state.
fn destroy(backends: &Backends, filesystem: &Filesystem, state: &Superblock) -> Result<()> {
    let length = ByteCount::new(u64::from(state.block_format().node_bytes));
    for mapping in filesystem.volume().map(state.root, length)? {
        let backend = backends.first().context("a device")?;
        backend.write_at(
            mapping.physical.get(),
            &vec![0xee; length.to_usize().unwrap_or(0)],
        )?;
    }
    Ok(())
}

/// Opens the volume without the root trees of the last `lost` commits.
fn opening(lost: usize) -> Result<Outcome> {
    let (backends, superblocks) = history()?;
    let filesystem = OpenOptions::new(devices(&backends)).open()?;
    for state in superblocks.iter().rev().take(lost) {
        destroy(&backends, &filesystem, state)?;
    }
    drop(filesystem);
    let rescue = Rescue {
        use_backup_root: true,
        ..Rescue::default()
    };
    let found = OpenOptions::new(devices(&backends)).rescue(rescue).open()?;
    let state = superblocks
        .iter()
        .rev()
        .nth(lost)
        .context("a state that is left")?;
    if lost > 0 {
        let used = found.notices().into_iter().find_map(|notice| match notice {
            Notice::BackupRootUsed { generation, .. } => Some(generation),
            _ => None,
        });
        ensure!(
            used == Some(state.generation),
            "{used:?} instead of {}",
            state.generation
        );
    }
    for number in 0..COMMITS {
        let is_there = found.lookup(ROOT, name(number).as_bytes())?.is_some();
        ensure!(
            is_there == (number < COMMITS - lost),
            "{}: {is_there}",
            name(number)
        );
    }
    Ok(Outcome::Passed)
}

pub fn cases() -> Vec<Case> {
    let mut cases = vec![Case::new("backup_roots::take_turns", rotation)];
    for lost in 0..4 {
        cases.push(Case::new(
            format!("backup_roots::without_the_last_{lost}"),
            move || opening(lost),
        ));
    }
    cases
}
