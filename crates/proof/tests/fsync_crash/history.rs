//! Random operations and syncs in the crash laboratory, and the state after each.

use anyhow::{Context, Result};
use buttress::unstable::fs::OpenOptions;
use buttress::unstable::writer::{WritableFilesystem, WriteOptions};
use buttress::{
    AllocateMode, ByteCount, CompressionMethod, DataOptions, Device, DeviceEngine as Engine, FileOffset,
    Location, NewInode, RenameMode, SetXattr, SubvolumeId,
};
use buttress_lab::crash::CrashLab;
use buttress_oracle::content::Random;
use buttress_proof::writing::volume::{Backends, Ticking};
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::TOP;
use crate::moments::{Moment, moment};

/// Number of names, few so that they repeat.
const NAMES: u64 = 9;

/// Largest content of a file in bytes.
const CONTENT_BYTES: u64 = 80_000;

/// A run: its history, and the state after each operation.
pub(crate) struct Run {
    pub(crate) history: buttress_lab::crash::History,
    pub(crate) moments: Vec<Moment>,
    /// Description of each operation that changes content.
    calls: Vec<String>,
    /// Syncs by operation: the synced inode, or a commit.
    pub(crate) syncs: Vec<(usize, Option<u64>)>,
}

impl Run {
    /// Describes these operations, for a failure's message.
    pub(crate) fn told(&self, from: usize, to: usize) -> String {
        let mut lines = Vec::new();
        for operation in from.max(1)..=to.min(self.moments.len() - 1) {
            let (before, after) = (&self.moments[operation - 1], &self.moments[operation]);
            let of = |moment: &Moment, inode: &u64| moment.inodes.get(inode).cloned();
            let changed: BTreeSet<&u64> = before.inodes.keys().chain(after.inodes.keys()).collect();
            for inode in changed
                .into_iter()
                .filter(|inode| of(before, inode) != of(after, inode))
            {
                lines.push(format!(
                    "{operation}: inode {inode} becomes {:?}",
                    of(after, inode)
                ));
            }
            let call = self.calls.get(operation - 1).filter(|call| !call.is_empty());
            lines.extend(call.map(|call| format!("{operation}: {call}")));
            for (_, synced) in self.syncs.iter().filter(|(number, _)| *number == operation) {
                lines.push(format!("{operation}: sync of {synced:?}"));
            }
        }
        lines.join("\n")
    }
}

/// Draws a random entry of the directory tree.
fn draw(random: &mut Random, moment: &Moment, wants_directory: Option<bool>) -> Option<(u64, Vec<u8>, u64)> {
    let all: Vec<(u64, Vec<u8>, u64)> = moment
        .entries
        .iter()
        .flat_map(|(directory, entries)| {
            entries
                .iter()
                .map(|(name, inode)| (*directory, name.clone(), *inode))
        })
        .filter(|(_, _, inode)| {
            wants_directory.is_none_or(|wants| moment.entries.contains_key(inode) == wants)
        })
        .collect();
    let index = random.below(u64::try_from(all.len()).ok()?.max(1));
    all.into_iter().nth(usize::try_from(index).ok()?)
}

fn at(inode: u64) -> Location {
    Location::new(SubvolumeId::TOP_LEVEL, buttress::InodeNumber::new(inode))
}

fn draw_directory(random: &mut Random, moment: &Moment) -> Location {
    let index = random.below(moment.entries.len() as u64);
    let found = moment.entries.keys().nth(usize::try_from(index).unwrap_or(0));
    at(found.copied().unwrap_or(TOP.inode.get()))
}

