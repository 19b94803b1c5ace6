//! A manifest as a sequence of tables, so that it is never in memory as a whole.
//!
//! A table begins with a line `[[NAME]]` and ends before the next such line. The lines before the
//! first table are the head. The TOML parser receives each table of a manifest alone. The result
//! equals a parse of the whole manifest, with one exception: a line of a multi-line text must not
//! have the form of such a line. A multi-line text with such a line would have no end, which is an
//! error, and never another meaning.

use std::io::BufRead;

use super::error::{ManifestError, Problem};

/// The size of the largest accepted table.
const TABLE_BYTES_MAX: usize = 16 << 20;

/// A table, or the head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    /// The table's name; `None` for the head.
    pub(super) name: Option<String>,
    /// The number of its first line, counted from 1.
    pub(super) line: u64,
    /// The text of the table.
    pub(super) text: String,
}

/// Splits a manifest into tables.
pub(super) struct Tables {
    input: Box<dyn BufRead + Send>,
    /// The number of the last line that was read.
    line: u64,
    /// The first line of the next table.
    next: Option<(String, String)>,
    ended: bool,
}

impl Tables {
    pub(super) fn new(input: Box<dyn BufRead + Send>) -> Self {
        Self {
            input,
            line: 0,
            next: None,
            ended: false,
        }
    }

    /// Returns the next table. The head table comes first, even if it is empty.
    pub(super) fn next_table(&mut self) -> Result<Option<Table>, ManifestError> {
        if self.ended {
            return Ok(None);
        }
        let (name, mut text) = match self.next.take() {
            Some((name, line)) => (Some(name), line),
            None => (None, String::new()),
        };
        let first = self.line.max(1);
        loop {
            let Some(line) = self.read_line(text.len())? else {
                self.ended = true;
                break;
            };
            if let Some(name) = name_of(&line) {
                self.next = Some((name.to_owned(), line));
                break;
            }
            text.push_str(&line);
        }
        Ok(Some(Table {
            name,
            line: first,
            text,
        }))
    }

    /// Returns the next line of the manifest, with its line end.
    fn read_line(&mut self, before: usize) -> Result<Option<String>, ManifestError> {
        let room = TABLE_BYTES_MAX.saturating_sub(before);
        let mut bytes = Vec::new();
        let at = self.line.saturating_add(1);
        let failed = |problem| ManifestError { line: at, problem };
        loop {
            let buffer = match self.input.fill_buf() {
                Ok(buffer) => buffer,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(failed(Problem::Io(error))),
            };
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let length = end.map_or(buffer.len(), |end| end.saturating_add(1));
            bytes.extend_from_slice(buffer.get(..length).unwrap_or_default());
            self.input.consume(length);
            if bytes.len() > room {
                return Err(failed(Problem::Large(TABLE_BYTES_MAX)));
            }
            if end.is_some() || length == 0 {
                break;
            }
        }
        if bytes.is_empty() {
            return Ok(None);
        }
        self.line = at;
        String::from_utf8(bytes)
            .map(Some)
            .map_err(|_| failed(Problem::NotText))
    }
}

/// Returns the name in `[[NAME]]`.
fn name_of(line: &str) -> Option<&str> {
    let (name, rest) = line.trim_start().strip_prefix("[[")?.split_once("]]")?;
    let name = name.trim();
    let rest = rest.trim_start();
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
    (is_name && (rest.is_empty() || rest.starts_with('#'))).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables(text: &str) -> Vec<Table> {
        let mut tables = Tables::new(Box::new(std::io::Cursor::new(text.as_bytes().to_vec())));
        let mut all = Vec::new();
        while let Some(table) = tables.next_table().unwrap() {
            all.push(table);
        }
        all
    }

    #[test]
    fn tables_begin_at_their_lines() {
        let all = tables(
            "manifest = 1\n\n[[file]] # one\npath = \"/a\"\nlist = [\n [\"b\"],\n]\n  [[ directory ]]\npath = \"/b\"",
        );
        let seen: Vec<(Option<&str>, u64, usize)> = all
            .iter()
            .map(|table| (table.name.as_deref(), table.line, table.text.lines().count()))
            .collect();
        assert_eq!(
            seen,
            [(None, 1, 2), (Some("file"), 3, 5), (Some("directory"), 8, 2)]
        );
        assert_eq!(tables("").len(), 1);
        let first = tables("[[file]]\n");
        assert_eq!(first[0].text, "");
        assert_eq!(first[1].line, 1);
    }

    #[test]
    fn large_tables_and_invalid_text_are_reported_with_their_line() {
        let error = |bytes: Vec<u8>| {
            let mut tables = Tables::new(Box::new(std::io::Cursor::new(bytes)));
            loop {
                match tables.next_table() {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("nothing was wrong"),
                    Err(error) => return error,
                }
            }
        };
        let large = [b"a = 1\n".to_vec(), vec![b'x'; 17 << 20]].concat();
        assert!(matches!(
            error(large),
            ManifestError {
                line: 2,
                problem: Problem::Large(_)
            }
        ));
        let latin = error(b"a = 1\n\nb = \"\xe4\"\n".to_vec());
        assert!(matches!(
            latin,
            ManifestError {
                line: 3,
                problem: Problem::NotText
            }
        ));
    }
}
