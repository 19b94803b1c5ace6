//! The number of bytes that a scrub has to read, estimated in advance.

use buttress_exact::Exact as _;
use buttress_format::ByteCount;
use buttress_fs::{BlockGroups, Filesystem};
use buttress_volume::Volume;
use std::collections::HashMap;
use uuid::Uuid;

/// Returns the bytes to be scrubbed on each device: the used bytes of block groups, once for each
/// copy, without parity. For a device that is being replaced, missing or not, returns the bytes to
/// be copied, including parity.
pub(crate) fn bytes_to_scrub(
    filesystem: &Filesystem,
    volume: &Volume,
    replaced: Option<Uuid>,
) -> HashMap<Uuid, u64> {
    let mut bytes: HashMap<Uuid, u64> = HashMap::new();
    let Ok(block_groups) = BlockGroups::of(filesystem) else {
        return bytes;
    };
    for chunk in volume.chunk_map().chunks() {
        let used = block_groups.get(chunk).map_or(0, |group| group.used.get());
        let layout = chunk.layout();
        let copies = match layout.has_parity() {
            true => 1,
            false => u64::from(layout.ways()),
        };
        let stripes = match layout.has_parity() && replaced.is_some() {
            true => ByteCount::of(layout.data_columns()).get(),
            false => ByteCount::of(chunk.devices().len()).get(),
        };
        // Clamp: the estimate uses numbers from disk.
        let all = used.saturating_mul(copies);
        let share = all.quotient(stripes);
        // The first device gets the remainder of the division of expected bytes.
        let mut more = all.remainder(stripes);
        for slot in chunk.devices() {
            let own = share.exact_add(core::mem::take(&mut more));
            let counts = match replaced {
                Some(replaced) => slot.uuid() == replaced,
                None => slot.device().is_some(),
            };
            if counts {
                let sum = bytes.entry(slot.uuid()).or_default();
                *sum = sum.exact_add(own);
            }
        }
    }
    bytes
}
