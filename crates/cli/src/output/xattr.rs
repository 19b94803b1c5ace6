//! Values of extended attributes in the formats of getfattr and setfattr.

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use buttress::is_printable;

use super::json::base64;

/// Formats a value as quoted text, or as base64 after `0s` if it is not text.
pub fn text(value: &[u8]) -> String {
    match std::str::from_utf8(value) {
        Ok(text) if text.chars().all(is_printable) => {
            format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
        }
        _ => format!("0s{}", base64(value)),
    }
}

/// A value from the user: text, hexadecimal after `0x`, or base64 after `0s`. A malformed
/// hexadecimal or base64 value counts as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value(pub Vec<u8>);

impl From<OsString> for Value {
    fn from(text: OsString) -> Self {
        let bytes = text.into_vec();
        let decoded = match bytes.split_at_checked(2) {
            Some((b"0x" | b"0X", digits)) => hexadecimal(digits),
            Some((b"0s" | b"0S", digits)) => from_base64(digits),
            _ => None,
        };
        Self(decoded.unwrap_or(bytes))
    }
}

impl std::str::FromStr for Value {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self::from(OsString::from(text)))
    }
}

fn hexadecimal(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: &u8| {
        let value = char::from(*byte).to_digit(16)?;
        u8::try_from(value).ok()
    };
    let pairs = digits.chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return None;
    }
    pairs
        .map(|pair| match pair {
            [high, low] => Some((digit(high)? << 4) | digit(low)?),
            _ => None,
        })
        .collect()
}

fn from_base64(digits: &[u8]) -> Option<Vec<u8>> {
    let end = digits
        .iter()
        .rposition(|byte| *byte != b'=')
        .map_or(0, |last| last.saturating_add(1));
    let (digits, padding) = digits.split_at_checked(end)?;
    let whole = digits.len().checked_add(padding.len())?;
    if padding.len() > 2 || !whole.is_multiple_of(4) {
        return None;
    }
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0u32, 0u32);
    for digit in digits {
        let value = match digit {
            b'A'..=b'Z' => digit.checked_sub(b'A')?,
            b'a'..=b'z' => digit.checked_sub(b'a')?.checked_add(26)?,
            b'0'..=b'9' => digit.checked_sub(b'0')?.checked_add(52)?,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(value);
        held = held.checked_add(6)?;
        if held >= 8 {
            held = held.checked_sub(8)?;
            bytes.push(u8::try_from((bits >> held) & 0xff).ok()?);
            bits &= !(u32::MAX << held);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_there_and_back() {
        let cases: [(&str, &[u8]); 8] = [
            ("text", b"text"),
            ("0x00ff10", &[0, 255, 16]),
            ("0x0", b"0x0"),
            ("0sAP8Q", &[0, 255, 16]),
            ("0sAP8=", &[0, 255]),
            ("0s", b""),
            ("0s?", b"0s?"),
            ("", b""),
        ];
        for (given, expected) in cases {
            assert_eq!(given.parse(), Ok(Value(expected.to_vec())), "{given}");
        }
        assert_eq!(text(b"a\"b\\"), "\"a\\\"b\\\\\"");
        for bytes in [&[0u8][..], &[0, 255], &[1, 2, 3], &[9, 8, 7, 6]] {
            assert_eq!(text(bytes).parse(), Ok(Value(bytes.to_vec())));
        }
    }
}
