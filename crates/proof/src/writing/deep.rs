//! Trees of many levels on small volumes: files with an attribute that fills a leaf.

use super::fill::TOP;
use anyhow::Result;
use buttress::unstable::writer::WritableFilesystem;
use buttress::{NewInode, SetXattr};

/// Name of the directory for the files.
pub const DIRECTORY: &[u8] = b"deep";

/// Creates this number of files whose items take a leaf each. With nodes of 4 KiB, 200 files give
/// three levels, 15,000 give four.
///
/// # Errors
/// The errors of creating files.
pub fn plant(filesystem: &WritableFilesystem, files: u64) -> Result<()> {
    let directory = filesystem.make_directory(TOP, DIRECTORY, &NewInode::of_root(0o755))?;
    let node_bytes = filesystem.view().superblock().node_bytes as usize;
    let value = vec![b'd'; node_bytes / 4 * 3];
    for number in 0..files {
        let name = format!("deep-{number}");
        let made = filesystem.create(directory, name.as_bytes(), &NewInode::of_root(0o600))?;
        filesystem.set_xattr(made, b"user.filler", &value, SetXattr::Create)?;
    }
    filesystem.commit()?;
    Ok(())
}
