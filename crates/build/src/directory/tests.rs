use super::*;
use buttress_format::FileOffset;
use std::fs;
use std::os::unix::fs::symlink;

/// Returns the entries up to the one at `path`, which is the last one.
fn entries_until(source: &mut DirectorySource, path: &[u8]) -> Vec<Entry> {
    let mut entries = Vec::new();
    loop {
        let entry = source.next_entry().unwrap().unwrap();
        let is_last = entry.path.as_bytes() == path;
        entries.push(entry);
        if is_last {
            return entries;
        }
    }
}

/// Returns the error that ends the source. Entries before it must be located in the root.
fn failure(source: &mut DirectorySource) -> SourceError {
    loop {
        match source.next_entry() {
            Ok(Some(entry)) => {
                let name = entry.path.name().to_vec();
                assert!(name != b"secret", "an entry from outside of the root");
            }
            Ok(None) => panic!("the source ended without an error"),
            Err(error) => return error,
        }
    }
}

/// A root with `d/file`, beside a directory with `secret`.
fn folders() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("root/d")).unwrap();
    fs::write(folder.path().join("root/d/file"), "content").unwrap();
    fs::create_dir(folder.path().join("outside")).unwrap();
    fs::write(folder.path().join("outside/secret"), "secret").unwrap();
    fs::hard_link(
        folder.path().join("root/d/file"),
        folder.path().join("outside/file"),
    )
    .unwrap();
    folder
}

#[test]
fn replaced_directory_is_not_read() {
    for with_link in [true, false] {
        let folder = folders();
        let path = |name| folder.path().join(name);
        let mut source = DirectorySource::new(&path("root"));
        entries_until(&mut source, b"d");
        fs::rename(path("root/d"), path("moved")).unwrap();
        match with_link {
            true => symlink(path("outside"), path("root/d")).unwrap(),
            false => fs::rename(path("outside"), path("root/d")).unwrap(),
        }
        let error = failure(&mut source);
        match with_link {
            true => assert!(matches!(error, SourceError::Io { .. }), "{error}"),
            false => assert!(matches!(error, SourceError::Changed { .. }), "{error}"),
        }
    }
}

#[test]
fn content_below_a_link_is_not_read() {
    let folder = folders();
    let path = |name| folder.path().join(name);
    let mut source = DirectorySource::new(&path("root"));
    let entries = entries_until(&mut source, b"d/file");
    let entry = entries.last().unwrap();
    let EntryKind::File(content) = &entry.kind else {
        panic!("{entry:?}");
    };
    let contents = source.contents().unwrap();
    let mut bytes = [0; 7];
    let mut reader = contents.open(&entry.path, content).unwrap();
    reader.read_exact_at(FileOffset::MIN, &mut bytes).unwrap();
    assert_eq!(&bytes, b"content");
    // Both directories have the file.
    fs::rename(path("root/d"), path("moved")).unwrap();
    symlink(path("outside"), path("root/d")).unwrap();
    assert!(matches!(
        contents.open(&entry.path, content),
        Err(SourceError::Io { .. })
    ));
}

#[test]
fn links_and_their_attributes_are_read_themselves() {
    let folder = folders();
    let path = |name| folder.path().join(name);
    symlink(path("outside"), path("root/to")).unwrap();
    let user = rustix::fs::setxattr(path("outside"), "user.a", b"x", rustix::fs::XattrFlags::empty());
    let mut source = DirectorySource::new(&path("root"));
    let entries = entries_until(&mut source, b"to");
    let entry = entries.last().unwrap();
    let target = path("outside").into_os_string().into_encoded_bytes();
    assert_eq!(entry.kind, EntryKind::Symlink(target));
    let user_xattr = |xattr: &Xattr| xattr.name.starts_with(b"user.");
    assert!(!entry.attributes.xattrs.iter().any(user_xattr), "{user:?}");
}
