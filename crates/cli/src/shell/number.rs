//! Numbers in the syntax of xfs_io: decimal, hexadecimal after `0x`, with K, M, G, T, P or E for
//! powers of 1024.

use std::str::FromStr;

use crate::globals::parse_size;

/// An offset or a length, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
        match hexadecimal {
            Some(digits) => u64::from_str_radix(digits, 16)
                .map(Self)
                .map_err(|_| format!("{text:?} is not a hexadecimal number of 64 bits")),
            None => parse_size(text).map(Self),
        }
    }
}

/// A byte value, such as a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Byte(pub u8);

impl FromStr for Byte {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Bytes(number) = text.parse()?;
        u8::try_from(number)
            .map(Self)
            .map_err(|_| format!("{text:?} does not fit into a byte"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!("256K".parse(), Ok(Bytes(256 << 10)));
        assert_eq!("1m".parse(), Ok(Bytes(1 << 20)));
        assert_eq!("0x1000".parse(), Ok(Bytes(4096)));
        assert_eq!("0xab".parse(), Ok(Byte(0xab)));
        assert_eq!("171".parse(), Ok(Byte(171)));
        for text in ["", "0x", "0xg", "-1", "K"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
        assert!("256".parse::<Byte>().is_err());
    }
}
