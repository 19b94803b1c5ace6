//! A line of a session, taken apart into words.
//!
//! Words stand between blanks. Single quotes keep everything; double quotes keep blanks and know the escapes `\n`, `\t`,
//! `\\`, `\"` and `\xNN`, so that every name can be written; outside of quotes a backslash keeps the next character. A `#`
//! at the beginning of a word begins a comment.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// Why a line cannot be taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// It ends within quotes.
    #[error("the line ends before its closing {0}")]
    Open(char),
    /// It ends with a backslash.
    #[error("the line ends after a backslash")]
    Backslash,
    /// `\x` without two hexadecimal digits.
    #[error("\\x stands before two hexadecimal digits")]
    Hexadecimal,
}

/// The words of a line; none for an empty line or a comment.
///
/// # Errors
/// Quotes and escapes that are not finished.
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
