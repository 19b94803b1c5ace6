//! Where the commands of a session find their targets.
//!
//! A session (`buttress shell`) has one volume open and stands in a directory of it. The commands that look at volumes
//! run in it as they are: what would open an image gives the session's volume, and what would be an `IMAGE:/path` is a
//! path.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::context::Context;
use crate::opening::Opened;
use crate::target::Target;

/// A volume and a directory in it.
#[derive(Clone, Debug)]
pub struct Place {
    /// The volume as it is now.
    pub opened: Opened,
    /// Its image, for messages.
    pub image: PathBuf,
    /// The path from the root of paths to the directory; it begins with a slash.
    pub directory: Vec<u8>,
}

impl Context {
    /// What an argument names: something in an image, or, in a session, in its volume.
    pub fn target(&self, argument: &OsStr) -> Target {
        match self.place() {
            Some(place) => Target {
                path: absolute(&place.directory, argument.as_bytes()),
                image: place.image,
                has_path: true,
            },
            None => Target::parse(argument),
        }
    }
}

/// A path as it is seen from the directory, from the root. `..` and links are left to whoever follows it.
pub fn absolute(directory: &[u8], path: &[u8]) -> Vec<u8> {
    if path.first() == Some(&b'/') {
        return path.to_vec();
    }
    let mut whole = directory.to_vec();
    if path.is_empty() || path == b"." {
        return whole;
    }
    if !whole.ends_with(b"/") {
        whole.push(b'/');
    }
    whole.extend_from_slice(path);
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_seen_from_the_directory() {
        let cases: [(&[u8], &[u8], &[u8]); 6] = [
            (b"/", b"a", b"/a"),
            (b"/d", b"a/b", b"/d/a/b"),
            (b"/d", b"/a", b"/a"),
            (b"/d", b".", b"/d"),
            (b"/d", b"../a", b"/d/../a"),
            (b"/d", b"a/", b"/d/a/"),
        ];
        for (directory, path, expected) in cases {
            assert_eq!(absolute(directory, path), expected);
        }
    }
}
