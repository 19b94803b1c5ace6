//! A directory of very many names, some of which collide in btrfs's name hash.
//!
//! Directory items are keyed by the CRC-32C of the name, and names of equal hash share an item. The
//! search for pairs tries seeded names until enough of them collide (about n²/2³³ pairs among n
//! names).

use super::Random;
use anyhow::Result;
use std::collections::HashMap;
use std::fs::{self, File};
use std::path::Path;

/// The smallest number of names in a full directory, less one.
pub const NAMES: usize = 100_000;

/// Returns at least `pairs` pairs of names with equal hashes, from `seed`.
#[must_use]
pub fn colliding_names(seed: u64, pairs: usize) -> Vec<String> {
    let mut random = Random::new(seed);
    let mut seen: HashMap<u32, u64> = HashMap::new();
    let mut names = Vec::new();
    while names.len() < pairs * 2 {
        let number = random.number();
        let name = format!("c-{number:016x}");
        // btrfs's CRC starts at 1 and is not inverted, so this call undoes both steps of the usual
        // CRC-32C.
        let hash = !crc32c::crc32c_append(!(!1u32), name.as_bytes());
        match seen.insert(hash, number) {
            Some(earlier) if earlier != number => {
                names.push(format!("c-{earlier:016x}"));
                names.push(name);
            }
            _ => {}
        }
    }
    names
}

/// Makes `directory` with more than [`NAMES`] names. The names are hard links to a few files, which
/// therefore need INODE_EXTREF items.
pub fn plant(directory: &Path, seed: u64, names: usize) -> Result<()> {
    fs::create_dir(directory)?;
    let colliding = colliding_names(seed, 12);
    let mut target = directory.join("target-0");
    File::create(&target)?;
    for (number, name) in colliding.iter().enumerate() {
        fs::write(directory.join(name), number.to_string())?;
    }
    for number in 0..names {
        if number % 20_000 == 19_999 {
            target = directory.join(format!("target-{number}"));
            File::create(&target)?;
        }
        fs::hard_link(
            &target,
            directory.join(format!("name-{:x}-{number}", number.wrapping_mul(0x9e37_79b9))),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_pair_have_the_same_hash() {
        let names = colliding_names(1, 2);
        let hash = |name: &str| !crc32c::crc32c_append(!(!1u32), name.as_bytes());
        for pair in names.chunks(2) {
            assert_ne!(pair[0], pair[1]);
            assert_eq!(hash(&pair[0]), hash(&pair[1]));
        }
        assert_eq!(!crc32c::crc32c_append(!(!1u32), b"default"), 2_378_154_706);
    }
}
