//! The filter of paths: `--path-regex` with the syntax of `btrfs restore`.
//!
//! Names on disk are bytes, so an expression matches bytes, and `.` matches each of them. A path is
//! restored only if its directories are. The start of the walk has no name, and always passes.

use std::sync::atomic::{AtomicBool, Ordering};

use regex::bytes::{Regex, RegexBuilder};

/// A filter of paths.
#[derive(Debug)]
pub(super) struct Filter {
    regex: Option<Regex>,
    /// True once a path below the start was accepted.
    has_matched: AtomicBool,
}

impl Filter {
    /// Returns a filter; without an expression, it accepts every path.
    pub(super) fn new(expression: Option<&str>, ignore_case: bool) -> Result<Self, regex::Error> {
        let build = |text: &str| {
            RegexBuilder::new(text)
                .case_insensitive(ignore_case)
                .unicode(false)
                .dot_matches_new_line(true)
                .build()
        };
        Ok(Self {
            regex: expression.map(build).transpose()?,
            has_matched: AtomicBool::new(false),
        })
    }

    /// Returns whether a path without a leading slash, and all its directories, are restored.
    pub(super) fn accepts(&self, path: &[u8]) -> bool {
        let Some(regex) = &self.regex else { return true };
        if path.is_empty() {
            return true;
        }
        let absolute = [b"/", path].concat();
        let slashes = absolute.iter().enumerate().skip(1);
        let mut directories = slashes.filter(|(_, byte)| **byte == b'/');
        let accepted = regex.is_match(&absolute)
            && directories.all(|(end, _)| absolute.get(..end).is_some_and(|above| regex.is_match(above)));
        if accepted {
            self.has_matched.store(true, Ordering::Relaxed);
        }
        accepted
    }

    /// Returns whether an expression was given, and has accepted no path.
    pub(super) fn is_in_vain(&self) -> bool {
        self.regex.is_some() && !self.has_matched.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_expressions_accept_directories_above_a_file() {
        let filter = Filter::new(Some("^/(|d1(|/name\\.txt))$"), false).unwrap();
        for path in ["", "d1", "d1/name.txt"] {
            assert!(filter.accepts(path.as_bytes()), "{path}");
        }
        for path in ["d2", "d1/other", "D1"] {
            assert!(!filter.accepts(path.as_bytes()), "{path}");
        }
        assert!(Filter::new(Some("^/d1$"), true).unwrap().accepts(b"D1"));
        assert!(Filter::new(Some("("), false).is_err());
        assert!(Filter::new(None, false).unwrap().accepts(b"any"));
    }

    #[test]
    fn start_passes_and_nothing_below_a_refused_directory_does() {
        let filter = Filter::new(Some("^/home"), false).unwrap();
        assert!(filter.accepts(b"") && filter.is_in_vain());
        assert!(filter.accepts(b"home/anna") && !filter.is_in_vain());
        let below = Filter::new(Some("^/a/b$"), false).unwrap();
        assert!(!below.accepts(b"a/b"), "the directory /a is refused");
        assert!(below.is_in_vain());
    }

    #[test]
    fn expression_matches_bytes_of_any_name() {
        let filter = Filter::new(Some("^/(|home(|/.*))$"), false).unwrap();
        assert!(filter.accepts(b"home/caf\xe9.txt"));
        assert!(filter.accepts(b"home/two\nlines"));
        assert!(Filter::new(Some("^/A"), true).unwrap().accepts(b"a"));
    }
}
