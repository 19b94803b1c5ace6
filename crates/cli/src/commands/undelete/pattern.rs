//! The paths and patterns of `undelete`.
//!
//! | argument | matches |
//! |---|---|
//! | with a slash | the path from the top level |
//! | without a slash | a name in any directory |
//!
//! In both forms, `*` and `?` match bytes of one name, `**` also matches slashes, `[a-z]` matches one
//! byte, and a backslash removes the meaning of the next byte. A directory stands for everything below
//! it.

use buttress::salvage::WantedFiles;
use regex::bytes::{Regex, RegexBuilder};

/// A path or pattern of the command line.
#[derive(Debug)]
pub(super) struct Pattern {
    regex: Regex,
    /// The names before the first one with a wildcard, if the argument has a slash.
    names: Vec<Vec<u8>>,
    /// True if a name has a wildcard, or if the argument has no slash.
    has_wildcard: bool,
}

impl Pattern {
    pub(super) fn new(argument: &[u8]) -> Result<Self, regex::Error> {
        let is_path = argument.contains(&b'/');
        let trimmed: Vec<&[u8]> = argument
            .split(|byte| *byte == b'/')
            .filter(|name| !name.is_empty())
            .collect();
        let literal = |name: &&&[u8]| !name.iter().any(|byte| b"*?[\\".contains(byte));
        let plain = trimmed.iter().take_while(literal).count();
        let above = if is_path { "" } else { "(.*/)?" };
        let below = if trimmed.is_empty() { ".*" } else { "(/.*)?" };
        let expression = expression(&trimmed.join(&b'/'));
        let regex = RegexBuilder::new(&format!("^{above}{expression}{below}$"))
            .unicode(false)
            .dot_matches_new_line(true)
            .build()?;
        let names = trimmed.iter().take(plain).map(|name| name.to_vec());
        Ok(Self {
            regex,
            names: if is_path { names.collect() } else { Vec::new() },
            has_wildcard: !is_path || plain < trimmed.len(),
        })
    }

    pub(super) fn matches(&self, path: &[u8]) -> bool {
        self.regex.is_match(path)
    }

    /// Returns whether a match can be below a directory.
    fn reaches(&self, directory: &[u8]) -> bool {
        let parts = directory
            .split(|byte| *byte == b'/')
            .filter(|name| !name.is_empty());
        self.names.iter().zip(parts).all(|(own, name)| own == name)
    }
}

/// All paths and patterns of the command line.
#[derive(Debug)]
pub(super) struct Patterns(pub(super) Vec<Pattern>);

impl WantedFiles for Patterns {
    fn wants(&self, path: &[u8]) -> bool {
        self.0.iter().any(|pattern| pattern.matches(path))
    }

    fn wants_below(&self, directory: &[u8]) -> bool {
        self.0.iter().any(|pattern| pattern.reaches(directory))
    }

    fn paths(&self) -> Vec<Vec<u8>> {
        let plain = self.0.iter().filter(|pattern| !pattern.has_wildcard);
        plain.map(|pattern| pattern.names.join(&b'/')).collect()
    }
}

/// Returns the regular expression of a pattern.
fn expression(pattern: &[u8]) -> String {
    let mut text = String::new();
    let mut rest = pattern;
    while let [first, after @ ..] = rest {
        rest = after;
        match first {
            b'*' if after.first() == Some(&b'*') => {
                rest = after.get(1..).unwrap_or_default(); // Clamp: the second star exists.
                text.push_str(".*");
            }
            b'*' => text.push_str("[^/]*"),
            b'?' => text.push_str("[^/]"),
            b'[' => match class(after) {
                Some((class, behind)) => {
                    rest = behind;
                    text.push_str(&class);
                }
                None => push(&mut text, b'['),
            },
            b'\\' => match after {
                [escaped, behind @ ..] => {
                    rest = behind;
                    push(&mut text, *escaped);
                }
                [] => push(&mut text, b'\\'),
            },
            other => push(&mut text, *other),
        }
    }
    text
}

/// Returns the expression of a class of bytes, and the rest of the pattern. Returns `None` if the class
/// has no end.
fn class(pattern: &[u8]) -> Option<(String, &[u8])> {
    let (negates, inner) = match pattern {
        [b'!' | b'^', inner @ ..] => (true, inner),
        inner => (false, inner),
    };
    // A bracket at the first place is a member.
    let end = inner
        .iter()
        .skip(1)
        .position(|byte| *byte == b']')?
        .checked_add(1)?;
    let (members, behind) = inner.split_at_checked(end)?;
    let mut text = String::from(if negates { "[^/" } else { "[" });
    for (at, byte) in members.iter().enumerate() {
        let is_inner = at > 0 && at.checked_add(1).is_some_and(|next| next < members.len());
        match byte {
            b'-' if is_inner => text.push('-'),
            other => push(&mut text, *other),
        }
    }
    text.push(']');
    Some((text, behind.get(1..)?))
}

/// Appends a byte that stands for itself.
fn push(text: &mut String, byte: u8) {
    match byte {
        b'/' => text.push('/'),
        byte if byte.is_ascii_alphanumeric() => text.push(char::from(byte)),
        byte => text.push_str(&format!("\\x{byte:02x}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &[u8], path: &[u8]) -> bool {
        Pattern::new(pattern).unwrap().matches(path)
    }

    #[test]
    fn argument_without_slash_matches_names_anywhere() {
        for path in ["photo.jpg", "a/photo.jpg", "a/photo.jpg/inside"] {
            assert!(matches(b"photo.jpg", path.as_bytes()), "{path}");
            assert!(matches(b"*.jpg", path.as_bytes()), "{path}");
            assert!(matches(b"ph?to.[a-j]pg", path.as_bytes()), "{path}");
        }
        for path in ["photoxjpg", "photo.jpgs", "a/photo", "xphoto.jpg"] {
            assert!(!matches(b"photo.jpg", path.as_bytes()), "{path}");
        }
        assert!(matches(b"[!a]", b"b") && !matches(b"[!a]", b"a"));
        assert!(matches(b"[]]", b"]") && matches(b"[", b"["));
    }

    #[test]
    fn argument_with_slash_matches_the_path_from_the_top() {
        assert!(matches(b"/a/b", b"a/b") && matches(b"a/b", b"a/b"));
        assert!(matches(b"/a/", b"a/b/c"));
        assert!(matches(b"/", b"any/path"));
        assert!(!matches(b"/b", b"a/b"));
        assert!(matches(b"/a/*.c", b"a/x.c") && !matches(b"/a/*.c", b"a/x/y.c"));
        assert!(matches(b"/a/**.c", b"a/x/y.c"));
        assert!(matches(b"/\\*", b"*") && !matches(b"/\\*", b"x"));
        assert!(matches(b"/caf\xe9", b"caf\xe9"));
    }

    #[test]
    fn subvolumes_beside_a_path_are_skipped() {
        let of = |argument: &[u8]| Patterns(vec![Pattern::new(argument).unwrap()]);
        let wanted = of(b"/home/anna/*.jpg");
        for directory in ["", "home", "home/anna", "home/anna/sub"] {
            assert!(wanted.wants_below(directory.as_bytes()), "{directory}");
        }
        for directory in ["snapshots", "home/bert"] {
            assert!(!wanted.wants_below(directory.as_bytes()), "{directory}");
        }
        assert!(wanted.paths().is_empty());
        assert_eq!(of(b"/home/anna").paths(), [b"home/anna".to_vec()]);
        let named = of(b"anna");
        assert!(named.wants_below(b"any") && named.paths().is_empty());
    }
}
