use super::*;
use buttress_format::{Compression, FileOffset};
use bytes::Bytes;

fn file() -> NewFile {
    let root = Location::root_of(buttress_format::SubvolumeId::TOP_LEVEL);
    NewFile::begin(
        (root, b"a"),
        (root, b"a".to_vec()),
        NewKind::File,
        CommandPlace::BEGINNING,
    )
}

/// Returns an extent of one sector, stored in `stored_bytes` bytes.
fn extent(number: u64, stored_bytes: usize) -> EncodedExtent {
    EncodedExtent {
        offset: FileOffset::new(number * 4096),
        length: ByteCount::new(4096),
        content_bytes: ByteCount::new(4096),
        content_offset: ByteCount::ZERO,
        compression: Compression::Zlib,
        stored: Bytes::from(vec![1; stored_bytes]),
    }
}

#[test]
fn extents_without_stored_bytes_are_not_gathered() {
    let mut file = file();
    assert_eq!(file.push_encoded(extent(0, 0)), None);
    assert_eq!(file.push_encoded(extent(0, 1)), Some(0));
    assert_eq!(file.push_encoded(extent(1, 0)), None);
    assert_eq!((file.encoded.len(), file.content_bytes()), (1, 1));
}

#[test]
fn number_of_gathered_extents_is_limited() {
    let mut file = file();
    let gathered = (0..1000).take_while(|number| file.push_encoded(extent(*number, 1)).is_some());
    assert_eq!(gathered.count(), GATHERED_EXTENTS_MAX);
    assert_eq!(file.content_bytes(), GATHERED_EXTENTS_MAX);
}

#[test]
fn gathered_bytes_are_limited() {
    let mut file = file();
    let half = GATHERED_BYTES_MAX / 2;
    assert_eq!(file.push_encoded(extent(0, half)), Some(0));
    assert_eq!(file.push_encoded(extent(1, half)), Some(1));
    assert_eq!(file.push_encoded(extent(2, 1)), None);
    assert_eq!(file.content_bytes(), GATHERED_BYTES_MAX);
}
