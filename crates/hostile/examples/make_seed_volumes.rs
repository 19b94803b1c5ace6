//! Makes the seed volumes of `fuzz/volumes` with mkfs.btrfs and the kernel. Needs root.
//!
//! Uuids and times of the volumes differ between runs, so make them again only to add volumes.
//! Afterwards fold the image target's corpus again, because its inputs name volumes by their place
//! in the order of names.

use anyhow::{Context, Result, bail};
use buttress_hostile::seed_volume::{SeedDevice, SeedVolume};
use buttress_oracle::loop_device::Mount;
use buttress_oracle::tools::{kernel_missing, newest, run};
use buttress_oracle::volumes::{Specification, format};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

struct Plan {
    name: &'static str,
    specification: Specification,
    more: fn(&Path) -> Result<()>,
    /// Whether the image is packed while it is mounted, after an fsync.
    while_mounted: bool,
}

fn plans() -> Vec<Plan> {
    let one = Specification {
        device_mib: 128,
        node_kib: 4,
        metadata: "single",
        ..Specification::default()
    };
    let several = Specification {
        device_mib: 256,
        ..one.clone()
    };
    let plan = |name, specification| Plan {
        name,
        specification,
        more: |_| Ok(()),
        while_mounted: false,
    };
    vec![
        plan("01-kinds", one.clone()),
        plan(
            "02-mixed-sha256",
            Specification {
                mixed: true,
                checksum: "sha256",
                ..one.clone()
            },
        ),
        Plan {
            more: quotas,
            ..plan(
                "03-quota-xxhash",
                Specification {
                    checksum: "xxhash",
                    metadata: "dup",
                    node_kib: 16,
                    features: &["block-group-tree"],
                    ..one.clone()
                },
            )
        },
        Plan {
            more: simple_quotas,
            ..plan(
                "04-squota-blake2",
                Specification {
                    checksum: "blake2",
                    ..one.clone()
                },
            )
        },
        plan(
            "05-old",
            Specification {
                node_kib: 64,
                features: &["^no-holes,^free-space-tree"],
                ..one.clone()
            },
        ),
        plan(
            "06-raid1",
            Specification {
                devices: 2,
                data: "raid1",
                metadata: "raid1",
                ..several.clone()
            },
        ),
        plan(
            "07-raid6",
            Specification {
                devices: 4,
                data: "raid6",
                metadata: "raid1c3",
                ..several.clone()
            },
        ),
        plan(
            "08-raid5",
            Specification {
                devices: 3,
                data: "raid5",
                metadata: "raid5",
                ..several.clone()
            },
        ),
        plan(
            "09-raid10",
            Specification {
                devices: 4,
                data: "raid10",
                metadata: "raid0",
                ..several.clone()
            },
        ),
        Plan {
            more: log,
            while_mounted: true,
            ..plan("10-log", one.clone())
        },
    ]
}

fn main() -> Result<()> {
    if let Some(why) = kernel_missing() {
        bail!("{why}");
    }
    let folder = buttress_hostile::seeds::folder().join("volumes");
    fs::create_dir_all(&folder)?;
    let only = std::env::args().nth(1);
    for plan in plans() {
        if only.as_ref().is_some_and(|only| only != plan.name) {
            continue;
        }
        let packed = make(&plan).with_context(|| format!("making {}", plan.name))?;
        println!("{:20} {:7} bytes", plan.name, packed.len());
        fs::write(folder.join(format!("{}.zst", plan.name)), packed)?;
    }
    Ok(())
}

fn make(plan: &Plan) -> Result<Vec<u8>> {
    let (_scratch, images) = format(&plan.specification)?;
    let mount = Mount::new(&images, "max_inline=2048,noatime")?;
    plant(mount.path())?;
    (plan.more)(mount.path())?;
    let devices = || -> Result<Vec<SeedDevice>> {
        images
            .iter()
            .map(|image| {
                Ok(SeedDevice::of_image(std::io::BufReader::new(fs::File::open(
                    image,
                )?))?)
            })
            .collect()
    };
    let devices = if plan.while_mounted {
        let devices = devices()?;
        mount.close()?;
        devices
    } else {
        mount.close()?;
        devices()?
    };
    Ok(SeedVolume::pack(&devices)?)
}

fn text(lines: usize) -> Vec<u8> {
    (0..lines)
        .flat_map(|line| format!("line {line} of a text that compresses\n").into_bytes())
        .collect()
}

fn btrfs(words: &[&str], path: &Path) -> Result<()> {
    run(Command::new(newest("btrfs")).args(words).arg(path)).map(drop)
}

