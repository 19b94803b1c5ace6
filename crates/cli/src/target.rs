//! Arguments that name a file in a volume, `IMAGE:/path`.
//!
//! Names are bytes. The image's own name may contain colons, so [`Target::parse`] checks which
//! files exist. The volume's image is the first match of: the whole argument; the shortest part
//! before a `:/` that exists; the part before the first `:/`; the whole argument. Without a path,
//! the target is the root directory.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use buttress::SubvolumeId;
use serde_json::{Map, Value};

use crate::opening::generation::Wanted;
use crate::output::json::insert_name;

/// An image or device, and a path inside its volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The image file or block device.
    pub image: PathBuf,
    /// Path inside the volume; `/` if the argument has none. The path in the volume always begins
    /// with `/`.
    pub path: Vec<u8>,
    /// True if the argument has a path.
    pub has_path: bool,
    /// For a path below a mount: the argument, for messages.
    pub word: Option<OsString>,
}

impl Target {
    /// Splits an argument at its colon, and checks which files exist.
    pub fn parse(argument: &OsStr) -> Self {
        Self::parse_with(argument, |path| path.symlink_metadata().is_ok())
    }

    fn parse_with(argument: &OsStr, exists: impl Fn(&Path) -> bool) -> Self {
        let bytes = argument.as_bytes();
        let whole = || Self {
            image: argument.into(),
            path: b"/".to_vec(),
            has_path: false,
            word: None,
        };
        if exists(Path::new(argument)) {
            return whole();
        }
        let mut first = None;
        for (position, pair) in bytes.windows(2).enumerate() {
            if pair != b":/" || position == 0 {
                continue;
            }
            let Some((image, rest)) = bytes.split_at_checked(position) else {
                continue;
            };
            let path = rest.get(1..).unwrap_or(b"/").to_vec();
            let target = Self {
                image: OsString::from_vec(image.to_vec()).into(),
                path,
                has_path: true,
                word: None,
            };
            if exists(&target.image) {
                return target;
            }
            first.get_or_insert(target);
        }
        if first.is_none()
            && let Some(image) = bytes.strip_suffix(b":")
            && exists(Path::new(OsStr::from_bytes(image)))
        {
            return Self {
                image: OsStr::from_bytes(image).into(),
                path: b"/".to_vec(),
                has_path: true,
                word: None,
            };
        }
        first.unwrap_or_else(whole)
    }

    /// Returns the target as JSON: `image`, and `path` if the argument has one.
    pub fn as_json(&self) -> Map<String, Value> {
        let mut object = Map::new();
        insert_name(&mut object, "image", self.image.as_os_str().as_bytes());
        if self.has_path {
            insert_name(&mut object, "path", &self.path);
        }
        object
    }

    /// Returns the target as JSON, with the id of its subvolume.
    pub fn with_id(&self, id: SubvolumeId) -> Value {
        let mut object = self.as_json();
        object.insert("id".into(), id.get().into());
        Value::Object(object)
    }

    /// Returns the name of a file below the target for messages, in the user's spelling. `inner` is
    /// the file's path relative to the target, or empty.
    pub fn name_of(&self, inner: &[u8]) -> Vec<u8> {
        let mut name = match &self.word {
            Some(word) => word.as_bytes().to_vec(),
            None if self.has_path => self.path.clone(),
            None => b"/".to_vec(),
        };
        if !inner.is_empty() {
            if !name.ends_with(b"/") {
                name.push(b'/');
            }
            name.extend_from_slice(inner);
        }
        name
    }

    /// Returns the argument as the user wrote it, for messages.
    pub fn display(&self) -> String {
        if let Some(word) = &self.word {
            return word.display().to_string();
        }
        let image = self.image.display();
        if self.state() != Wanted::Newest {
            let inner = self.path.strip_suffix(b"/").unwrap_or(&self.path); // Clamp: only a slash at the end goes.
            format!("{image}{}", String::from_utf8_lossy(inner))
        } else if self.has_path {
            format!("{image}:{}", String::from_utf8_lossy(&self.path))
        } else {
            image.to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(argument: &[u8], existing: &[&str]) -> (String, Vec<u8>, bool) {
        let target = Target::parse_with(OsStr::from_bytes(argument), |path| {
            existing.iter().any(|name| Path::new(name) == path)
        });
        (
            target.image.to_str().unwrap().to_owned(),
            target.path,
            target.has_path,
        )
    }

    type Case = (
        &'static [u8],
        &'static [&'static str],
        &'static str,
        &'static [u8],
        bool,
    );

    #[test]
    fn existing_files_decide_where_the_image_ends() {
        let cases: [Case; 9] = [
            (b"a.img", &["a.img"], "a.img", b"/", false),
            (b"a.img:/etc", &["a.img"], "a.img", b"/etc", true),
            (b"a.img:/", &["a.img"], "a.img", b"/", true),
            (b"a:b.img:/etc", &["a:b.img"], "a:b.img", b"/etc", true),
            (b"a:/b:/c", &["a:/b"], "a:/b", b"/c", true),
            (b"a:/b:/c", &["a"], "a", b"/b:/c", true),
            (b"a:/b:/c", &["a:/b:/c"], "a:/b:/c", b"/", false),
            (b"missing:/x:/y", &[], "missing", b"/x:/y", true),
            (b"missing", &[], "missing", b"/", false),
        ];
        for (argument, existing, image, path, has_path) in cases {
            assert_eq!(
                parse(argument, existing),
                (image.to_owned(), path.to_vec(), has_path),
                "{}",
                argument.escape_ascii()
            );
        }
    }

    #[test]
    fn paths_inside_are_bytes() {
        let (_, path, _) = parse(b"a.img:/\xff\xfe", &["a.img"]);
        assert_eq!(path, b"/\xff\xfe");
        assert_eq!(
            parse(b"a.img:", &["a.img"]),
            ("a.img".to_owned(), b"/".to_vec(), true)
        );
    }
}
