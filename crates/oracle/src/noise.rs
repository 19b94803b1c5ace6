//! Damages copies of a volume's devices.

use crate::content::Random;
use anyhow::Result;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The offsets of superblocks. Noise spares superblocks, so that a damaged device is still
/// recognised.
const SUPERBLOCKS: [u64; 3] = [64 << 10, 64 << 20, 256 << 30];

/// Overwrites `[start, end)` of `image` with seeded noise, except the superblocks and the image's
/// holes. Nothing reads a hole, and writing there would let the image grow to its full size.
pub fn spoil(image: &Path, start: u64, end: u64, seed: u64) -> Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(image)?;
    let mut random = Random::new(seed);
    let noise = random.bytes(1 << 20, false);
    let mut position = start;
    while position < end {
        let Ok(data) = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(position)) else {
            break;
        };
        let data = data.max(position);
        let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(data))?.min(end);
        let mut at = data;
        while at < hole {
            let next = SUPERBLOCKS
                .iter()
                .copied()
                .filter(|place| *place + 4096 > at)
                .min()
                .unwrap_or(u64::MAX);
            if at >= next {
                at = next + 4096;
                continue;
            }
            let length = (hole - at).min(noise.len() as u64).min(next - at);
            file.write_all_at(&noise[..length as usize], at)?;
            at += length;
        }
        position = hole.max(at);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn superblocks_are_spared_and_all_else_is_spoilt() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![0u8; 1 << 20]).unwrap();
        spoil(file.path(), 0, 1 << 20, 1).unwrap();
        let bytes = std::fs::read(file.path()).unwrap();
        assert!(bytes[65_536..65_536 + 4096].iter().all(|byte| *byte == 0));
        for (number, part) in bytes.chunks(4096).enumerate().filter(|(number, _)| *number != 16) {
            assert!(part.iter().any(|byte| *byte != 0), "block {number} is not spoilt");
        }
        assert_eq!(bytes.len(), 1 << 20);
    }
}
