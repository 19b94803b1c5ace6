//! Lines of earlier sessions, in a private file of the user.
//!
//! The file is `$XDG_STATE_HOME/buttress/shell_history`, by default below `~/.local/state`, and
//! only the user can read it. `BUTTRESS_HISTORY` names another file, or disables the history if it
//! is empty; `--no-history` disables it, too. Each line is appended when it was typed, so parallel
//! sessions do not overwrite each other's lines. A line that begins with a blank is not kept.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Largest number of kept lines.
pub(super) const LINES_MAX: usize = 1000;

/// Largest size of a history file in bytes; a larger file is not one of this program.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Environment variable that names the file, or disables the history.
const VARIABLE: &str = "BUTTRESS_HISTORY";

/// The history file.
#[derive(Debug)]
pub(super) struct HistoryFile {
    path: PathBuf,
}

impl HistoryFile {
    /// Returns the file that the environment names; `None` if it names none.
    pub(super) fn of_environment() -> Option<Self> {
        Self::at(|name| std::env::var_os(name))
    }

    fn at(variable: impl Fn(&str) -> Option<OsString>) -> Option<Self> {
        let path = match variable(VARIABLE) {
            Some(path) if path.is_empty() => return None,
            Some(path) => PathBuf::from(path),
            None => {
                // The XDG specification requires programs to ignore paths that are not absolute.
                let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
                let state = variable("XDG_STATE_HOME")
                    .and_then(absolute)
                    .or_else(|| Some(variable("HOME").and_then(absolute)?.join(".local/state")))?;
                state.join("buttress/shell_history")
            }
        };
        Some(Self { path })
    }

    /// Loads the lines, the oldest first. If the history has too many lines, it drops the oldest
    /// ones.
    pub(super) fn load(&self) -> Result<Vec<String>> {
        let text = self.read().with_context(|| self.path.display().to_string())?;
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let kept = lines
            .get(lines.len().saturating_sub(LINES_MAX)..)
            .unwrap_or_default();
        if lines.len() > LINES_MAX.saturating_mul(2) {
            self.replace(kept)
                .with_context(|| self.path.display().to_string())?;
        }
        Ok(kept.iter().map(|line| (*line).to_owned()).collect())
    }

    fn read(&self) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        match File::open(&self.path) {
            Ok(file) => file.take(FILE_BYTES_MAX).read_to_end(&mut text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        Ok(text)
    }

    /// Replaces the history file with these lines, unless the file is a link.
    fn replace(&self, lines: &[&str]) -> io::Result<()> {
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        if !self.path.symlink_metadata()?.is_file() {
            return Ok(());
        }
        // Also for the new history file, only the user has read permission.
        let mut new = tempfile::NamedTempFile::new_in(directory)?;
        for line in lines {
            writeln!(new, "{line}")?;
        }
        new.flush()?;
        new.persist(&self.path)?;
        Ok(())
    }

    /// Appends a line.
    pub(super) fn add(&self, line: &str) -> Result<()> {
        self.append(line).with_context(|| self.path.display().to_string())
    }

    fn append(&self, line: &str) -> io::Result<()> {
        if let Some(directory) = self.path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&self.path)?;
        let metadata = file.metadata()?;
        if metadata.is_file() && metadata.permissions().mode() & 0o077 != 0 {
            file.set_permissions(PermissionsExt::from_mode(0o600))?;
        }
        file.write_all(format!("{line}\n").as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_file_depends_on_the_environment() {
        let at = |variables: &[(&str, &str)]| {
            let found = HistoryFile::at(|name| {
                let (_, value) = variables.iter().find(|(variable, _)| *variable == name)?;
                Some(OsString::from(value))
            });
            found.map(|file| file.path.display().to_string())
        };
        let home = ("HOME", "/home/me");
        assert_eq!(
            at(&[home]).unwrap(),
            "/home/me/.local/state/buttress/shell_history"
        );
        assert_eq!(
            at(&[("XDG_STATE_HOME", "/s"), home]).unwrap(),
            "/s/buttress/shell_history"
        );
        assert_eq!(
            at(&[("XDG_STATE_HOME", "s"), home]).unwrap(),
            "/home/me/.local/state/buttress/shell_history"
        );
        assert_eq!(at(&[(VARIABLE, "/h"), home]).unwrap(), "/h");
        assert_eq!(at(&[(VARIABLE, ""), home]), None);
        assert_eq!(at(&[]), None);
    }

    #[test]
    fn lines_are_kept_for_the_user_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/history");
        let file = HistoryFile { path: path.clone() };
        assert!(file.load().unwrap().is_empty());
        file.add("ls -l").unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(
            path.parent().unwrap().metadata().unwrap().permissions().mode() & 0o777,
            0o700
        );
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        file.add("cd /").unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(file.load().unwrap(), ["ls -l", "cd /"]);
        for number in 0..2 * LINES_MAX {
            file.add(&number.to_string()).unwrap();
        }
        let lines = file.load().unwrap();
        assert_eq!((lines.len(), lines.last().unwrap().as_str()), (LINES_MAX, "1999"));
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), LINES_MAX);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
}
