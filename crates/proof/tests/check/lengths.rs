//! Files of every compression whose extents the kernel cut, overwrote, cloned in part and
//! truncated: the check must not report their lengths.

use crate::{case, expect_clean};
use anyhow::Result;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::tools::run;
use buttress_oracle::volumes::{Fill, Specification, format};
use buttress_proof::harness::Case;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

/// Returns compressible bytes that differ between offsets.
fn content(bytes: usize) -> Vec<u8> {
    let text = (0..).flat_map(|number: u32| format!("{number} {number} {number}\n").into_bytes());
    text.take(bytes).collect()
}

/// Returns incompressible bytes.
fn noise(bytes: usize) -> Vec<u8> {
    let step = |state: &u64| Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    let states = std::iter::successors(Some(7_u64), step);
    states.take(bytes).map(|state| state.to_be_bytes()[0]).collect()
}

fn write(path: &Path, bytes: &[u8]) -> Result<File> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    Ok(file)
}

/// Changes the extents of written files, each extent in another way.
fn change_extents(top: &Path) -> Result<()> {
    for (name, bytes) in [("text", content(1 << 20)), ("noise", noise(1 << 20))] {
        let file = write(&top.join(name), &bytes)?;
        // Bookend extents: overwrites in the middle, at the start and at the end of extents.
        for offset in [4096, 131_072, 262_144 + 126_976, 400_000] {
            file.write_all_at(&content(4096), offset)?;
            file.sync_all()?;
        }
        rustix::fs::fallocate(
            &file,
            rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE,
            524_288 + 8192,
            20_480,
        )?;
        // Truncate in the middle of an extent and of a sector, and grow again.
        file.set_len(700_001)?;
        file.sync_all()?;
        file.set_len(900_000)?;
        file.sync_all()?;
        let part = write(&top.join(format!("{name}-clone")), b"")?;
        rustix::fs::ioctl_ficlone(&part, &file)?;
        part.set_len(300_000)?;
        part.sync_all()?;
        let ahead = write(&top.join(format!("{name}-ahead")), b"")?;
        rustix::fs::fallocate(&ahead, rustix::fs::FallocateFlags::empty(), 0, 1 << 20)?;
        ahead.write_all_at(&bytes[..65_536], 65_536)?;
        ahead.sync_all()?;
        ahead.set_len(100_000)?;
        ahead.sync_all()?;
    }
    for bytes in [1, 2, 9, 64, 100, 500, 1000, 2000, 2040, 4095, 4096, 4097] {
        write(&top.join(format!("small-{bytes}")), &content(bytes))?;
        write(&top.join(format!("small-noise-{bytes}")), &noise(bytes))?;
        let cut = write(&top.join(format!("small-cut-{bytes}")), &content(bytes))?;
        cut.set_len(u64::try_from(bytes / 2)?)?;
        cut.sync_all()?;
    }
    Ok(())
}

fn lengths(options: &str, features: &'static [&'static str]) -> Result<()> {
    let (_folder, images) = format(&Specification {
        fill: Fill::Empty,
        features,
        ..Specification::default()
    })?;
    let mount = Mount::new(&images, options)?;
    change_extents(mount.path())?;
    run(Command::new("btrfs")
        .args(["-q", "subvolume", "snapshot"])
        .arg(mount.path())
        .arg(mount.path().join("snapshot")))?;
    change_extents(&mount.path().join("snapshot"))?;
    mount.close()?;
    expect_clean(&images)?;
    Ok(())
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, options) in [
        ("plain", ""),
        ("zlib", "compress-force=zlib"),
        ("lzo", "compress-force=lzo"),
        ("zstd", "compress-force=zstd"),
        ("heuristic", "compress=lzo"),
    ] {
        for (holes, features) in [("", &[][..]), ("_holes_as_items", &["^no-holes"][..])] {
            let name = format!("lengths::{name}{holes}");
            cases.push(case(name, (6, 2), move || lengths(options, features)));
        }
    }
    cases
}
