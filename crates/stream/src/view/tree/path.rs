//! Paths in commands: checks, and splitting into names.

use super::NodeId;
use crate::view::error::{PathProblem, Problem};
use buttress_format::NAME_BYTES_MAX;

/// A place for a name: a directory and the name in it.
#[derive(Clone, Copy, Debug)]
pub(in crate::view) struct Place<'a> {
    pub(in crate::view) directory: NodeId,
    pub(in crate::view) name: &'a [u8],
    /// Inode that the name leads to now.
    pub(in crate::view) existing: Option<NodeId>,
    /// True if the path passes through the forbidden directory.
    pub(in crate::view) within_forbidden: bool,
}

/// Returns the names of a path, each with its end offset in the path. The empty path has no names.
pub(crate) fn names(path: &[u8]) -> Result<impl Iterator<Item = (&[u8], usize)>, Problem> {
    check(path)?;
    let mut start = 0usize;
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    Ok(names.map(move |name| {
        let end = start.saturating_add(name.len());
        start = end.saturating_add(1);
        (name, end)
    }))
}

fn check(path: &[u8]) -> Result<(), Problem> {
    let invalid = |problem| {
        Err(Problem::PathInvalid {
            path: path.to_vec(),
            problem,
        })
    };
    if path.is_empty() {
        return Ok(());
    }
    if path.first() == Some(&b'/') {
        return invalid(PathProblem::Absolute);
    }
    for name in path.split(|byte| *byte == b'/') {
        if name.is_empty() {
            return invalid(PathProblem::EmptyName);
        }
        if matches!(name, b"." | b"..") {
            return invalid(PathProblem::Dots);
        }
        if name.contains(&0) {
            return invalid(PathProblem::ZeroByte);
        }
        if name.len() > NAME_BYTES_MAX {
            return invalid(PathProblem::NameTooLong {
                name_bytes: name.len(),
            });
        }
    }
    Ok(())
}

/// Returns the beginning of `path` up to and including `name`, and the part before `name`.
pub(super) fn up_to<'a>(path: &'a [u8], name: &[u8], end: usize) -> (&'a [u8], &'a [u8]) {
    let above = end.saturating_sub(name.len()).saturating_sub(1);
    (
        path.get(..end).unwrap_or(path),
        path.get(..above).unwrap_or_default(),
    )
}

/// Builds the error of a command that is not valid for the subvolume's root directory.
pub(super) fn root(path: &[u8]) -> Problem {
    Problem::PathInvalid {
        path: path.to_vec(),
        problem: PathProblem::Root,
    }
}
