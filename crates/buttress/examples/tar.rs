//! Writes a directory of a volume as a tar archive: `tar IMAGE PATH > ARCHIVE`. The example shows
//! how to combine content and metadata. The command `buttress tar` also handles attributes, devices
//! and sparse files.

use buttress::{FileKind, Volume};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args_os().skip(1);
    let (Some(image), Some(path)) = (words.next(), words.next()) else {
        return Err("usage: tar IMAGE PATH > ARCHIVE".into());
    };
    let volume = Volume::open(image)?;
    let root = volume.root();
    let mut archive = tar::Builder::new(std::io::stdout().lock());
    for found in root.walk(&path)? {
        let found = found?;
        let inside = Path::new(".").join(Path::new(std::ffi::OsStr::from_bytes(&found.path)));
        let source = Path::new(&path).join(std::ffi::OsStr::from_bytes(&found.path));
        let mut header = tar::Header::new_gnu();
        header.set_mode(found.metadata.mode & 0o7777);
        header.set_uid(found.metadata.uid.into());
        header.set_gid(found.metadata.gid.into());
        header.set_mtime(found.metadata.modified.seconds.try_into().unwrap_or(0));
        header.set_size(0);
        match found.metadata.kind {
            FileKind::Directory => {
                header.set_entry_type(tar::EntryType::Directory);
                archive.append_data(&mut header, inside, std::io::empty())?;
            }
            FileKind::Regular => {
                header.set_size(found.metadata.size.get());
                archive.append_data(&mut header, inside, root.open(&source)?)?;
            }
            FileKind::Symlink => {
                header.set_entry_type(tar::EntryType::Symlink);
                let target = root.read_link(&source)?;
                archive.append_link(
                    &mut header,
                    inside,
                    Path::new(std::ffi::OsStr::from_bytes(&target)),
                )?;
            }
            _ => eprintln!("{}: left out: a special file", found.shown()),
        }
    }
    archive.into_inner()?.flush()?;
    Ok(())
}
