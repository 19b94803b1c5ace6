//! Applying an overlay: writing its blocks into its base.

use buttress_exact::Exact as _;
use std::path::Path;
use std::sync::Arc;

use super::BLOCK_BYTES;
use super::side::{SideFile, State};
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

/// Writes all blocks of the side file at `side` into the image file or block device at `base`,
/// makes them durable, and deletes the side file.
///
/// If an apply was interrupted, it can be repeated. Until the apply is done, base and overlay have
/// neither the old state nor the new one. The side file cannot be used otherwise. `options`
/// describe how to open the base; its fields `partition` and `overlay` have no effect.
///
/// # Errors
/// Fails if `side` is no overlay, if the base is in use, or if the overlay was made over another
/// base. Also fails if a read or write fails.
pub fn apply(
    side: impl AsRef<Path>,
    base: impl AsRef<Path>,
    options: &OpenOptions,
) -> Result<Applied, IoError> {
    let path = side.as_ref();
    let name: Arc<str> = path.to_string_lossy().into();
    let fail = |operation| {
        let name = Arc::clone(&name);
        move |cause: std::io::Error| IoError::new(&name, operation, 0, 0, &cause)
    };
    let mut side = SideFile::open_to_apply(path).map_err(fail(Operation::Open))?;
    let device = Device::open(
        base,
        &OpenOptions {
            write: true,
            partition: Offset::Whole,
            overlay: None,
            ..options.clone()
        },
    )?;
    require_base(&side, &device).map_err(|cause| {
        let name: Arc<str> = device.name().into();
        IoError::new(&name, Operation::Open, 0, 0, &cause)
    })?;
    let map = side.load_map().map_err(fail(Operation::Read))?;
    side.begin_to_apply().map_err(fail(Operation::Write))?;
    let mut applied = Applied { bytes: 0 };
    for run in map.runs(RUN_BLOCKS) {
        let start = run.start.exact_mul(BLOCK_BYTES);
        let end = run.end.exact_mul(BLOCK_BYTES).min(device.size_bytes());
        // A side file with a block beyond the base's end is damaged, or belongs to another base.
        let length = end
            .checked_sub(start)
            .and_then(|length| usize::try_from(length).ok());
        let length = length.ok_or_else(|| out_of_range(device.size_bytes()));
        let mut bytes = Buffer::zeroed(length.map_err(fail(Operation::Read))?);
        side.read(start, &mut bytes).map_err(fail(Operation::Read))?;
        device.write(start, &bytes)?;
        applied.bytes = applied.bytes.exact_add(byte_length(bytes.len()));
    }
    device.flush()?;
    side.remove().map_err(fail(Operation::Write))?;
    Ok(applied)
}

/// Refuses a base that the overlay was not made over. An apply that has begun has changed the base,
/// so only the base's size is compared.
fn require_base(side: &SideFile, device: &Device) -> std::io::Result<()> {
    let known = side.base();
    let same = match (device.base_state(), side.state) {
        (Some(found), State::InUse) => found == *known,
        _ => device.size_bytes() == known.size_bytes,
    };
    if same {
        return Ok(());
    }
    Err(std::io::Error::new(
        std::io::ErrorKind::InvalidInput,
        "it has changed since the overlay was created: its size or modification time differs. To discard the changes of the overlay, delete the overlay file",
    ))
}
