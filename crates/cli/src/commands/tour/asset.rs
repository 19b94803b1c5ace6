//! The volume that comes with the program.

use std::io::Read;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use buttress_device::{Backend, MemoryBackend};

/// The volume, compressed with zstd. Made by `cargo xtask tour-image`.
static PACKED: &[u8] = include_bytes!("../../../assets/tour.img.zst");

/// The size of the volume in it.
const VOLUME_BYTES: usize = 128 << 20;

/// Unpacks it into memory. Most of the volume was never written: blocks of zeros are left out, so they take no
/// memory. Returns it and the packed size.
pub(super) fn unpack() -> Result<(Arc<dyn Backend>, u64)> {
    const BLOCK_BYTES: usize = 4096;
    let mut volume = vec![0; VOLUME_BYTES];
    let mut unpacker = zstd::stream::read::Decoder::new(PACKED)?;
    let mut block = [0; BLOCK_BYTES];
    for place in volume.chunks_exact_mut(BLOCK_BYTES) {
        unpacker
            .read_exact(&mut block)
            .context("the volume in the program is cut short")?;
        if block.iter().any(|byte| *byte != 0) {
            place.copy_from_slice(&block);
        }
    }
    Ok((
        Arc::new(MemoryBackend::new("tour.img", volume)),
        PACKED.len() as u64,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_volume_is_whole() {
        assert_eq!(unpack().unwrap().0.size_bytes(), VOLUME_BYTES as u64);
    }
}
