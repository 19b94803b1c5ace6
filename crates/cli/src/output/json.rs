//! JSON in the format of btrfs-progs: `{"__header": {"version": "1"}, "<command-name>": …}`.
//!
//! Sizes are numbers in bytes. Names are bytes on disk. A name that is not UTF-8 is written with
//! replacement characters, and exactly, as base64, in a second member whose key has the suffix
//! `_b64`. Source: btrfs-progs developer documentation, "JSON output".

use std::cell::Cell;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use buttress::ProgressSnapshot as Snapshot;
use serde_json::{Map, Value, json};

/// Version of the header that btrfs-progs writes.
const HEADER_VERSION: &str = "1";

/// State of the JSON document of this thread's command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    None,
    /// An array of the document is open.
    Begun,
    Done,
}

thread_local! {
    static PROGRESS: Cell<Progress> = const { Cell::new(Progress::None) };
}

/// Resets the state: this thread has written no document.
pub fn forget_document() {
    PROGRESS.set(Progress::None);
}

/// Completes the output of a failed command to one document: with a document of only the error, or
/// by closing the open one. A complete document stays unchanged.
///
/// # Errors
/// The command cannot write to standard output.
pub fn end_with_error(out: &mut dyn Write, error: &Value) -> io::Result<()> {
    match PROGRESS.replace(Progress::Done) {
        Progress::None => write_document(out, "error", error.clone()),
        Progress::Begun => {
            out.write_all(b"\n  ],\n  \"error\": ")?;
            serde_json::to_writer(&mut *out, error)?;
            out.write_all(b"\n}\n")
        }
        Progress::Done => Ok(()),
    }
}

/// Writes the whole document of the command `name`, followed by a line feed.
pub fn write_document(out: &mut dyn Write, name: &str, value: Value) -> io::Result<()> {
    let mut document = Map::new();
    document.insert("__header".to_owned(), json!({ "version": HEADER_VERSION }));
    document.insert(name.to_owned(), value);
    PROGRESS.set(Progress::Done);
    serde_json::to_writer_pretty(&mut *out, &Value::Object(document))?;
    out.write_all(b"\n")
}

/// Writer of a document with an array that is never completely in memory.
#[derive(Debug)]
pub struct ArrayWriter<W: Write> {
    out: W,
    empty: bool,
}

impl<W: Write> ArrayWriter<W> {
    /// Writes the header and opens the array of the command `name`.
    pub fn begin(mut out: W, name: &str) -> io::Result<Self> {
        write!(
            out,
            "{{\n  \"__header\": {{\n    \"version\": \"{HEADER_VERSION}\"\n  }},\n  "
        )?;
        serde_json::to_writer(&mut out, name)?;
        out.write_all(b": [")?;
        PROGRESS.set(Progress::Begun);
        Ok(Self { out, empty: true })
    }

    /// Adds an element, on one line.
    pub fn element(&mut self, value: &Value) -> io::Result<()> {
        self.out
            .write_all(if self.empty { b"\n    " } else { b",\n    " })?;
        self.empty = false;
        serde_json::to_writer(&mut self.out, value)?;
        Ok(())
    }

    /// Closes array and document and flushes.
    pub fn finish(mut self) -> io::Result<()> {
        PROGRESS.set(Progress::Done);
        self.out
            .write_all(if self.empty { b"]\n}\n" } else { b"\n  ]\n}\n" })?;
        self.out.flush()
    }
}

/// Inserts a name into an object: `key`, and `key_b64` if the name is not UTF-8.
pub fn insert_name(object: &mut Map<String, Value>, key: &str, name: &[u8]) {
    object.insert(key.to_owned(), String::from_utf8_lossy(name).into_owned().into());
    if std::str::from_utf8(name).is_err() {
        object.insert(format!("{key}_b64"), base64(name).into());
    }
}

