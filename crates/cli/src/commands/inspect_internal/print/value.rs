//! Values of fields, as text and as JSON.

use std::fmt::Write as _;

use buttress::unstable::format::{ItemType, Key, ObjectId};
use serde_json::Value as Json;
use uuid::Uuid;

use super::key;
use super::sink::Text;
use crate::output::json;

/// A value that a field can have.
pub(crate) trait Value {
    /// Appends the value as text.
    fn text(&self, out: &mut Text);
    /// Returns the value as JSON.
    fn json(&self) -> Json;
}

macro_rules! decimal_values {
    ($($type:ty),*) => {$(
        impl Value for $type {
            fn text(&self, out: &mut Text) {
                out.push_decimal(u64::from(*self));
            }

            fn json(&self) -> Json {
                Json::from(u64::from(*self))
            }
        }
    )*};
}

decimal_values!(u8, u16, u32, u64);

impl Value for &str {
    fn text(&self, out: &mut Text) {
        out.push(self);
    }

    fn json(&self) -> Json {
        Json::from(*self)
    }
}

impl Value for String {
    fn text(&self, out: &mut Text) {
        out.push(self);
    }

    fn json(&self) -> Json {
        Json::from(self.as_str())
    }
}

/// A 64-bit field that is printed as a signed number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signed(pub(crate) u64);

impl Value for Signed {
    fn text(&self, out: &mut Text) {
        out.push_bytes(itoa::Buffer::new().format(self.0.cast_signed()).as_bytes());
    }

    fn json(&self) -> Json {
        Json::from(self.0.cast_signed())
    }
}

/// A number that is printed as `0x2f`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hex(pub(crate) u64);

impl Value for Hex {
    fn text(&self, out: &mut Text) {
        out.push("0x");
        out.push_hex(self.0);
    }

    fn json(&self) -> Json {
        Json::from(self.0)
    }
}

/// A number that is printed as `2f`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainHex(pub(crate) u64);

impl Value for PlainHex {
    fn text(&self, out: &mut Text) {
        out.push_hex(self.0);
    }

    fn json(&self) -> Json {
        Json::from(self.0)
    }
}

/// A mode, printed in octal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Octal(pub(crate) u32);

impl Value for Octal {
    fn text(&self, out: &mut Text) {
        // Formatting into memory cannot fail.
        let _ = write!(out, "{:o}", self.0);
    }

    fn json(&self) -> Json {
        Json::from(self.0)
    }
}

/// A checksum or other bytes, printed as `0x` and two digits per byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HexBytes<'a>(pub(crate) &'a [u8]);

impl Value for HexBytes<'_> {
    fn text(&self, out: &mut Text) {
        out.push("0x");
        out.push_hex_bytes(self.0);
    }

    fn json(&self) -> Json {
        let mut text = Text::default();
        self.text(&mut text);
        Json::from(String::from_utf8_lossy(text.as_bytes()).into_owned())
    }
}

impl Value for Uuid {
    fn text(&self, out: &mut Text) {
        let mut buffer = [0; uuid::fmt::Hyphenated::LENGTH];
        out.push(self.hyphenated().encode_lower(&mut buffer));
    }

    fn json(&self) -> Json {
        json::uuid(self)
    }
}

impl Value for Key {
    fn text(&self, out: &mut Text) {
        key::push_key(out, self);
    }

    fn json(&self) -> Json {
        key::json(self)
    }
}

/// The id of a tree, printed as its name if it has one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner(pub(crate) u64);

impl Value for Owner {
    fn text(&self, out: &mut Text) {
        key::push_object(out, ObjectId::new(self.0), ItemType(0));
    }

    fn json(&self) -> Json {
        Json::from(self.0)
    }
}

/// A timestamp: `seconds.nanoseconds (2026-11-21 01:50:18)`, with the date in the local time zone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// Seconds since 1970, as stored: a signed number in an unsigned field.
    pub(crate) seconds: u64,
    /// Nanoseconds, if the field has them.
    pub(crate) nanoseconds: Option<u32>,
}

