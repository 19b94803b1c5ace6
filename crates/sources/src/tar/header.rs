//! One header block: 512 bytes, checked once.
//!
//! Three dialects share the header: v7 (no magic), ustar (`ustar\0`), GNU (`ustar  \0`). Numbers
//! are octal text. If the high bit of the first byte is set, they are binary in base 256. GNU tar
//! and star use this form for large numbers.
//!
//! Source: POSIX.1-2017, pax, "ustar Interchange Format"; GNU tar manual, "Basic Tar Format".

use super::error::Problem;

/// The unit of an archive.
pub(super) const BLOCK_BYTES: u64 = 512;

/// The meaning of the fields after the magic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// No field follows the link name.
    V7,
    /// The ustar fields hold a prefix of the name.
    Ustar,
    /// The GNU fields hold times, and the map of a sparse file.
    Gnu,
}

/// A header with a correct checksum.
#[derive(Debug)]
pub(super) struct Header {
    block: [u8; 512],
    pub(super) dialect: Dialect,
}

impl Header {
    /// Checks a block. Returns `None` for a block of zeros, which marks the archive's end.
    pub(super) fn check(block: &[u8; 512]) -> Result<Option<Self>, Problem> {
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let header = Self {
            block: *block,
            dialect: match block.get(257..265) {
                Some(b"ustar  \0") => Dialect::Gnu,
                Some(magic) if magic.starts_with(b"ustar") => Dialect::Ustar,
                _ => Dialect::V7,
            },
        };
        let stored = header.number(148, 8, "checksum")?;
        let (mut unsigned, mut signed) = (0_i64, 0_i64);
        for (at, byte) in block.iter().enumerate() {
            let byte = if (148..156).contains(&at) { b' ' } else { *byte };
            unsigned = unsigned.wrapping_add(i64::from(byte));
            // Some old programs summed signed bytes.
            signed = signed.wrapping_add(i64::from(byte.cast_signed()));
        }
        if stored != unsigned && stored != signed {
            return Err(Problem::Checksum {
                stored,
                computed: unsigned,
            });
        }
        Ok(Some(header))
    }

    /// Returns the bytes of a field.
    pub(super) fn field(&self, at: usize, length: usize) -> &[u8] {
        self.block.get(at..at.saturating_add(length)).unwrap_or_default()
    }

    /// Returns the text of a field, up to its first zero byte.
    pub(super) fn text(&self, at: usize, length: usize) -> &[u8] {
        let field = self.field(at, length);
        field.split(|byte| *byte == 0).next().unwrap_or_default()
    }

    /// Returns the letter of the member's kind.
    pub(super) fn letter(&self) -> u8 {
        self.block.get(156).copied().unwrap_or(0)
    }

    /// Returns the member's name with its prefix.
    pub(super) fn name(&self) -> Vec<u8> {
        let name = self.text(0, 100);
        let prefix = match self.dialect {
            Dialect::Ustar => self.text(345, 155),
            _ => &[],
        };
        if prefix.is_empty() {
            name.to_vec()
        } else {
            [prefix, b"/", name].concat()
        }
    }

    /// Returns a number that may be negative.
    pub(super) fn number(&self, at: usize, length: usize, field: &'static str) -> Result<i64, Problem> {
        number(self.field(at, length), field)
    }

    /// Parses a number that must not be negative from a header field.
    pub(super) fn count(&self, at: usize, length: usize, field: &'static str) -> Result<u64, Problem> {
        let number = self.number(at, length, field)?;
        u64::try_from(number).map_err(|_| Problem::Negative { field, number })
    }
}

/// Parses a number in the form of headers: octal digits between spaces and zero bytes, or base 256.
pub(super) fn number(bytes: &[u8], field: &'static str) -> Result<i64, Problem> {
    let wrong = || Problem::Number {
        field,
        text: bytes.to_vec(),
    };
    let Some(first) = bytes.first() else {
        return Ok(0);
    };
    if first & 0x80 != 0 {
        // Numbers in base 256 are in two's complement. The top bit is only a mark.
        let negative = first & 0x40 != 0;
        let mut number: i128 = if negative { -1 } else { 0 };
        for (at, byte) in bytes.iter().enumerate() {
            let byte = match (at, negative) {
                (0, false) => byte & 0x7f,
                _ => *byte,
            };
            number = number
                .checked_mul(256)
                .and_then(|number| number.checked_add(i128::from(byte)))
                .ok_or_else(wrong)?;
        }
        return i64::try_from(number).map_err(|_| wrong());
    }
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = text.trim_ascii();
    let mut number = 0_i64;
    for digit in text {
        let digit = match digit {
            b'0'..=b'7' => i64::from(digit.wrapping_sub(b'0')),
            _ => return Err(wrong()),
        };
        number = number
            .checked_mul(8)
            .and_then(|number| number.checked_add(digit))
            .ok_or_else(wrong)?;
    }
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary() {
        assert_eq!(number(b"0000644\0", "mode").unwrap(), 0o644);
        assert_eq!(number(b"   644 \0", "mode").unwrap(), 0o644);
        assert_eq!(number(b"\0\0\0\0", "mode").unwrap(), 0);
        assert_eq!(number(b"77777777777\0", "size").unwrap(), (1 << 33) - 1);
        let mut large = [0_u8; 12];
        large[0] = 0x80;
        large[4..].copy_from_slice(&(1_u64 << 40).to_be_bytes());
        assert_eq!(number(&large, "size").unwrap(), 1 << 40);
        let mut before = [0xff_u8; 12];
        before[4..].copy_from_slice(&(-5_i64).to_be_bytes());
        assert_eq!(number(&before, "mtime").unwrap(), -5);
    }

    #[test]
    fn invalid_numbers_are_refused() {
        for text in [&b"9"[..], b"12x", b"-1", b"0x1f"] {
            assert!(matches!(number(text, "size"), Err(Problem::Number { .. })));
        }
        let mut huge = [0xff_u8; 12];
        huge[0] = 0x80 | 0x3f;
        assert!(number(&huge, "size").is_err());
    }
}
