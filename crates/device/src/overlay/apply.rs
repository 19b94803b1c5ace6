//! Applying overlays: writing their blocks into their bases, and discarding overlays.
//!
//! An apply of several overlays writes in stages. A stage writes its blocks to all bases, and then
//! flushes all bases. The first stage has all blocks that the caller does not name. The caller names
//! the blocks of the following stages ([`Last`]), such as superblocks.
//!
//! Invariants:
//! - A side file is marked before the first write to a base, and deleted after the last flush.
//! - The first overlay is deleted last. A missing overlay beside a marked first one was applied
//!   whole.

use buttress_exact::Exact as _;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::BLOCK_BYTES;
use super::identity::Identity;
use super::side::{Map, SideFile, State};
use crate::buffer::Buffer;
use crate::device::{Device, OpenOptions};
use crate::error::{IoError, Operation, byte_length, out_of_range};
use crate::partition::Offset;

/// The number of blocks that are copied at once: 1 MiB.
const RUN_BLOCKS: u64 = 256;

/// The result of applying an overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The number of bytes that were written.
    pub bytes: u64,
}

/// A call that names the blocks of a volume that an apply writes after all others, in stages. It gets
/// the base and the byte of the base at which the volume begins. The ranges are counted in bytes
/// from the start of the base.
pub type Last<'a> = &'a dyn Fn(&Device, u64) -> Result<Vec<Vec<Range<u64>>>, IoError>;

/// An overlay that is being applied.
struct Part {
    name: Arc<str>,
    side: SideFile,
    base: Device,
    map: Map,
    /// The blocks of each later stage.
    late: Vec<(Range<u64>, usize)>,
    /// The number of later stages.
    stages: usize,
}

/// Writes all blocks of the side file at `side` into the image file or block device at `base`,
/// makes them durable, and deletes the side file. Blocks in `last` are written last.
///
/// If an apply was interrupted, it can be repeated. Until the apply is done, the side file cannot be
/// used otherwise. `options` describe how to open the base; its fields `partition` and `overlay`
/// have no effect.
///
/// # Errors
/// Fails if `side` is no overlay, if the base is in use, or if the overlay was made over another
/// base. Also fails if a read or write fails.
pub fn apply(
    side: impl AsRef<Path>,
    base: impl AsRef<Path>,
    options: &OpenOptions,
    last: Last<'_>,
) -> Result<Applied, IoError> {
    let side = side.as_ref().to_owned();
    let open = || open_base(base.as_ref(), options);
    apply_all(vec![(side, Box::new(open))], last)
}

/// Opens the image file or block device at `base` for an apply.
fn open_base(base: &Path, options: &OpenOptions) -> Result<Device, IoError> {
    let options = OpenOptions {
        write: true,
        partition: Offset::Whole,
        overlay: None,
        ..options.clone()
    };
    Device::open(base, &options)
}

/// Opens the base of an overlay.
type OpenBase<'a> = Box<dyn FnOnce() -> Result<Device, IoError> + 'a>;

