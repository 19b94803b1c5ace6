//! Files of all kinds, written through a mount.

use anyhow::Result;
use buttress_oracle::tools::run;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, Timespec, Timestamps, XattrFlags, fallocate,
    ioctl_getflags, ioctl_setflags, lsetxattr, mknodat, utimensat,
};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;

/// The parts that only some volumes can hold.
#[derive(Clone, Copy, Default)]
pub(crate) struct Abilities {
    /// Extents that are allocated but not written.
    pub(crate) unwritten: bool,
    /// Values of attributes beyond a block.
    pub(crate) large_values: bool,
    /// Times with nanoseconds, beyond 2038.
    pub(crate) large_times: bool,
}

/// Fills the mount at `top`.
pub(crate) fn fill(top: &Path, abilities: Abilities) -> Result<()> {
    contents(top)?;
    directories(top)?;
    links(top)?;
    attributes(top, abilities)?;
    flags(top)?;
    if abilities.unwritten {
        unwritten(top)?;
    }
    times(top, abilities)
}

/// Returns bytes that differ from place to place.
fn pattern(seed: u64, length: usize) -> Vec<u8> {
    buttress_oracle::content::Random::new(seed).bytes(length, false)
}

fn contents(top: &Path) -> Result<()> {
    for size in [
        0, 1, 59, 60, 61, 100, 150, 160, 200, 400, 800, 4095, 4096, 4097, 70_000, 5_000_000,
    ] {
        fs::write(top.join(format!("content-{size}")), pattern(size as u64, size))?;
    }
    // Holes, a tree of several levels or maps of three levels, and blocks far from each other.
    let sparse = File::create(top.join("sparse"))?;
    sparse.write_all_at(&pattern(1, 5000), 1 << 20)?;
    sparse.write_all_at(&pattern(2, 100), (5 << 30) + 77)?;
    sparse.set_len((6 << 30) + 1)?;
    let fragments = File::create(top.join("fragments"))?;
    for piece in 0..900 {
        fragments.write_all_at(&pattern(piece, 4096), piece * 8192)?;
    }
    fragments.sync_all()?;
    for piece in 0..200 {
        fs::write(top.join(format!("deleted-{piece}")), pattern(piece, 10_000))?;
    }
    for piece in 0..200 {
        fs::remove_file(top.join(format!("deleted-{piece}")))?;
    }
    Ok(())
}

fn directories(top: &Path) -> Result<()> {
    let large = top.join("large");
    fs::create_dir(&large)?;
    for number in 0..1500 {
        File::create(large.join(format!(
            "a rather long name of a file in a large directory, {number:05}"
        )))?;
    }
    for number in (0..1500).step_by(7) {
        fs::remove_file(large.join(format!(
            "a rather long name of a file in a large directory, {number:05}"
        )))?;
    }
    let mut deep = top.to_path_buf();
    for level in 0..20 {
        deep.push(format!("level-{level}"));
        fs::create_dir(&deep)?;
    }
    for names in [1, 2, 3, 4, 6, 10, 20] {
        let small = top.join(format!("small-{names}"));
        fs::create_dir(&small)?;
        for name in 0..names {
            File::create(small.join(format!("n{name}")))?;
        }
    }
    fs::write(top.join("x".repeat(255)), "a long name")?;
    Ok(fs::write(top.join("\u{fc}ml\u{e4}ut \n tab"), "bytes")?)
}

