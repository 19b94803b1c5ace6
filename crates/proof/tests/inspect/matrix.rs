//! All variations of mkfs.btrfs.

use crate::compare::{chunks, everything, subvolumes, tree_statistics};
use anyhow::{Result, ensure};
use buttress_oracle::loop_device::Mount;
use buttress_oracle::tools::reference_missing;
use buttress_oracle::volumes::{Fill, Specification, Volume, make};
use buttress_proof::harness::{Case, Outcome};

fn compared(volume: &Volume, features: &[&str]) -> Result<Outcome> {
    everything(&volume.images)?;
    if let [image] = volume.images.as_slice() {
        let trees = subvolumes(image)?;
        ensure!(!trees.is_empty(), "the volume should have subvolumes");
        tree_statistics(image, &trees)?;
    }
    // btrfs-progs, the reference, does not find the usage in a block group tree, and prints 0.
    if features.contains(&"block-group-tree") {
        return Ok(Outcome::Passed);
    }
    let mount = Mount::new(&volume.images, "ro")?;
    for words in [
        &[][..],
        &["--raw"],
        &["--sort", "lstart"],
        &["--si"],
        &["--gbytes"],
    ] {
        chunks(mount.path(), &volume.images, words)?;
    }
    mount.close()?;
    Ok(Outcome::Passed)
}

fn case(name: impl Into<String>, specification: Specification) -> Case {
    Case::new(
        format!("matrix::{}", name.into()),
        move || match reference_missing() {
            Some(reason) => Ok(Outcome::Skipped(reason)),
            None => compared(&make(&specification)?, specification.features),
        },
    )
}

const PROFILES: [(&str, u32); 9] = [
    ("single", 3),
    ("dup", 1),
    ("raid0", 3),
    ("raid1", 3),
    ("raid1c3", 4),
    ("raid1c4", 4),
    ("raid10", 4),
    ("raid5", 3),
    ("raid6", 4),
];

const FEATURES: [(&str, &[&str]); 6] = [
    ("holes_as_items", &["^no-holes"]),
    ("no_free_space_tree", &["^free-space-tree"]),
    ("no_skinny_metadata", &["^skinny-metadata"]),
    ("block_group_tree", &["block-group-tree"]),
    ("simple_quotas", &["squota"]),
    ("quotas", &["quota"]),
];

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (seed, checksum) in (1..).zip(["crc32c", "xxhash", "sha256", "blake2"]) {
        for node_kib in [4, 16, 64] {
            // Small blocks and many names give trees of four levels.
            let fill = if node_kib == 4 && checksum == "crc32c" {
                Fill::Full
            } else {
                Fill::Kinds
            };
            let specification = Specification {
                checksum,
                node_kib,
                fill,
                seed,
                ..Specification::default()
            };
            cases.push(case(format!("{checksum}_nodes_of_{node_kib}_kib"), specification));
        }
    }
    for (profile, devices) in PROFILES {
        let specification = Specification {
            data: profile,
            metadata: profile,
            devices,
            device_mib: 768,
            ..Specification::default()
        };
        cases.push(case(format!("profile_{profile}_on_{devices}"), specification));
    }
    for (name, features) in FEATURES {
        cases.push(case(
            name,
            Specification {
                features,
                ..Specification::default()
            },
        ));
    }
    cases.push(case(
        "mixed_block_groups",
        Specification {
            mixed: true,
            ..Specification::default()
        },
    ));
    cases.push(case(
        "v1_space_cache",
        Specification {
            features: &["^free-space-tree"],
            mount: "space_cache=v1",
            ..Specification::default()
        },
    ));
    for compression in ["compress-force=zlib", "compress-force=lzo", "compress-force=zstd"] {
        let name = compression.replace(['-', '='], "_");
        cases.push(case(
            name,
            Specification {
                mount: compression,
                ..Specification::default()
            },
        ));
    }
    cases
}
