//! Nothing live is overwritten: on nearly full volumes, which need freed space, no write goes to an
//! extent of the last durable state. Superblocks are excluded from the recorded writes, because
//! commits overwrite them.
//!
//! The extents of a state come from its extent tree, read by opening the durable devices while the
//! writer runs.

use anyhow::{Context, Result, bail, ensure};
use buttress::mkfs::Options;
use buttress::unstable::format::ItemType;
use buttress::unstable::fs::{Error, OpenOptions};
use buttress::unstable::writer::{WritableFilesystem, WriteOptions};
use buttress::{
    Backend, ByteCount, Device, DeviceEngine as Engine, FileOffset, Logical, NewInode, Profile, ReadAhead,
    TreeId,
};
use buttress_lab::gate::{GatedBackend, Request};
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::writing::fill::{Filling, TOP};
use buttress_proof::writing::volume::{Backends, empty, open_checked};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

const BYTES: usize = 72 << 20;
const ROUNDS: u64 = 20;

/// Number of pieces removed and added in a round.
const EACH: u64 = 2;

/// Number of metadata pieces removed first.
const SLACK: u64 = 700;

/// Number of files removed in one transaction, more than the delayed references hold.
const REMOVED: usize = 3000;

/// Ranges of superblocks, in which nothing else is located.
const SUPERBLOCKS: [Range<u64>; 2] = [64 << 10..68 << 10, 64 << 20..(64 << 20) + 4096];

type Writes = Arc<Mutex<Vec<Range<u64>>>>;

/// Returns the device ranges that the durable state uses, by their starts.
fn in_use(backends: &[Arc<dyn Backend>]) -> Result<BTreeMap<u64, u64>> {
    let devices = backends
        .iter()
        .map(|backend| Device::with_backend(Arc::clone(backend), Engine::Inline));
    let filesystem = OpenOptions::new(devices.collect()).open()?;
    let node_bytes = u64::from(filesystem.superblock().block_format().node_bytes);
    let mut used = BTreeMap::new();
    for item in filesystem.tree(TreeId::EXTENT)?.range(.., ReadAhead::None) {
        let key = item?.key();
        let length = match key.item_type {
            ItemType::EXTENT_ITEM => key.offset,
            ItemType::METADATA_ITEM => node_bytes,
            _ => continue,
        };
        let logical = Logical::new(key.objectid.get());
        for mapping in filesystem.volume().map(logical, ByteCount::new(length))? {
            let start = mapping.physical.get();
            used.insert(start, start + mapping.length.get());
        }
    }
    Ok(used)
}

fn expect_apart(used: &BTreeMap<u64, u64>, writes: &Writes) -> Result<()> {
    let writes = core::mem::take(&mut *writes.lock().ok().context("a lock")?);
    ensure!(!writes.is_empty(), "nothing was written");
    for write in writes {
        if SUPERBLOCKS.contains(&write) {
            continue;
        }
        let before = used.range(..write.end).next_back();
        if let Some((start, end)) = before.filter(|(_, end)| **end > write.start) {
            bail!("a write of {write:?} goes over {start}..{end}, which the durable state uses");
        }
    }
    Ok(())
}

/// Removes some of the pieces, and adds as many, without a commit between.
fn change(filesystem: &WritableFilesystem, filling: Filling, slack: u64, round: u64) -> Result<()> {
    for number in 0..EACH {
        filling.remove(filesystem, &filling.name("first", slack + round * EACH + number))?;
    }
    filling.fill(filesystem, &format!("round-{round}"), EACH)?;
    Ok(())
}

/// Records the offsets of all writes, and passes the writes on.
fn watch(gate: &GatedBackend) -> Writes {
    let writes = Writes::default();
    let seen = Arc::clone(&writes);
    gate.close(move |request| {
        if let (Request::Write { offset_bytes, bytes }, Ok(mut seen)) = (request, seen.lock()) {
            seen.push(offset_bytes..offset_bytes + bytes.len() as u64);
        }
        false
    });
    writes
}

/// Creates an empty volume with one copy of its trees, and returns its gated device.
fn new_volume() -> Result<(Backends, Arc<GatedBackend>, WritableFilesystem)> {
    let options = Options {
        metadata: Some(Profile::Single),
        ..Options::default()
    };
    let backends = empty(&[BYTES], &options)?;
    let memory = backends.first().context("a device")?;
    let gate = GatedBackend::new(Arc::clone(memory));
    let device = Device::with_backend(Arc::clone(&gate) as Arc<dyn Backend>, Engine::Inline);
    let filesystem = OpenOptions::new(vec![device]).open()?;
    let filesystem = WritableFilesystem::new(filesystem, WriteOptions::default())?;
    Ok((backends, gate, filesystem))
}

