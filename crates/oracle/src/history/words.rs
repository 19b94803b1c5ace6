//! Histories as text that a person can read and type: a line for each change, in the form of
//! commands.

use super::operation::{Operation, Span, Special};
use super::{Base, History, Transfer};
use std::fmt;

/// The bytes of a path, with special ones escaped.
struct Shown<'a>(&'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.0.escape_ascii())
    }
}

impl fmt::Display for Span {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}+{}", self.offset, self.length)
    }
}

fn snapshot(number: Option<usize>) -> String {
    number.map(|number| format!("s{number}:")).unwrap_or_default()
}

impl fmt::Display for Operation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(out, "touch {}", Shown(path)),
            Self::Directory(path) => write!(out, "mkdir {}", Shown(path)),
            Self::Symlink(path, target) => write!(out, "ln -s {} {}", Shown(target), Shown(path)),
            Self::Special(path, kind) => match kind {
                Special::Fifo => write!(out, "mknod {} p", Shown(path)),
                Special::Socket => write!(out, "socket {}", Shown(path)),
                Special::Character(major, minor) => write!(out, "mknod {} c {major} {minor}", Shown(path)),
                Special::Block(major, minor) => write!(out, "mknod {} b {major} {minor}", Shown(path)),
            },
            Self::Rename(from, to) => write!(out, "mv {} {}", Shown(from), Shown(to)),
            Self::Exchange(a, b) => write!(out, "mv --exchange {} {}", Shown(a), Shown(b)),
            Self::Link(existing, new) => write!(out, "ln {} {}", Shown(existing), Shown(new)),
            Self::Remove(path) => write!(out, "rm -d {}", Shown(path)),
            Self::RemoveAll(path) => write!(out, "rm -r {}", Shown(path)),
            Self::Owner(path, uid, gid) => write!(out, "chown {uid}:{gid} {}", Shown(path)),
            Self::Mode(path, mode) => write!(out, "chmod {mode:o} {}", Shown(path)),
            Self::Times(path, accessed, modified) => {
                write!(out, "touch -a {accessed:?} -m {modified:?} {}", Shown(path))
            }
            Self::SetXattr(path, name, value) => {
                write!(
                    out,
                    "setfattr -n '{name}' ({} bytes) {}",
                    value.len(),
                    Shown(path)
                )
            }
            Self::RemoveXattr(path, name) => write!(out, "setfattr -x '{name}' {}", Shown(path)),
            Self::Compress(path, algorithm) => write!(out, "compression {algorithm} {}", Shown(path)),
            Self::Subvolume(path) => write!(out, "btrfs subvolume create {}", Shown(path)),
            Self::Sync => write!(out, "sync"),
            data => write_data(out, data),
        }
    }
}

/// Writes an operation on a file's data.
fn write_data(out: &mut fmt::Formatter<'_>, operation: &Operation) -> fmt::Result {
    match operation {
        Operation::Write(path, span, content) => write!(out, "write {content:?} {span} {}", Shown(path)),
        Operation::Truncate(path, size) => write!(out, "truncate -s {size} {}", Shown(path)),
        Operation::Punch(path, span) => write!(out, "punch {span} {}", Shown(path)),
        Operation::Preallocate(path, span, keeps) => {
            let option = if *keeps { " --keep-size" } else { "" };
            write!(out, "fallocate{option} {span} {}", Shown(path))
        }
        Operation::ZeroRange(path, span) => write!(out, "fallocate --zero-range {span} {}", Shown(path)),
        Operation::Reflink(origin, path, offset) => write!(
            out,
            "reflink {}{} {} {} {offset}",
            snapshot(origin.snapshot),
            Shown(&origin.path),
            origin.span,
            Shown(path)
        ),
        Operation::ReflinkAll(from_snapshot, from, to) => {
            write!(
                out,
                "cp --reflink {}{} {}",
                snapshot(*from_snapshot),
                Shown(from),
                Shown(to)
            )
        }
        Operation::NoCopyOnWrite(path) => write!(out, "chattr +C {}", Shown(path)),
        other => write!(out, "{other:?}"),
    }
}

impl fmt::Display for Transfer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "send")?;
        if let Some(parent) = self.parent {
            write!(out, " -p s{parent}")?;
        }
        for clone in &self.clones {
            write!(out, " -c s{clone}")?;
        }
        write!(out, " s{}", self.snapshot)
    }
}

impl fmt::Display for History {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in self.steps.iter().enumerate() {
            match step.base {
                Base::Continued => {}
                Base::Empty => writeln!(out, "in a new, empty subvolume:")?,
                Base::Snapshot(from) => writeln!(out, "in a writable snapshot of s{from}:")?,
            }
            for operation in &step.operations {
                writeln!(out, "  {operation}")?;
            }
            writeln!(out, "snapshot s{number}")?;
        }
        for transfer in &self.transfers {
            writeln!(out, "{transfer}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::operation::{mkdir, mv, write};

    #[test]
    fn a_history_reads_like_commands() {
        let mut history = History::chain(vec![
            vec![mkdir("a"), write("a/f", 4096, 10)],
            vec![mv("a", "\n")],
        ]);
        history.transfers[1].clones.push(0);
        let text = history.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "  mkdir a");
        assert!(lines[1].starts_with("  write Noise(") && lines[1].ends_with(" 4096+10 a/f"));
        assert_eq!(
            lines[2..],
            [
                "snapshot s0",
                "  mv a \\n",
                "snapshot s1",
                "send s0",
                "send -p s0 -c s0 s1"
            ]
        );
    }
}
