//! Patterns of excluded paths, as in GNU tar and rsync.
//!
//! `*` matches any bytes except `/`, `**` any bytes, and `?` one byte except `/`. `[a-z]` matches
//! one of its bytes, and `[!a-z]` any other byte except `/`. `\` quotes the next byte. A pattern
//! with a slash at its beginning or inside matches paths from the image's root. A pattern without a
//! slash matches names anywhere. A slash at the end of a pattern restricts it to directories. An
//! excluded directory excludes everything below it.

use buttress_build::{Entry, EntryKind, Verdict};

/// A list of patterns.
#[derive(Clone, Debug, Default)]
pub struct Exclude(Vec<Pattern>);

/// A pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    parts: Vec<Part>,
    whole_path: bool,
    directories: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Byte(u8),
    /// Any single byte except `/`.
    One,
    /// A byte of these ranges, or any other byte.
    Set {
        ranges: Vec<(u8, u8)>,
        negated: bool,
    },
    /// Any bytes except `/`.
    Many,
    /// Any bytes.
    All,
}

/// The reason why text is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a valid pattern: {1}")]
pub struct PatternError(pub String, pub &'static str);

impl Exclude {
    /// Adds a pattern.
    ///
    /// # Errors
    /// Fails if the text is no pattern.
    pub fn add(&mut self, text: &[u8]) -> Result<(), PatternError> {
        self.0.push(Pattern::parse(text)?);
        Ok(())
    }

    /// Returns true if the list of excluded paths is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Decides if the entry stays.
    #[must_use]
    pub fn verdict(&self, entry: &Entry) -> Verdict {
        let is_directory = matches!(entry.kind, EntryKind::Directory(_) | EntryKind::Snapshot { .. });
        let path = entry.path.as_bytes();
        if path.is_empty() {
            return Verdict::Keep;
        }
        // Entries below an excluded entry are also excluded, whatever the order of entries.
        let ends = path
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'/')
            .map(|(at, _)| (at, true));
        let out = ends.chain([(path.len(), is_directory)]).any(|(end, directory)| {
            let path = path.get(..end).unwrap_or_default();
            self.0.iter().any(|pattern| pattern.fits(path, directory))
        });
        if out { Verdict::LeaveOut } else { Verdict::Keep }
    }
}

impl Pattern {
    fn parse(text: &[u8]) -> Result<Self, PatternError> {
        let wrong = |why| PatternError(String::from_utf8_lossy(text).into_owned(), why);
        let directories = text.last() == Some(&b'/');
        let inner = text.strip_suffix(b"/").unwrap_or(text);
        let whole_path = inner.contains(&b'/');
        let inner = inner.strip_prefix(b"./").unwrap_or(inner);
        let mut rest = inner.strip_prefix(b"/").unwrap_or(inner);
        if rest.is_empty() {
            return Err(wrong("it matches nothing"));
        }
        let mut parts = Vec::new();
        while let Some((byte, after)) = rest.split_first() {
            rest = after;
            parts.push(match byte {
                b'*' if rest.first() == Some(&b'*') => {
                    rest = rest.get(1..).unwrap_or_default();
                    Part::All
                }
                b'*' => Part::Many,
                b'?' => Part::One,
                b'\\' => {
                    let (byte, after) = rest
                        .split_first()
                        .ok_or_else(|| wrong("it ends with a backslash"))?;
                    rest = after;
                    Part::Byte(*byte)
                }
                b'[' => {
                    let (set, after) = set(rest).ok_or_else(|| wrong("a [ has no matching ]"))?;
                    rest = after;
                    set
                }
                byte => Part::Byte(*byte),
            });
        }
        Ok(Self {
            parts,
            whole_path,
            directories,
        })
    }

