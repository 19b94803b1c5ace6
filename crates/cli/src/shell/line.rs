//! Parsing of a session's line into words.
//!
//! In a session's line, blanks separate words. Single quotes preserve all characters between them.
//! Double quotes preserve blanks and support the escapes `\n`, `\t`, `\\`, `\"` and `\xNN`, so that
//! every name can be written. Outside of quotes a backslash preserves the next character. A `#` at
//! the beginning of a word begins a comment.
//!
//! For completion, [`unfinished`] parses the text before a cursor, and [`quoted`] writes a name as
//! a word.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use crate::output::is_unprintable;

/// Reason why a line cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// The line ends within quotes.
    #[error("the line ends before its closing {0}")]
    Open(char),
    /// The line ends with a backslash.
    #[error("the line ends after a backslash")]
    Backslash,
    /// `\x` is not followed by two hexadecimal digits.
    #[error("\\x needs two hexadecimal digits after it")]
    Hexadecimal,
}

/// Returns the words of a line; none for an empty line or a comment.
///
/// # Errors
/// Quotes or escapes are incomplete.
pub fn words(line: &[u8]) -> Result<Vec<OsString>, LineError> {
    let mut found = Vec::new();
    let mut bytes = line.iter().copied();
    let mut word: Option<Vec<u8>> = None;
    while let Some(byte) = bytes.next() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' => found.extend(word.take()),
            b'#' if word.is_none() => break,
            b'\'' => single_quoted(&mut bytes, word.get_or_insert_default())?,
            b'"' => double_quoted(&mut bytes, word.get_or_insert_default())?,
            b'\\' => {
                let next = bytes.next().ok_or(LineError::Backslash)?;
                word.get_or_insert_default().push(next);
            }
            other => word.get_or_insert_default().push(other),
        }
    }
    found.extend(word);
    Ok(found.into_iter().map(OsString::from_vec).collect())
}

fn single_quoted(bytes: &mut impl Iterator<Item = u8>, word: &mut Vec<u8>) -> Result<(), LineError> {
    loop {
        match bytes.next().ok_or(LineError::Open('\''))? {
            b'\'' => return Ok(()),
            byte => word.push(byte),
        }
    }
}

fn double_quoted(bytes: &mut impl Iterator<Item = u8>, word: &mut Vec<u8>) -> Result<(), LineError> {
    let open = LineError::Open('"');
    loop {
        match bytes.next().ok_or(open)? {
            b'"' => return Ok(()),
            b'\\' => word.push(match bytes.next().ok_or(open)? {
                b'n' => b'\n',
                b't' => b'\t',
                b'x' => hexadecimal(bytes)?,
                byte => byte,
            }),
            byte => word.push(byte),
        }
    }
}

fn hexadecimal(bytes: &mut impl Iterator<Item = u8>) -> Result<u8, LineError> {
    let mut digit = || {
        let digit = bytes.next().and_then(|byte| char::from(byte).to_digit(16));
        digit
            .and_then(|digit| u8::try_from(digit).ok())
            .ok_or(LineError::Hexadecimal)
    };
    let (high, low) = (digit()?, digit()?);
    Ok((high << 4) | low)
}

/// Text before a cursor, as parsed for completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// Complete words.
    pub words: Vec<OsString>,
    /// Start of the word that is being typed, quotes included.
    pub start: usize,
    /// The word that is being typed, without quotes and escapes.
    pub word: Vec<u8>,
    /// True if this word has quotes.
    pub is_quoted: bool,
}

/// Parses a line that may end anywhere. The parser ignores an incomplete escape at the end. Returns
/// `None` if the line ends in a comment.
#[must_use]
pub fn unfinished(line: &[u8]) -> Option<Unfinished> {
    let mut words = Vec::new();
    let mut typed: Option<(usize, Vec<u8>)> = None;
    let mut is_quoted = false;
    let mut quote = None;
    let mut rest = line;
    while let Some((byte, after)) = rest.split_first() {
        let at = line.len().saturating_sub(rest.len());
        rest = after;
        if quote.is_none() && matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
            words.extend(typed.take().map(|(_, word)| OsString::from_vec(word)));
            is_quoted = false;
            continue;
        }
        if *byte == b'#' && typed.is_none() {
            return None;
        }
        let (_, word) = typed.get_or_insert_with(|| (at, Vec::new()));
        match (byte, quote) {
            (b'\'' | b'"', None) => {
                quote = Some(*byte);
                is_quoted = true;
            }
            (byte, Some(open)) if *byte == open => quote = None,
            (b'\\', None | Some(b'"')) => {
                let (meant, after) = escape(rest, quote.is_some());
                word.extend(meant);
                rest = after;
            }
            (byte, _) => word.push(*byte),
        }
    }
    let (start, word) = typed.unwrap_or((line.len(), Vec::new()));
    Some(Unfinished {
        words,
        start,
        word,
        is_quoted,
    })
}

/// Returns the value of an escape after the backslash, and the text that follows it.
fn escape(rest: &[u8], in_quotes: bool) -> (Option<u8>, &[u8]) {
    match rest {
        [b'n', after @ ..] if in_quotes => (Some(b'\n'), after),
        [b't', after @ ..] if in_quotes => (Some(b'\t'), after),
        [b'x', after @ ..] if in_quotes => match after.split_at_checked(2) {
            Some((digits, after)) => (hexadecimal(&mut digits.iter().copied()).ok(), after),
            None => (None, &[]),
        },
        [byte, after @ ..] => (Some(*byte), after),
        [] => (None, &[]),
    }
}

/// Returns whether a name needs double quotes: it is not text, or contains control characters.
#[must_use]
pub fn needs_quotes(name: &[u8]) -> bool {
    !std::str::from_utf8(name).is_ok_and(|text| !text.chars().any(is_unprintable))
}

