//! CRC-32C as algebra: the last four bytes of a name that give it a chosen hash.
//!
//! A step of the checksum takes a byte: `state' = T[state ^ byte] ^ (state >> 8)`. Four steps
//! therefore depend only on `state ^ word`, where `word` is the four bytes as a little-endian
//! number. Four steps over zeros are linear and invertible, so for each state and each target exactly
//! one word leads from the state to the target: `word = state ^ unshifted(target)`.
//!
//! For two names of one length, the difference of their checksums does not depend on the initial state.
//! A replacement that keeps the hash of a directory entry therefore also keeps the hash of every
//! `INODE_EXTREF`, whose initial state is the parent directory.

/// The reversed polynomial of CRC-32C.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The initial state of name hashes.
pub(super) const NAME_STATE: u32 = !1;

const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut rest: &mut [u32] = &mut table;
    let mut byte = 0_u32;
    while let Some((entry, after)) = rest.split_first_mut() {
        let mut state = byte;
        let mut bit = 0_u32;
        while bit < 8 {
            state = match state & 1 {
                0 => state >> 1,
                _ => (state >> 1) ^ POLYNOMIAL,
            };
            bit = u32::wrapping_add(bit, 1);
        }
        *entry = state;
        byte = byte.wrapping_add(1);
        rest = after;
    }
    table
}

/// Continues a raw checksum by one byte.
pub(super) fn step(state: u32, byte: u8) -> u32 {
    let [low, ..] = (state ^ u32::from(byte)).to_le_bytes();
    // Clamp: the table has an entry for each byte.
    let entry = TABLE.get(usize::from(low)).copied().unwrap_or(0);
    entry ^ (state >> 8)
}

/// Continues a raw checksum by bytes.
pub(super) fn steps(state: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(state, |state, byte| step(state, *byte))
}

/// Returns the state that four zero bytes change to `state`.
pub(super) const fn unshifted(state: u32) -> u32 {
    unshifted_bits(state, 32)
}

/// Returns the state that this number of zero bits changes to `state`.
const fn unshifted_bits(state: u32, bits: u32) -> u32 {
    let mut state = state;
    let mut bit = 0_u32;
    // The polynomial's highest bit is set, so the highest bit shows whether a step subtracted it.
    while bit < bits {
        state = match state >> 31 {
            0 => state << 1,
            _ => ((state ^ POLYNOMIAL) << 1) | 1,
        };
        bit = u32::wrapping_add(bit, 1);
    }
    state
}

/// Returns the four bytes that lead from `state` to the target whose [`unshifted`] state is given.
pub(super) const fn last_bytes(state: u32, unshifted_target: u32) -> [u8; 4] {
    (state ^ unshifted_target).to_le_bytes()
}

/// Returns the name of `length` bytes, at most four, that leads from `state` to `target`. Unused bytes
/// are zero. Returns `None` if no such name exists.
pub(super) fn short_name(state: u32, target: u32, length: usize) -> Option<[u8; 4]> {
    let bits = u32::try_from(length).ok()?.checked_mul(8)?;
    let word = state ^ unshifted_bits(target, bits);
    let name = word.to_le_bytes();
    name.get(length..)?.iter().all(|byte| *byte == 0).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use buttress_format::{InodeNumber, crc32c, extref_hash, name_hash};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn steps_are_those_of_the_checksum(state: u32, bytes: Vec<u8>) {
            prop_assert_eq!(steps(state, &bytes), crc32c(state, &bytes));
        }

        #[test]
        fn last_bytes_lead_to_any_target(state: u32, target: u32) {
            let bytes = last_bytes(state, unshifted(target));
            prop_assert_eq!(crc32c(state, &bytes), target);
        }

        #[test]
        fn short_name_is_the_only_one_of_its_hash(state: u32, name: [u8; 4], length in 1_usize..=4) {
            let mut expected = name;
            expected[length..].fill(0);
            let target = crc32c(state, &name[..length]);
            prop_assert_eq!(short_name(state, target, length), Some(expected));
            if let Some(other) = short_name(state, target ^ 1, length) {
                prop_assert_eq!(crc32c(state, &other[..length]), target ^ 1);
            }
        }

        #[test]
        fn equal_name_hashes_mean_equal_extref_hashes(
            name in proptest::collection::vec(any::<u8>(), 5..40),
            parent: u64,
        ) {
            let mut other: Vec<u8> = name.iter().map(|byte| byte.wrapping_add(1)).collect();
            let at = other.len() - 4;
            let state = steps(NAME_STATE, &other[..at]);
            let target = crc32c(NAME_STATE, &name);
            other[at..].copy_from_slice(&last_bytes(state, unshifted(target)));
            prop_assert_eq!(name_hash(&name), name_hash(&other));
            let parent = InodeNumber::new(parent);
            prop_assert_eq!(extref_hash(parent, &name), extref_hash(parent, &other));
        }
    }
}
