//! A sample command of each kind, with values that reveal swapped fields.

use buttress_format::{ByteCount, FileOffset, Generation, InodeNumber, Timestamp, Uuid};
use buttress_stream::Command;

/// Returns the first command of the streams of all samples that do not begin a subvolume
/// themselves.
pub(crate) fn begin() -> Command<'static> {
    Command::Subvolume {
        path: b"s",
        uuid: uuid(0x10),
        transid: Generation::new(7),
    }
}

fn uuid(first: u8) -> Uuid {
    let mut bytes = [0; 16];
    for (byte, value) in bytes.iter_mut().zip(first..) {
        *byte = value;
    }
    Uuid::from_bytes(bytes)
}

const fn time(seconds: i64, nanoseconds: u32) -> Timestamp {
    Timestamp { seconds, nanoseconds }
}

/// Returns one command of each kind, in the order of their numbers.
pub(crate) fn samples() -> Vec<Command<'static>> {
    let inode = Some(InodeNumber::new(257));
    let mut samples = making(inode);
    samples.extend(names_and_data());
    samples.extend([
        Command::Truncate {
            path: b"d/file",
            size: ByteCount::new(0x1234_5678_9abc),
        },
        Command::Chmod {
            path: b"d/file",
            mode: 0o4755,
        },
        Command::Chown {
            path: b"d/file",
            uid: 1000,
            gid: 65_534,
        },
        Command::Utimes {
            path: b"d/file",
            atime: time(1_795_225_678, 1),
            mtime: time(0, 999_999_999),
            ctime: time(-1, 5),
            otime: None,
        },
        Command::End,
        Command::UpdateExtent {
            path: b"d/file",
            offset: FileOffset::new(4096),
            length: ByteCount::new(8192),
        },
        Command::Fallocate {
            path: b"d/file",
            mode: 3,
            offset: FileOffset::new(4096),
            length: ByteCount::new(12_288),
        },
        Command::FileAttributes {
            path: b"d/file",
            attributes: 0x48,
        },
        Command::EncodedWrite {
            path: b"d/file",
            offset: FileOffset::new(131_072),
            unencoded_file_bytes: ByteCount::new(100_000),
            unencoded_bytes: ByteCount::new(131_072),
            unencoded_offset: ByteCount::new(4096),
            compression: Some(2),
            encryption: Some(0),
            data: b"\x28\xb5\x2f\xfd not zstd",
        },
        Command::EnableVerity {
            path: b"d/file",
            algorithm: 1,
            block_size: 4096,
            salt: b"salt",
            signature: b"",
        },
    ]);
    samples
}

fn making(inode: Option<InodeNumber>) -> Vec<Command<'static>> {
    vec![
        begin(),
        Command::Snapshot {
            path: b"snapshot",
            uuid: uuid(0x20),
            transid: Generation::new(9),
            clone_uuid: uuid(0x10),
            clone_transid: Generation::new(8),
        },
        Command::Mkfile {
            path: b"o257-7-0",
            inode,
        },
        Command::Mkdir {
            path: b"o257-7-0",
            inode,
        },
        Command::Mknod {
            path: b"o257-7-0",
            inode,
            device: 0x0044_6155,
            mode: 0o060_640,
        },
        Command::Mkfifo {
            path: b"o257-7-0",
            inode,
            device: Some(0),
            mode: Some(0o010_644),
        },
        Command::Mksock {
            path: b"o257-7-0",
            inode,
            device: Some(0),
            mode: Some(0o140_755),
        },
        Command::Symlink {
            path: b"o257-7-0",
            inode,
            target: b"../target with spaces",
        },
        Command::Rename {
            from: b"o257-7-0",
            to: b"d/a name\tof \xc3\xa9 and \xff",
        },
        Command::Link {
            path: b"d/link",
            target: b"d/file",
        },
    ]
}

fn names_and_data() -> [Command<'static>; 6] {
    [
        Command::Unlink { path: b"d/link" },
        Command::Rmdir { path: b"d" },
        Command::SetXattr {
            path: b"d/file",
            name: b"user.key",
            value: b"a value\n",
        },
        Command::RemoveXattr {
            path: b"d/file",
            name: b"user.key",
        },
        Command::Write {
            path: b"d/file",
            offset: FileOffset::new(0x1_0000_0001),
            data: b"some data",
        },
        Command::Clone {
            offset: FileOffset::new(0x1000),
            length: ByteCount::new(0x2000),
            path: b"d/copy",
            source_uuid: uuid(0x30),
            source_transid: Generation::new(6),
            source_path: b"d/file",
            source_offset: FileOffset::new(0x3000),
        },
    ]
}
