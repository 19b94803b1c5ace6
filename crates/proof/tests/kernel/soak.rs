//! Random volumes for a given time: `cargo xtask soak --seed N --seconds N`.
//!
//! Each seed chooses a checksum, a block size, profiles, features, mount options and content. The
//! soak cases only exist if `BUTTRESS_SOAK_SECONDS` is set. A failure names its seed, which
//! recreates the same volume.

use crate::compare::{library_equals, tar_equals};
use anyhow::{Context, Result};
use buttress_oracle::content::Random;
use buttress_oracle::tools::progs_missing;
use buttress_oracle::volumes::{Fill, Specification, make};
use buttress_proof::harness::{Case, Outcome};
use std::time::{Duration, Instant};

fn pick<T: Copy>(random: &mut Random, choices: &[T]) -> T {
    choices[random.below(choices.len() as u64) as usize]
}

fn specification(seed: u64) -> Specification {
    let mut random = Random::new(seed);
    let (profile, devices) = pick(&mut random, &crate::matrix::PROFILES);
    let features: [&'static [&'static str]; 6] = [
        &[],
        &["^no-holes"],
        &["block-group-tree"],
        &["squota"],
        &["quota", "^no-holes"],
        &["^skinny-metadata", "^free-space-tree"],
    ];
    let mounts = [
        "",
        "compress-force=zlib",
        "compress-force=lzo",
        "compress-force=zstd:3",
        "compress=zstd,max_inline=0",
        "nodatasum",
        "autodefrag,max_inline=4096",
        "ssd_spread,flushoncommit",
    ];
    Specification {
        checksum: pick(&mut random, &["crc32c", "xxhash", "sha256", "blake2"]),
        node_kib: pick(&mut random, &[4, 8, 16, 32, 64]),
        data: profile,
        metadata: profile,
        devices,
        device_mib: 768,
        mixed: devices == 1 && random.one_in(6),
        features: pick(&mut random, &features),
        mount: pick(&mut random, &mounts),
        fill: if random.one_in(8) { Fill::Full } else { Fill::Kinds },
        seed,
    }
}

fn one(seed: u64) -> Result<()> {
    let specification = specification(seed);
    let volume = make(&specification)?;
    library_equals(&volume.images, &volume.manifest)?;
    tar_equals(&["tar"], &volume.images, &volume.manifest)?;
    Ok(())
}

fn random_volumes(first_seed: u64, time: Duration) -> Result<Outcome> {
    if let Some(reason) = progs_missing((6, 8)) {
        return Ok(Outcome::Skipped(reason));
    }
    let start = Instant::now();
    let mut seed = first_seed;
    while start.elapsed() < time {
        one(seed).with_context(|| format!("seed {seed}: {:?}", specification(seed)))?;
        seed += 1;
    }
    println!(
        "soak: {} volumes, seeds [{first_seed}, {seed})",
        seed - first_seed
    );
    Ok(Outcome::Passed)
}

pub fn cases() -> Vec<Case> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let Some(seconds) = number("BUTTRESS_SOAK_SECONDS") else {
        return Vec::new();
    };
    let seed = buttress_oracle::seeds::seed("kernel::soak", "BUTTRESS_SOAK_SEED", 1);
    vec![Case::new("soak::random_volumes", move || {
        random_volumes(seed, Duration::from_secs(seconds))
    })]
}
