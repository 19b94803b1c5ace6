//! Undamaged volumes of the kernel.

use crate::{case, expect_clean};
use anyhow::{Context, Result};
use buttress_oracle::history::{Made, Strictness, random, subvolume};
use buttress_oracle::loop_device::Mount;
use buttress_oracle::tools::{newest, run};
use buttress_oracle::volumes::{Fill, Specification, format, make};
use buttress_proof::harness::Case;
use std::process::Command;

/// Creates a volume, ages it, and checks it after each mount.
fn aged(specification: &Specification, seed: u64) -> Result<()> {
    let volume = make(specification)?;
    expect_clean(&volume.images).context("fresh")?;
    let mount = Mount::new(&volume.images, specification.mount)?;
    let history = Made::new(
        &random::history(seed),
        &mount.path().join("history"),
        Strictness::Lenient,
    )?;
    mount.close()?;
    expect_clean(&volume.images).context("after a history")?;
    let mount = Mount::new(&volume.images, specification.mount)?;
    let below = mount.path().join("history");
    // Some of the snapshots are deleted; extents that they shared with other snapshots stay.
    for (number, snapshot) in history.snapshots.iter().enumerate() {
        if number % 2 == 0 {
            let name = snapshot.file_name().context("a name")?;
            subvolume(&["delete"], &[&below.join(name)])?;
        }
    }
    mount.close()?;
    expect_clean(&volume.images).context("after deletions")?;
    Ok(())
}

/// Balances all block groups, which moves all blocks and extents.
fn balanced() -> Result<()> {
    let specification = Specification::default();
    let volume = make(&specification)?;
    let mount = Mount::new(&volume.images, "")?;
    subvolume(&["snapshot"], &[mount.path(), &mount.path().join("snapshot")])?;
    run(Command::new(newest("btrfs"))
        .args(["balance", "start", "--full-balance"])
        .arg(mount.path()))?;
    mount.close()?;
    expect_clean(&volume.images)?;
    Ok(())
}

/// Creates many snapshots of one subvolume, each slightly changed: the trees share nearly
/// everything.
fn many_snapshots() -> Result<()> {
    let specification = Specification {
        node_kib: 4,
        features: &["quota"],
        ..Specification::default()
    };
    let volume = make(&specification)?;
    let mount = Mount::new(&volume.images, "")?;
    let top = mount.path();
    for number in 0..60 {
        let snapshot = top.join(format!("snapshot-{number}"));
        subvolume(&["snapshot"], &[top, &snapshot])?;
        std::fs::write(snapshot.join(format!("new-{number}")), vec![7; 100 * number])?;
        if number % 3 == 0 {
            rustix::fs::syncfs(std::fs::File::open(top)?)?;
        }
    }
    mount.close()?;
    expect_clean(&volume.images)?;
    Ok(())
}

/// Creates a file of very many extents, half of them without checksums, on a volume with hole
/// items.
fn fragments() -> Result<()> {
    let specification = Specification {
        node_kib: 4,
        features: &["^no-holes"],
        fill: Fill::Empty,
        ..Specification::default()
    };
    let (_folder, images) = format(&specification)?;
    for options in ["nodatasum", "datasum"] {
        let mount = Mount::new(&images, options)?;
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::create(mount.path().join(options))?;
        for number in 0..3000_u64 {
            file.write_all_at(&[1; 4096], number * 3 * 4096)?;
            if number % 500 == 0 {
                file.sync_all()?;
            }
        }
        drop(file);
        mount.close()?;
    }
    expect_clean(&images)?;
    Ok(())
}

const PROFILES: [(&str, &str, u32); 12] = [
    ("single", "single", 1),
    ("single", "dup", 1),
    ("dup", "dup", 1),
    ("single", "single", 3),
    ("raid0", "raid0", 3),
    ("raid1", "raid1", 3),
    ("raid1c3", "raid1c3", 4),
    ("raid1c4", "raid1c4", 4),
    ("raid10", "raid10", 4),
    ("raid5", "raid5", 3),
    ("raid6", "raid6", 4),
    ("raid6", "raid1c3", 5),
];

type Feature = (&'static str, (u32, u32), Specification);

fn features() -> Vec<Feature> {
    let plain = Specification::default;
    let with = |features| Specification { features, ..plain() };
    let mounted = |mount| Specification { mount, ..plain() };
    vec![
        (
            "mixed",
            (6, 2),
            Specification {
                mixed: true,
                ..plain()
            },
        ),
        ("holes_as_items", (6, 2), with(&["^no-holes"])),
        ("no_skinny_metadata", (6, 2), with(&["^skinny-metadata"])),
        (
            "v1_space_cache",
            (6, 4),
            Specification {
                mount: "space_cache=v1",
                ..with(&["^free-space-tree"])
            },
        ),
        (
            "no_space_cache",
            (6, 4),
            Specification {
                mount: "nospace_cache",
                ..with(&["^free-space-tree"])
            },
        ),
        (
            "block_group_tree",
            (6, 4),
            Specification {
                fill: Fill::Full,
                ..with(&["block-group-tree"])
            },
        ),
        ("simple_quotas", (6, 8), with(&["squota"])),
        ("quotas", (6, 4), with(&["quota"])),
        ("zlib", (6, 2), mounted("compress-force=zlib")),
        ("lzo", (6, 2), mounted("compress-force=lzo")),
        ("zstd", (6, 2), mounted("compress-force=zstd")),
        ("nodatasum", (6, 2), mounted("nodatasum,max_inline=0")),
        ("nodatacow", (6, 2), mounted("nodatacow")),
    ]
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut seed = 40;
    let mut add = |name: String, progs, specification: Specification| {
        seed += 1;
        let specification = Specification {
            seed,
            ..specification
        };
        let history = seed;
        cases.push(case(name, progs, move || aged(&specification, history)));
    };
    for checksum in ["crc32c", "xxhash", "sha256", "blake2"] {
        for node_kib in [4, 16, 64] {
            let specification = Specification {
                checksum,
                node_kib,
                fill: if node_kib == 4 { Fill::Full } else { Fill::Kinds },
                ..Specification::default()
            };
            add(
                format!("clean::{checksum}_nodes_of_{node_kib}_kib"),
                (6, 2),
                specification,
            );
        }
    }
    for (data, metadata, devices) in PROFILES {
        let specification = Specification {
            data,
            metadata,
            devices,
            device_mib: 768,
            ..Specification::default()
        };
        add(
            format!("clean::{data}_{metadata}_on_{devices}"),
            (6, 2),
            specification,
        );
    }
    for (name, progs, specification) in features() {
        add(format!("clean::{name}"), progs, specification);
    }
    for seed in buttress_oracle::seeds::seeds("check::clean", "BUTTRESS_SEED", &Vec::from_iter(0..12)) {
        let specification = Specification {
            fill: Fill::Empty,
            node_kib: if seed % 2 == 0 { 4 } else { 16 },
            ..Specification::default()
        };
        add(format!("clean::history_{seed}"), (6, 2), specification);
    }
    cases.push(case("clean::balanced".to_owned(), (6, 2), balanced));
    cases.push(case("clean::many_snapshots".to_owned(), (6, 4), many_snapshots));
    cases.push(case("clean::fragments".to_owned(), (6, 2), fragments));
    cases
}