/// Applies the overlays of all devices of a volume as [`apply`] does: each stage is durable on all
/// bases before the next one begins. Each overlay comes with a call that opens its base.
///
/// If the first overlay was being applied already, missing overlays are those that the interrupted
/// apply has deleted.
///
/// # Errors
/// Fails as [`apply`] does. Nothing is written if an overlay does not fit its base.
pub fn apply_all(overlays: Vec<(PathBuf, OpenBase<'_>)>, last: Last<'_>) -> Result<Applied, IoError> {
    let mut parts: Vec<Part> = Vec::new();
    for (side, base) in overlays {
        let resumes = parts
            .first()
            .is_some_and(|first| first.side.state == State::BeingApplied);
        if resumes && !side.exists() {
            continue;
        }
        parts.push(Part::open(&side, base, last)?);
    }
    for part in &mut parts {
        let Part { name, side, .. } = part;
        side.begin_to_apply().map_err(failed(name, Operation::Write))?;
    }
    let mut applied = Applied { bytes: 0 };
    let stages = parts.iter().fold(0, |most, part| part.stages.max(most));
    for stage in 0..=stages {
        for part in &parts {
            applied.bytes = applied.bytes.exact_add(part.write_stage(stage)?);
        }
        for part in &parts {
            part.base.flush()?;
        }
    }
    for part in parts.into_iter().rev() {
        let Part { name, side, .. } = part;
        side.remove().map_err(failed(&name, Operation::Write))?;
    }
    Ok(applied)
}

/// Deletes the side file at `side`, and thereby all changes of the overlay.
///
/// # Errors
/// Fails if `side` is no overlay, if another process uses it, or if an apply of it has begun: the
/// base then needs the rest of the overlay.
pub fn discard(side: impl AsRef<Path>) -> Result<(), IoError> {
    let path = side.as_ref();
    let name: Arc<str> = path.to_string_lossy().into();
    let side = SideFile::open_to_apply(path).map_err(failed(&name, Operation::Open))?;
    if side.state == State::BeingApplied {
        let what = "its base already has a part of its changes; to finish, run `overlay commit`";
        let cause = io::Error::new(io::ErrorKind::ResourceBusy, what);
        return Err(IoError::new(&name, Operation::Open, 0, 0, &cause));
    }
    side.remove().map_err(failed(&name, Operation::Write))
}

/// Returns the error of an operation on the side file `name`.
fn failed(name: &Arc<str>, operation: Operation) -> impl FnOnce(io::Error) -> IoError + use<> {
    let name = Arc::clone(name);
    move |cause| IoError::new(&name, operation, 0, 0, &cause)
}

impl Part {
    fn open(path: &Path, base: OpenBase<'_>, last: Last<'_>) -> Result<Self, IoError> {
        let name: Arc<str> = path.to_string_lossy().into();
        let side = SideFile::open_to_apply(path).map_err(failed(&name, Operation::Open))?;
        let base = base()?;
        require_base(&side, &base).map_err(|cause| {
            let name: Arc<str> = base.name().into();
            IoError::new(&name, Operation::Open, 0, 0, &cause)
        })?;
        let map = side.load_map().map_err(failed(&name, Operation::Read))?;
        require_volumes(&side, &map, &base).map_err(|cause| {
            let name: Arc<str> = base.name().into();
            IoError::new(&name, Operation::Open, 0, 0, &cause)
        })?;
        let mut part = Self {
            name,
            side,
            base,
            map,
            late: Vec::new(),
            stages: 0,
        };
        part.find_late_blocks(last)?;
        Ok(part)
    }

    /// Finds the blocks that later stages write.
    fn find_late_blocks(&mut self, last: Last<'_>) -> Result<(), IoError> {
        for start in self.side.volumes() {
            let stages = last(&self.base, start)?;
            self.stages = self.stages.max(stages.len());
            for (stage, ranges) in (1..).zip(stages) {
                let blocks = ranges
                    .into_iter()
                    .map(|range| range.start.quotient(BLOCK_BYTES)..range.end.div_ceil(BLOCK_BYTES));
                self.late.extend(blocks.map(|blocks| (blocks, stage)));
            }
        }
        Ok(())
    }

    /// Returns the stage that writes a block.
    fn stage_of(&self, block: u64) -> usize {
        let late = self.late.iter().find(|(blocks, _)| blocks.contains(&block));
        late.map_or(0, |(_, stage)| *stage)
    }

    /// Writes the blocks of a stage, and returns their bytes.
    fn write_stage(&self, stage: usize) -> Result<u64, IoError> {
        let mut written = 0_u64;
        for run in self.map.runs(RUN_BLOCKS) {
            let mut wanted: Option<Range<u64>> = None;
            for block in run {
                if self.stage_of(block) == stage {
                    let start = wanted.map_or(block, |wanted| wanted.start);
                    wanted = Some(start..block.exact_add(1));
                } else if let Some(blocks) = wanted.take() {
                    written = written.exact_add(self.copy(blocks)?);
                }
            }
            if let Some(blocks) = wanted {
                written = written.exact_add(self.copy(blocks)?);
            }
        }
        Ok(written)
    }

    /// Writes a run of blocks, and returns its bytes.
    fn copy(&self, blocks: Range<u64>) -> Result<u64, IoError> {
        let start = blocks.start.exact_mul(BLOCK_BYTES);
        let end = blocks.end.exact_mul(BLOCK_BYTES).min(self.base.size_bytes());
        // A side file with a block beyond the base's end is damaged, or belongs to another base.
        let length = end
            .checked_sub(start)
            .and_then(|length| usize::try_from(length).ok());
        let length = length.ok_or_else(|| out_of_range(self.base.size_bytes()));
        let length = length.map_err(failed(&self.name, Operation::Read))?;
        let mut bytes = Buffer::zeroed(length);
        self.side
            .read(start, &mut bytes)
            .map_err(failed(&self.name, Operation::Read))?;
        self.base.write(start, &bytes)?;
        Ok(byte_length(bytes.len()))
    }
}

/// Refuses a base that has other volumes than those that the overlay records. An apply that has begun
/// may have written superblocks, and the overlay may change uuids. The uuids of the base are then
/// those that the overlay records, or those of the superblock that the overlay writes.
fn require_volumes(side: &SideFile, map: &Map, base: &Device) -> io::Result<()> {
    let size = base.size_bytes();
    let replaced = side.replaced_volume(|start, recorded| {
        let found = Identity::read(start, size, |at, bytes| {
            let found = base.read(at, bytes.len());
            let found = found.map_err(|error| io::Error::new(error.kind, error.to_string()))?;
            bytes.copy_from_slice(&found);
            Ok(())
        })?;
        if side.state == State::InUse {
            return Ok(found == recorded);
        }
        Ok(found.uuids == recorded.uuids || new_uuids(side, map, start)? == Some(found.uuids))
    })?;
    let Some(start) = replaced else {
        return Ok(());
    };
    let what = format!(
        "the superblock of the volume at byte {start} is not that of the overlay's base. To discard the changes of the overlay, run `overlay discard`"
    );
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}

/// Returns the uuids of the superblock that the overlay writes, as [`Identity`] has them. Returns
/// `None` if the overlay does not write the whole superblock.
fn new_uuids(side: &SideFile, map: &Map, start: u64) -> io::Result<Option<u32>> {
    let mut is_whole = false;
    let new = Identity::read(start, side.base().size_bytes, |at, bytes| {
        let end = at.exact_add(byte_length(bytes.len()));
        let mut blocks = at.quotient(BLOCK_BYTES)..end.div_ceil(BLOCK_BYTES);
        is_whole = blocks.all(|block| map.has(block));
        side.read(at, bytes)
    })?;
    Ok(is_whole.then_some(new.uuids))
}

/// Refuses a base that the overlay was not made over. An apply that has begun has changed the base,
/// so only the base's size is compared.
fn require_base(side: &SideFile, device: &Device) -> io::Result<()> {
    let known = side.base();
    let same = match (device.base_state(), side.state) {
        (Some(found), State::InUse) => found == *known,
        _ => device.size_bytes() == known.size_bytes,
    };
    if same {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "it has changed since the overlay was created: its size or modification time differs. To discard the changes of the overlay, run `overlay discard`",
    ))
}
