//! Pseudorandom bytes from a secret and a message: HMAC with SHA-256.
//!
//! Equal messages give equal bytes, and without the secret the bytes tell nothing about the message.
//!
//! Source: RFC 2104.

use buttress_format::ChecksumType;

const BLOCK_BYTES: usize = 64;

/// The number of bytes of a secret.
pub(super) const SECRET_BYTES: usize = 32;

/// A function of messages that a secret selects.
#[derive(Clone, Debug)]
pub(super) struct Keyed {
    inner: [u8; BLOCK_BYTES],
    outer: [u8; BLOCK_BYTES],
}

impl Keyed {
    pub(super) fn new(secret: &[u8; SECRET_BYTES]) -> Self {
        let padded = |pad: u8| {
            let mut block = [pad; BLOCK_BYTES];
            for (to, from) in block.iter_mut().zip(secret) {
                *to ^= from;
            }
            block
        };
        Self {
            inner: padded(0x36),
            outer: padded(0x5c),
        }
    }

    /// Returns the authentication code of a message.
    fn code(&self, message: &[&[u8]]) -> Vec<u8> {
        let inner = [&[&self.inner[..]], message].concat().concat();
        let inner = ChecksumType::Sha256.compute(&inner);
        let outer = [&self.outer[..], inner.as_bytes()].concat();
        ChecksumType::Sha256.compute(&outer).as_bytes().to_vec()
    }

    /// Returns `length` bytes for a message.
    pub(super) fn bytes(&self, message: &[u8], length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length);
        let mut part = 0_u32;
        while bytes.len() < length {
            bytes.extend(self.code(&[&part.to_le_bytes(), message]));
            part = part.wrapping_add(1);
        }
        bytes.truncate(length);
        bytes
    }

    /// Returns a number for a message.
    pub(super) fn number(&self, message: &[u8]) -> u64 {
        let bytes = self.bytes(message, 8);
        // Clamp: eight bytes were asked for.
        bytes.first_chunk().copied().map_or(0, u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_that_of_rfc_4231() {
        // The first case of the RFC; zeros at the end of a short secret change nothing.
        let mut secret = [0; SECRET_BYTES];
        secret[..20].fill(0x0b);
        let code = Keyed::new(&secret).code(&[b"Hi ", b"There"]);
        assert_eq!(code[..4], [0xb0, 0x34, 0x4c, 0x61]);
        assert_eq!(code[28..], [0x2e, 0x32, 0xcf, 0xf7]);
    }

    #[test]
    fn long_results_do_not_repeat() {
        let bytes = Keyed::new(&[7; SECRET_BYTES]).bytes(b"name", 250);
        assert_eq!(bytes.len(), 250);
        assert!(bytes[..32] != bytes[32..64]);
    }
}
