//! A corpus in one file: inputs, each after its length, compressed together.
//!
//! Fuzzers need a directory of thousands of tiny files, which do not suit a repository. The
//! committed file is `fuzz/corpus/TARGET.zst`. The corpus is sorted, so that equal inputs give
//! equal bytes.

use std::io::{Error, ErrorKind, Result};

/// The largest unpacked corpus, in bytes.
const UNPACKED_BYTES_MAX: usize = 256 << 20;

/// Packs inputs in any order.
///
/// # Errors
/// The compression fails.
pub fn pack(mut inputs: Vec<Vec<u8>>) -> Result<Vec<u8>> {
    inputs.sort();
    inputs.dedup();
    let mut bytes = Vec::new();
    for input in inputs {
        bytes.extend_from_slice(&u32::try_from(input.len()).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend_from_slice(&input);
    }
    zstd::bulk::compress(&bytes, 19)
}

/// Unpacks the inputs that [`pack`] packed.
///
/// # Errors
/// Fails if the file is not a corpus.
pub fn unpack(packed: &[u8]) -> Result<Vec<Vec<u8>>> {
    let bytes = zstd::bulk::decompress(packed, UNPACKED_BYTES_MAX)?;
    let mut rest = bytes.as_slice();
    let mut inputs = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length) as usize;
        let Some((input, after)) = after.split_at_checked(length) else {
            return Err(Error::new(ErrorKind::InvalidData, "a corpus is cut short"));
        };
        inputs.push(input.to_vec());
        rest = after;
    }
    Ok(inputs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_sorts() {
        let packed = pack(vec![b"b".to_vec(), b"".to_vec(), b"a".to_vec(), b"b".to_vec()]).unwrap();
        assert_eq!(
            unpack(&packed).unwrap(),
            [b"".to_vec(), b"a".to_vec(), b"b".to_vec()]
        );
        assert!(unpack(b"no corpus").is_err());
    }
}
