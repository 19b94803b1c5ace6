//! Text and JSON output: names on terminals, sizes as in btrfs-progs, modes, times.
//!
//! - [`destination`]: standard output or a file.
//! - [`events`]: standard error as JSON lines, for `--progress json`.
//! - [`mod@file`]: files named by options, written completely or not at all.
//! - [`json`]: documents in the format of btrfs-progs; names that are not UTF-8.
//! - [`size`]: sizes with the unit flags of btrfs-progs.
//! - [`mode`]: kind and permissions, as in `drwxr-xr-x`.
//! - [`stdout`]: standard output, and its write errors.
//! - [`terminal`]: the only access to standard output, for results, and to standard error.
//! - [`time`]: timestamps as in `ls`, `stat` and `btrfs subvolume show`.
//! - [`writer_thread`]: concurrent generation and writing of output.
//! - [`xattr`]: values of extended attributes as in getfattr and setfattr.

pub mod destination;
pub mod elsewhere;
pub mod events;
pub mod file;
pub mod json;
pub mod mode;
pub mod size;
pub mod stdout;
pub mod terminal;
pub mod time;
pub mod writer_thread;
pub mod xattr;

use std::borrow::Cow;

use buttress::is_printable;

/// Escapes control characters in a name as in C (`\n`, `\033`), so that a name cannot control a
/// terminal.
///
/// Backslashes stay unchanged, because the result is for display, not for parsing. Bytes that are
/// not UTF-8 become octal escapes too.
pub fn escape_controls(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            if !is_printable(character) {
                let mut bytes = [0; 4];
                for byte in character.encode_utf8(&mut bytes).bytes() {
                    push_escape(&mut text, byte);
                }
            } else {
                text.push(character);
            }
        }
        for byte in chunk.invalid() {
            push_escape(&mut text, *byte);
        }
    }
    text
}

/// Applies [`escape_controls`] to bytes, and borrows the input if it needs no escapes.
pub fn escape_controls_bytes(name: &[u8]) -> Cow<'_, [u8]> {
    let clean = std::str::from_utf8(name).is_ok_and(|text| text.chars().all(is_printable));
    if clean {
        Cow::Borrowed(name)
    } else {
        Cow::Owned(escape_controls(name).into_bytes())
    }
}

/// Returns whether a character is escaped on a terminal.
pub(crate) fn is_unprintable(character: char) -> bool {
    !is_printable(character)
}

fn push_escape(text: &mut String, byte: u8) {
    match byte {
        b'\n' => text.push_str("\\n"),
        b'\t' => text.push_str("\\t"),
        b'\r' => text.push_str("\\r"),
        _ => text.push_str(&format!("\\{byte:03o}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_drive_a_terminal() {
        let cases: [(&[u8], &str); 7] = [
            (b"plain name", "plain name"),
            ("grün".as_bytes(), "grün"),
            (b"a\nb", "a\\nb"),
            (b"\x1b[2J", "\\033[2J"),
            (b"bad\xff", "bad\\377"),
            (b"\xc2\x9b31m", "\\302\\23331m"),
            ("evil\u{202e}gpj".as_bytes(), "evil\\342\\200\\256gpj"),
        ];
        for (name, expected) in cases {
            assert_eq!(escape_controls(name), expected);
            assert_eq!(escape_controls_bytes(name), expected.as_bytes());
        }
        assert!(matches!(escape_controls_bytes(b"x"), Cow::Borrowed(_)));
    }
}
