//! `cargo xtask tour-image`: makes the small volume that `buttress tour` shows, with the kernel.
//!
//! The volume of 128 MiB, mostly never written, has every kind of file:
//!
//! - a subvolume with a nested subvolume and a read-only snapshot;
//! - files compressed with zlib, lzo and zstd; plain, inline, preallocated and sparse files, and
//!   reflinks;
//! - extended attributes; hard and symbolic links; a device node, a pipe and a socket; a name that
//!   is not UTF-8;
//! - a directory with enough names for a tree of several levels.
//!
//! The compressed volume is `crates/cli/assets/tour.img.zst`.
//!
//! The chore needs root, btrfs-progs and a kernel with btrfs. Content, names, the volume's uuids
//! and file times are fixed. The kernel's own times and the uuids of subvolumes differ between
//! runs.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use rustix::fs::{CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

use crate::run::{run, target};

const IMAGE_BYTES: u64 = 128 << 20;
const UUID: &str = "7b0f3d0a-6e5c-4b1e-9c37-0d1b2f6a5e11";
const LABEL: &str = "tour";
/// The zstd window reaches from the second copies of metadata back to the first copies, tens of MiB
/// before.
const ZSTD_WINDOW_LOG: u32 = 27;
const ZSTD_LEVEL: i32 = 19;

/// Makes the image of the tour's volume.
pub(crate) fn make() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("the volume is filled by the kernel, which needs root");
    }
    let folder = target()?.join("tour-image");
    fs::create_dir_all(&folder)?;
    let image = folder.join("tour.img");
    let _ = fs::remove_file(&image);
    File::create(&image)?.set_len(IMAGE_BYTES)?;
    run(Command::new("mkfs.btrfs")
        .args(["-q", "-U", UUID, "-L", LABEL, "-m", "dup", "-d", "single"])
        .arg(&image))?;
    {
        let mount = Mount::new(&image, &folder.join("mnt"))?;
        fill(&mount.point)?;
        run(Command::new("sync").arg("-f").arg(&mount.point))?;
    }
    let bytes = fs::read(&image)?;
    let mut packer = zstd::bulk::Compressor::new(ZSTD_LEVEL)?;
    packer.set_parameter(zstd::zstd_safe::CParameter::WindowLog(ZSTD_WINDOW_LOG))?;
    packer.set_parameter(zstd::zstd_safe::CParameter::EnableLongDistanceMatching(true))?;
    let packed = packer.compress(&bytes)?;
    let asset = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/cli/assets/tour.img.zst");
    fs::write(&asset, &packed)?;
    println!(
        "{}: {} bytes for a volume of {IMAGE_BYTES}",
        asset.display(),
        packed.len()
    );
    Ok(())
}

/// A mounted image. Dropping the value unmounts and detaches the image.
struct Mount {
    device: String,
    point: PathBuf,
}

impl Mount {
    fn new(image: &Path, point: &Path) -> Result<Self> {
        fs::create_dir_all(point)?;
        let output = Command::new("losetup")
            .args(["-P", "-f", "--show"])
            .arg(image)
            .output()?;
        let device = String::from_utf8(output.stdout)?.trim().to_owned();
        if device.is_empty() {
            bail!("losetup gave no device for {}", image.display());
        }
        let mount = Self {
            device,
            point: point.to_owned(),
        };
        run(Command::new("mount")
            .args(["-t", "btrfs", "-o", "noatime"])
            .arg(&mount.device)
            .arg(point))?;
        Ok(mount)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        for (program, place) in [
            ("umount", self.point.as_os_str()),
            ("losetup", OsStr::new(&self.device)),
        ] {
            let detach = (program == "losetup").then_some("-d");
            if let Err(error) = run(Command::new(program).args(detach).arg(place)) {
                eprintln!("{error:#}");
            }
        }
    }
}

/// Returns text that compresses as prose does, and is equal in every run.
fn text(seed: u64, length: usize) -> Vec<u8> {
    const WORDS: [&str; 24] = [
        "tree",
        "leaf",
        "node",
        "key",
        "item",
        "extent",
        "chunk",
        "stripe",
        "mirror",
        "parity",
        "snapshot",
        "subvolume",
        "inode",
        "directory",
        "checksum",
        "generation",
        "transaction",
        "commit",
        "root",
        "block",
        "group",
        "device",
        "offset",
        "length",
    ];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut text = Vec::with_capacity(length + 16);
    while text.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let word = WORDS[(state % WORDS.len() as u64) as usize];
        text.extend_from_slice(word.as_bytes());
        text.push(if state.is_multiple_of(11) { b'\n' } else { b' ' });
    }
    text.truncate(length);
    text
}

fn btrfs(words: &[&str], paths: &[&Path]) -> Result<()> {
    run(Command::new("btrfs")
        .args(words)
        .args(paths)
        .stdout(std::process::Stdio::null()))
}

fn fill(top: &Path) -> Result<()> {
    let home = top.join("home");
    btrfs(&["subvolume", "create"], &[&home])?;
    fill_content(&home)?;
    fill_special(&home)?;
    fill_directory(&home.join("many"))?;
    let nested = home.join("projects");
    btrfs(&["subvolume", "create"], &[&nested])?;
    fs::write(nested.join("README"), "A subvolume inside a subvolume.\n")?;
    btrfs(
        &["subvolume", "snapshot", "-r"],
        &[&home, &top.join("home-monday")],
    )?;
    fs::write(home.join("after-the-snapshot"), "Only in home.\n")?;
    fs::remove_file(home.join("plain/inline"))?;
    let tuesday = top.join("home-tuesday");
    btrfs(&["subvolume", "snapshot"], &[&home, &tuesday])?;
    change(&tuesday)?;
    btrfs(
        &["property", "set"],
        &[&tuesday, Path::new("ro"), Path::new("true")],
    )
}

