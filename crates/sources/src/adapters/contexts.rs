//! SELinux contexts from a policy's `file_contexts`: the contexts that `setfiles` and `mkfs
//! --file-contexts` would set.
//!
//! A line is `REGEX [TYPE] CONTEXT`. The expression of a line matches the whole path from the
//! image's root. Among several matches, a line without metacharacters precedes one with
//! metacharacters, and a later line precedes an earlier one. `<<none>>` leaves the file unchanged.
//! The SELinux context is the attribute `security.selinux`, with the terminating zero byte that the
//! kernel's own tools write.
//!
//! Source: selinux file_contexts(5); selabel_file(5) for the order.

use std::collections::HashMap;

use buttress_build::{Entry, EntryKind, Verdict};
use buttress_fs::NodeKind;
use buttress_fs::Xattr;
use regex::bytes::{Regex, RegexBuilder};

const ATTRIBUTE: &[u8] = b"security.selinux";
/// The maximum compiled size of one expression.
const REGEX_BYTES_MAX: usize = 1 << 20;

/// The lines of a file.
#[derive(Debug, Default)]
pub struct FileContexts {
    specs: Vec<Spec>,
    /// The lines of the context file, by the first name of the path, if all matches share it.
    by_stem: HashMap<Vec<u8>, Vec<usize>>,
    others: Vec<usize>,
}

#[derive(Debug)]
struct Spec {
    regex: Regex,
    /// The common prefix of all matches.
    prefix: Vec<u8>,
    is_literal: bool,
    kind: Option<u8>,
    context: Option<Vec<u8>>,
}

/// The error of an invalid line in a file of SELinux contexts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct ContextError {
    /// The line, counted from 1.
    pub line: usize,
    /// The problem.
    pub what: String,
}

impl FileContexts {
    /// Parses the lines of a file.
    ///
    /// # Errors
    /// Fails if a line is invalid.
    pub fn parse(text: &str) -> Result<Self, ContextError> {
        let mut contexts = Self::default();
        for (number, line) in text.lines().enumerate() {
            let line_number = number.saturating_add(1);
            let wrong = |what: String| ContextError {
                line: line_number,
                what,
            };
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (pattern, kind, context) = match *fields.as_slice() {
                [pattern, context] => (pattern, None, context),
                [pattern, kind, context] => {
                    let letter = match kind {
                        "--" | "-d" | "-l" | "-c" | "-b" | "-p" | "-s" => kind.bytes().last(),
                        _ => return Err(wrong(format!("{kind:?} is not a file type"))),
                    };
                    (pattern, letter, context)
                }
                _ => {
                    return Err(wrong(
                        "wrong number of fields (expected an expression, an optional type and a context)"
                            .into(),
                    ));
                }
            };
            let regex = RegexBuilder::new(&format!("^(?:{pattern})$"))
                .size_limit(REGEX_BYTES_MAX)
                .unicode(false)
                .build()
                .map_err(|error| wrong(error.to_string()))?;
            let (prefix, is_literal) = literal_prefix(pattern);
            contexts.add(Spec {
                regex,
                prefix,
                is_literal,
                kind,
                context: (context != "<<none>>").then(|| [context.as_bytes(), b"\0"].concat()),
            });
        }
        Ok(contexts)
    }

    fn add(&mut self, spec: Spec) {
        let place = self.specs.len();
        // In an expression for `/usr/…`, the first name ends within the prefix.
        let stem = spec.prefix.strip_prefix(b"/").and_then(|rest| {
            let end = rest.iter().position(|byte| *byte == b'/')?;
            rest.get(..end)
        });
        match stem {
            Some(stem) => self.by_stem.entry(stem.to_vec()).or_default().push(place),
            None => self.others.push(place),
        }
        self.specs.push(spec);
    }

    /// Sets the context of the entry.
    pub fn apply(&self, entry: &mut Entry) -> Verdict {
        let Some(kind) = letter(&entry.kind) else {
            return Verdict::Keep;
        };
        let path = [b"/", entry.path.as_bytes()].concat();
        if let Some(context) = self.context(&path, kind) {
            let xattrs = &mut entry.attributes.xattrs;
            xattrs.retain(|xattr| xattr.name != ATTRIBUTE);
            xattrs.push(Xattr {
                name: ATTRIBUTE.to_vec(),
                value: context.to_vec(),
            });
        }
        Verdict::Keep
    }

