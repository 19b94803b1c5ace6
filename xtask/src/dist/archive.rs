//! Archives whose bytes depend only on their content: names in order, one time for all entries, and
//! root as the owner.

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};
use std::collections::BTreeSet;
use std::io::Write;

/// A file of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The path without a leading slash.
    pub(super) path: String,
    pub(super) mode: u32,
    pub(super) bytes: Vec<u8>,
}

impl Entry {
    pub(super) fn file(path: impl Into<String>, bytes: Vec<u8>) -> Self {
        Self {
            path: path.into(),
            mode: 0o644,
            bytes,
        }
    }

    pub(super) fn program(path: impl Into<String>, bytes: Vec<u8>) -> Self {
        Self {
            path: path.into(),
            mode: 0o755,
            bytes,
        }
    }
}

/// Compresses bytes by gzip, without a name and a time in the header.
pub(super) fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzBuilder::new().write(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

/// Returns the folders above all entries, each once, parents first.
fn folders(entries: &[Entry]) -> BTreeSet<&str> {
    entries
        .iter()
        .flat_map(|entry| entry.path.match_indices('/').map(|(end, _)| &entry.path[..=end]))
        .collect()
}

/// Makes a tar archive with its folders. Paths stay unchanged, including a leading `./`, which dpkg
/// expects.
pub(super) fn tar(entries: &[Entry], time: u64) -> Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for folder in folders(entries) {
        let header = header(folder, 0o755, 0, tar::EntryType::Directory, time)?;
        archive.append(&header, std::io::empty())?;
    }
    let mut sorted: Vec<&Entry> = entries.iter().collect();
    sorted.sort_by(|one, other| one.path.cmp(&other.path));
    for Entry { path, mode, bytes } in sorted {
        let header = header(path, *mode, bytes.len(), tar::EntryType::Regular, time)?;
        archive.append(&header, &bytes[..])?;
    }
    Ok(archive.into_inner()?)
}

fn header(path: &str, mode: u32, size: usize, kind: tar::EntryType, time: u64) -> Result<tar::Header> {
    let mut header = tar::Header::new_ustar();
    let field = &mut header.as_old_mut().name;
    let name = field.get_mut(..path.len());
    name.with_context(|| format!("a name of at most 100 bytes: {path}"))?
        .copy_from_slice(path.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_mtime(time);
    header.set_uid(0);
    header.set_gid(0);
    header.set_username("root")?;
    header.set_groupname("root")?;
    header.set_size(size as u64);
    header.set_cksum();
    Ok(header)
}

/// Makes a tar archive as [`tar`] does, and compresses it by gzip.
pub(super) fn tar_gz(entries: &[Entry], time: u64) -> Result<Vec<u8>> {
    gzip(&tar(entries, time)?)
}

/// Makes an `ar` archive, by ar(5): for each member a header line and its bytes, padded to an even
/// length.
pub(super) fn ar(members: &[(&str, Vec<u8>)], time: u64) -> Vec<u8> {
    let mut archive = b"!<arch>\n".to_vec();
    for (name, bytes) in members {
        let head = format!(
            "{name:<16}{time:<12}{:<6}{:<6}{:<8}{:<10}`\n",
            0,
            0,
            "100644",
            bytes.len()
        );
        archive.extend(head.bytes());
        archive.extend(bytes);
        if bytes.len() % 2 == 1 {
            archive.push(b'\n');
        }
    }
    archive
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_have_folders_order_and_nothing_of_the_machine() {
        let entries = [
            Entry::program("a/b/program", b"run".to_vec()),
            Entry::file("a/a", b"text".to_vec()),
        ];
        let bytes = tar(&entries, 7).unwrap();
        let mut archive = tar::Archive::new(&bytes[..]);
        let found: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let header = entry.header();
                assert_eq!((header.mtime().unwrap(), header.uid().unwrap()), (7, 0));
                let path = entry.path().unwrap().display().to_string();
                (path, header.mode().unwrap(), header.size().unwrap())
            })
            .collect();
        let expected = [
            ("a/", 0o755, 0),
            ("a/b/", 0o755, 0),
            ("a/a", 0o644, 4),
            ("a/b/program", 0o755, 3),
        ];
        assert_eq!(
            found,
            expected.map(|(path, mode, size)| (path.to_owned(), mode, size))
        );
        assert_eq!(tar_gz(&entries, 7).unwrap(), tar_gz(&entries, 7).unwrap());
        assert_eq!(gzip(b"x").unwrap()[4..8], [0; 4], "no time in the header");
    }

    #[test]
    fn members_of_ar_begin_at_even_bytes() {
        let bytes = ar(&[("one", b"odd".to_vec()), ("two", b"even".to_vec())], 7);
        assert_eq!(bytes.len(), 8 + 60 + 4 + 60 + 4);
        assert_eq!(&bytes[8 + 60 + 4..][..3], b"two");
        assert_eq!(
            &bytes[8..68],
            b"one             7           0     0     100644  3         `\n"
        );
    }
}
