//! Scripts: changes in one line each, in the words of the commands that do the same.
//!
//! Lines end with `;` or at the end of the line. `k` and `m` after a number multiply it by 1024 and 1024². Paths are relative,
//! `.` is the top.

use anyhow::{Context, Result, bail};
use buttress_oracle::history::operation::{Content, Operation, Origin, Span, Special};

/// One line of a script.
#[derive(Clone, Debug)]
pub enum Line {
    /// A change that the history's own words have.
    Change(Operation),
    /// `fsync(2)` of what a path leads to.
    Fsync(&'static str),
    /// `fdatasync(2)`.
    Fdatasync(&'static str),
    /// A snapshot of the top, at a path.
    Snapshot(&'static str),
    /// The subvolume at a path is deleted.
    DeleteSubvolume(&'static str),
    /// The file is held open from here on.
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

/// The lines of a script.
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
        // So many files in a directory, the names counted.
        ["touch-many", path, count] => {
            let names = (0..number(count)?).map(|count| format!("{path}{count:04}").into_bytes());
            return Ok(names.map(|name| Line::Change(Operation::File(name))).collect());
        }
        ["rm-many", path, count] => {
            let names = (0..number(count)?).map(|count| format!("{path}{count:04}").into_bytes());
            return Ok(names.map(|name| Line::Change(Operation::Remove(name))).collect());
        }
        // So many further names of a file.
        ["ln-many", from, path, count] => {
            let names = (0..number(count)?).map(|count| format!("{path}{count:04}").into_bytes());
            let link = |name| Line::Change(Operation::Link(bytes(from), name));
            return Ok(names.map(link).collect());
        }
        // Every second block of 4 KiB.
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
