//! Names with equal hashes, of printable characters.
//!
//! Four bytes at the end of a name can lead its CRC to any value. The search walks the polynomial's
//! table backwards from the value, and forwards from the name's prefix. If the four bytes are not
//! printable, it tries the next beginning.

use std::sync::OnceLock;

const POLYNOMIAL: u32 = 0x82f6_3b78;

fn table() -> &'static [u32; 256] {
    static TABLE: OnceLock<[u32; 256]> = OnceLock::new();
    TABLE.get_or_init(|| {
        core::array::from_fn(|byte| {
            (0..8).fold(byte as u32, |state, _| {
                if state & 1 == 1 {
                    state >> 1 ^ POLYNOMIAL
                } else {
                    state >> 1
                }
            })
        })
    })
}

/// Returns the four bytes that lead the CRC from one state to another.
fn bytes_between(from: u32, to: u32) -> [u8; 4] {
    let table = table();
    let mut places = [0; 4];
    let mut state = to;
    for place in places.iter_mut().rev() {
        *place = table.iter().position(|entry| entry >> 24 == state >> 24).unwrap();
        state = (state ^ table[*place]) << 8;
    }
    let mut state = from;
    places.map(|place| {
        let byte = place as u8 ^ state as u8;
        state = state >> 8 ^ table[place];
        byte
    })
}

/// Returns `count` names of `length` bytes that begin with `prefix` and have one hash.
#[must_use]
pub fn names(prefix: &str, length: usize, count: usize) -> Vec<String> {
    const WANTED: u32 = 0x1234_5678;
    let filled = length - 4;
    (0_u64..)
        .filter_map(|number| {
            let start = format!("{prefix}{number:0width$}", width = filled - prefix.len());
            let state = start.bytes().fold(!1, |state: u32, byte| {
                state >> 8 ^ table()[usize::from(byte ^ state as u8)]
            });
            let end = bytes_between(state, WANTED);
            let is_printable = end.iter().all(|byte| byte.is_ascii_alphanumeric());
            is_printable.then(|| start + std::str::from_utf8(&end).unwrap())
        })
        .take(count)
        .collect()
}

/// Returns names of three attributes with one hash.
pub fn xattrs() -> &'static [String] {
    static NAMES: OnceLock<Vec<String>> = OnceLock::new();
    NAMES.get_or_init(|| names("user.", 20, 3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_have_one_hash() {
        // btrfs starts at 1 and does not invert, so this undoes both steps of the usual CRC-32C.
        let hash = |name: &str| !crc32c::crc32c_append(!(!1u32), name.as_bytes());
        let names = names("n", 30, 100);
        assert!(
            names
                .iter()
                .all(|name| hash(name) == hash(&names[0]) && name.len() == 30)
        );
        assert_ne!(names[0], names[1]);
    }
}