/// Executes one operation of the history. Refused operations, such as moves into the moved
/// directory, change nothing. Returns the synced inode, and describes calls that change content.
fn step(
    filesystem: &WritableFilesystem,
    random: &mut Random,
    now: &Moment,
    call: &mut String,
) -> Result<Option<Option<u64>>> {
    let name = format!("n{}", random.below(NAMES)).into_bytes();
    let directory = draw_directory(random, now);
    let new = NewInode::of_root(0o644);
    let offset = FileOffset::new(random.below(CONTENT_BYTES));
    let file = draw(random, now, Some(false));
    let any = draw(random, now, None);
    match random.below(100) {
        0..10 => drop(filesystem.create(directory, &name, &new)),
        10..16 => drop(filesystem.make_directory(directory, &name, &new)),
        16..34 => {
            if let Some((_, _, inode)) = file {
                let seed = random.number();
                let most = if random.one_in(3) { 200 } else { 20_000 };
                let length = 1 + random.below(most);
                let bytes = Random::new(seed).bytes(usize::try_from(length)?, random.one_in(3));
                let offset = if random.one_in(3) { FileOffset::MIN } else { offset };
                *call = format!("write of {length} bytes at {offset} of inode {inode}");
                filesystem.write_at(at(inode), offset, &bytes)?;
            }
        }
        34..38 => {
            if let Some((_, _, inode)) = file {
                *call = format!("inode {inode} is cut at {offset}");
                filesystem.truncate(at(inode), ByteCount::new(offset.get()))?;
            }
        }
        38..43 => {
            if let Some((_, _, inode)) = file {
                let end = offset.saturating_add(ByteCount::new(1 + random.below(30_000)));
                let mode = match random.below(3) {
                    0 => AllocateMode::PunchHole,
                    1 => AllocateMode::AllocateKeepSize,
                    _ => AllocateMode::ZeroRange,
                };
                *call = format!("{mode:?} from {offset} to {end} of inode {inode}");
                filesystem.allocate(at(inode), offset..end, mode)?;
            }
        }
        43..46 => {
            if let (Some((_, _, from)), Some((_, _, to))) = (file, draw(random, now, Some(false))) {
                let start = FileOffset::new(random.below(5) * 4096);
                let end = start.saturating_add(ByteCount::new(8192));
                let target = FileOffset::new(random.below(5) * 4096);
                *call = format!("clone of {start} to {end} of inode {from} to {target} of inode {to}");
                drop(filesystem.clone_range(at(from), start..end, at(to), target));
            }
        }
        46..51 => {
            if let Some((_, _, inode)) = file {
                drop(filesystem.link(at(inode), directory, &name));
            }
        }
        51..58 => {
            if let Some((parent, name, inode)) = any {
                match now.entries.contains_key(&inode) {
                    true => drop(filesystem.remove_directory(at(parent), &name)),
                    false => drop(filesystem.unlink(at(parent), &name)),
                }
            }
        }
        58..70 => {
            if let Some((parent, old, _)) = any {
                let mode = match random.below(8) {
                    0 => RenameMode::Exchange,
                    1 => RenameMode::NoReplace,
                    _ => RenameMode::Replace,
                };
                drop(filesystem.rename(at(parent), &old, directory, &name, mode));
            }
        }
        70..74 => {
            if let Some((_, _, inode)) = any {
                let key = format!("user.{}", random.below(3));
                let value = random.number().to_le_bytes();
                match random.one_in(3) {
                    true => drop(filesystem.remove_xattr(at(inode), key.as_bytes())),
                    false => {
                        filesystem.set_xattr(at(inode), key.as_bytes(), &value, SetXattr::CreateOrReplace)?
                    }
                }
            }
        }
        74..97 => {
            let inode = match random.below(3) {
                0 => directory.inode.get(),
                _ => any.map_or(TOP.inode.get(), |(_, _, inode)| inode),
            };
            match random.one_in(4) {
                true => filesystem.log_tree().fdatasync(at(inode))?,
                false => filesystem.log_tree().fsync(at(inode))?,
            };
            return Ok(Some(Some(inode)));
        }
        _ => {
            filesystem.commit()?;
            return Ok(Some(None));
        }
    }
    Ok(None)
}

fn is_no_space(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(buttress::unstable::fs::Error::NoSpace { .. })
    )
}

pub(crate) fn run(base: Backends, seed: u64, operations: usize) -> Result<Run> {
    let lab = CrashLab::new();
    let recorded = base
        .into_iter()
        .map(|backend| Device::with_backend(lab.device(backend), Engine::Inline));
    let filesystem = OpenOptions::new(recorded.collect()).open()?;
    let compression = seed
        .is_multiple_of(3)
        .then_some(CompressionMethod::new(buttress::Compression::Lzo));
    let options = WriteOptions {
        environment: Arc::new(Ticking::default()),
        data: DataOptions {
            compression,
            ..DataOptions::default()
        },
        ..WriteOptions::default()
    };
    let filesystem = WritableFilesystem::new(filesystem, options)?;
    let mut random = Random::new(seed);
    let mut moments = vec![moment(&filesystem)?];
    let (mut calls, mut syncs) = (Vec::new(), Vec::new());
    lab.mark(0);
    for operation in 1..=operations {
        let now = moments.last().cloned().unwrap_or_default();
        let mut call = String::new();
        let synced = match step(&filesystem, &mut random, &now, &mut call) {
            // The operation that was cut off did nothing, or a visible part of its work.
            Err(error) if is_no_space(&error) => None,
            other => other.with_context(|| format!("operation {operation}"))?,
        };
        moments.push(moment(&filesystem)?);
        calls.push(call);
        syncs.extend(synced.map(|inode| (operation, inode)));
        lab.mark(operation as u64);
    }
    let history = lab.history();
    filesystem.abandon();
    Ok(Run {
        history,
        moments,
        calls,
        syncs,
    })
}
