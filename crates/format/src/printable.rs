//! Bytes from disk in messages: the choice between characters to print and characters to escape.
//!
//! Names, labels and link targets can hold any bytes. Printed raw, bytes from a volume could
//! control a terminal or pose as other text. This module decides which characters to escape, for
//! all crates, so that any program can print errors safely.

use core::fmt;

/// Returns true if a message can show this character without an escape. Escaped characters are
/// controls (C0, DEL, C1), line ends, and characters that are invisible or reorder text.
#[must_use]
pub fn is_printable(character: char) -> bool {
    !(character.is_control()
        || matches!(
            character,
            '\u{61c}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0001}'..='\u{e007f}'
        ))
}

/// Prints bytes as text. Unprintable characters are escaped as `\u{1b}`, bytes that are not UTF-8
/// as `\xff`.
#[derive(Clone, Copy, Debug)]
pub struct Printable<'a>(pub &'a [u8]);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        for chunk in self.0.utf8_chunks() {
            for character in chunk.valid().chars() {
                if is_printable(character) {
                    f.write_char(character)?;
                } else {
                    write!(f, "{}", character.escape_default())?;
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Printable;

    #[test]
    fn terminal_control_characters_are_escaped() {
        let cases: [(&[u8], &str); 5] = [
            ("grün 日本".as_bytes(), "grün 日本"),
            (b"\x1b[2J\n", "\\u{1b}[2J\\n"),
            (b"\xc2\x9b", "\\u{9b}"),
            (b"\x9b\xff", "\\x9b\\xff"),
            ("a\u{202e}b\u{2028}".as_bytes(), "a\\u{202e}b\\u{2028}"),
        ];
        for (bytes, expected) in cases {
            assert_eq!(Printable(bytes).to_string(), expected);
        }
    }
}