/// Changes the files between the two snapshots: names that are hard to track, and shared extents.
fn change(home: &Path) -> Result<()> {
    fs::create_dir(home.join("archive"))?;
    fs::rename(home.join("compressed"), home.join("archive/compressed"))?;
    fs::rename(home.join("archive"), home.join("plain/archive"))?;
    let copy = File::create(home.join("plain/another-reflink"))?;
    rustix::fs::ioctl_ficlone(&copy, File::open(home.join("plain/text"))?)?;
    let changed = fs::OpenOptions::new()
        .write(true)
        .open(home.join("plain/holes"))?;
    changed.write_all_at(b"changed", 2 << 20)?;
    Ok(())
}

/// Writes content in every form of storage.
fn fill_content(home: &Path) -> Result<()> {
    let plain = home.join("plain");
    fs::create_dir(&plain)?;
    fs::write(plain.join("empty"), "")?;
    fs::write(plain.join("inline"), "Small files lie in the tree itself.\n")?;
    fs::write(plain.join("text"), text(1, 40_000))?;
    let sparse = File::create(plain.join("holes"))?;
    sparse.write_all_at(b"head", 0)?;
    sparse.write_all_at(&text(2, 8192), 1 << 20)?;
    sparse.set_len(3 << 20)?;
    let prealloc = File::create(plain.join("preallocated"))?;
    rustix::fs::fallocate(&prealloc, rustix::fs::FallocateFlags::empty(), 0, 1 << 20)?;
    prealloc.write_all_at(&text(3, 4096), 65_536)?;
    prealloc.sync_all()?;
    let copy = File::create(plain.join("reflink"))?;
    rustix::fs::ioctl_ficlone(&copy, File::open(plain.join("text"))?)?;
    for algorithm in ["zlib", "lzo", "zstd"] {
        let directory = home.join("compressed").join(algorithm);
        fs::create_dir_all(&directory)?;
        btrfs(
            &["property", "set"],
            &[&directory, Path::new("compression"), Path::new(algorithm)],
        )?;
        for (number, length) in [1000, 5000, 30_000, 160_000].into_iter().enumerate() {
            let mut file = File::create(directory.join(format!("text-{length}")))?;
            file.write_all(&text(number as u64 + 10, length))?;
            file.sync_all()?;
        }
    }
    Ok(())
}

/// Makes attributes, links, and special files.
fn fill_special(home: &Path) -> Result<()> {
    let special = home.join("special");
    fs::create_dir(&special)?;
    let first = special.join("first-name");
    fs::write(&first, "One file, two names.\n")?;
    fs::hard_link(&first, special.join("second-name"))?;
    symlink("first-name", special.join("symlink"))?;
    symlink("/nowhere/at/all", special.join("dangling"))?;
    fs::write(
        special.join(OsStr::from_bytes(b"not-utf8-\xff\xfe")),
        "A name is bytes.\n",
    )?;
    fs::write(special.join("x".repeat(255)), "A name of 255 bytes.\n")?;
    let node = |name: &str, kind, device| {
        rustix::fs::mknodat(CWD, special.join(name), kind, Mode::from_raw_mode(0o640), device)
    };
    node("null", FileType::CharacterDevice, rustix::fs::makedev(1, 3))?;
    node("loop", FileType::BlockDevice, rustix::fs::makedev(7, 0))?;
    node("pipe", FileType::Fifo, 0)?;
    drop(UnixListener::bind(special.join("socket"))?);
    let attributed = special.join("attributes");
    fs::write(&attributed, "Extended attributes and an ACL.\n")?;
    let set = |name: &str, value: &[u8]| rustix::fs::setxattr(&attributed, name, value, XattrFlags::empty());
    set("user.colour", b"green")?;
    set("user.binary", &[0, 1, 2, 255])?;
    set("trusted.secret", b"for root")?;
    // The access list `user::rw-, user:1000:r--, group::r--, mask::r--, other::---`.
    let acl: [(u16, u16, u32); 5] = [
        (1, 6, u32::MAX),
        (2, 4, 1000),
        (4, 4, u32::MAX),
        (16, 4, u32::MAX),
        (32, 0, u32::MAX),
    ];
    let mut stored = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in acl {
        stored.extend_from_slice(&tag.to_le_bytes());
        stored.extend_from_slice(&permissions.to_le_bytes());
        stored.extend_from_slice(&id.to_le_bytes());
    }
    set("system.posix_acl_access", &stored)?;
    let before_1970 = Timestamps {
        last_access: Timespec {
            tv_sec: 1,
            tv_nsec: 1,
        },
        last_modification: Timespec {
            tv_sec: -1,
            tv_nsec: 999_999_999,
        },
    };
    rustix::fs::utimensat(CWD, &first, &before_1970, rustix::fs::AtFlags::empty())?;
    std::os::unix::fs::chown(&attributed, Some(1000), Some(1000))?;
    Ok(())
}

/// Makes enough names for a tree of several levels.
fn fill_directory(directory: &Path) -> Result<()> {
    fs::create_dir(directory)?;
    for number in 0..2000 {
        let path = directory.join(format!("file-{number:04}"));
        fs::write(&path, format!("This is file number {number}.\n"))
            .with_context(|| path.display().to_string())?;
    }
    Ok(())
}