fn tool(program: &str, words: &[&str], path: &Path) -> Result<()> {
    run(Command::new(program).args(words).arg(path)).map(drop)
}

/// Makes a few files of every kind.
fn plant(top: &Path) -> Result<()> {
    fs::write(top.join("inline"), text(10))?;
    fs::write(top.join("regular"), text(200))?;
    fs::write(top.join("empty"), b"")?;
    for compression in ["zlib", "lzo", "zstd"] {
        let folder = top.join(compression);
        fs::create_dir(&folder)?;
        run(Command::new(newest("btrfs"))
            .args(["property", "set"])
            .arg(&folder)
            .args(["compression", compression]))?;
        fs::write(folder.join("inline"), text(30))?;
        fs::write(folder.join("regular"), text(400))?;
    }
    tool("fallocate", &["-l", "64K"], &top.join("preallocated"))?;
    fs::write(top.join("holes"), text(1000))?;
    tool(
        "fallocate",
        &["-p", "-o", "8192", "-l", "8192"],
        &top.join("holes"),
    )?;
    tool("truncate", &["-s", "1G"], &top.join("sparse"))?;
    symlink("regular", top.join("link"))?;
    symlink("/a/../long/way/to/nowhere", top.join("dangling"))?;
    symlink("loop", top.join("loop"))?;
    tool("mkfifo", &[], &top.join("fifo"))?;
    run(Command::new("mknod").arg(top.join("null")).args(["c", "1", "3"]))?;
    run(Command::new("mknod").arg(top.join("disk")).args(["b", "8", "17"]))?;
    run(Command::new("setfattr")
        .args(["-n", "user.name", "-v", "value"])
        .arg(top.join("inline")))?;
    run(Command::new("setfattr")
        .args(["-n", "trusted.other", "-v", "x"])
        .arg(top.join("inline")))?;
    tool("chattr", &["+A"], &top.join("empty"))?;
    let links = top.join("links");
    fs::create_dir(&links)?;
    fs::write(links.join("first"), b"many names")?;
    // The files get more names than an INODE_REF holds in a block of 4 KiB, so some names become
    // extended references.
    for number in 0..25 {
        fs::hard_link(
            links.join("first"),
            links.join(format!("{number:03}-{}", "n".repeat(200))),
        )?;
    }
    // The two names have equal hashes.
    for name in ["aiyifwg", "dlpjrry"] {
        fs::write(links.join(name), name)?;
    }
    let many = top.join("many");
    fs::create_dir(&many)?;
    for number in 0..24 {
        fs::write(many.join(format!("file {number}")), vec![b'x'; number * 10])?;
    }
    rustix::fs::syncfs(fs::File::open(top)?)?;
    btrfs(&["-q", "subvolume", "create"], &top.join("subvolume"))?;
    fs::write(top.join("subvolume/file"), text(100))?;
    btrfs(&["-q", "subvolume", "create"], &top.join("subvolume/nested"))?;
    run(Command::new(newest("btrfs"))
        .args(["-q", "subvolume", "snapshot", "-r"])
        .arg(top.join("subvolume"))
        .arg(top.join("snapshot")))?;
    fs::write(top.join("subvolume/file"), text(50))?;
    btrfs(&["-q", "subvolume", "set-default"], &top.join("subvolume"))?;
    Ok(())
}

fn quotas(top: &Path) -> Result<()> {
    btrfs(&["quota", "enable"], top)?;
    btrfs(&["quota", "rescan", "-w"], top)?;
    btrfs(&["qgroup", "create", "1/100"], top)?;
    btrfs(&["qgroup", "limit", "10M", "1/100"], top)?;
    btrfs(&["qgroup", "assign", "--no-rescan", "0/256", "1/100"], top)
}

fn simple_quotas(top: &Path) -> Result<()> {
    btrfs(&["quota", "enable", "--simple"], top)?;
    fs::write(top.join("after"), text(200))?;
    Ok(())
}

fn log(top: &Path) -> Result<()> {
    rustix::fs::syncfs(fs::File::open(top)?)?;
    for number in 0..5 {
        let path = top.join(format!("logged {number}"));
        fs::write(&path, text(number * 50))?;
        fs::File::open(&path)?.sync_all()?;
    }
    fs::rename(top.join("logged 1"), top.join("renamed"))?;
    fs::remove_file(top.join("many/file 7"))?;
    fs::File::open(top.join("renamed"))?.sync_all()?;
    fs::File::open(top.join("many"))?.sync_all()?;
    Ok(())
}
