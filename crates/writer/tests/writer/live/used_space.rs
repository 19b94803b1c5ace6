//! Tests that the space of content is not reused before a running read of the content ends.

use super::{ROOT, create, identity};
use buttress_device::{Backend, Device, Engine, MemoryBackend};
use buttress_format::{ByteCount, FileOffset};
use buttress_fs::{Error, Location, OpenOptions};
use buttress_mkfs as mkfs;
use buttress_writer::{DataOptions, WritableFilesystem, WriteOptions};
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};

/// A memory device that runs a function before its next read.
#[derive(Debug)]
struct Interrupted {
    memory: MemoryBackend,
    before_read: Hook,
}

/// A function that runs once, before a read.
#[derive(Default)]
struct Hook(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a hook")
    }
}

impl Backend for Interrupted {
    fn name(&self) -> &str {
        self.memory.name()
    }

    fn size_bytes(&self) -> u64 {
        self.memory.size_bytes()
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn read_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> io::Result<()> {
        let hook = self.before_read.0.lock().unwrap().take();
        if let Some(hook) = hook {
            hook();
        }
        self.memory.read_vectored_at(offset_bytes, buffers)
    }

    fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        self.memory.write_at(offset_bytes, bytes)
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.memory.discard(offset_bytes, length_bytes)
    }

    fn zero(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.memory.zero(offset_bytes, length_bytes)
    }

    fn flush(&self) -> io::Result<()> {
        self.memory.flush()
    }
}

/// Fills the volume with data.
fn fill_up(filesystem: &WritableFilesystem) {
    let other = create(filesystem, "other");
    for number in 0_u64.. {
        let added = filesystem
            .write_at(other, FileOffset::new(number << 20), &vec![b'n'; 1 << 20])
            .and_then(|()| filesystem.writeback().write_file(other));
        match added {
            Ok(()) => {}
            Err(Error::NoSpace { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Between the lookup of an extent and its read, `end` removes the content from the file, and all space is filled.
fn use_room_while_reading(end: impl Fn(&WritableFilesystem, Location) + Send + 'static) {
    let backend = Arc::new(Interrupted {
        memory: MemoryBackend::new("memory", vec![0; 128 << 20]),
        before_read: Hook::default(),
    });
    let device = || Device::with_backend(Arc::clone(&backend) as Arc<dyn Backend>, Engine::Inline);
    let options = WriteOptions {
        // The volume has no checksums, because reads must not depend on checksums to detect
        // overwritten content.
        data: DataOptions {
            checksums: false,
            ..DataOptions::default()
        },
        ..WriteOptions::default()
    };
    mkfs::make(&[device()], &mkfs::Options::default(), &identity()).unwrap();
    let filesystem = OpenOptions::new(vec![device()]).open().unwrap();
    let filesystem = WritableFilesystem::new(filesystem, options).unwrap();
    let file = create(&filesystem, "file");
    filesystem
        .write_at(file, FileOffset::MIN, &vec![b'o'; 4 << 20])
        .unwrap();
    filesystem.commit().unwrap();
    let of = filesystem.clone();
    let hook = move || {
        end(&of, file);
        of.commit().unwrap();
        of.commit().unwrap();
        fill_up(&of);
    };
    *backend.before_read.0.lock().unwrap() = Some(Box::new(hook));
    let mut content = vec![0; 4 << 20];
    let read = filesystem
        .live()
        .read_at(file, FileOffset::MIN, &mut content)
        .unwrap();
    assert!(
        backend.before_read.0.lock().unwrap().is_none(),
        "nothing was read"
    );
    assert_eq!(read, 4 << 20);
    assert!(
        content.iter().all(|byte| *byte == b'o'),
        "space was used again during a read"
    );
    let _ = filesystem.abandon();
}

#[test]
fn what_is_being_read_is_not_used_again() {
    use_room_while_reading(|filesystem, _| filesystem.unlink(ROOT, b"file").unwrap());
}

#[test]
fn what_is_being_read_is_not_used_again_when_it_is_cut_off() {
    use_room_while_reading(|filesystem, file| filesystem.truncate(file, ByteCount::ZERO).unwrap());
}