    fn context(&self, path: &[u8], kind: u8) -> Option<&[u8]> {
        let stem = path
            .get(1..)
            .unwrap_or_default()
            .split(|byte| *byte == b'/')
            .next()
            .unwrap_or_default();
        let of_stem = self.by_stem.get(stem).into_iter().flatten();
        let best = of_stem
            .chain(&self.others)
            .filter_map(|place| Some((*place, self.specs.get(*place)?)))
            .filter(|(_, spec)| spec.fits(path, kind))
            .max_by_key(|(place, spec)| (spec.is_literal, *place));
        best.and_then(|(_, spec)| spec.context.as_deref())
    }
}

impl Spec {
    fn fits(&self, path: &[u8], kind: u8) -> bool {
        self.kind.is_none_or(|wanted| wanted == kind)
            && path.starts_with(&self.prefix)
            && self.regex.is_match(path)
    }
}

/// Returns the letter of the entry's type; `None` for entries without attributes.
fn letter(kind: &EntryKind) -> Option<u8> {
    Some(match kind {
        EntryKind::Directory(_) => b'd',
        EntryKind::File(_) => b'-',
        EntryKind::Symlink(_) => b'l',
        EntryKind::Node(NodeKind::Fifo) => b'p',
        EntryKind::Node(NodeKind::Socket) => b's',
        EntryKind::Node(NodeKind::CharacterDevice(_)) => b'c',
        EntryKind::Node(NodeKind::BlockDevice(_)) => b'b',
        _ => return None,
    })
}

/// Returns the common prefix of all matches, and true if it is the whole expression.
fn literal_prefix(pattern: &str) -> (Vec<u8>, bool) {
    const META: &[u8] = b".^$?*+|[({";
    let mut prefix: Vec<u8> = Vec::new();
    let mut bytes = pattern.bytes().peekable();
    while let Some(byte) = bytes.next() {
        if META.contains(&byte) {
            // A repeated element may occur zero times, and an alternative proves nothing.
            if matches!(byte, b'?' | b'*' | b'{') {
                prefix.pop();
            }
            if pattern.contains('|') {
                prefix.clear();
            }
            return (prefix, false);
        }
        if byte == b'\\' {
            match bytes.next() {
                Some(escaped) if !escaped.is_ascii_alphanumeric() => prefix.push(escaped),
                _ => return (prefix, false),
            }
        } else {
            prefix.push(byte);
        }
    }
    (prefix, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_exact_line_decides() {
        let contexts = FileContexts::parse(
            "# a policy\n\
             /.*  system_u:object_r:default_t:s0\n\
             /usr/.*  system_u:object_r:usr_t:s0\n\
             /usr/bin(/.*)?  system_u:object_r:bin_t:s0\n\
             /usr/bin/su  --  system_u:object_r:su_t:s0\n\
             /usr/(s)?bin/.*  -l  links:t:s0\n\
             /usr/lib/x\\.so  lib:t:s0\n\
             /usr/l.*  later:t:s0\n\
             /(etc|srv)/.*  either:t:s0\n\
             /proc  <<none>>\n",
        )
        .unwrap();
        let context = |path: &str, kind: char| {
            let found = contexts.context(path.as_bytes(), kind as u8);
            found.map(|bytes| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned())
        };
        for (path, kind, wanted) in [
            ("/", 'd', "system_u:object_r:default_t:s0"),
            ("/usr/x", '-', "system_u:object_r:usr_t:s0"),
            ("/usr/bin", 'd', "system_u:object_r:bin_t:s0"),
            ("/usr/bin/ls", '-', "system_u:object_r:bin_t:s0"),
            ("/usr/bin/su", '-', "system_u:object_r:su_t:s0"),
            ("/usr/bin/su", 'd', "system_u:object_r:bin_t:s0"),
            ("/usr/bin/ln", 'l', "links:t:s0"),
            ("/usr/lib/x.so", '-', "lib:t:s0"),
            ("/usr/lib/xaso", '-', "later:t:s0"),
            ("/etc/a", '-', "either:t:s0"),
            ("/srv/a", '-', "either:t:s0"),
        ] {
            assert_eq!(context(path, kind).as_deref(), Some(wanted), "{path} {kind}");
        }
        assert_eq!(context("/proc", 'd'), None);
    }

    #[test]
    fn invalid_lines_are_reported() {
        for text in ["\n/a", "\n/a -x c", "\n/a b c d", "\n/( c", "\n/a{9999}{9999} c"] {
            assert_eq!(FileContexts::parse(text).unwrap_err().line, 2, "{text}");
        }
    }
}
