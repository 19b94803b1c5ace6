//! Differences at a path, and their output.

use std::cmp::Ordering;
use std::io::Write;

use anyhow::Result;
use serde_json::{Map, Value};

use super::Aspect;
use crate::context::Context;
use crate::output::json::insert_name;

/// A difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Difference {
    /// The file exists only on the new side; the text is the file's kind.
    Added(&'static str),
    /// The file exists only on the old side; the text is its kind.
    Removed(&'static str),
    /// The file has the same kind on both sides, but differs in these aspects.
    Modified(Vec<Aspect>),
    /// The file has another kind on the new side.
    TypeChanged { old: &'static str, new: &'static str },
    /// The file exists on both sides under different paths.
    Moved {
        /// Path on the old side.
        from: Vec<u8>,
        /// Kind of the file.
        kind: &'static str,
        /// Further differing aspects.
        aspects: Vec<Aspect>,
    },
}

/// A difference with its path: on the new side, or on the old side for a removed file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) path: Vec<u8>,
    pub(super) difference: Difference,
}

impl Found {
    /// Compares for the output order: directory order, with names sorted.
    pub(super) fn order(&self, other: &Self) -> Ordering {
        let names = |path| <[u8]>::split(path, |byte: &u8| *byte == b'/');
        names(&self.path)
            .cmp(names(&other.path))
            .then_with(|| self.difference.rank().cmp(&other.difference.rank()))
    }

    /// Writes the difference as a line.
    pub(super) fn write(&self, out: &mut dyn Write, context: &Context) -> Result<()> {
        write!(out, "{:<15} ", self.difference.word())?;
        match &self.difference {
            Difference::Added(_) | Difference::Removed(_) => out.write_all(&context.printable(&self.path))?,
            Difference::Modified(aspects) => {
                out.write_all(&context.printable(&self.path))?;
                write!(out, " ({})", words(aspects))?;
            }
            Difference::TypeChanged { old, new } => {
                out.write_all(&context.printable(&self.path))?;
                write!(out, " ({old} -> {new})")?;
            }
            Difference::Moved { from, aspects, .. } => {
                out.write_all(&context.printable(from))?;
                out.write_all(b" -> ")?;
                out.write_all(&context.printable(&self.path))?;
                if !aspects.is_empty() {
                    write!(out, " ({})", words(aspects))?;
                }
            }
        }
        Ok(writeln!(out)?)
    }

    /// Writes only the path of the difference.
    pub(super) fn write_name(&self, out: &mut dyn Write, context: &Context) -> Result<()> {
        out.write_all(&context.printable(&self.path))?;
        Ok(writeln!(out)?)
    }

    /// Returns the difference as an element of the JSON document.
    pub(super) fn json(&self) -> Value {
        let mut object = Map::new();
        insert_name(&mut object, "path", &self.path);
        let change = self.difference.word().replace(' ', "-");
        object.insert("change".into(), change.into());
        match &self.difference {
            Difference::Added(kind) | Difference::Removed(kind) => {
                object.insert("type".into(), (*kind).into());
            }
            Difference::Modified(aspects) => insert_aspects(&mut object, aspects),
            Difference::TypeChanged { old, new } => {
                object.insert("old_type".into(), (*old).into());
                object.insert("new_type".into(), (*new).into());
            }
            Difference::Moved { from, kind, aspects } => {
                insert_name(&mut object, "old_path", from);
                object.insert("type".into(), (*kind).into());
                insert_aspects(&mut object, aspects);
            }
        }
        Value::Object(object)
    }
}

impl Difference {
    /// Returns the word at the start of the line.
    fn word(&self) -> &'static str {
        match self {
            Self::Added(_) => "added",
            Self::Removed(_) => "removed",
            Self::Modified(_) => "modified",
            Self::TypeChanged { .. } => "type changed",
            Self::Moved { .. } => "moved",
        }
    }

    /// Returns the order of two differences with one path: a file was moved away, and another file
    /// now has its name.
    fn rank(&self) -> u8 {
        match self {
            Self::Removed(_) => 0,
            _ => 1,
        }
    }
}

fn words(aspects: &[Aspect]) -> String {
    let names: Vec<&str> = aspects.iter().map(|aspect| aspect.name()).collect();
    names.join(", ")
}

fn insert_aspects(object: &mut Map<String, Value>, aspects: &[Aspect]) {
    object.insert(
        "aspects".into(),
        aspects.iter().map(|aspect| aspect.name()).collect(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_sort_before_their_entries() {
        let mut found: Vec<Found> = ["b", "a-b", "a/c", "a", "."]
            .into_iter()
            .map(|path| Found {
                path: path.into(),
                difference: Difference::Added("file"),
            })
            .collect();
        found.sort_by(Found::order);
        let paths: Vec<&[u8]> = found.iter().map(|found| found.path.as_slice()).collect();
        assert_eq!(paths, [&b"."[..], b"a", b"a/c", b"a-b", b"b"]);
    }
}
