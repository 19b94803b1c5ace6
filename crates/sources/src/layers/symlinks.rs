//! Members of archives below a symbolic link, which had a target when they were unpacked.
//!
//! A program that unpacks an archive into an empty root makes `lib -> usr/lib` and then, for
//! `lib/x`, the file `usr/lib/x`. Member paths therefore follow earlier links of this archive or of
//! a lower layer. The root of the tree is the root of absolute targets, and `..` never leaves it.
//! The last component of a path is never followed: a member replaces the entry with its name.
//! Memory grows with the number of symbolic links.

use std::collections::BTreeMap;
use std::ops::Bound;

use buttress_build::EntryPath;

use crate::tar::Problem;

/// The maximum number of links that one path may follow, as in the kernel.
const LINKS_MAX: usize = 40;

/// The existing symbolic links, by their paths.
#[derive(Debug, Default)]
pub(super) struct Symlinks(BTreeMap<Vec<u8>, Link>);

#[derive(Debug)]
struct Link {
    target: Vec<u8>,
    layer: usize,
}

impl Symlinks {
    /// Returns the target of a path.
    pub(super) fn follow(&self, path: EntryPath) -> Result<EntryPath, Problem> {
        if self.0.is_empty() || !path.as_bytes().contains(&b'/') {
            return Ok(path);
        }
        let mut ahead: Vec<Vec<u8>> = components(path.as_bytes());
        let mut at: Vec<u8> = Vec::new();
        let mut followed = 0_usize;
        while let Some(component) = ahead.pop() {
            if component == b".." {
                let end = at.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                at.truncate(end);
                continue;
            }
            let before = at.len();
            if !at.is_empty() {
                at.push(b'/');
            }
            at.extend_from_slice(&component);
            if ahead.is_empty() {
                break;
            }
            let Some(link) = self.0.get(&at) else {
                continue;
            };
            followed = followed.saturating_add(1);
            if followed > LINKS_MAX {
                return Err(Problem::LinkLoop(path.as_bytes().to_vec()));
            }
            at.truncate(if link.target.first() == Some(&b'/') {
                0
            } else {
                before
            });
            ahead.extend(components(&link.target));
        }
        EntryPath::new(&at).map_err(|problem| Problem::Path {
            field: "path",
            path: at,
            problem,
        })
    }

    /// Records that a member replaces the entry at its path with a symbolic link to `target`, a
    /// directory, or another file.
    pub(super) fn put(&mut self, path: &EntryPath, is_directory: bool, target: Option<&[u8]>, layer: usize) {
        if self.0.is_empty() && target.is_none() {
            return;
        }
        self.0.remove(path.as_bytes());
        if !is_directory {
            self.clear_below(path, usize::MAX);
        }
        if let Some(target) = target {
            let target = target.to_vec();
            self.0.insert(path.as_bytes().to_vec(), Link { target, layer });
        }
    }

    /// Records that the entry of lower layers at a path is gone.
    pub(super) fn remove(&mut self, path: &EntryPath, layer: usize) {
        if self.0.get(path.as_bytes()).is_some_and(|link| link.layer < layer) {
            self.0.remove(path.as_bytes());
        }
        self.clear_below(path, layer);
    }

    /// Records that the entries of lower layers below a path are gone.
    pub(super) fn clear_below(&mut self, path: &EntryPath, layer: usize) {
        if self.0.is_empty() {
            return;
        }
        let from = match path.is_root() {
            true => Vec::new(),
            false => [path.as_bytes(), b"/"].concat(),
        };
        let all = self.0.range((Bound::Included(from.clone()), Bound::Unbounded));
        let below = all.take_while(|(key, _)| key.starts_with(&from));
        let gone = below.filter(|(_, link)| link.layer < layer);
        let gone: Vec<Vec<u8>> = gone.map(|(key, _)| key.clone()).collect();
        for key in gone {
            self.0.remove(&key);
        }
    }
}

/// Returns the meaningful components in reverse order.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let parts = path.split(|byte| *byte == b'/').rev();
    parts
        .filter(|part| !matches!(*part, b"" | b"."))
        .map(<[u8]>::to_vec)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> EntryPath {
        EntryPath::new(text.as_bytes()).unwrap()
    }

    fn links(all: &[(&str, &str)]) -> Symlinks {
        let mut links = Symlinks::default();
        for (at, target) in all {
            links.put(&path(at), false, Some(target.as_bytes()), 0);
        }
        links
    }

    #[test]
    fn paths_follow_links_and_stay_in_the_root() {
        let links = links(&[
            ("lib", "usr/lib"),
            ("usr/lib/x", "/lib/y"),
            ("out", "../../../etc"),
            ("a/b", "../c"),
            ("self", "self/."),
            ("to", "fro"),
            ("fro", "to"),
        ]);
        for (from, to) in [
            ("lib/a", "usr/lib/a"),
            ("lib", "lib"),
            ("lib/x/z", "usr/lib/y/z"),
            ("out/passwd", "etc/passwd"),
            ("a/b/d", "c/d"),
            ("a/x/d", "a/x/d"),
        ] {
            assert_eq!(links.follow(path(from)).unwrap(), path(to), "{from}");
        }
        for from in ["self/x", "to/x"] {
            assert!(
                matches!(links.follow(path(from)), Err(Problem::LinkLoop(_))),
                "{from}"
            );
        }
    }

    #[test]
    fn replaced_or_deleted_link_is_not_followed() {
        let mut all = links(&[("a/l", "x"), ("b", "x")]);
        all.put(&path("a"), true, None, 0);
        assert_eq!(all.follow(path("a/l/f")).unwrap(), path("a/x/f"));
        all.remove(&path("a"), 0);
        assert_eq!(
            all.follow(path("a/l/f")).unwrap(),
            path("a/x/f"),
            "marks act on lower layers only"
        );
        all.remove(&path("a"), 1);
        assert_eq!(all.follow(path("a/l/f")).unwrap(), path("a/l/f"));
        all.put(&path("b"), true, None, 0);
        assert_eq!(all.follow(path("b/f")).unwrap(), path("b/f"));
    }
}
