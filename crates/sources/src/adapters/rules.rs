//! Rules of manifests: attributes for a path, and for everything below the path.

use std::collections::HashMap;

use buttress_build::{Compress, Entry, EntryKind, EntryPath, Verdict};
use buttress_format::{InodeFlags, Timestamp};
use buttress_fs::Xattr;

/// A rule: the attributes for the entry at a path and, if requested, for all entries below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The path.
    pub path: EntryPath,
    /// True if the rule also applies to everything below its path.
    pub below: bool,
    /// Permission bits.
    pub permissions: Option<u32>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The time of the last change of content.
    pub mtime: Option<Timestamp>,
    /// The inode flags to add. Inode flags about content apply only to files and directories.
    pub flags: InodeFlags,
    /// The compression of files.
    pub compression: Option<Compress>,
    /// The extended attributes to add or replace.
    pub xattrs: Vec<Xattr>,
}

/// A list of rules. A later rule overrides an earlier one, whatever the paths of both rules.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    rules: Vec<Rule>,
    /// The indexes of each path's rules.
    by_path: HashMap<Vec<u8>, Vec<usize>>,
}

impl Rules {
    /// Returns true if there are no rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Adds a rule after all others.
    pub fn add(&mut self, rule: Rule) {
        self.by_path
            .entry(rule.path.as_bytes().to_vec())
            .or_default()
            .push(self.rules.len());
        self.rules.push(rule);
    }

    /// Applies all matching rules to the entry.
    pub fn apply(&self, entry: &mut Entry) -> Verdict {
        let path = entry.path.as_bytes().to_vec();
        let ends = path
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'/')
            .map(|(at, _)| at);
        let above = ends.chain([0]).filter(|end| *end < path.len());
        let mut places: Vec<usize> = Vec::new();
        for end in above {
            let directory = path.get(..end).unwrap_or_default();
            let of = self.by_path.get(directory).into_iter().flatten().copied();
            places.extend(of.filter(|place| self.rules.get(*place).is_some_and(|rule| rule.below)));
        }
        places.extend(self.by_path.get(&path).into_iter().flatten());
        places.sort_unstable();
        for rule in places.into_iter().filter_map(|place| self.rules.get(place)) {
            rule.apply(entry);
        }
        Verdict::Keep
    }
}

impl Rule {
    fn apply(&self, entry: &mut Entry) {
        let is_file = matches!(entry.kind, EntryKind::File(_));
        let is_directory = matches!(entry.kind, EntryKind::Directory(_));
        let is_link = matches!(entry.kind, EntryKind::Symlink(_));
        let attributes = &mut entry.attributes;
        if !is_link {
            attributes.permissions = self.permissions.unwrap_or(attributes.permissions);
        }
        attributes.uid = self.uid.unwrap_or(attributes.uid);
        attributes.gid = self.gid.unwrap_or(attributes.gid);
        attributes.mtime = self.mtime.unwrap_or(attributes.mtime);
        if is_file {
            attributes.flags |= self.flags;
            attributes.compression = self.compression.or(attributes.compression);
        } else if is_directory {
            let sums_too = InodeFlags::NODATACOW | InodeFlags::NODATASUM;
            let flags = if self.flags.contains(sums_too) {
                self.flags.difference(InodeFlags::NODATASUM)
            } else {
                self.flags
            };
            attributes.flags |= flags;
        }
        for xattr in &self.xattrs {
            attributes.xattrs.retain(|known| known.name != xattr.name);
            attributes.xattrs.push(xattr.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use buttress_build::{Attributes, FileContent, Precedence};

    fn path(text: &str) -> EntryPath {
        EntryPath::new(text.as_bytes()).unwrap()
    }

    fn owner(rules: &Rules, text: &str) -> u32 {
        let mut entry = Entry {
            path: path(text),
            precedence: Precedence(0),
            kind: EntryKind::File(FileContent::default()),
            attributes: Attributes::default(),
        };
        assert_eq!(rules.apply(&mut entry), Verdict::Keep);
        entry.attributes.uid
    }

    #[test]
    fn the_later_rule_decides_and_only_below_its_path() {
        let mut rules = Rules::default();
        let rule = |text: &str, uid, below| Rule {
            path: path(text),
            below,
            uid: Some(uid),
            ..Rule::default()
        };
        rules.add(rule("/a", 1, true));
        rules.add(rule("/a/b/c", 2, false));
        rules.add(rule("/a/b", 3, true));
        rules.add(rule("/z", 4, false));
        for (path, uid) in [
            ("", 0),
            ("ab", 0),
            ("a", 1),
            ("a/x", 1),
            ("a/b", 3),
            ("a/b/c", 3),
            ("a/bc", 1),
            ("z", 4),
            ("z/y", 0),
        ] {
            assert_eq!(owner(&rules, path), uid, "{path}");
        }
        rules.add(rule("/", 5, true));
        assert_eq!(owner(&rules, "z/y"), 5);
        assert_eq!(owner(&rules, ""), 5);
    }
}
