//! Tests of the portable backend, on the system that runs the tests.

use std::io::ErrorKind;

use super::*;

fn image() -> (tempfile::TempDir, std::path::PathBuf, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let bytes: Vec<u8> = (0..200_000_u32).map(|at| (at % 251) as u8).collect();
    std::fs::write(&path, &bytes).unwrap();
    (folder, path, bytes)
}

fn writable() -> OpenOptions {
    OpenOptions {
        write: true,
        ..OpenOptions::default()
    }
}

#[test]
fn reads_fill_all_buffers_and_stay_in_the_file() {
    let (_folder, path, bytes) = image();
    let image = open(&path, &OpenOptions::default()).unwrap().backend;
    assert_eq!((image.size_bytes(), image.is_writable()), (200_000, false));
    let (mut first, mut second) = ([0; 100], [0; 3]);
    image
        .read_vectored_at(70_000, &mut [&mut first, &mut second])
        .unwrap();
    assert_eq!([&first[..], &second].concat(), bytes[70_000..70_103]);
    let after_end = image.read_vectored_at(199_901, &mut [&mut first]).unwrap_err();
    assert_eq!(after_end.kind(), ErrorKind::UnexpectedEof);
    let written = image.write_at(0, &[1]).unwrap_err();
    assert_eq!(written.kind(), ErrorKind::ReadOnlyFilesystem);
}

#[test]
fn writes_and_zeros_reach_the_file() {
    let (_folder, path, mut bytes) = image();
    let image = open(&path, &writable()).unwrap().backend;
    image.write_at(10, b"written").unwrap();
    // The range needs more zeros than one write has.
    image.zero(50, 3 * byte_length(ZEROS.len()) - 50).unwrap();
    image.discard(0, 5).unwrap();
    image.flush().unwrap();
    bytes[10..17].copy_from_slice(b"written");
    bytes[50..3 * ZEROS.len()].fill(0);
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    assert!(image.write_at(199_999, &[1, 2]).is_err());
}

#[test]
fn a_writer_excludes_others_until_it_unlocks() {
    let (_folder, path, _) = image();
    let writer = open(&path, &writable()).unwrap().backend;
    let refused = open(&path, &OpenOptions::default()).err().unwrap();
    assert_eq!(refused.kind, ErrorKind::ResourceBusy);
    writer.unlock();
    let reader = open(&path, &OpenOptions::default()).unwrap();
    assert!(open(&path, &OpenOptions::default()).is_ok());
    assert!(open(&path, &writable()).is_err());
    drop(reader);
}

#[test]
fn options_that_need_linux_are_refused_by_name() {
    let (folder, path, _) = image();
    let direct = OpenOptions {
        direct: true,
        ..OpenOptions::default()
    };
    let overlay = OpenOptions {
        overlay: Some(folder.path().join("side")),
        ..OpenOptions::default()
    };
    for (path, options, named) in [
        (&*path, direct, "page cache"),
        (&*path, overlay, "overlay"),
        (folder.path(), OpenOptions::default(), "block devices need Linux"),
    ] {
        let refused = open(path, &options).err().unwrap();
        assert_eq!(refused.kind, ErrorKind::Unsupported, "{refused}");
        assert!(refused.to_string().contains(named), "{refused}");
    }
    // The option makes reads faster only if the page cache holds nothing of the file.
    let faster = OpenOptions {
        direct_when_cold: true,
        ..OpenOptions::default()
    };
    assert!(open(&path, &faster).unwrap().notices.is_empty());
}
