//! The two checksums: CRC-32C of all metadata, and CRC-16 of group descriptors alone.
//!
//! Neither checksum inverts its state at the start or at the end, so a result is the state for more
//! bytes.
//!
//! Source: ext4 documentation, section "Checksums".

use crc_fast::{CrcAlgorithm, Digest};

/// Returns the state of the CRC-32C after `data`, from the state before.
pub(crate) fn crc32c(state: u32, data: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(state));
    digest.update(data);
    !low_32(digest.finalize())
}

/// Returns the state of the CRC-16 (polynomial 0x8005, bits reflected) after `data`, from the state
/// before.
pub(crate) fn crc16(state: u16, data: &[u8]) -> u16 {
    data.iter().fold(state, |state, byte| {
        (0..8).fold(state ^ u16::from(*byte), |state, _| {
            if state & 1 == 0 {
                state >> 1
            } else {
                (state >> 1) ^ 0xa001
            }
        })
    })
}

/// Returns the low 32 bits.
pub(crate) const fn low_32(value: u64) -> u32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// Returns the low 16 bits.
pub(crate) const fn low_16(value: u32) -> u16 {
    let [a, b, ..] = value.to_le_bytes();
    u16::from_le_bytes([a, b])
}

/// The checksums that the volume has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    /// No checksums.
    Nothing,
    /// Group descriptors have a CRC-16 (the feature `uninit_bg`).
    Groups,
    /// All metadata has CRC-32C (the feature `metadata_csum`), which starts with `seed`.
    Metadata {
        /// The state after the UUID.
        seed: u32,
    },
}

impl Protection {
    /// Returns the start of the checksums of metadata, if metadata has checksums.
    pub(crate) const fn seed(self) -> Option<u32> {
        match self {
            Self::Metadata { seed } => Some(seed),
            Self::Nothing | Self::Groups => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc16_matches_the_published_check_value() {
        // The check value of CRC-16/MODBUS, which starts with all bits set.
        assert_eq!(crc16(0xffff, b"123456789"), 0x4b37);
    }

    #[test]
    fn crc32c_continues_from_its_state() {
        assert_eq!(!crc32c(!0, b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(crc32c(!0, b"1234"), b"56789"), crc32c(!0, b"123456789"));
    }
}
