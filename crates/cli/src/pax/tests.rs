//! An independent reader, GNU tar if installed, reads the archives of these tests.

use super::*;
use buttress_oracle::needs::missing;
use buttress_oracle::skip::skips;
use std::process::{Command, Stdio};

fn member<'a>(path: &'a [u8], kind: Kind<'a>) -> Member<'a> {
    Member {
        path,
        kind,
        permissions: 0o644,
        uid: 0,
        gid: 0,
        modified: Time {
            seconds: 1_700_000_000,
            nanoseconds: 123_456_789,
        },
        accessed: None,
        changed: None,
        xattrs: &[],
    }
}

fn archive(members: &[(Member<'_>, &[u8])]) -> Vec<u8> {
    let mut archive = Archive::new(Vec::new());
    for (member, content) in members {
        archive.begin(member).unwrap();
        archive.content(0, content).unwrap();
        archive.end().unwrap();
    }
    archive.finish().unwrap()
}

fn gnu_tar(arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new("tar")
        .args(arguments)
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let input = input.to_vec();
    let feeder = std::thread::spawn(move || {
        let _ = pipe.write_all(&input);
    });
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    assert!(output.status.success(), "tar {arguments:?} failed");
    output.stdout
}

#[test]
fn archives_are_whole_records_and_end_with_two_empty_blocks() {
    let bytes = archive(&[(member(b"./a", Kind::File { size_bytes: 3 }), b"abc")]);
    assert_eq!(bytes.len() as u64 % RECORD_BYTES, 0);
    // Extended header, its records, header, content.
    assert_eq!(&bytes[257..262], b"ustar");
    assert_eq!(&bytes[1536..1539], b"abc");
    assert!(bytes[1539..].iter().all(|byte| *byte == 0));
}

#[test]
fn content_is_cut_and_filled_to_what_was_promised() {
    let mut archive = Archive::new(Vec::new());
    archive
        .begin(&member(b"./a", Kind::File { size_bytes: 4 }))
        .unwrap();
    archive.content(0, b"ab").unwrap();
    archive.content(2, b"cdef").unwrap();
    archive.end().unwrap();
    archive
        .begin(&member(b"./b", Kind::File { size_bytes: 4 }))
        .unwrap();
    archive.content(1, b"b").unwrap();
    archive.end().unwrap();
    let mut map = DataMap::new(4096);
    map.add(512, 512);
    map.add(2048, 512);
    archive
        .begin(&member(b"./c", Kind::SparseFile { map: &map }))
        .unwrap();
    archive.content(0, &[b'c'; 1000]).unwrap();
    archive.content(2050, b"d").unwrap();
    archive.end().unwrap();
    let bytes = archive.finish().unwrap();
    assert_eq!(&bytes[1536..1542], b"abcd\0\0");
    assert_eq!(&bytes[2048 + 1536..2048 + 1542], b"\0b\0\0\0\0");
    let sparse = &bytes[4096 + 2048..];
    assert!(sparse[..488].iter().all(|byte| *byte == b'c'));
    assert!(sparse[488..512].iter().all(|byte| *byte == 0));
    assert_eq!(&sparse[512..516], b"\0\0d\0");
}

#[test]
fn gnu_tar_reads_names_sizes_and_links() {
    let long = [b"./".as_slice(), &[b'x'; 240]].concat();
    let bytes = archive(&[
        (member(b"./", Kind::Directory), b""),
        (member(&long, Kind::File { size_bytes: 1 }), b"1"),
        (
            member("./gr\u{fc}n".as_bytes(), Kind::HardLink { target: &long }),
            b"",
        ),
        (member(b"./raw\xff", Kind::Symlink { target: b"\xfe/t" }), b""),
        (
            member(b"./null", Kind::CharacterDevice { major: 1, minor: 3 }),
            b"",
        ),
        (member(b"./pipe", Kind::Fifo), b""),
    ]);
    if skips(missing("tar")) {
        return;
    }
    let names = gnu_tar(&["--quoting-style=literal", "-t"], &bytes);
    let expected = [
        b"./".as_slice(),
        &long,
        "./gr\u{fc}n".as_bytes(),
        b"./raw\xff",
        b"./null",
        b"./pipe",
    ]
    .join(&b'\n');
    assert_eq!(names.strip_suffix(b"\n").unwrap(), expected);
    let listing = gnu_tar(&["--full-time", "--numeric-owner", "-tv"], &bytes);
    let listing = String::from_utf8(listing).unwrap();
    assert!(listing.contains("2023-11-14 22:13:20.123456789"), "{listing}");
    assert!(listing.contains("1,3"), "{listing}");
}

#[test]
fn gnu_tar_extracts_sparse_files() {
    let mut map = DataMap::new(3 << 20);
    map.add(0, 512);
    map.add(1 << 20, 1024);
    let mut sparse = member(b"./d/holes", Kind::SparseFile { map: &map });
    sparse.xattrs = &[(b"user.a=b", b"v\0\n")];
    let mut content = vec![0; (1 << 20) + 3];
    content[..4].copy_from_slice(b"head");
    content[1 << 20..].copy_from_slice(b"mid");
    let mut directory = member(b"./d/", Kind::Directory);
    directory.permissions = 0o755;
    let bytes = archive(&[(directory, b""), (sparse, &content)]);
    let directory = tempfile::tempdir().unwrap();
    if skips(missing("tar")) {
        return;
    }
    gnu_tar(&["-C", directory.path().to_str().unwrap(), "-x"], &bytes);
    let content = std::fs::read(directory.path().join("d/holes")).unwrap();
    let mut expected = vec![0; 3 << 20];
    expected[..4].copy_from_slice(b"head");
    expected[1 << 20..][..3].copy_from_slice(b"mid");
    assert!(content == expected);
}
