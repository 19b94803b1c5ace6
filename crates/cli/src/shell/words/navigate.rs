//! The session's current directory, and help.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use anyhow::{Result, bail};
use clap::Args;

use super::ROWS;
use crate::shell::Session;
use crate::shell::table::{self, Word};

/// Change the current directory
#[derive(Args, Debug)]
pub struct Cd {
    /// The directory
    #[arg(value_name = "DIRECTORY", default_value = "/")]
    directory: OsString,
}

impl Word for Cd {
    const NAME: &'static str = "cd";

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        session.go_to(self.directory.as_bytes())
    }
}

/// Print the current directory
#[derive(Args, Debug)]
pub struct Pwd {}

impl Word for Pwd {
    const NAME: &'static str = "pwd";

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let mut out = session.context().stdout();
        out.write_all(&session.context().printable(&session.directory()))?;
        writeln!(out)?;
        Ok(out.flush()?)
    }
}

/// List all commands, or show the help of one
#[derive(Args, Debug)]
pub struct Help {
    /// The word
    #[arg(value_name = "COMMAND")]
    word: Vec<String>,
}

impl Word for Help {
    const NAME: &'static str = "help";
    const ALIASES: &'static [&'static str] = &["?"];

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let mut out = session.context().stdout();
        if self.word.is_empty() {
            let lines = table::summary(ROWS);
            let width = lines
                .iter()
                .map(|(typed, _)| typed.chars().count())
                .max()
                .unwrap_or(0);
            for (typed, about) in lines {
                writeln!(out, "{typed:<width$}  {about}")?;
            }
            return Ok(out.flush()?);
        }
        let mut command = table::parser(ROWS);
        command.build();
        let mut found = &mut command;
        for word in &self.word {
            let Some(below) = found.find_subcommand_mut(word) else {
                bail!("unknown command {word:?}; `help` lists all commands");
            };
            found = below;
        }
        write!(out, "{}", found.render_help())?;
        Ok(out.flush()?)
    }
}

/// Normalises a path from the root as a shell's `cd` does: without `.`, `..` and doubled slashes.
pub(in crate::shell) fn normalised(path: &[u8]) -> Vec<u8> {
    let mut names: Vec<&[u8]> = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => {
                names.pop();
            }
            name => names.push(name),
        }
    }
    let mut whole = Vec::with_capacity(path.len());
    for name in names {
        whole.push(b'/');
        whole.extend_from_slice(name);
    }
    if whole.is_empty() {
        whole.push(b'/');
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_followed_as_a_shell_does() {
        let cases: [(&[u8], &[u8]); 6] = [
            (b"/", b"/"),
            (b"/a//b/", b"/a/b"),
            (b"/a/../b", b"/b"),
            (b"/..", b"/"),
            (b"/a/./b/..", b"/a"),
            (b"/a/b/../../..", b"/"),
        ];
        for (path, expected) in cases {
            assert_eq!(normalised(path), expected);
        }
    }
}
