//! Makes a volume from a directory: `pack DIRECTORY IMAGE`. The example needs no root, and writes
//! the same bytes every time: the time and all uuids are fixed, and entries follow the order of
//! their names.

use buttress::{ByteCount, Environment, Timestamp, Uuid, Volume, WritableSubvolume};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A fixed time, and uuids from a counter.
#[derive(Debug, Default)]
struct Fixed(AtomicU64);

impl Environment for Fixed {
    fn now(&self) -> Timestamp {
        Timestamp {
            seconds: 1_700_000_000,
            nanoseconds: 0,
        }
    }

    fn new_uuid(&self) -> Uuid {
        let number = self.0.fetch_add(1, Ordering::Relaxed);
        Uuid::from_u64_pair(0x6275_7474_7265_4073, 0x8000_0000_0000_0000 | number)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args_os().skip(1);
    let (Some(directory), Some(image)) = (words.next(), words.next()) else {
        return Err("usage: pack DIRECTORY IMAGE".into());
    };
    let volume = Volume::create()
        .label("packed")
        .open_with(Volume::options().environment(Arc::new(Fixed::default())))
        .in_file(image, ByteCount::new(1 << 30))?;
    pack(Path::new(&directory), Path::new(""), &volume.root())?;
    volume.sync()?;
    Ok(())
}

fn pack(host: &Path, path: &Path, root: &WritableSubvolume) -> Result<(), Box<dyn std::error::Error>> {
    let mut entries = std::fs::read_dir(host)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = path.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            root.create_dir(&path)?;
            pack(&entry.path(), &path, root)?;
        } else if kind.is_symlink() {
            root.symlink(std::fs::read_link(entry.path())?, &path)?;
        } else if kind.is_file() {
            let mut source = std::fs::File::open(entry.path())?;
            std::io::copy(&mut source, &mut root.create_new(&path)?)?;
        } else {
            eprintln!(
                "{}: left out: neither file, directory nor link",
                entry.path().display()
            );
        }
    }
    Ok(())
}
