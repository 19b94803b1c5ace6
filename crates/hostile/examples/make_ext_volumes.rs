//! Makes the volumes of `fuzz/ext` with mke2fs and the kernel. Needs root.
//!
//! Uuids and times of the volumes differ between runs, so make them again only to add volumes.

use anyhow::{Context, Result};
use buttress_hostile::seed_volume::{SeedDevice, SeedVolume};
use buttress_oracle::loop_device::LoopDevice;
use buttress_oracle::tools::run;
use rustix::fs::{FallocateFlags, XattrFlags, fallocate, lsetxattr};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;

/// Name, mke2fs's words.
const VOLUMES: [(&str, &[&str]); 3] = [
    ("01-maps", &["-t", "ext2", "-I", "128"]),
    (
        "02-extents",
        &[
            "-t",
            "ext4",
            "-I",
            "512",
            "-O",
            "^metadata_csum,^has_journal,^resize_inode,inline_data,ea_inode",
        ],
    ),
    (
        "03-checksums",
        &[
            "-t",
            "ext4",
            "-O",
            "^has_journal,meta_bg,^resize_inode",
            "-g",
            "256",
        ],
    ),
];

fn main() -> Result<()> {
    let folder = buttress_hostile::seeds::folder().join("ext");
    fs::create_dir_all(&folder)?;
    for (name, words) in VOLUMES {
        let scratch = buttress_oracle::volumes::scratch()?;
        let image = scratch.path().join("image");
        File::create(&image)?.set_len(4 << 20)?;
        run(Command::new("mke2fs")
            .args(["-q", "-F", "-b", "4096", "-N", "64"])
            .args(words)
            .arg(&image))?;
        let mounted = scratch.path().join("mounted");
        fs::create_dir(&mounted)?;
        let device = LoopDevice::attach(&image)?;
        run(Command::new("mount").arg(device.path()).arg(&mounted))?;
        let filled = fill(&mounted).with_context(|| name.to_owned());
        run(Command::new("umount").arg(&mounted))?;
        filled?;
        let packed = SeedVolume::pack(&[SeedDevice::of_image(File::open(&image)?)?])?;
        println!("{name}: {} bytes", packed.len());
        fs::write(folder.join(format!("{name}.zst")), packed)?;
    }
    Ok(())
}

/// Writes a few small files of each kind.
fn fill(top: &Path) -> Result<()> {
    fs::write(top.join("inline"), "content")?;
    let fragments = File::create(top.join("fragments"))?;
    for piece in 0..12 {
        fragments.write_all_at(&[7; 100], piece * 8192)?;
        fragments.sync_all()?;
    }
    // A map of three levels.
    fragments.write_all_at(b"far away", 5 << 30)?;
    // Volumes with block maps have no unwritten extents.
    let _ = fallocate(
        &File::create(top.join("unwritten"))?,
        FallocateFlags::empty(),
        0,
        1 << 16,
    );
    let directory = top.join("directory");
    fs::create_dir(&directory)?;
    for name in 0..20 {
        fs::hard_link(
            top.join("inline"),
            directory.join(format!("{}{name}", "a long name".repeat(20))),
        )?;
    }
    symlink("short", top.join("short"))?;
    symlink("long".repeat(200), top.join("long"))?;
    let set = |file, name, value: &[u8]| lsetxattr(top.join(file), name, value, XattrFlags::empty());
    set("inline", "user.small", b"value")?;
    set("fragments", "user.in a block", &[3; 1000])?;
    // Only volumes with `ea_inode` have such values.
    let _ = set("fragments", "user.in an inode", &[4; 5000]);
    run(Command::new("setfacl")
        .args(["-m", "u:1:r"])
        .arg(top.join("inline")))?;
    Ok(())
}
