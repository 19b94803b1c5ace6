//! Base64 encoding of bytes: in archives of libarchive, and in manifests.
//!
//! The module has its own code because the code is short. The code uses the alphabet of RFC 4648.
//! Padding is optional, but must be correct if present.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Decodes a text; `None` if it is no base64. Line ends and spaces are ignored.
pub(crate) fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let (mut bits, mut held, mut padding) = (0_u32, 0_u32, 0_usize);
    let mut letters = 0_usize;
    for letter in text.iter().filter(|letter| !letter.is_ascii_whitespace()) {
        let value = match letter {
            b'=' => {
                padding = padding.saturating_add(1);
                continue;
            }
            _ if padding > 0 => return None,
            b'A'..=b'Z' => letter.wrapping_sub(b'A'),
            b'a'..=b'z' => letter.wrapping_sub(b'a').wrapping_add(26),
            b'0'..=b'9' => letter.wrapping_sub(b'0').wrapping_add(52),
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        letters = letters.saturating_add(1);
        bits = (bits << 6) | u32::from(value);
        held = held.saturating_add(6);
        if held >= 8 {
            held = held.saturating_sub(8);
            bytes.push(((bits >> held) & 0xff) as u8);
            bits &= (1_u32 << held).wrapping_sub(1);
        }
    }
    let whole = letters.saturating_add(padding);
    // A single last letter of base64 encodes less than a byte, and unused bits must be zero.
    let right = letters % 4 != 1 && (padding == 0 || (whole % 4 == 0 && padding < 3)) && bits == 0;
    right.then_some(bytes)
}

/// Encodes bytes as padded Base64 text.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3).saturating_mul(4));
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = (byte(0) << 16) | (byte(1) << 8) | byte(2);
        for place in 0..4_u32 {
            if place as usize > group.len() {
                text.push('=');
                continue;
            }
            let shift = 18_u32.saturating_sub(place.saturating_mul(6));
            let letter = ALPHABET.get(((bits >> shift) & 63) as usize);
            text.push(char::from(letter.copied().unwrap_or(b'=')));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_rfc_4648() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text.as_bytes()).as_deref(), Some(bytes.as_bytes()));
            assert_eq!(
                decode(text.trim_end_matches('=').as_bytes()).as_deref(),
                Some(bytes.as_bytes())
            );
        }
        for wrong in ["Z", "Zg=", "Zh==", "Z=g=", "Zm9-", "Zm9v="] {
            assert_eq!(decode(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(decode(b"Zm\n9v"), Some(b"foo".to_vec()));
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(encode(&all).as_bytes()), Some(all));
    }
}