    fn fits(&self, path: &[u8], is_directory: bool) -> bool {
        if self.directories && !is_directory {
            return false;
        }
        let text = if self.whole_path {
            path
        } else {
            path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
        };
        // The matcher follows all prefixes of the pattern at once, so no text makes it slow.
        let mut reached = vec![false; self.parts.len().saturating_add(1)];
        if let Some(first) = reached.first_mut() {
            *first = true;
        }
        self.pass_stars(&mut reached);
        for byte in text {
            let mut next = vec![false; reached.len()];
            for (at, part) in self.parts.iter().enumerate() {
                if !reached.get(at).copied().unwrap_or(false) {
                    continue;
                }
                let stays = match part {
                    Part::All => Some(at),
                    Part::Many if *byte != b'/' => Some(at),
                    part if part.fits(*byte) => at.checked_add(1),
                    _ => None,
                };
                if let Some(slot) = stays.and_then(|at| next.get_mut(at)) {
                    *slot = true;
                }
            }
            self.pass_stars(&mut next);
            reached = next;
        }
        reached.last().copied().unwrap_or(false)
    }

    /// Stars may match nothing.
    fn pass_stars(&self, reached: &mut [bool]) {
        for (at, part) in self.parts.iter().enumerate() {
            let here = reached.get(at).copied().unwrap_or(false);
            if here
                && matches!(part, Part::Many | Part::All)
                && let Some(next) = reached.get_mut(at.saturating_add(1))
            {
                *next = true;
            }
        }
    }
}

impl Part {
    fn fits(&self, byte: u8) -> bool {
        match self {
            Self::Byte(wanted) => *wanted == byte,
            Self::One => byte != b'/',
            Self::Set { ranges, negated } => {
                let within = ranges
                    .iter()
                    .any(|(first, last)| (*first..=*last).contains(&byte));
                byte != b'/' && within != *negated
            }
            Self::Many | Self::All => false,
        }
    }
}

/// Returns the set between `[` and `]`, and the following text.
fn set(text: &[u8]) -> Option<(Part, &[u8])> {
    let negated = matches!(text.first(), Some(b'!' | b'^'));
    let mut rest = if negated { text.get(1..)? } else { text };
    let mut ranges = Vec::new();
    loop {
        let (first, after) = rest.split_first()?;
        rest = after;
        if *first == b']' && !ranges.is_empty() {
            return Some((Part::Set { ranges, negated }, rest));
        }
        match rest {
            [b'-', last, after @ ..] if *last != b']' => {
                ranges.push((*first, *last));
                rest = after;
            }
            _ => ranges.push((*first, *first)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use buttress_build::{Attributes, EntryPath, Precedence};

    fn left_out(pattern: &str, path: &str, is_directory: bool) -> bool {
        let mut exclude = Exclude::default();
        exclude.add(pattern.as_bytes()).unwrap();
        let kind = if is_directory {
            EntryKind::Directory(None)
        } else {
            EntryKind::Symlink(b"x".to_vec())
        };
        let entry = Entry {
            path: EntryPath::new(path.as_bytes()).unwrap(),
            precedence: Precedence(0),
            kind,
            attributes: Attributes::default(),
        };
        exclude.verdict(&entry) == Verdict::LeaveOut
    }

    #[test]
    fn patterns_fit_names_or_paths() {
        for (pattern, path, out) in [
            ("*.o", "a/b.o", true),
            ("*.o", "a/b.c", false),
            ("*.o", "x.o/below", true),
            ("/b", "a/b", false),
            ("/a/b", "a/b", true),
            ("a/b", "a/b/c", true),
            ("a/*", "a/b/c", true),
            ("a/*/d", "a/b/c/d", false),
            ("a/**/d", "a/b/c/d", true),
            ("?", "ab", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]]", "]", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("b", "", false),
        ] {
            assert_eq!(left_out(pattern, path, false), out, "{pattern} {path}");
        }
        assert!(left_out("cache/", "var/cache", true));
        assert!(!left_out("cache/", "var/cache", false));
        assert!(left_out("cache/", "var/cache/x", false));
    }

    #[test]
    fn no_pattern_is_slow_and_what_is_none_is_refused() {
        let stars = "*a".repeat(2000);
        assert!(!left_out(&stars, &"a".repeat(255), false));
        for text in ["", "/", "[", "[a", "x\\"] {
            assert!(Exclude::default().add(text.as_bytes()).is_err(), "{text}");
        }
    }
}
