//! Members of archives below a symbolic link, which had a target when they were unpacked.
//!
//! A program that unpacks an archive into an empty root makes `lib -> usr/lib` and then, for
//! `lib/x`, the file `usr/lib/x`. Member paths therefore follow earlier links of this archive or of
//! a lower layer. The root of the tree is the root of absolute targets, and `..` never leaves it.
//! The last component of a path is never followed: a member replaces the entry with its name. The
//! memory of this module grows with the number of symbolic links.

use std::collections::BTreeMap;
use std::ops::Bound;

use buttress_build::EntryPath;

use crate::tar::Problem;

/// The maximum number of links that one path may follow, as in the kernel.
const LINKS_MAX: usize = 40;

/// Targets of symbolic links, by the links' paths.
type Links = BTreeMap<Vec<u8>, Vec<u8>>;

/// The existing symbolic links.
///
/// A whiteout deletes links of lower layers only. These links are apart from the links of the latest
/// layer, so a whiteout visits only links that it deletes. Invariant: no path is in both maps.
#[derive(Debug, Default)]
pub(super) struct Symlinks {
    /// Links of layers below the latest one.
    lower: Links,
    /// Links of the latest layer.
    latest: Links,
    layer: usize,
}

impl Symlinks {
    /// Returns the path to which a path leads through symbolic links.
    pub(super) fn follow(&self, path: EntryPath) -> Result<EntryPath, Problem> {
        if self.is_empty() || !path.as_bytes().contains(&b'/') {
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
            let Some(target) = self.target(&at) else {
                continue;
            };
            followed = followed.saturating_add(1);
            if followed > LINKS_MAX {
                return Err(Problem::LinkLoop(path.as_bytes().to_vec()));
            }
            at.truncate(if target.first() == Some(&b'/') { 0 } else { before });
            ahead.extend(components(target));
        }
        EntryPath::new(&at).map_err(|problem| Problem::Path {
            field: "path",
            path: at,
            problem,
        })
    }

    fn is_empty(&self) -> bool {
        self.lower.is_empty() && self.latest.is_empty()
    }

    fn target(&self, path: &[u8]) -> Option<&[u8]> {
        let target = self.latest.get(path).or_else(|| self.lower.get(path));
        target.map(Vec::as_slice)
    }

    /// Begins the next layer: all links so far become those of lower layers.
    pub(super) fn begin_layer(&mut self, layer: usize) {
        if layer != self.layer {
            self.layer = layer;
            self.lower.extend(std::mem::take(&mut self.latest));
        }
    }

    /// Records that a member replaces the entry at its path with a symbolic link to `target`, a
    /// directory, or another file.
    pub(super) fn put(&mut self, path: &EntryPath, is_directory: bool, target: Option<&[u8]>) {
        if self.is_empty() && target.is_none() {
            return;
        }
        self.lower.remove(path.as_bytes());
        self.latest.remove(path.as_bytes());
        if !is_directory {
            self.clear_below(path);
            clear_below(&mut self.latest, path);
        }
        if let Some(target) = target {
            self.latest.insert(path.as_bytes().to_vec(), target.to_vec());
        }
    }

    /// Records that the entry of lower layers at a path is gone.
    pub(super) fn remove(&mut self, path: &EntryPath) {
        self.lower.remove(path.as_bytes());
        self.clear_below(path);
    }

    /// Records that the entries of lower layers below a path are gone.
    pub(super) fn clear_below(&mut self, path: &EntryPath) {
        clear_below(&mut self.lower, path);
    }
}

/// Removes the links below a path, and visits no other links.
fn clear_below(links: &mut Links, path: &EntryPath) {
    if links.is_empty() {
        return;
    }
    let from = match path.is_root() {
        true => Vec::new(),
        false => [path.as_bytes(), b"/"].concat(),
    };
    let all = links.range((Bound::Included(from.clone()), Bound::Unbounded));
    let below = all.take_while(|(key, _)| key.starts_with(&from));
    let gone: Vec<Vec<u8>> = below.map(|(key, _)| key.clone()).collect();
    for key in gone {
        links.remove(&key);
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
            links.put(&path(at), false, Some(target.as_bytes()));
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
        all.put(&path("a"), true, None);
        assert_eq!(all.follow(path("a/l/f")).unwrap(), path("a/x/f"));
        all.remove(&path("a"));
        assert_eq!(
            all.follow(path("a/l/f")).unwrap(),
            path("a/x/f"),
            "marks act on lower layers only"
        );
        all.begin_layer(1);
        all.remove(&path("a"));
        assert_eq!(all.follow(path("a/l/f")).unwrap(), path("a/l/f"));
        all.put(&path("b"), true, None);
        assert_eq!(all.follow(path("b/f")).unwrap(), path("b/f"));
    }

    #[test]
    fn marks_visit_only_links_of_lower_layers() {
        let mut all = Symlinks::default();
        let put = |all: &mut Symlinks, from: u32| {
            for number in from..from + 1000 {
                all.put(&path(&format!("d/{number}")), false, Some(b"x"));
            }
        };
        put(&mut all, 0);
        all.begin_layer(1);
        put(&mut all, 1000);
        assert_eq!((all.lower.len(), all.latest.len()), (1000, 1000));
        all.clear_below(&path("d"));
        all.remove(&path("d/1000"));
        assert_eq!(
            (all.lower.len(), all.latest.len()),
            (0, 1000),
            "the next marks visit nothing"
        );
        all.begin_layer(2);
        assert_eq!((all.lower.len(), all.latest.len()), (1000, 0));
        all.put(&path("d/1000"), false, Some(b"y"));
        all.clear_below(&path("d"));
        assert_eq!(all.follow(path("d/1000/f")).unwrap(), path("d/y/f"));
        assert_eq!(all.follow(path("d/1001/f")).unwrap(), path("d/1001/f"));
    }
}
