//! Scripts: one change per line, in the words of equivalent shell commands.
//!
//! A line of a script ends with `;` or with the text line. `k` and `m` after a number multiply it
//! by 1024 and 1024². Paths in a script are relative, and `.` is the top-level directory.

use anyhow::{Context, Result, bail};
use buttress_oracle::history::operation::{Content, Operation, Origin, Span, Special};

/// One line of a script.
#[derive(Clone, Debug)]
pub enum Line {
    /// A change of the history module.
    Change(Operation),
    /// `fsync(2)` of the file at a path.
    Fsync(&'static str),
    /// `fdatasync(2)` of the file at a path.
    Fdatasync(&'static str),
    /// Takes a snapshot of the top at a path.
    Snapshot(&'static str),
    /// Deletes the subvolume at a path.
    DeleteSubvolume(&'static str),
    /// Opens the file at a path, and holds it from here on.
    Hold(&'static str),
}

fn number(word: &str) -> Result<u64> {
    let (digits, unit) = match word.strip_suffix('k') {
        Some(digits) => (digits, 1 << 10),
        None => match word.strip_suffix('m') {
            Some(digits) => (digits, 1 << 20),
            None => (word, 1),
        },
    };
    let count: u64 = digits.parse().with_context(|| format!("{word} is no number"))?;
    Ok(count * unit)
}

fn span(offset: &str, length: &str) -> Result<Span> {
    Ok(Span {
        offset: number(offset)?,
        length: number(length)?,
    })
}

/// Parses the lines of a script.
pub fn parse(script: &'static str) -> Result<Vec<Line>> {
    let lines = script
        .split([';', '\n'])
        .map(str::trim)
        .filter(|line| !line.is_empty());
    lines
        .map(|line| parse_line(line).with_context(|| format!("the line \"{line}\"")))
        .collect::<Result<Vec<_>>>()
        .map(|lines| lines.into_iter().flatten().collect())
}

fn bytes(path: &str) -> Vec<u8> {
    match path {
        "." => Vec::new(),
        path => path.as_bytes().to_vec(),
    }
}

fn parse_line(line: &'static str) -> Result<Vec<Line>> {
    let words: Vec<&'static str> = line.split_whitespace().collect();
    let change = match words.as_slice() {
        ["fsync", path] => return Ok(vec![Line::Fsync(path)]),
        ["fdatasync", path] => return Ok(vec![Line::Fdatasync(path)]),
        ["snapshot", path] => return Ok(vec![Line::Snapshot(path)]),
        ["delete-subvolume", path] => return Ok(vec![Line::DeleteSubvolume(path)]),
        ["hold", path] => return Ok(vec![Line::Hold(path)]),
        // Creates this number of files in a directory, with numbered names.
        ["touch-many", path, count] => {
            let names = (0..number(count)?).map(|count| format!("{path}{count:04}").into_bytes());
            return Ok(names.map(|name| Line::Change(Operation::File(name))).collect());
        }
        ["rm-many", path, count] => {
            let names = (0..number(count)?).map(|count| format!("{path}{count:04}").into_bytes());
            return Ok(names.map(|name| Line::Change(Operation::Remove(name))).collect());
        }
        // Creates this number of further names of a file.
        ["ln-many", from, path, count] => {
            let names = (0..number(count)?).map(|count| format!("{path}{count:04}").into_bytes());
            let link = |name| Line::Change(Operation::Link(bytes(from), name));
            return Ok(names.map(link).collect());
        }
        // Writes every second block of 4 KiB.
        ["write-many", path, count] => {
            let write = |count: u64| {
                let span = Span {
                    offset: count * 8192,
                    length: 4096,
                };
                Line::Change(Operation::Write(bytes(path), span, Content::Noise(count + 1)))
            };
            return Ok((0..number(count)?).map(write).collect());
        }
        ["touch", path] => Operation::File(bytes(path)),
        ["mkdir", path] => Operation::Directory(bytes(path)),
        ["symlink", target, path] => Operation::Symlink(bytes(path), bytes(target)),
        ["fifo", path] => Operation::Special(bytes(path), Special::Fifo),
        ["socket", path] => Operation::Special(bytes(path), Special::Socket),
        ["char", path] => Operation::Special(bytes(path), Special::Character(5, 7)),
        ["mv", from, to] => Operation::Rename(bytes(from), bytes(to)),
        ["swap", one, other] => Operation::Exchange(bytes(one), bytes(other)),
        ["ln", from, to] => Operation::Link(bytes(from), bytes(to)),
        ["rm", path] => Operation::Remove(bytes(path)),
        ["rm-r", path] => Operation::RemoveAll(bytes(path)),
        ["write", path, offset, length, seed] => {
            Operation::Write(bytes(path), span(offset, length)?, Content::Noise(number(seed)?))
        }
        ["text", path, offset, length, seed] => {
            Operation::Write(bytes(path), span(offset, length)?, Content::Text(number(seed)?))
        }
        ["truncate", path, size] => Operation::Truncate(bytes(path), number(size)?),
        ["punch", path, offset, length] => Operation::Punch(bytes(path), span(offset, length)?),
        ["allocate", path, offset, length] => {
            Operation::Preallocate(bytes(path), span(offset, length)?, false)
        }
        ["allocate-keep", path, offset, length] => {
            Operation::Preallocate(bytes(path), span(offset, length)?, true)
        }
        ["zero", path, offset, length] => Operation::ZeroRange(bytes(path), span(offset, length)?),
        ["clone", from, offset, length, to, at] => {
            let origin = Origin {
                snapshot: None,
                path: bytes(from),
                span: span(offset, length)?,
            };
            Operation::Reflink(origin, bytes(to), number(at)?)
        }
        ["clone-all", from, to] => Operation::ReflinkAll(None, bytes(from), bytes(to)),
        ["xattr", path, name, value] => Operation::SetXattr(bytes(path), name, bytes(value)),
        ["rm-xattr", path, name] => Operation::RemoveXattr(bytes(path), name),
        ["chmod", path, mode] => Operation::Mode(bytes(path), u32::from_str_radix(mode, 8)?),
        ["chown", path, uid, gid] => Operation::Owner(
            bytes(path),
            u32::try_from(number(uid)?)?,
            u32::try_from(number(gid)?)?,
        ),
        ["times", path, seconds] => {
            let time = (i64::try_from(number(seconds)?)?, 5);
            Operation::Times(bytes(path), time, time)
        }
        ["compress", path, algorithm] => Operation::Compress(bytes(path), algorithm),
        ["nocow", path] => Operation::NoCopyOnWrite(bytes(path)),
        ["subvolume", path] => Operation::Subvolume(bytes(path)),
        ["sync"] => Operation::Sync,
        _ => bail!("no such words"),
    };
    Ok(vec![Line::Change(change)])
}
