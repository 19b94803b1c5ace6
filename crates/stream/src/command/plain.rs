//! Normalisation of path forms that other senders use: `./path`, `path/`, `/path`.
//!
//! btrfs-progs appends the path to the subvolume's path, so all these forms name the same file.
//! Names like `..`, and empty names inside a path, stay unchanged; the receiver refuses them.

use super::Command;

/// Form of a path that is not plain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathForm {
    /// The path begins with a slash, and this slash stands for the subvolume's root.
    Absolute,
    /// The path begins or ends with a `.` component.
    Dot,
    /// The path ends with a slash.
    TrailingSlash,
}

/// Returns the plain form of a path, and the first deviation of the path from it.
fn plain_path(path: &[u8]) -> (&[u8], Option<PathForm>) {
    let (mut rest, mut form) = (path, None);
    loop {
        let (found, shorter) = if let Some(shorter) = rest.strip_prefix(b"/") {
            (PathForm::Absolute, shorter)
        } else if let Some(shorter) = rest.strip_prefix(b"./") {
            (PathForm::Dot, shorter)
        } else if let Some(shorter) = rest.strip_suffix(b"/.") {
            (PathForm::Dot, shorter)
        } else if let Some(shorter) = rest.strip_suffix(b"/") {
            (PathForm::TrailingSlash, shorter)
        } else if rest == b"." {
            (PathForm::Dot, <&[u8]>::default())
        } else {
            return (rest, form);
        };
        form = form.or(Some(found));
        rest = shorter;
    }
}

impl<'a> Command<'a> {
    /// Returns the command with plain paths, and the form of the first path that was not plain. The
    /// names of subvolumes stay unchanged.
    #[must_use]
    pub fn plain(self) -> (Self, Option<PathForm>) {
        let mut form = None;
        let mut map = |path: &'a [u8]| {
            let (plain, found) = plain_path(path);
            form = form.or(found);
            plain
        };
        let plain = match self {
            Self::Subvolume { .. } | Self::Snapshot { .. } => self,
            Self::Link { path, target } => Self::Link {
                path: map(path),
                target: map(target),
            },
            command => command.map_most_paths(&mut map),
        };
        (plain, form)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_plain_and_still_lead_out() {
        use PathForm::{Absolute, Dot, TrailingSlash};
        let cases: [(&[u8], &[u8], Option<PathForm>); 17] = [
            (b"", b"", None),
            (b"a/b", b"a/b", None),
            (b".git/x.", b".git/x.", None),
            (b"./a", b"a", Some(Dot)),
            (b"././a", b"a", Some(Dot)),
            (b".", b"", Some(Dot)),
            (b"./", b"", Some(Dot)),
            (b"a/.", b"a", Some(Dot)),
            (b"a/", b"a", Some(TrailingSlash)),
            (b"a//", b"a", Some(TrailingSlash)),
            (b"/", b"", Some(Absolute)),
            (b"/a/b", b"a/b", Some(Absolute)),
            (b"//./a/", b"a", Some(Absolute)),
            (b"..", b"..", None),
            (b"/../a", b"../a", Some(Absolute)),
            (b"a/../b", b"a/../b", None),
            (b"a//b", b"a//b", None),
        ];
        for (path, plain, form) in cases {
            assert_eq!(plain_path(path), (plain, form), "{}", path.escape_ascii());
        }
    }

    #[test]
    fn paths_of_commands_become_plain_except_targets_and_names() {
        let rename = Command::Rename {
            from: b"./a",
            to: b"/b",
        };
        let plain = Command::Rename { from: b"a", to: b"b" };
        assert_eq!(rename.plain(), (plain, Some(PathForm::Dot)));
        let link = Command::Link {
            path: b"a",
            target: b"b/",
        };
        let plain = Command::Link {
            path: b"a",
            target: b"b",
        };
        assert_eq!(link.plain(), (plain, Some(PathForm::TrailingSlash)));
        let symlink = Command::Symlink {
            path: b"a",
            inode: None,
            target: b"./b/",
        };
        assert_eq!(symlink.plain(), (symlink, None));
        let xattr = Command::SetXattr {
            path: b"a",
            name: b"/user./",
            value: b"/",
        };
        assert_eq!(xattr.plain(), (xattr, None));
    }
}
