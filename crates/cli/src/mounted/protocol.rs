//! Protocol between a command and the server of a mount, over a local socket.
//!
//! The request consists of its length in 8 bytes, with attached descriptors, and a JSON document.
//! The descriptors are the command's standard output, and those of passed files ([`passed`](super::passed)).
//! Answers are JSON, one per line: messages during the command, and the exit code last. If the
//! socket ends before the closing message, the server has ended.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::passed::Name;

/// Largest length of a request in bytes, more than the system allows for a command line.
pub const REQUEST_BYTES_MAX: u64 = 16 << 20;

/// A request to the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Command line.
    pub arguments: Vec<OsString>,
    /// Arguments that are paths below the mount, with their paths in its file system.
    pub paths: HashMap<OsString, Vec<u8>>,
    /// Files that the client passes, in the order of their descriptors.
    pub passed: Vec<Name>,
    /// Current directory of the client; empty if it has none.
    pub directory: PathBuf,
    /// Umask of the client.
    pub umask: u32,
    /// True if the client's standard output is open.
    pub has_output: bool,
    /// True if the client's standard output is a terminal.
    pub is_terminal: bool,
}

fn array(bytes: &[u8]) -> Value {
    bytes.iter().map(|byte| Value::from(*byte)).collect()
}

fn bytes(value: &Value) -> Option<Vec<u8>> {
    let all = value.as_array()?.iter();
    all.map(|byte| byte.as_u64().and_then(|byte| u8::try_from(byte).ok()))
        .collect()
}

fn word(value: &Value) -> Option<OsString> {
    bytes(value).map(OsString::from_vec)
}

fn name_to_json(name: &Name) -> Value {
    let path = name.path.as_os_str().as_bytes();
    json!([array(name.word.as_bytes()), array(path), name.has_direct])
}

fn name_of(value: &Value) -> Option<Name> {
    let values = value.as_array()?;
    Some(Name {
        word: word(values.first()?)?,
        path: word(values.get(1)?)?.into(),
        has_direct: values.get(2)?.as_bool()?,
    })
}

impl Request {
    /// Encodes the request. Arguments need not be UTF-8, so they are arrays of numbers.
    pub fn to_bytes(&self) -> Vec<u8> {
        let arguments: Value = self.arguments.iter().map(|word| array(word.as_bytes())).collect();
        let paths: Value = self
            .paths
            .iter()
            .map(|(word, path)| json!([array(word.as_bytes()), array(path)]))
            .collect();
        let passed: Value = self.passed.iter().map(name_to_json).collect();
        let whole = json!({
            "arguments": arguments,
            "paths": paths,
            "passed": passed,
            "directory": array(self.directory.as_os_str().as_bytes()),
            "umask": self.umask,
            "has_output": self.has_output,
            "is_terminal": self.is_terminal,
        });
        whole.to_string().into_bytes()
    }

    /// Decodes a request.
    pub fn parse(text: &[u8]) -> Result<Self> {
        let whole: Value = serde_json::from_slice(text)?;
        Self::of(&whole).context("unknown request: client and server have different versions")
    }

    fn of(whole: &Value) -> Option<Self> {
        let list = |name: &str| whole.get(name)?.as_array();
        let paths = list("paths")?.iter().map(|pair| {
            let pair = pair.as_array()?;
            Some((word(pair.first()?)?, bytes(pair.get(1)?)?))
        });
        Some(Self {
            arguments: list("arguments")?.iter().map(word).collect::<Option<_>>()?,
            paths: paths.collect::<Option<_>>()?,
            passed: list("passed")?.iter().map(name_of).collect::<Option<_>>()?,
            directory: word(whole.get("directory")?)?.into(),
            umask: u32::try_from(whole.get("umask")?.as_u64()?).ok()?,
            has_output: whole.get("has_output")?.as_bool()?,
            is_terminal: whole.get("is_terminal")?.as_bool()?,
        })
    }
}

/// A line of the server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A message with its label.
    Message(String, String),
    /// A line of output without a label.
    Line(String),
    /// The command ended with this exit code.
    End(u8),
}

impl Answer {
    /// Encodes the answer with a line end.
    pub fn to_line(&self) -> String {
        let value = match self {
            Self::Message(label, text) => json!({ "label": label, "text": text }),
            Self::Line(text) => json!({ "text": text }),
            Self::End(code) => json!({ "end": code }),
        };
        format!("{value}\n")
    }

    /// Decodes a line; `None` if it is invalid.
    pub fn parse(line: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(line).ok()?;
        let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
        if let Some(code) = value.get("end") {
            return u8::try_from(code.as_u64()?).ok().map(Self::End);
        }
        Some(match text("label") {
            Some(label) => Self::Message(label, text("text")?),
            None => Self::Line(text("text")?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_are_parsed_from_their_bytes() {
        let request = Request {
            arguments: vec!["buttress".into(), OsString::from_vec(vec![0xff, b'a'])],
            paths: HashMap::from([(OsString::from_vec(vec![0xff]), vec![b'/', 0xfe])]),
            passed: vec![Name {
                word: "b.img".into(),
                path: "/srv/b.img".into(),
                has_direct: true,
            }],
            directory: "/srv".into(),
            umask: 0o22,
            has_output: true,
            is_terminal: false,
        };
        assert_eq!(Request::parse(&request.to_bytes()).unwrap(), request);
        for wrong in [
            "",
            "{}",
            "[]",
            r#"{"arguments": [[256]], "paths": [], "umask": 1}"#,
        ] {
            assert!(Request::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
        for answer in [
            Answer::Message("warning".into(), "text\n".into()),
            Answer::Line("help".into()),
            Answer::End(255),
        ] {
            let line = answer.to_line();
            assert_eq!(line.matches('\n').count(), 1);
            assert_eq!(Answer::parse(&line), Some(answer));
        }
        assert_eq!(Answer::parse(r#"{"end": 256}"#), None);
    }
}
