//! Paths inside a volume: bytes separated by slashes, from several types of the caller.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// A path inside a volume.
///
/// Names on btrfs are bytes, so text, paths of the standard library and plain bytes all work. A
/// path begins at the root of its [`Subvolume`](crate::Subvolume), with or without a leading slash.
/// An empty path is the root.
///
/// ```
/// use buttress::VolumePath;
///
/// assert_eq!(&*"home/ann".volume_path(), b"home/ann");
/// assert_eq!(&*std::path::Path::new("/home/ann").volume_path(), b"/home/ann");
/// assert_eq!(&*b"not utf-8: \xff".volume_path(), b"not utf-8: \xff");
/// ```
pub trait VolumePath {
    /// Returns the path's bytes.
    fn volume_path(&self) -> Cow<'_, [u8]>;
}

macro_rules! volume_path {
    ($($type:ty: $self:ident => $bytes:expr;)*) => {$(
        impl VolumePath for $type {
            fn volume_path(&$self) -> Cow<'_, [u8]> {
                Cow::Borrowed($bytes)
            }
        }
    )*};
}

volume_path! {
    str: self => self.as_bytes();
    String: self => self.as_bytes();
    [u8]: self => self;
    Vec<u8>: self => self;
    OsStr: self => self.as_encoded_bytes();
    OsString: self => self.as_encoded_bytes();
    Path: self => self.as_os_str().as_encoded_bytes();
    PathBuf: self => self.as_os_str().as_encoded_bytes();
}

impl<const LENGTH: usize> VolumePath for [u8; LENGTH] {
    fn volume_path(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self)
    }
}

impl<T: VolumePath + ?Sized> VolumePath for &T {
    fn volume_path(&self) -> Cow<'_, [u8]> {
        (**self).volume_path()
    }
}

impl<T: VolumePath + ToOwned + ?Sized> VolumePath for Cow<'_, T> {
    fn volume_path(&self) -> Cow<'_, [u8]> {
        (**self).volume_path()
    }
}

/// Splits a path into its directory part and its last name. Trailing slashes are ignored; the root
/// has an empty name.
#[cfg(any(test, feature = "write"))]
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let end = path
        .iter()
        .rposition(|byte| *byte != b'/')
        .map_or(0, |last| last.saturating_add(1));
    let path = path.get(..end).unwrap_or(path);
    let start = path
        .iter()
        .rposition(|byte| *byte == b'/')
        .map_or(0, |slash| slash.saturating_add(1));
    path.split_at_checked(start).unwrap_or((b"", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_parts_before_its_last_name() {
        for (path, directory, name) in [
            ("a", "", "a"),
            ("/a", "/", "a"),
            ("a/b//", "a/", "b"),
            ("/", "", ""),
            ("", "", ""),
        ] {
            assert_eq!(
                split(path.as_bytes()),
                (directory.as_bytes(), name.as_bytes()),
                "{path}"
            );
        }
    }
}
