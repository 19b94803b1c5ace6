//! Files of all kinds, written through a mount.

use anyhow::Result;
use buttress_oracle::content::Random;
use buttress_oracle::tools::run;
use rustix::fs::{CWD, FallocateFlags, FileType, Mode, XattrFlags, fallocate, lsetxattr, mknodat};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;

/// Fills the mount at `top`.
pub(crate) fn fill(top: &Path) -> Result<()> {
    for size in [0_usize, 1, 60, 500, 2048, 2049, 4096, 70_000, 20_000_000] {
        fs::write(
            top.join(format!("content-{size}")),
            Random::new(size as u64).bytes(size, false),
        )?;
    }
    let sparse = File::create(top.join("sparse"))?;
    for piece in 0..300 {
        sparse.write_all_at(&[piece as u8; 5000], piece * 40_960)?;
    }
    sparse.set_len(100_000_001)?;
    // Block maps have no unwritten extents.
    let _ = fallocate(
        &File::create(top.join("unwritten"))?,
        FallocateFlags::empty(),
        0,
        1 << 20,
    );
    let large = top.join("large");
    fs::create_dir(&large)?;
    for number in 0..400 {
        fs::write(
            large.join(format!("a rather long name of an entry {number:04}")),
            vec![b'x'; number * 37],
        )?;
    }
    // More names than an item of names holds.
    for number in 0..300 {
        fs::hard_link(
            top.join("content-60"),
            large.join(format!("{}{number}", "link ".repeat(30))),
        )?;
    }
    for number in (0..400).step_by(3) {
        fs::remove_file(large.join(format!("a rather long name of an entry {number:04}")))?;
    }
    symlink("short", top.join("short"))?;
    symlink("t".repeat(1000), top.join("long"))?;
    let mode = Mode::from_raw_mode(0o640);
    mknodat(CWD, top.join("fifo"), FileType::Fifo, mode, 0)?;
    mknodat(
        CWD,
        top.join("device"),
        FileType::BlockDevice,
        mode,
        rustix::fs::makedev(300, 70_000),
    )?;
    std::os::unix::fs::chown(top.join("fifo"), Some(70_000), Some(80_000))?;
    let set =
        |path: &str, name: &str, value: &[u8]| lsetxattr(top.join(path), name, value, XattrFlags::empty());
    set("content-70000", "user.name", b"value")?;
    set("content-70000", "user.large", &[5; 2000])?;
    set("large", "trusted.of a directory", b"1")?;
    run(Command::new("setfacl")
        .args(["-m", "u:1000:rw"])
        .arg(top.join("content-500")))?;
    Ok(())
}