fn links(top: &Path) -> Result<()> {
    for length in [1, 58, 59, 60, 61, 150, 250, 1000, 4000] {
        symlink("t".repeat(length), top.join(format!("link-{length}")))?;
    }
    fs::hard_link(top.join("content-70000"), top.join("level-0/hard"))?;
    fs::hard_link(top.join("content-61"), top.join("hard-61"))?;
    let mode = Mode::from_raw_mode(0o640);
    let nodes = [
        ("fifo", FileType::Fifo, 0),
        ("socket", FileType::Socket, 0),
        ("character", FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
        ("block", FileType::BlockDevice, rustix::fs::makedev(2000, 70_000)),
    ];
    for (name, kind, device) in nodes {
        mknodat(CWD, top.join(name), kind, mode, device)?;
    }
    std::os::unix::fs::chown(top.join("fifo"), Some(70_000), Some(1_000_000))?;
    run(Command::new("chmod").arg("6755").arg(top.join("content-1")))?;
    run(Command::new("chmod").arg("1777").arg(top.join("large")))?;
    Ok(())
}

fn attributes(top: &Path, abilities: Abilities) -> Result<()> {
    let set =
        |path: &str, name: &str, value: &[u8]| lsetxattr(top.join(path), name, value, XattrFlags::empty());
    set("content-61", "user.short", b"value")?;
    set("content-61", "user.empty", b"")?;
    set("content-4096", "trusted.overlay.opaque", b"y")?;
    set("content-4096", "security.ours", &[0, 1, 2, 255])?;
    set("content-4097", "user.in a block", &pattern(3, 2000))?;
    set("content-4097", "user.other", &pattern(4, 900))?;
    // Two inodes with equal attributes share a block.
    set("content-4095", "user.in a block", &pattern(3, 2000))?;
    set("content-4095", "user.other", &pattern(4, 900))?;
    set("large", "user.of a directory", b"1")?;
    set("link-1000", "trusted.of a link", b"2")?;
    set("link-1", "trusted.of a link", b"2")?;
    if abilities.large_values {
        set("content-70000", "user.large", &pattern(5, 20_000))?;
        set("content-5000000", "user.large", &pattern(5, 20_000))?;
        set("content-5000000", "user.largest", &pattern(6, 65_536))?;
    }
    let acl =
        |entries: &str, path: &str| run(Command::new("setfacl").args(["-m", entries]).arg(top.join(path)));
    acl("u:1000:rw,g:2000:r,m::rwx", "content-100")?;
    acl("d:u:1000:rwx,d:o::r,u:3:x", "small-3")?;
    Ok(())
}

fn flags(top: &Path) -> Result<()> {
    use rustix::fs::IFlags;
    for (path, more) in [
        ("content-150", IFlags::IMMUTABLE),
        ("content-160", IFlags::APPEND),
        ("content-200", IFlags::NODUMP | IFlags::NOATIME),
        ("small-4", IFlags::DIRSYNC),
    ] {
        let file = File::open(top.join(path))?;
        ioctl_setflags(&file, ioctl_getflags(&file)? | more)?;
    }
    Ok(())
}

fn unwritten(top: &Path) -> Result<()> {
    let file = File::create(top.join("unwritten"))?;
    fallocate(&file, FallocateFlags::empty(), 0, 3 << 20)?;
    file.write_all_at(&pattern(7, 9000), 1 << 20)?;
    let beyond = File::create(top.join("beyond"))?;
    beyond.write_all_at(b"content", 0)?;
    fallocate(&beyond, FallocateFlags::KEEP_SIZE, 1 << 20, 1 << 20)?;
    Ok(())
}

fn times(top: &Path, abilities: Abilities) -> Result<()> {
    let mut all = vec![
        ("content-1", 1_000_000_000_i64, 0),
        ("content-59", -2_000_000_000, 0),
    ];
    if abilities.large_times {
        all.extend([
            ("content-4096", 1_700_000_000, 123_456_789),
            ("content-4097", 5_000_000_000, 1),
            ("content-4095", 15_000_000_000, 999_999_999),
        ]);
    }
    for (name, seconds, nanoseconds) in all {
        let time = |more| Timespec {
            tv_sec: seconds + more,
            tv_nsec: nanoseconds,
        };
        let both = Timestamps {
            last_access: time(1),
            last_modification: time(0),
        };
        utimensat(CWD, top.join(name), &both, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}
