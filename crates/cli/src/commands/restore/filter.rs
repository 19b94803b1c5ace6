//! The filter of paths: `--path-regex` with the syntax of `btrfs restore`.

use regex::bytes::{Regex, RegexBuilder};

/// A filter of paths.
#[derive(Debug)]
pub(super) struct Filter(Option<Regex>);

impl Filter {
    /// Returns a filter; without an expression, it accepts every path.
    pub(super) fn new(expression: Option<&str>, ignore_case: bool) -> Result<Self, regex::Error> {
        let build = |text: &str| RegexBuilder::new(text).case_insensitive(ignore_case).build();
        expression.map(build).transpose().map(Self)
    }

    /// Returns whether a path without a leading slash is restored. A file is restored only if all its
    /// directories are.
    pub(super) fn accepts(&self, path: &[u8]) -> bool {
        let Some(regex) = &self.0 else { return true };
        regex.is_match(&[b"/", path].concat())
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
}