/// Creates a file of one sector; when this function returns, the sector is on the device.
fn add_small(filesystem: &WritableFilesystem, prefix: &str, number: usize) -> Result<bool> {
    let name = format!("{prefix}-{number}");
    let added = filesystem
        .create(TOP, name.as_bytes(), &NewInode::of_root(0o600))
        .and_then(|file| {
            filesystem.write_at(file, FileOffset::MIN, &[b'x'; 4096])?;
            filesystem.writeback().write_file(file)
        });
    match added {
        Ok(()) => Ok(true),
        Err(Error::NoSpace { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Allocates all remaining data space.
fn fill_up(filesystem: &WritableFilesystem) -> Result<()> {
    let file = filesystem.create(TOP, b"filling", &NewInode::of_root(0o600))?;
    let piece = [b'f'; 64 << 10];
    for number in 0_u64.. {
        let added = filesystem
            .write_at(file, FileOffset::new(number * piece.len() as u64), &piece)
            .and_then(|()| filesystem.writeback().write_file(file));
        match added {
            Ok(()) => {}
            Err(Error::NoSpace { .. }) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Removes so much in one transaction that its references are applied before its commit. The freed
/// space must still wait for the commit, although no other space exists. The metadata block groups
/// have space for all of these pieces.
fn not_before_the_commit() -> Result<Outcome> {
    let (backends, gate, filesystem) = new_volume()?;
    let count = REMOVED + 100;
    for number in 0..count {
        ensure!(
            add_small(&filesystem, "first", number)?,
            "file {number} found no space"
        );
    }
    fill_up(&filesystem)?;
    filesystem.commit()?;
    let (used, before) = (in_use(&backends)?, filesystem.committed_generation());
    let writes = watch(&gate);
    for number in 0..REMOVED {
        filesystem.unlink(TOP, format!("first-{number}").as_bytes())?;
    }
    ensure!(
        filesystem.committed_generation() == before,
        "there was a commit between"
    );
    for number in 0..count {
        let is_added = add_small(&filesystem, "second", number)?;
        if !is_added || filesystem.committed_generation() != before {
            break;
        }
        expect_apart(&used, &writes).with_context(|| format!("file {number}"))?;
    }
    filesystem.commit()?;
    drop(filesystem);
    open_checked(&backends)?;
    Ok(Outcome::Passed)
}

fn nothing_is_overwritten(filling: Filling) -> Result<Outcome> {
    let (backends, gate, filesystem) = new_volume()?;
    let count = filling.fill(&filesystem, "first", u64::MAX)?;
    // With this much free space, a round of the test needs no commit to find space. An edit of
    // metadata reserves much metadata space.
    let slack = match filling {
        Filling::Metadata => SLACK,
        Filling::Data | Filling::Snapshots => EACH,
    };
    ensure!(count > slack + ROUNDS * EACH, "{count} are too few");
    for number in 0..slack {
        filling.remove(&filesystem, &filling.name("first", number))?;
    }
    filesystem.commit()?;

    let writes = watch(&gate);
    let mut judged = 0;
    for round in 0..ROUNDS {
        let used = in_use(&backends)?;
        let before = filesystem.committed_generation().get();
        change(&filesystem, filling, slack, round)?;
        filesystem.commit()?;
        // A search for space commits in between, and after this commit more space is free.
        if filesystem.committed_generation().get() == before + 1 {
            expect_apart(&used, &writes).with_context(|| format!("round {round}"))?;
            judged += 1;
        } else if let Ok(mut writes) = writes.lock() {
            writes.clear();
        }
    }
    ensure!(judged > ROUNDS / 2, "{judged} rounds without a commit between");
    drop(filesystem);
    open_checked(&backends)?;
    Ok(Outcome::Passed)
}

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("live::on_a_volume_full_of_data", || {
            nothing_is_overwritten(Filling::Data)
        }),
        Case::new("live::before_the_commit", not_before_the_commit),
        Case::new("live::on_a_volume_full_of_metadata", || {
            nothing_is_overwritten(Filling::Metadata)
        }),
    ]
}
