//! Tests that archives of GNU tar, in each of its formats and forms of sparse files, yield the
//! packed files. The test compresses archives with each supported program.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a test computes with known numbers"
)]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use buttress_build::{Entry, EntryKind, Source};
use buttress_format::FileOffset;
use buttress_fs::Progress;
use buttress_sources::Layers;

/// Returns a tree with cases that are difficult for archives. The names fit the ustar format unless
/// `long_names` is set.
fn tree(long_names: bool) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    fs::create_dir_all(at("d/e/f")).unwrap();
    fs::write(at("empty"), "").unwrap();
    fs::write(at("small"), "small\n").unwrap();
    fs::write(at("blocks"), vec![7; 1024]).unwrap();
    fs::write(
        at("d/large"),
        (0..300_000_u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>(),
    )
    .unwrap();
    fs::hard_link(at("small"), at("d/e/link")).unwrap();
    symlink("../small", at("d/symlink")).unwrap();
    fs::set_permissions(at("small"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(at("d"), fs::Permissions::from_mode(0o1777)).unwrap();
    // The sparse file of this test has more ranges than an old-form header or one of its extension
    // blocks holds.
    let sparse = fs::File::create(at("d/sparse")).unwrap();
    for range in 0..60_u64 {
        sparse
            .write_all_at(&[range as u8 + 1; 4096], range * (64 << 10))
            .unwrap();
    }
    sparse.set_len(((60 * 64) << 10) + 12_345).unwrap();
    fs::File::create(at("hole")).unwrap().set_len(3 << 30).unwrap();
    if long_names {
        let name = "n".repeat(200);
        let deep = format!("d/{}", format!("{}/", "p".repeat(90)).repeat(4));
        fs::create_dir_all(at(&deep)).unwrap();
        fs::write(at(&format!("{deep}{name}")), "far down").unwrap();
        symlink("t".repeat(300), at("long target")).unwrap();
        fs::hard_link(at(&format!("{deep}{name}")), at("linked")).unwrap();
        fs::write(at("ä\u{1f600} \n"), "odd name").unwrap();
    }
    root
}

/// The compared properties of a file.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    kind: char,
    permissions: u32,
    uid: u32,
    gid: u32,
    seconds: i64,
    nanoseconds: u32,
    target: Vec<u8>,
    size: u64,
    /// The test file's data of each 4 KiB block with data, without leading or trailing zeros.
    data: Vec<(u64, Vec<u8>)>,
}

fn blocks(size: u64, mut read: impl FnMut(u64, &mut [u8])) -> Vec<(u64, Vec<u8>)> {
    let mut found = Vec::new();
    // If a test file is one hole, it is too large to be read completely.
    let step = if size > 1 << 30 { 64 << 20 } else { 4096 };
    for at in (0..size).step_by(step) {
        let mut block = vec![0; 4096.min((size - at) as usize)];
        read(at, &mut block);
        if block.iter().any(|byte| *byte != 0) {
            found.push((at, block));
        }
    }
    found
}

fn on_host(root: &Path) -> BTreeMap<Vec<u8>, Seen> {
    use std::os::unix::ffi::OsStrExt;
    let mut all = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(path) = open.pop() {
        let metadata = path.symlink_metadata().unwrap();
        let kind = metadata.file_type();
        let mut seen = Seen {
            kind: '-',
            permissions: metadata.mode() & 0o7777,
            uid: metadata.uid(),
            gid: metadata.gid(),
            seconds: metadata.mtime(),
            nanoseconds: metadata.mtime_nsec() as u32,
            target: Vec::new(),
            size: 0,
            data: Vec::new(),
        };
        if kind.is_dir() {
            seen.kind = 'd';
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if kind.is_symlink() {
            seen.kind = 'l';
            seen.target = path.read_link().unwrap().as_os_str().as_bytes().to_vec();
        } else {
            let file = fs::File::open(&path).unwrap();
            seen.size = metadata.len();
            seen.data = blocks(seen.size, |at, into| file.read_exact_at(into, at).unwrap());
        }
        let below = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
        all.insert(below, seen);
    }
    all
}

fn in_archive(mut layers: Layers) -> (BTreeMap<Vec<u8>, Seen>, Vec<Entry>) {
    let mut entries = Vec::new();
    while let Some(entry) = layers.next_entry().unwrap() {
        entries.push(entry);
    }
    let contents = layers.contents().unwrap();
    let mut all = BTreeMap::new();
    for entry in &entries {
        let attributes = &entry.attributes;
        let mut seen = Seen {
            kind: '-',
            permissions: attributes.permissions,
            uid: attributes.uid,
            gid: attributes.gid,
            seconds: attributes.mtime.seconds,
            nanoseconds: attributes.mtime.nanoseconds,
            target: Vec::new(),
            size: 0,
            data: Vec::new(),
        };
        match &entry.kind {
            EntryKind::Directory(_) => seen.kind = 'd',
            EntryKind::Symlink(target) => {
                seen.kind = 'l';
                seen.target = target.clone();
            }
            EntryKind::File(file) => {
                seen.size = file.size.get();
                let mut reader = contents.open(&entry.path, file).unwrap();
                seen.data = blocks(seen.size, |at, into| {
                    reader.read_exact_at(FileOffset::new(at), into).unwrap();
                });
                reader.finish().unwrap();
            }
            other => panic!("{other:?}"),
        }
        all.insert(entry.path.as_bytes().to_vec(), seen);
    }
    (all, entries)
}

fn tar(root: &Path, options: &[&str]) -> Vec<u8> {
    let output = Command::new("tar")
        .arg("-C")
        .arg(root)
        .args(options)
        .args(["-c", "."])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

fn opened(archive: &[u8]) -> (tempfile::TempDir, Layers) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("archive");
    fs::write(&path, archive).unwrap();
    let layers = Layers::tar(&path, folder.path(), &Progress::new()).unwrap();
    (folder, layers)
}

#[test]
fn every_format_and_form_of_sparse_files() {
    let forms: [(&[&str], bool, bool); 8] = [
        (&["--format=v7"], false, false),
        (&["--format=ustar"], false, false),
        (&["--format=gnu"], true, false),
        (&["--format=gnu", "--sparse"], true, false),
        (&["--format=posix"], true, true),
        (
            &["--format=posix", "--sparse", "--sparse-version=0.0"],
            true,
            true,
        ),
        (
            &["--format=posix", "--sparse", "--sparse-version=0.1"],
            true,
            true,
        ),
        (
            &["--format=posix", "--sparse", "--sparse-version=1.0"],
            true,
            true,
        ),
    ];
    for (options, long_names, nanoseconds) in forms {
        let root = tree(long_names);
        let sparse = options.contains(&"--sparse");
        if !sparse {
            // A plain archive would store 3 GiB of zeros.
            fs::remove_file(root.path().join("hole")).unwrap();
        }
        let mut wanted = on_host(root.path());
        if !nanoseconds {
            for seen in wanted.values_mut() {
                seen.nanoseconds = 0;
            }
        }
        let (_folder, layers) = opened(&tar(root.path(), options));
        let (found, entries) = in_archive(layers);
        let paths = |all: &BTreeMap<Vec<u8>, Seen>| all.keys().cloned().collect::<Vec<_>>();
        assert_eq!(paths(&found), paths(&wanted), "{options:?}");
        for (path, seen) in &found {
            assert!(
                wanted[path] == *seen,
                "{options:?}: {:?}",
                String::from_utf8_lossy(path)
            );
        }
        let link = |path: &str| {
            let entry = entries
                .iter()
                .find(|entry| entry.path.as_bytes() == path.as_bytes());
            entry.unwrap().attributes.link
        };
        assert!(link("small").is_some());
        assert_eq!(link("small"), link("d/e/link"), "{options:?}");
        if sparse {
            holes_are_holes(root.path(), options);
        }
    }
}

fn holes_are_holes(root: &Path, options: &[&str]) {
    let (_folder, mut layers) = opened(&tar(root, options));
    let mut ranges = BTreeMap::new();
    let mut files = Vec::new();
    while let Some(entry) = layers.next_entry().unwrap() {
        if let EntryKind::File(file) = entry.kind {
            files.push((entry.path, file));
        }
    }
    for (path, file) in files {
        let contents = layers.contents().unwrap();
        let mut reader = contents.open(&path, &file).unwrap();
        let (mut at, mut count) = (FileOffset::new(0), 0);
        while let Some(range) = reader.next_data(at).unwrap() {
            assert!(range.start >= at && range.start < range.end);
            at = range.end;
            count += 1;
        }
        ranges.insert(path.as_bytes().to_vec(), count);
    }
    assert_eq!(ranges[&b"d/sparse"[..]], 60, "{options:?}");
    assert_eq!(ranges[&b"hole"[..]], 0, "{options:?}");
    assert_eq!(ranges[&b"d/large"[..]], 1, "{options:?}");
}

#[test]
fn compressed_by_each_program_from_a_file_and_from_a_pipe() {
    let root = tree(true);
    fs::remove_file(root.path().join("hole")).unwrap();
    let wanted = on_host(root.path());
    let plain = tar(root.path(), &["--format=posix"]);
    for program in ["gzip", "zstd", "xz", "bzip2"] {
        let mut child = match Command::new(program)
            .arg("-c")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
        {
            Ok(child) => child,
            Err(error) => {
                buttress_oracle::skip::skip(&buttress_oracle::needs::Missing::new(
                    "tar",
                    format!("{program}: {error}"),
                ));
                continue;
            }
        };
        let mut input = child.stdin.take().unwrap();
        let bytes = plain.clone();
        let writer = std::thread::spawn(move || input.write_all(&bytes).unwrap());
        let packed = child.wait_with_output().unwrap();
        writer.join().unwrap();
        assert!(packed.status.success());
        let (_folder, layers) = opened(&packed.stdout);
        assert!(in_archive(layers).0 == wanted, "{program}");
    }
}

#[test]
fn attributes_are_kept_in_both_spellings() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("file"), "x").unwrap();
    let set = |name: &str, value: &[u8]| {
        let path = root.path().join("file");
        rustix::fs::setxattr(&path, name, value, rustix::fs::XattrFlags::empty())
    };
    if let Err(error) = set("user.binary", b"a\0b\nc=d") {
        let reason = format!("no user attributes in {}: {error}", root.path().display());
        buttress_oracle::skip::skip(&buttress_oracle::needs::Missing::new("user-xattrs", reason));
        return;
    }
    set("user.empty", b"").unwrap();
    // GNU tar encodes these two characters in names.
    set("user.100%", b"%25").unwrap();
    set("user.a=b", b"c").unwrap();
    let (_folder, mut layers) = opened(&tar(
        root.path(),
        &["--format=posix", "--xattrs", "--xattrs-include=*"],
    ));
    let mut found = Vec::new();
    while let Some(entry) = layers.next_entry().unwrap() {
        if entry.path.as_bytes() == b"file" {
            found = entry.attributes.xattrs;
        }
    }
    found.retain(|xattr| xattr.name.starts_with(b"user."));
    found.sort_by(|a, b| a.name.cmp(&b.name));
    let found: Vec<(&[u8], &[u8])> = found
        .iter()
        .map(|xattr| (xattr.name.as_slice(), xattr.value.as_slice()))
        .collect();
    assert_eq!(
        found,
        [
            (&b"user.100%"[..], &b"%25"[..]),
            (b"user.a=b", b"c"),
            (b"user.binary", b"a\0b\nc=d"),
            (b"user.empty", b"")
        ]
    );
}