/// Returns a word that means the name: with backslashes if these suffice, else in double quotes,
/// which stay open. Control characters become escapes.
#[must_use]
pub fn quoted(name: &[u8], with_quotes: bool) -> String {
    match std::str::from_utf8(name) {
        Ok(text) if !with_quotes && !needs_quotes(name) => return with_backslashes(text),
        _ => {}
    }
    let mut word = String::from("\"");
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '"' | '\\' => word.extend(['\\', character]),
                '\n' => word.push_str("\\n"),
                '\t' => word.push_str("\\t"),
                character if is_unprintable(character) => {
                    let mut bytes = [0; 4];
                    push_hexadecimal(&mut word, character.encode_utf8(&mut bytes).as_bytes());
                }
                character => word.push(character),
            }
        }
        push_hexadecimal(&mut word, chunk.invalid());
    }
    word
}

fn with_backslashes(text: &str) -> String {
    let mut word = String::with_capacity(text.len());
    for character in text.chars() {
        if matches!(character, ' ' | '\'' | '"' | '\\') || character == '#' && word.is_empty() {
            word.push('\\');
        }
        word.push(character);
    }
    word
}

fn push_hexadecimal(word: &mut String, bytes: &[u8]) {
    for byte in bytes {
        word.push_str(&format!("\\x{byte:02x}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn words_quotes_and_comments() {
        let cases: [(&[u8], &[&[u8]]); 11] = [
            (b"", &[]),
            (b"  # all of it", &[]),
            (b"ls -l  /a\t/b\n", &[b"ls", b"-l", b"/a", b"/b"]),
            (b"rm 'a b' # the file", &[b"rm", b"a b"]),
            (b"rm a#b", &[b"rm", b"a#b"]),
            (b"rm a\\ b \\#c", &[b"rm", b"a b", b"#c"]),
            (
                b"put \"a\\n\\t\\\"\\\\\\xff\" ''",
                &[b"put", b"a\n\t\"\\\xff", b""],
            ),
            (b"a'b'\"c\"d", &[b"abcd"]),
            (b"'\\n'", &[b"\\n"]),
            (b"\xff\xfe", &[b"\xff\xfe"]),
            (b"a\r\n", &[b"a"]),
        ];
        for (line, expected) in cases {
            let found = words(line).unwrap();
            let found: Vec<&[u8]> = found.iter().map(|word| word.as_bytes()).collect();
            assert_eq!(found, expected, "{}", line.escape_ascii());
        }
    }

    #[test]
    fn the_words_before_a_cursor_are_split() {
        type Case = (&'static [u8], &'static [&'static str], usize, &'static [u8]);
        let cases: [Case; 12] = [
            (b"", &[], 0, b""),
            (b"l", &[], 0, b"l"),
            (b"ls ", &["ls"], 3, b""),
            (b"ls -l /a/b", &["ls", "-l"], 6, b"/a/b"),
            (b"ls 'a b", &["ls"], 3, b"a b"),
            (b"ls 'a b' \"c d/e", &["ls", "a b"], 9, b"c d/e"),
            (b"ls a\\ b", &["ls"], 3, b"a b"),
            (b"ls a\\", &["ls"], 3, b"a"),
            (b"ls \"a\\x0", &["ls"], 3, b"a"),
            (b"ls \"a\\x0a\\n", &["ls"], 3, b"a\n\n"),
            (b"ls '\\n", &["ls"], 3, b"\\n"),
            (b"ls a'b'\"c\"d", &["ls"], 3, b"abcd"),
        ];
        for (line, words, start, word) in cases {
            let found = unfinished(line).unwrap();
            assert_eq!(found.words, words, "{}", line.escape_ascii());
            assert_eq!(
                (found.start, found.word.as_slice()),
                (start, word),
                "{}",
                line.escape_ascii()
            );
        }
        assert_eq!(unfinished(b"ls # a"), None);
        assert!(unfinished(b"ls a#b").is_some());
    }

    #[test]
    fn a_quoted_name_is_one_word_that_means_it() {
        let names: [&[u8]; 9] = [
            b"plain",
            "grün".as_bytes(),
            b"a b",
            b"it's",
            b"\"quoted\" \\",
            b"line\nbreak\ttab",
            b"\x1b[2J\x07",
            b"\xff\xfe",
            "evil\u{202e}gpj #".as_bytes(),
        ];
        for name in names {
            for with_quotes in [false, true] {
                let text = quoted(name, with_quotes);
                assert!(!text.chars().any(is_unprintable), "{text:?}");
                let found = unfinished(text.as_bytes()).unwrap();
                assert_eq!((found.word.as_slice(), found.start), (name, 0), "{text}");
                let closed = if found.is_quoted {
                    format!("{text}\"")
                } else {
                    text
                };
                let words = words(closed.as_bytes()).unwrap();
                assert_eq!(words, [OsString::from_vec(name.to_vec())], "{closed}");
            }
        }
        assert_eq!(quoted(b"plain", false), "plain");
        assert_eq!(quoted(b"a b's", false), "a\\ b\\'s");
        assert_eq!(quoted(b"a\x01", false), "\"a\\x01");
    }

    #[test]
    fn unfinished_lines() {
        let cases: [(&[u8], LineError); 5] = [
            (b"a 'b", LineError::Open('\'')),
            (b"a \"b", LineError::Open('"')),
            (b"a \"b\\", LineError::Open('"')),
            (b"a \\", LineError::Backslash),
            (b"\"\\xg0\"", LineError::Hexadecimal),
        ];
        for (line, expected) in cases {
            assert_eq!(words(line), Err(expected));
        }
    }
}
