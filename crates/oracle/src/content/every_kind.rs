//! Objects of every kind that a btrfs file tree can hold, one of each, with names that identify
//! their kinds.

use super::Random;
use crate::tools::run;
use anyhow::{Context, Result};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, IFlags, Mode, Timespec, Timestamps, XattrFlags, fallocate,
    ioctl_getflags, ioctl_setflags, mknodat, setxattr, utimensat,
};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes all objects below `top`, an empty directory of a mounted volume.
///
/// `btrfs` is the program that makes subvolumes and snapshots.
pub fn plant(top: &Path, btrfs: &Path, seed: u64) -> Result<()> {
    let mut random = Random::new(seed);
    contents(&top.join("contents"), &mut random).context("file contents")?;
    names(&top.join("names")).context("names")?;
    kinds(&top.join("kinds")).context("kinds of inode")?;
    attributes(&top.join("attributes"), &mut random).context("attributes")?;
    subvolumes(&top.join("subvolumes"), btrfs, &mut random).context("subvolumes")?;
    Ok(())
}

fn contents(folder: &Path, random: &mut Random) -> Result<()> {
    fs::create_dir(folder)?;
    File::create(folder.join("empty"))?;
    for length in [
        1usize, 100, 2047, 2048, 2049, 4095, 4096, 4097, 65_536, 131_072, 131_073, 300_000,
    ] {
        fs::write(folder.join(format!("text-{length}")), random.bytes(length, true))?;
        fs::write(
            folder.join(format!("noise-{length}")),
            random.bytes(length, false),
        )?;
    }
    fs::write(folder.join("large-text"), random.bytes(3 << 20, true))?;
    fs::write(folder.join("large-noise"), random.bytes((3 << 20) + 17, false))?;
    fs::write(folder.join("zeros"), vec![0u8; 400_000])?;

    let hole_first = File::create(folder.join("hole-first"))?;
    hole_first.write_all_at(b"end", 1 << 20)?;
    let holes = File::create(folder.join("holes"))?;
    for number in 0..40u64 {
        holes.write_all_at(&random.bytes(5000, number % 2 == 0), number * 100_000)?;
    }
    holes.set_len(5_000_000)?;
    File::create(folder.join("all-hole"))?.set_len((1 << 40) + 123)?;

    let preallocated = File::create(folder.join("preallocated"))?;
    fallocate(&preallocated, FallocateFlags::empty(), 0, 1 << 20)?;
    preallocated.write_all_at(&random.bytes(10_000, true), 200_000)?;
    let beyond = File::create(folder.join("preallocated-beyond-end"))?;
    beyond.write_all_at(b"short", 0)?;
    fallocate(&beyond, FallocateFlags::KEEP_SIZE, 0, 1 << 20)?;
    let punched = File::create(folder.join("punched"))?;
    punched.write_all_at(&random.bytes(500_000, false), 0)?;
    punched.sync_all()?;
    fallocate(
        &punched,
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        100_000,
        150_000,
    )?;

    let overwritten = File::create(folder.join("overwritten-in-the-middle"))?;
    overwritten.write_all_at(&random.bytes(1 << 20, true), 0)?;
    overwritten.sync_all()?;
    overwritten.write_all_at(&random.bytes(30_000, false), 250_000)?;
    overwritten.sync_all()?;
    overwritten.write_all_at(&random.bytes(4096, true), 700_416)?;
    let truncated = File::create(folder.join("truncated"))?;
    truncated.write_all_at(&random.bytes(700_000, true), 0)?;
    truncated.sync_all()?;
    truncated.set_len(300_001)?;
    let extended = File::create(folder.join("inline-then-extended"))?;
    extended.write_all_at(b"inline", 0)?;
    extended.sync_all()?;
    extended.set_len(1_000_000)?;

    let source = folder.join("reflink-source");
    fs::write(&source, random.bytes(600_000, true))?;
    File::open(&source)?.sync_all()?;
    let whole = File::create(folder.join("reflink-whole"))?;
    rustix::fs::ioctl_ficlone(&whole, File::open(&source)?)?;
    let part = File::create(folder.join("reflink-part"))?;
    let (mut from, mut to) = (131_072u64, 0u64);
    rustix::fs::copy_file_range(
        File::open(&source)?,
        Some(&mut from),
        &part,
        Some(&mut to),
        262_144,
    )?;

    let nodatacow = folder.join("nodatacow");
    let file = File::create(&nodatacow)?;
    set_flags(&file, IFlags::NOCOW)?;
    file.write_all_at(&random.bytes(200_000, true), 0)?;
    let compressed = folder.join("flag-compress");
    let file = File::create(&compressed)?;
    set_flags(&file, IFlags::COMPRESSED)?;
    file.write_all_at(&random.bytes(500_000, true), 0)?;
    for algorithm in ["zlib", "lzo", "zstd"] {
        for (kind, length) in [("inline", 1500usize), ("regular", 700_001), ("one-sector", 5000)] {
            let path = folder.join(format!("property-{algorithm}-{kind}"));
            let file = File::create(&path)?;
            unless_not_allowed(setxattr(
                &path,
                "btrfs.compression",
                algorithm.as_bytes(),
                XattrFlags::empty(),
            ))?;
            file.write_all_at(&random.bytes(length, true), 0)?;
            file.sync_all()?;
        }
    }
    Ok(())
}