impl Value for Moment {
    fn text(&self, out: &mut Text) {
        out.push_decimal(self.seconds);
        if let Some(nanoseconds) = self.nanoseconds {
            out.push(".");
            out.push_decimal(u64::from(nanoseconds));
        }
        out.push(" (");
        out.push_date(self.seconds.cast_signed());
        out.push(")");
    }

    fn json(&self) -> Json {
        match self.nanoseconds {
            None => Json::from(self.seconds.cast_signed()),
            Some(nanoseconds) => {
                serde_json::json!({ "seconds": self.seconds.cast_signed(), "nanoseconds": nanoseconds })
            }
        }
    }
}

/// Largest length of a value in text, as in btrfs-progs; names are never longer. JSON output
/// contains the whole value.
const TEXT_BYTES_MAX: usize = 255;

/// A name or other user-controlled bytes, printed with escapes, or as `HIDDEN`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name<'a> {
    /// Bytes of the name.
    pub(crate) bytes: &'a [u8],
    /// True if the text output hides user-controlled names.
    pub(crate) hide: bool,
}

impl Value for Name<'_> {
    fn text(&self, out: &mut Text) {
        if self.hide {
            out.push("HIDDEN");
        } else {
            escape(out, self.bytes.get(..TEXT_BYTES_MAX).unwrap_or(self.bytes));
        }
    }

    fn json(&self) -> Json {
        if self.hide {
            return Json::from("HIDDEN");
        }
        match std::str::from_utf8(self.bytes) {
            Ok(text) => Json::from(text),
            Err(_) => {
                serde_json::json!({
                    "text": String::from_utf8_lossy(self.bytes),
                    "b64": json::base64(self.bytes),
                })
            }
        }
    }
}

/// Bytes that are printed unchanged, except on a terminal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verbatim<'a>(pub(crate) &'a [u8]);

impl Value for Verbatim<'_> {
    fn text(&self, out: &mut Text) {
        // A zero byte ends the string, as in C.
        out.push_foreign(self.0.split(|byte| *byte == 0).next().unwrap_or_default());
    }

    fn json(&self) -> Json {
        Name {
            bytes: self.0,
            hide: false,
        }
        .json()
    }
}

/// Appends bytes with C escapes for everything that is not printable ASCII. Spaces and backslashes
/// get a backslash.
fn escape(out: &mut Text, bytes: &[u8]) {
    for byte in bytes {
        match byte {
            b'\\' => out.push("\\\\"),
            b' ' => out.push("\\ "),
            b'!'..=b'~' => out.push_bytes(&[*byte]),
            0x07 => out.push("\\a"),
            0x08 => out.push("\\b"),
            b'\t' => out.push("\\t"),
            b'\n' => out.push("\\n"),
            0x0b => out.push("\\v"),
            0x0c => out.push("\\f"),
            b'\r' => out.push("\\r"),
            0x1b => out.push("\\e"),
            _ => {
                // Writing to memory cannot fail.
                let _ = write!(out, "\\{byte:03o}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: impl Value) -> String {
        let mut out = Text::default();
        value.text(&mut out);
        String::from_utf8(out.as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn numbers_as_c_prints_them() {
        for number in [0u64, 1, 9, 10, 255, 4096, 0xdead_beef, u64::MAX, 1 << 63, 15, 16] {
            assert_eq!(text(number), number.to_string());
            assert_eq!(text(Hex(number)), format!("{number:#x}"));
            assert_eq!(text(PlainHex(number)), format!("{number:x}"));
        }
        assert_eq!(text(Signed(u64::MAX)), "-1");
        assert_eq!(text(Octal(0o100_644)), "100644");
        assert_eq!(text(HexBytes(&[0, 0xff, 0x1a])), "0x00ff1a");
    }

    #[test]
    fn names_are_escaped() {
        let bytes = b"c\x01\x1b\x7f\x80\r\x0b\x0c\x07\x08\0z \"'\\\n\t";
        assert_eq!(
            text(Name { bytes, hide: false }),
            "c\\001\\e\\177\\200\\r\\v\\f\\a\\b\\000z\\ \"'\\\\\\n\\t"
        );
        assert_eq!(text(Name { bytes, hide: true }), "HIDDEN");
    }
}