#[test]
fn archive_that_changes_during_the_read_is_reported() {
    let root = tree(false);
    fs::remove_file(root.path().join("hole")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("archive");
    fs::write(&path, tar(root.path(), &[])).unwrap();
    let mut layers = Layers::tar(&path, folder.path(), &Progress::new()).unwrap();
    let mut file = None;
    while let Some(entry) = layers.next_entry().unwrap() {
        if let EntryKind::File(content) = &entry.kind
            && content.size.get() > 5
        {
            file = Some((entry.path.clone(), content.clone()));
        }
    }
    let (name, content) = file.unwrap();
    let mut reader = layers.contents().unwrap().open(&name, &content).unwrap();
    reader.finish().unwrap();
    fs::OpenOptions::new()
        .append(true)
        .open(&path)
        .unwrap()
        .write_all(b"more")
        .unwrap();
    let error = reader.finish().unwrap_err().to_string();
    assert!(error.contains("changed while it was read"), "{error}");
}

/// Members below symbolic links are placed where GNU tar unpacks them, and a cycle of links is an
/// error.
#[test]
fn members_below_symbolic_links_match_gnu_tar() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    for directory in ["usr", "usr/lib", "plain"] {
        fs::create_dir(at(directory)).unwrap();
    }
    symlink("usr/lib", at("lib")).unwrap();
    symlink("../lib", at("plain/up")).unwrap();
    fs::write(at("new"), "new").unwrap();
    fs::write(at("other"), "other").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("archive");
    let run = |words: &[&str]| {
        let mut command = Command::new("tar");
        let output = command
            .arg("-C")
            .arg(root.path())
            .arg("-f")
            .arg(&archive)
            .args(words)
            .output();
        let output = output.unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {error}");
    };
    run(&["--format=posix", "-c", "usr", "lib", "plain"]);
    run(&["--format=posix", "-r", "--transform=s,new,lib/new,", "new"]);
    run(&[
        "--format=posix",
        "-r",
        "--transform=s,other,plain/up/other,",
        "other",
    ]);
    let unpacked = tempfile::tempdir().unwrap();
    let output = Command::new("tar")
        .arg("-C")
        .arg(unpacked.path())
        .args(["-P", "-x", "-f"])
        .arg(&archive)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let layers = Layers::tar(&archive, folder.path(), &Progress::new()).unwrap();
    let (found, _) = in_archive(layers);
    assert!(found.contains_key(&b"usr/lib/new"[..]) && found.contains_key(&b"usr/lib/other"[..]));
    let wanted = on_host(unpacked.path());
    for (path, seen) in &found {
        // Unpacking into a directory changes the directory's time, so the test does not compare it.
        if seen.kind != 'd' {
            assert!(wanted[path] == *seen, "{:?}", String::from_utf8_lossy(path));
        }
    }
    assert_eq!(found.len() + 1, wanted.len(), "the root has no member");

    symlink("b", at("a")).unwrap();
    symlink("a", at("b")).unwrap();
    run(&["--format=posix", "-r", "a", "b"]);
    run(&["--format=posix", "-r", "--transform=s,new,a/new,", "new"]);
    let mut layers = Layers::tar(&archive, folder.path(), &Progress::new()).unwrap();
    let error = loop {
        match layers.next_entry() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("a circle was followed"),
            Err(error) => break error.to_string(),
        }
    };
    assert!(
        error.contains("\"a/new\" is below a loop of symbolic links"),
        "{error}"
    );
}
