//! The attributes of `lsattr` and `chattr`.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::str::FromStr;

use anyhow::{Context as _, Result};
use buttress::{FileAttributes, Follow};
use clap::Args;

use super::attributes::affected;
use crate::shell::Session;
use crate::shell::table::Word;

/// Columns of `lsattr`; btrfs supports some of them.
const COLUMNS: &str = "suSDiadAcEjItTeCxFNPVm";

/// Attributes that `chattr` can change.
const CHANGEABLE: [(char, FileAttributes); 9] = [
    ('S', FileAttributes::SYNC),
    ('D', FileAttributes::DIRSYNC),
    ('i', FileAttributes::IMMUTABLE),
    ('a', FileAttributes::APPEND),
    ('d', FileAttributes::NODUMP),
    ('A', FileAttributes::NOATIME),
    ('c', FileAttributes::COMPRESS),
    ('C', FileAttributes::NOCOW),
    ('m', FileAttributes::NOCOMPRESS),
];

/// Show the attributes of files: c compressed, m never compressed, C not copied on write, i immutable, …
#[derive(Args, Debug)]
pub struct Lsattr {
    /// Files of the volume
    #[arg(value_name = "FILE", required = true)]
    files: Vec<OsString>,
}

impl Word for Lsattr {
    const NAME: &'static str = "lsattr";

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let mut out = session.context().stdout();
        for file in &self.files {
            let location = session.resolve(file, Follow::NotLast)?;
            let attributes = session.view().volume().metadata(location)?.attributes();
            write!(out, "{} ", columns(attributes))?;
            out.write_all(&session.context().printable(file.as_bytes()))?;
            writeln!(out)?;
        }
        Ok(out.flush()?)
    }
}

fn columns(attributes: FileAttributes) -> String {
    let letters = attributes.letters();
    let column = |letter| if letters.contains(letter) { letter } else { '-' };
    COLUMNS.chars().map(column).collect()
}

/// A change of attributes: `+cC`, `-i`, `=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    sign: char,
    attributes: FileAttributes,
}

impl FromStr for Change {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut letters = text.chars();
        let sign = letters.next().filter(|sign| "+-=".contains(*sign));
        let sign = sign.ok_or_else(|| format!("{text:?}: the first character must be +, - or ="))?;
        let mut attributes = FileAttributes::empty();
        for letter in letters {
            let known = CHANGEABLE.iter().find(|(known, _)| *known == letter);
            let (_, attribute) = known.ok_or_else(|| format!("unknown attribute {letter:?}"))?;
            attributes.insert(*attribute);
        }
        Ok(Self { sign, attributes })
    }
}

impl Change {
    fn apply(self, before: FileAttributes) -> FileAttributes {
        let mut after = match self.sign {
            '+' => before.union(self.attributes),
            '-' => before.difference(self.attributes),
            _ => self.attributes,
        };
        // Setting one of the two compression attributes clears the other.
        if self.sign == '+' {
            if self.attributes.contains(FileAttributes::COMPRESS) {
                after.remove(FileAttributes::NOCOMPRESS);
            } else if self.attributes.contains(FileAttributes::NOCOMPRESS) {
                after.remove(FileAttributes::COMPRESS);
            }
        }
        after
    }
}

/// Change the attributes of files
#[derive(Args, Debug)]
pub struct Chattr {
    /// Of directories, also all that they hold
    #[arg(short = 'R', long)]
    recursive: bool,
    /// + adds, - removes, = sets these letters
    #[arg(value_name = "+-=LETTERS", allow_hyphen_values = true)]
    change: Change,
    /// Files of the volume
    #[arg(value_name = "FILE", required = true)]
    files: Vec<OsString>,
}

impl Word for Chattr {
    const NAME: &'static str = "chattr";
    const WRITES: bool = true;

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let writing = session.require_writing()?;
        for file in &self.files {
            for location in affected(session, file, self.recursive, Follow::NotLast)? {
                let before = writing.volume().metadata(location)?.attributes();
                let changed = writing.volume().set_flags(location, self.change.apply(before));
                changed.with_context(|| file.to_string_lossy().into_owned())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_as_lsattr_and_chattr_write_them() {
        let attributes = FileAttributes::COMPRESS | FileAttributes::IMMUTABLE;
        assert_eq!(columns(attributes), "----i---c-------------");
        let change = |text: &str| text.parse::<Change>().unwrap();
        assert_eq!(change("+C").apply(attributes), attributes | FileAttributes::NOCOW);
        assert_eq!(change("-i").apply(attributes), FileAttributes::COMPRESS);
        assert_eq!(change("=").apply(attributes), FileAttributes::empty());
        assert_eq!(
            change("+m").apply(attributes),
            FileAttributes::NOCOMPRESS | FileAttributes::IMMUTABLE
        );
        for text in ["", "C", "+q", "+V", "*c"] {
            assert!(text.parse::<Change>().is_err(), "{text}");
        }
    }
}
