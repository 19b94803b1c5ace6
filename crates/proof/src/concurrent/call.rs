//! Calls of threads, and their answers.

use super::observation::sorted;
use crate::writing::content::Change;
use crate::writing::model::Model;
use crate::writing::operation::{Made, Operation};
use buttress::unstable::format::ErrorKind;
use buttress::unstable::fs::{Error, Result};
use buttress::unstable::writer::WritableFilesystem;
use buttress::unstable::writer::operations::OpenInode;
use buttress::{FileOffset, Location, SubvolumeId};
use std::fmt;

/// A call.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the names say it; the words are those of the calls")]
pub enum Call {
    Change(Operation),
    Lookup(Location, Vec<u8>),
    List(Location),
    /// Lists a directory as a view shows it.
    ListInView(Location),
    Stat(Location),
    Read(Location, u64, usize),
    Xattr(Location, Vec<u8>),
    WriteBack(Location),
    Commit,
}

/// Attributes of `stat` that do not depend on a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of stat(2)")]
pub struct Stat {
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
}

/// Names with their targets, sorted by name.
pub type Names = Vec<(Vec<u8>, Location)>;

/// Answer of a call.
#[derive(Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Answer {
    Done,
    Inode(Location),
    Subvolume(SubvolumeId),
    /// Offset at which an append placed its bytes.
    Position(u64),
    Entry(Option<Location>),
    Names(Names),
    Stat(Stat),
    Bytes(Vec<u8>),
    Value(Option<Vec<u8>>),
    /// Error number, and its text.
    Refused(i32, String),
}

impl Call {
    /// Makes the call. Also returns the inode that the call opened, if any.
    ///
    /// # Errors
    /// Every error that the caller did not cause.
    pub fn perform(&self, filesystem: &WritableFilesystem) -> Result<(Answer, Option<OpenInode>)> {
        match self.try_perform(filesystem) {
            Err(error) if error.kind() == ErrorKind::Caller => {
                Ok((Answer::Refused(error.errno(), error.to_string()), None))
            }
            answered => answered,
        }
    }

    fn try_perform(&self, filesystem: &WritableFilesystem) -> Result<(Answer, Option<OpenInode>)> {
        let answer = match self {
            Self::Change(Operation::Content(file, Change::Append(bytes))) => {
                Answer::Position(filesystem.append(*file, bytes)?.get())
            }
            Self::Change(operation) => {
                // The model matters only for renames that leave a whiteout, and the tests never
                // draw such renames.
                return Ok(match operation.write(&Model::new(0), filesystem)? {
                    Made::Inode(location) => (Answer::Inode(location), None),
                    Made::Subvolume(id) => (Answer::Subvolume(id), None),
                    Made::Held(held) => (Answer::Done, Some(held)),
                    Made::Nothing | Made::Unchanged | Made::Refused => (Answer::Done, None),
                });
            }
            Self::Lookup(directory, name) => {
                let found = filesystem.live().lookup(*directory, name)?;
                Answer::Entry(found.map(|entry| entry.target))
            }
            Self::List(directory) => {
                let entries = filesystem.live().list(*directory, 0, usize::MAX)?;
                Answer::Names(sorted(
                    entries.into_iter().map(|entry| (entry.name, entry.target)),
                ))
            }
            Self::ListInView(directory) => {
                let view = filesystem.view();
                let entries: Vec<_> = view.read_dir(*directory)?.collect::<Result<_, Error>>()?;
                Answer::Names(sorted(
                    entries.into_iter().map(|entry| (entry.name, entry.target)),
                ))
            }
            Self::Stat(location) => Answer::Stat(stat(filesystem, *location)?),
            Self::Read(location, offset, length) => {
                let mut bytes = vec![0xEE; *length];
                let read = filesystem
                    .live()
                    .read_at(*location, FileOffset::new(*offset), &mut bytes)?;
                bytes.truncate(read);
                Answer::Bytes(bytes)
            }
            Self::Xattr(location, name) => Answer::Value(filesystem.live().xattr(*location, name)?),
            Self::WriteBack(location) => {
                filesystem.writeback().write_file(*location)?;
                Answer::Done
            }
            Self::Commit => {
                filesystem.commit()?;
                Answer::Done
            }
        };
        Ok((answer, None))
    }
}

/// Returns the current `stat` attributes of an inode.
pub(super) fn stat(filesystem: &WritableFilesystem, location: Location) -> Result<Stat> {
    let metadata = filesystem.live().metadata(location)?;
    Ok(Stat {
        mode: metadata.mode,
        links: metadata.nlink,
        uid: metadata.uid,
        gid: metadata.gid,
        size: metadata.size.get(),
    })
}

pub(super) fn at(location: Location) -> String {
    format!("{}:{}", location.subvolume, location.inode)
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Change(operation) => operation.fmt(f),
            Self::Lookup(directory, name) => {
                write!(f, "lookup {}/{}", at(*directory), name.escape_ascii())
            }
            Self::List(directory) => write!(f, "readdir {}", at(*directory)),
            Self::ListInView(directory) => write!(f, "readdir {} of a view", at(*directory)),
            Self::Stat(location) => write!(f, "stat {}", at(*location)),
            Self::Read(location, offset, length) => write!(f, "read {offset}+{length} of {}", at(*location)),
            Self::Xattr(location, name) => write!(f, "getxattr {} {}", at(*location), name.escape_ascii()),
            Self::WriteBack(location) => write!(f, "write back {}", at(*location)),
            Self::Commit => f.write_str("commit"),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::Inode(location) => f.write_str(&at(*location)),
            Self::Subvolume(id) => write!(f, "subvolume {id}"),
            Self::Position(position) => write!(f, "at {position}"),
            Self::Entry(None) => f.write_str("no such name"),
            Self::Entry(Some(target)) => f.write_str(&at(*target)),
            Self::Names(names) => {
                let told: Vec<String> = names
                    .iter()
                    .map(|(name, target)| format!("{} is {}", name.escape_ascii(), at(*target)))
                    .collect();
                write!(f, "[{}]", told.join(", "))
            }
            Self::Stat(stat) => write!(
                f,
                "mode {:o}, {} links, {}:{}, {} bytes",
                stat.mode, stat.links, stat.uid, stat.gid, stat.size
            ),
            Self::Bytes(bytes) => write!(f, "{} bytes: {}", bytes.len(), runs(bytes)),
            Self::Value(None) => f.write_str("no such attribute"),
            Self::Value(Some(value)) => write!(f, "\"{}\"", value.escape_ascii()),
            Self::Refused(number, text) => write!(f, "error {number}: {text}"),
        }
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Largest number of byte runs in a message.
const RUNS_MAX: usize = 12;

/// Formats bytes as runs of one value, which is how drawn content is built.
pub(super) fn runs(bytes: &[u8]) -> String {
    let mut told = Vec::new();
    let mut rest = bytes;
    while let Some(first) = rest.first() {
        let length = rest.iter().take_while(|byte| *byte == first).count();
        if told.len() == RUNS_MAX {
            told.push("…".to_owned());
            break;
        }
        told.push(format!("{length} of {first}"));
        rest = &rest[length..];
    }
    told.join(", ")
}
