//! All variations of mkfs.btrfs and mount: checksums, sizes of tree blocks, profiles, features,
//! compression.

use crate::compare::{library_equals, tar_equals};
use buttress_oracle::seeds::budget;
use buttress_oracle::tools::progs_missing;
use buttress_oracle::volumes::{Fill, Specification, make};
use buttress_proof::harness::{Case, Outcome};

fn case(name: String, progs: (u32, u32), specification: Specification) -> Case {
    Case::new(name, move || {
        if let Some(reason) = progs_missing(progs) {
            return Ok(Outcome::Skipped(reason));
        }
        let volume = make(&specification)?;
        library_equals(&volume.images, &volume.manifest)?;
        let errors = tar_equals(&["tar"], &volume.images, &volume.manifest)?;
        // A tar stream cannot contain sockets: each socket causes one warning. Any other message is
        // a failure.
        for line in errors.lines() {
            anyhow::ensure!(line.contains("socket"), "an unexpected message: {line}");
        }
        Ok(Outcome::Passed)
    })
}

/// Profiles with the number of devices for each.
pub const PROFILES: [(&str, u32); 10] = [
    ("single", 1),
    ("dup", 1),
    ("single", 3),
    ("raid0", 3),
    ("raid1", 3),
    ("raid1c3", 4),
    ("raid1c4", 4),
    ("raid10", 4),
    ("raid5", 3),
    ("raid6", 4),
];

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut seed = 0;
    for checksum in ["crc32c", "xxhash", "sha256", "blake2"] {
        for node_kib in [4, 16, 64] {
            seed += 1;
            // The form of trees does not depend on the checksum, so large trees with each checksum
            // are only tested at night.
            let is_full = checksum == "crc32c" || budget("BUTTRESS_FULL_VOLUMES", 0, 1) > 0;
            let specification = Specification {
                checksum,
                node_kib,
                fill: if is_full { Fill::Full } else { Fill::Kinds },
                seed,
                ..Specification::default()
            };
            cases.push(case(
                format!("matrix::{checksum}_nodes_of_{node_kib}_kib"),
                (6, 2),
                specification,
            ));
        }
    }
    for (profile, devices) in PROFILES {
        seed += 1;
        let specification = Specification {
            data: profile,
            metadata: profile,
            devices,
            device_mib: 768,
            seed,
            ..Specification::default()
        };
        cases.push(case(
            format!("matrix::profile_{profile}_on_{devices}"),
            (6, 2),
            specification,
        ));
    }
    let features: [(&str, (u32, u32), Specification); 12] = [
        (
            "mixed_block_groups",
            (6, 2),
            Specification {
                mixed: true,
                ..Specification::default()
            },
        ),
        (
            "mixed_block_groups_dup",
            (6, 2),
            Specification {
                mixed: true,
                data: "dup",
                fill: Fill::Full,
                ..Specification::default()
            },
        ),
        (
            "holes_as_items",
            (6, 2),
            Specification {
                features: &["^no-holes"],
                ..Specification::default()
            },
        ),
        (
            "v1_space_cache",
            (6, 2),
            Specification {
                features: &["^free-space-tree"],
                mount: "space_cache=v1",
                ..Specification::default()
            },
        ),
        (
            "no_skinny_metadata",
            (6, 2),
            Specification {
                features: &["^skinny-metadata"],
                ..Specification::default()
            },
        ),
        (
            "block_group_tree",
            (6, 4),
            Specification {
                features: &["block-group-tree"],
                fill: Fill::Full,
                ..Specification::default()
            },
        ),
        (
            "simple_quotas",
            (6, 8),
            Specification {
                features: &["squota"],
                ..Specification::default()
            },
        ),
        (
            "quotas",
            (6, 2),
            Specification {
                features: &["quota"],
                ..Specification::default()
            },
        ),
        (
            "zlib",
            (6, 2),
            Specification {
                mount: "compress-force=zlib",
                ..Specification::default()
            },
        ),
        (
            "lzo",
            (6, 2),
            Specification {
                mount: "compress-force=lzo",
                node_kib: 4,
                ..Specification::default()
            },
        ),
        (
            "zstd",
            (6, 2),
            Specification {
                mount: "compress-force=zstd:9",
                ..Specification::default()
            },
        ),
        (
            "nodatasum_with_lzo_property",
            (6, 2),
            Specification {
                mount: "nodatasum,max_inline=0",
                ..Specification::default()
            },
        ),
    ];
    for (name, progs, mut specification) in features {
        seed += 1;
        specification.seed = seed;
        cases.push(case(format!("matrix::{name}"), progs, specification));
    }
    cases
}
