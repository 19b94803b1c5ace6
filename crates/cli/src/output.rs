//! Text and JSON for people and scripts: names on terminals, sizes as btrfs-progs prints them, modes, times.
//!
//! - [`destination`]: standard output or a file.
//! - [`events`]: standard error as JSON lines, for `--progress json`.
//! - [`mod@file`]: files that options name: whole or not at all.
//! - [`json`]: documents as btrfs-progs writes them; names that are not UTF-8.
//! - [`size`]: sizes with the unit flags of btrfs-progs.
//! - [`mode`]: kind and permissions, as in `drwxr-xr-x`.
//! - [`stdout`]: standard output, and what went wrong with it.
//! - [`terminal`]: standard output for results, and standard error: the one way there.
//! - [`time`]: time stamps as `ls`, `stat` and `btrfs subvolume show` print them.
//! - [`writer_thread`]: making output and writing it at the same time.
//! - [`xattr`]: values of extended attributes as getfattr and setfattr know them.

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

/// A name with control characters as C escapes (`\n`, `\033`), so that a name cannot drive a terminal.
///
/// Backslashes stay as they are: the result is for eyes, not for parsing. Bytes that are not UTF-8 become
/// octal escapes too.
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

/// [`escape_controls`] as bytes; borrows where nothing has to be escaped.
pub fn escape_controls_bytes(name: &[u8]) -> Cow<'_, [u8]> {
    let clean = std::str::from_utf8(name).is_ok_and(|text| text.chars().all(is_printable));
    if clean {
        Cow::Borrowed(name)
    } else {
        Cow::Owned(escape_controls(name).into_bytes())
    }
}

/// Whether a character is escaped on a terminal.
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
