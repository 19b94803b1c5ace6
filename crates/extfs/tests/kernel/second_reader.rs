//! A second opinion on names and contents: the crate `ext4-view`.
//!
//! The volumes have blocks of 4 KiB to 64 KiB. mke2fs fills them from a folder, because Linux does
//! not mount blocks above its page size.

use crate::free_blocks;
use crate::mount::Image;
use crate::ours;
use anyhow::{Result, ensure};
use buttress_extfs::Ext;
use buttress_oracle::manifest::{expect_equal, of_directory};
use buttress_oracle::needs::any_missing;
use buttress_oracle::skip::skips;
use ext4_view::{Ext4, Metadata, PathBuf};
use std::fs;
use std::path::Path;

fn source(folder: &Path) -> Result<()> {
    for size in [0_usize, 10, 5000, 65_536, 65_537, 3_000_000] {
        let bytes = buttress_oracle::content::Random::new(size as u64).bytes(size, false);
        fs::write(folder.join(format!("content-{size}")), bytes)?;
    }
    let large = folder.join("large");
    fs::create_dir(&large)?;
    for number in 0..300 {
        fs::write(
            large.join(format!("a rather long name of an entry {number:04}")),
            number.to_string(),
        )?;
    }
    std::os::unix::fs::symlink("large/target", folder.join("short"))?;
    Ok(std::os::unix::fs::symlink("t".repeat(300), folder.join("long"))?)
}

fn compare(block: &str) -> Result<()> {
    let folder = buttress_oracle::volumes::scratch()?;
    source(folder.path())?;
    let from = folder.path().to_string_lossy().into_owned();
    let image = Image::new(128, &["-t", "ext4", "-b", block, "-d", &from])?;
    let device = image.device()?;
    let volume = Ext::open(&device)?;
    let (mut found, inodes) = ours::manifest(&device, &volume)?;
    let mut expected = of_directory(folder.path())?;
    found.remove(&b"lost+found"[..]);
    for entry in expected.values_mut().chain(found.values_mut()) {
        // A copy has its own times and inodes, and mke2fs leaves out nanoseconds.
        entry.extra = None;
        entry.modified = (0, 0);
    }
    expect_equal("the source folder", &expected, &found)?;
    ensure!(
        free_blocks::by_dumpe2fs(&image.path)? == free_blocks::by_us(&volume)?,
        "free blocks differ"
    );
    let second = Ext4::load_from_path(&image.path)?;
    let mut files = 0;
    for (path, inode) in &inodes {
        let path = PathBuf::try_from([b"/", &path[..]].concat().as_slice())?;
        let metadata: Metadata = second.symlink_metadata(&path)?;
        ensure!(
            metadata.len() == inode.size_bytes && metadata.uid() == inode.uid,
            "{path:?} differs"
        );
        if metadata.file_type().is_regular_file() {
            ensure!(
                second.read(&path)? == volume.content(inode, 1 << 30)?,
                "content of {path:?} differs"
            );
            files += 1;
        }
    }
    ensure!(files == 306, "only {files} files were compared");
    Ok(())
}

#[test]
fn a_second_reader_agrees_on_all_block_sizes() -> Result<()> {
    if skips(any_missing(&["mkfs.ext4"])) {
        return Ok(());
    }
    for block in ["4096", "16384", "65536"] {
        compare(block)?;
    }
    Ok(())
}