/// Describes a file that was written instead of standard output: its name, its number of items, and
/// their content in bytes.
pub fn written_file(path: &Path, progress: &Snapshot) -> Value {
    let mut object = Map::new();
    insert_name(&mut object, "file", path.as_os_str().as_bytes());
    object.insert("items".to_owned(), progress.items.into());
    object.insert("bytes".to_owned(), progress.bytes.get().into());
    Value::Object(object)
}

/// Returns a uuid, or `null` if it is all zero.
pub fn uuid(uuid: &uuid::Uuid) -> Value {
    if uuid.is_nil() {
        Value::Null
    } else {
        uuid.hyphenated().to_string().into()
    }
}

/// Encodes bytes as base64 with padding (RFC 4648, section 4).
pub fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3).saturating_mul(4));
    for group in bytes.chunks(3) {
        let mut bits = 0u32;
        for index in 0..3 {
            bits = (bits << 8) | u32::from(group.get(index).copied().unwrap_or(0));
        }
        for index in 0..4u32 {
            let shift = 18u32.saturating_sub(index.saturating_mul(6));
            let digit = ALPHABET
                .get((bits >> shift) as usize & 63)
                .copied()
                .unwrap_or(b'=');
            let padded = index as usize > group.len();
            text.push(if padded { '=' } else { char::from(digit) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_the_rfc() {
        let cases = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (plain, expected) in cases {
            assert_eq!(base64(plain.as_bytes()), expected);
        }
        assert_eq!(base64(&[0xff, 0xfe]), "//4=");
    }

    #[test]
    fn names_that_are_not_utf8_are_kept_exactly() {
        let mut object = Map::new();
        insert_name(&mut object, "name", b"a\xffb");
        insert_name(&mut object, "path", b"fine");
        assert_eq!(
            Value::Object(object),
            json!({"name": "a\u{fffd}b", "name_b64": "Yf9i", "path": "fine"})
        );
    }

    #[test]
    fn failure_leaves_one_document() {
        let ended = |begin: &dyn Fn(&mut Vec<u8>)| {
            forget_document();
            let mut text = Vec::new();
            begin(&mut text);
            end_with_error(&mut text, &json!({"message": "m"})).unwrap();
            serde_json::from_slice::<Value>(&text).unwrap()
        };
        let empty = ended(&|_| ());
        assert_eq!(empty["error"]["message"], "m");
        assert_eq!(empty["__header"]["version"], "1");
        for elements in [vec![], vec![json!(1), json!(2)]] {
            let open = ended(&|out| {
                let mut array = ArrayWriter::begin(out, "name").unwrap();
                for element in &elements {
                    array.element(element).unwrap();
                }
            });
            assert_eq!(open["name"], json!(elements));
            assert_eq!(open["error"]["message"], "m");
        }
        let whole = ended(&|out| write_document(out, "name", json!(3)).unwrap());
        assert_eq!((&whole["name"], &whole["error"]), (&json!(3), &Value::Null));
        let whole = ended(&|out| ArrayWriter::begin(out, "name").unwrap().finish().unwrap());
        assert_eq!((&whole["name"], &whole["error"]), (&json!([]), &Value::Null));
    }

    #[test]
    fn streamed_and_whole_documents_say_the_same() {
        for elements in [
            vec![],
            vec![json!({"a": 1})],
            vec![json!(1), json!("x\"y"), json!(null)],
        ] {
            let mut streamed = Vec::new();
            let mut array = ArrayWriter::begin(&mut streamed, "some-name").unwrap();
            for element in &elements {
                array.element(element).unwrap();
            }
            array.finish().unwrap();
            let mut whole = Vec::new();
            write_document(&mut whole, "some-name", Value::Array(elements)).unwrap();
            let streamed: Value = serde_json::from_slice(&streamed).unwrap();
            let whole: Value = serde_json::from_slice(&whole).unwrap();
            assert_eq!(streamed, whole);
            assert_eq!(streamed["__header"]["version"], "1");
        }
    }
}
