//! Paths in the order of a walk: one buffer for the paths of all open directories, and a short form for
//! spools.
//!
//! In a walk, the path of each open directory is a prefix of the current path. An open directory
//! therefore holds only the length of its path. A spooled path holds only its difference from the path
//! before. Invariant: memory and spools grow with the length of paths, not with the sum of their
//! prefixes, which is quadratic in the depth.

use crate::entry::EntryPath;
use crate::record::{Decoder, Encoder};
use crate::tree::is_below;

/// The path of the innermost open directory, which contains the paths of all open directories.
#[derive(Debug, Default)]
pub(crate) struct OpenPath(Vec<u8>);

impl OpenPath {
    /// Sets the path, whose directories remain open.
    pub(crate) fn set(&mut self, path: &[u8]) {
        self.0.clear();
        self.0.extend_from_slice(path);
    }

    /// Returns the path of the open directory of this length.
    pub(crate) fn of(&self, length: usize) -> &[u8] {
        debug_assert!(length <= self.0.len(), "{length} of {} bytes", self.0.len());
        // Clamp: the buffer begins with the path of every open directory.
        self.0.get(..length).unwrap_or(&self.0)
    }

    /// Returns true if the open directory whose path has this length contains `path`.
    pub(crate) fn contains(&self, length: usize, path: &[u8]) -> bool {
        is_below(path, self.of(length))
    }
}

/// The spooled form of paths: the length that a path has in common with the path before, and the rest.
#[derive(Debug, Default)]
pub(crate) struct SpooledPath(Vec<u8>);

impl SpooledPath {
    pub(crate) fn encode(&mut self, path: &[u8], to: &mut Encoder) {
        let same = self
            .0
            .iter()
            .zip(path)
            .take_while(|(before, now)| before == now)
            .count();
        let (_, rest) = path.split_at(same);
        to.number(buttress_exact::u64_of(same)).bytes(rest);
        self.0.truncate(same);
        self.0.extend_from_slice(rest);
    }

    /// Returns `None` for bytes that [`encode`](Self::encode) did not write.
    pub(crate) fn decode(&mut self, from: &mut Decoder<'_>) -> Option<EntryPath> {
        let same = usize::try_from(from.number()?).ok()?;
        if same > self.0.len() {
            return None;
        }
        self.0.truncate(same);
        self.0.extend_from_slice(from.bytes()?);
        EntryPath::new(&self.0).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spooled_paths_take_the_space_of_their_differences() {
        let deep = vec!["name"; 2048].join("/");
        let ends = deep
            .bytes()
            .enumerate()
            .filter(|(_, byte)| *byte == b'/')
            .map(|(end, _)| end);
        let mut paths: Vec<&str> = ends.map(|end| deep.get(..end).unwrap()).collect();
        paths.extend(["name/a", "name/a/b", "name/abc", "z", ""]);
        let (mut writer, mut bytes) = (SpooledPath::default(), Encoder::default());
        for path in &paths {
            writer.encode(path.as_bytes(), &mut bytes);
        }
        assert!(bytes.0.len() < 5 * deep.len(), "{} bytes", bytes.0.len());
        let (mut reader, mut rest) = (SpooledPath::default(), Decoder(&bytes.0));
        for path in &paths {
            assert_eq!(reader.decode(&mut rest).unwrap().as_bytes(), path.as_bytes());
        }
        assert!(rest.0.is_empty());
        assert!(
            SpooledPath::default()
                .decode(&mut Decoder(&[9, 0, 0, 0, 0, 0, 0, 0, 0]))
                .is_none()
        );
    }

    #[test]
    fn open_directories_share_one_path() {
        let mut open = OpenPath::default();
        open.set(b"a/bc/d");
        assert_eq!(
            (open.of(0), open.of(1), open.of(4)),
            (&b""[..], &b"a"[..], &b"a/bc"[..])
        );
        assert!(open.contains(4, b"a/bc/x") && !open.contains(4, b"a/bcd"));
    }
}
