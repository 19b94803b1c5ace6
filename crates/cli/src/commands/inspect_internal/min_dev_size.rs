//! `buttress inspect-internal min-dev-size`: the smallest size to which a device can shrink.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::Write;

use anyhow::Result;
use buttress::unstable::filesystem_of;
use buttress::unstable::format::{DeviceExtent, ItemType, Key, ObjectId, SUPERBLOCK_OFFSETS};
use buttress::unstable::fs::Filesystem;
use buttress::{ReadAhead, TreeId};
use clap::Args;
use serde_json::json;

use crate::context::Context;
use crate::exit::{self, Outcome};
use crate::manual::{Example, example};
use crate::output::size::Units;
use crate::table::Subcommand;

/// Print the smallest size to which a device can shrink
#[derive(Args, Debug)]
pub struct MinDevSize {
    /// Id of the device
    #[arg(long, value_name = "ID", default_value_t = 1)]
    id: u64,
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

/// Offset below which no chunk is located, in bytes.
const RESERVED_BYTES: u64 = 1 << 20;
/// Size of a system chunk, which a move of chunks may need.
const SYSTEM_CHUNK_BYTES: u64 = 32 << 20;

impl Subcommand for MinDevSize {
    const NAME: &'static str = "min-dev-size";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress inspect-internal min-dev-size backup.img",
        "Prints the smallest size of the first device",
    )];

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.image);
        let filesystem = filesystem_of(context.open_volume(&target.image)?.volume());
        let devices = filesystem.volume().devices();
        if !devices.iter().any(|device| device.id().get() == self.id) {
            return Err(exit::usage(format_args!(
                "{}: no device {} exists",
                target.display(),
                self.id
            )));
        }
        let size = least(extents(&filesystem, self.id)?);
        if context.json() {
            context.print_json(Self::NAME, json!({ "devid": self.id, "bytes": size }))?;
            return Ok(Outcome::Done);
        }
        let mut out = context.stdout();
        writeln!(out, "{size} bytes ({})", Units::default().text(size))?;
        out.flush()?;
        Ok(Outcome::Done)
    }
}

/// Returns start and end of each device extent, in order.
fn extents(filesystem: &Filesystem, device: u64) -> Result<Vec<(u64, u64)>> {
    let key = |offset| Key::new(ObjectId::new(device), ItemType::DEV_EXTENT, offset);
    let mut extents = Vec::new();
    for item in filesystem
        .tree(TreeId::DEVICE)?
        .range(key(0)..=key(u64::MAX), ReadAhead::Forward)
    {
        let item = item?;
        let extent = DeviceExtent::parse(&item.key(), item.data(), filesystem.sector_bytes())?;
        let start = item.key().offset;
        let end = start.checked_add(extent.length.get());
        let end = end
            .ok_or_else(|| anyhow::anyhow!("the device extent at {start} ends beyond the largest address"))?;
        extents.push((start, end));
    }
    Ok(extents)
}

/// Computes the smallest size of a device with these extents. A shrink moves the extents after the
/// new end into sufficiently large holes, the last extent first. During the move of an extent, its
/// space counts twice, and the chunk tree may need another chunk.
fn least(mut extents: Vec<(u64, u64)>) -> u64 {
    let mut least = RESERVED_BYTES;
    let mut holes: VecDeque<(u64, u64)> = VecDeque::new();
    let mut last_end = None;
    for (start, end) in &extents {
        least = least.saturating_add(end.saturating_sub(*start));
        if let Some(last_end) = last_end.filter(|last_end| last_end != start) {
            holes.push_back((last_end, *start));
        }
        last_end = Some(*end);
    }
    let mut moved = 0_u64;
    while let Some((start, end)) = extents.pop() {
        if end <= least {
            break;
        }
        let length = end.saturating_sub(start);
        let fits = |(from, to): &&mut (u64, u64)| to.saturating_sub(*from) >= length && *from < start;
        let Some(hole) = holes.iter_mut().find(fits) else {
            least = end;
            break;
        };
        let place = hole.0..hole.0.saturating_add(length);
        hole.0 = place.end;
        moved = moved.max(length);
        // The allocator avoids superblocks, so the extent may not fit into this space after all.
        if SUPERBLOCK_OFFSETS
            .iter()
            .any(|offset| place.contains(&offset.get()))
        {
            least = least.saturating_add(length);
        }
    }
    if moved > 0 {
        least = least.saturating_add(moved).saturating_add(SYSTEM_CHUNK_BYTES);
    }
    least
}

#[cfg(test)]
mod tests {
    use super::least;

    const MIB: u64 = 1 << 20;

    fn of(extents: &[(u64, u64)]) -> u64 {
        least(
            extents
                .iter()
                .map(|(start, end)| (start * MIB, end * MIB))
                .collect(),
        ) / MIB
    }

    #[test]
    fn extents_that_fit_no_hole_stay() {
        assert_eq!(of(&[]), 1);
        assert_eq!(of(&[(1, 9), (9, 17)]), 17);
        // This hole is too small for the last extent.
        assert_eq!(of(&[(13, 21), (21, 29), (29, 94)]), 94);
    }

    #[test]
    fn extent_moves_into_hole_with_space_for_another_copy() {
        // The sum is 1 + 8 + 8 MiB used, 8 for the move, 32 for a system chunk.
        assert_eq!(of(&[(1, 9), (100, 108)]), 1 + 16 + 8 + 32);
    }

    #[test]
    fn a_hole_with_a_superblock_counts_the_extent_again() {
        let extents = [
            (1, 5),
            (5, 13),
            (229, 437),
            (437, 645),
            (645, 853),
            (853, 1061),
            (1061, 1269),
        ];
        assert_eq!(of(&extents), 1501);
    }
}