fn set_flags(file: &File, flags: IFlags) -> Result<()> {
    let now = ioctl_getflags(file)?;
    unless_not_allowed(ioctl_setflags(file, now | flags))
}

/// Accepts the kernel's refusal: a volume mounted without data checksums has no compression.
fn unless_not_allowed(result: rustix::io::Result<()>) -> Result<()> {
    match result {
        Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn names(folder: &Path) -> Result<()> {
    fs::create_dir(folder)?;
    let bytes: [&[u8]; 9] = [
        b"not utf-8: \xff\xfe\x80",
        b"new\nline",
        b"tab\tand\x01control\x7f",
        b" spaces around ",
        b"-leading-dash",
        b"back\\slash",
        "über-日本語-🦀".as_bytes(),
        b"colon:in:name",
        b"\xc3\x28",
    ];
    for name in bytes {
        fs::write(folder.join(OsStr::from_bytes(name)), name)?;
    }
    fs::write(folder.join("n".repeat(255)), b"longest name")?;
    let mut deep = folder.to_path_buf();
    for level in 0..60 {
        deep.push(format!("a-rather-long-directory-name-at-level-{level}"));
        fs::create_dir(&deep)?;
    }
    fs::write(deep.join("bottom"), b"deep")?;
    // The test makes more names than one INODE_REF item holds; the kernel stores the rest in
    // INODE_EXTREF items.
    let linked = folder.join("linked");
    fs::write(&linked, b"many names")?;
    let links = folder.join("links");
    fs::create_dir(&links)?;
    for number in 0..300 {
        fs::hard_link(&linked, links.join(format!("link-{number}-{}", "x".repeat(200))))?;
    }
    fs::hard_link(&linked, folder.join("linked-twice-here"))?;
    Ok(())
}

fn kinds(folder: &Path) -> Result<()> {
    fs::create_dir(folder)?;
    symlink("target", folder.join("symlink"))?;
    symlink("/absolute/target", folder.join("symlink-absolute"))?;
    symlink("x".repeat(3900), folder.join("symlink-long"))?;
    symlink(
        OsStr::from_bytes(b"not-utf8-\xff"),
        folder.join("symlink-not-utf8"),
    )?;
    symlink("../../../../../../etc/passwd", folder.join("symlink-out"))?;
    let mode = Mode::from_raw_mode(0o640);
    mknodat(CWD, folder.join("fifo"), FileType::Fifo, mode, 0)?;
    mknodat(
        CWD,
        folder.join("character"),
        FileType::CharacterDevice,
        mode,
        rustix::fs::makedev(5, 1),
    )?;
    mknodat(
        CWD,
        folder.join("block"),
        FileType::BlockDevice,
        mode,
        rustix::fs::makedev(0xfff, 0xfffff),
    )?;
    mknodat(CWD, folder.join("socket"), FileType::Socket, mode, 0)?;
    fs::create_dir(folder.join("empty-directory"))?;
    Ok(())
}

fn attributes(folder: &Path, random: &mut Random) -> Result<()> {
    fs::create_dir(folder)?;
    for mode in [0o000u32, 0o444, 0o755, 0o1777, 0o2755, 0o4711, 0o6777] {
        let path = folder.join(format!("mode-{mode:o}"));
        fs::write(&path, b"mode")?;
        rustix::fs::chmod(&path, Mode::from_raw_mode(mode))?;
    }
    for (name, user, group) in [
        ("owner-small", 1000, 100),
        ("owner-large", 0x7fff_fffe, 0xffff_fffe),
    ] {
        let path = folder.join(name);
        fs::write(&path, b"owner")?;
        chown(&path, Some(user), Some(group))?;
        let link = folder.join(format!("{name}-link"));
        symlink(name, &link)?;
        lchown(&link, Some(group), Some(user))?;
    }
    for (name, seconds, nanoseconds) in [
        ("time-old", -86_400, 999_999_999),
        ("time-zero", 0, 0),
        ("time-far", 7_258_118_400, 1),
        ("time-past-2038", 2_147_483_648, 500_000_000),
    ] {
        let path = folder.join(name);
        fs::write(&path, b"time")?;
        let time = Timespec {
            tv_sec: seconds,
            tv_nsec: nanoseconds,
        };
        utimensat(
            CWD,
            &path,
            &Timestamps {
                last_access: time,
                last_modification: time,
            },
            AtFlags::empty(),
        )?;
    }
    xattrs(folder, random)?;
    let acl = folder.join("acl-directory");
    fs::create_dir(&acl)?;
    setxattr(
        &acl,
        "system.posix_acl_access",
        &posix_acl(0o7, 1234, 0o5),
        XattrFlags::empty(),
    )?;
    setxattr(
        &acl,
        "system.posix_acl_default",
        &posix_acl(0o7, 4321, 0o4),
        XattrFlags::empty(),
    )?;
    fs::write(acl.join("inherits"), b"acl")?;
    Ok(())
}

fn xattrs(folder: &Path, random: &mut Random) -> Result<()> {
    let path = folder.join("xattrs");
    fs::write(&path, b"xattrs")?;
    for number in 0..30 {
        let value = random.bytes((number * 9) as usize, number % 2 == 0);
        setxattr(
            &path,
            format!("user.number-{number}"),
            &value,
            XattrFlags::empty(),
        )?;
    }
    setxattr(&path, "user.empty", b"", XattrFlags::empty())?;
    setxattr(
        &path,
        "user.large",
        &random.bytes(3000, false),
        XattrFlags::empty(),
    )?;
    setxattr(&path, "user.binary\u{1}", b"\x00\xff\n=", XattrFlags::empty())?;
    setxattr(&path, "trusted.overlay.opaque", b"y", XattrFlags::empty())?;
    // A version 2 capability set: magic with the effective bit, then cap_net_raw permitted.
    let capability: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    setxattr(&path, "security.capability", &capability, XattrFlags::empty())?;
    let directory = folder.join("xattrs-on-directory");
    fs::create_dir(&directory)?;
    setxattr(&directory, "user.directory", b"yes", XattrFlags::empty())?;
    fs::write(directory.join("inherits"), random.bytes(50_000, true))?;
    Ok(())
}

/// Returns a POSIX ACL in the kernel's xattr form: version 2, then (tag, permissions, id) entries.
fn posix_acl(owner: u16, user: u32, permissions: u16) -> Vec<u8> {
    let undefined = u32::MAX;
    let entries: [(u16, u16, u32); 5] = [
        (0x01, owner, undefined),
        (0x02, permissions, user),
        (0x04, 0o5, undefined),
        (0x10, 0o7, undefined),
        (0x20, 0o1, undefined),
    ];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

fn subvolumes(folder: &Path, btrfs: &Path, random: &mut Random) -> Result<()> {
    fs::create_dir(folder)?;
    let subvolume = |arguments: &[&str], paths: &[PathBuf]| -> Result<()> {
        run(Command::new(btrfs).arg("subvolume").args(arguments).args(paths)).map(drop)
    };
    let (outer, inner) = (folder.join("outer"), folder.join("outer/inner"));
    subvolume(&["create"], std::slice::from_ref(&outer))?;
    fs::write(outer.join("file"), random.bytes(100_000, true))?;
    fs::write(outer.join("small"), b"small")?;
    subvolume(&["create"], std::slice::from_ref(&inner))?;
    fs::write(inner.join("file"), random.bytes(20_000, false))?;
    subvolume(
        &["snapshot", "-r"],
        &[outer.clone(), folder.join("snapshot-read-only")],
    )?;
    subvolume(&["snapshot"], &[outer.clone(), folder.join("snapshot-writable")])?;
    OpenOptions::new()
        .write(true)
        .open(folder.join("snapshot-writable/file"))?
        .write_all_at(b"changed in the snapshot", 50_000)?;
    fs::remove_file(folder.join("snapshot-writable/small"))?;
    fs::write(outer.join("after-the-snapshot"), b"new")?;
    let deleted = folder.join("deleted");
    subvolume(&["snapshot"], &[outer, deleted.clone()])?;
    subvolume(&["delete"], &[deleted])?;
    Ok(())
}
