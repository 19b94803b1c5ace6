//! Hand-made blocks and superblocks: every type of item, with values that a kernel seldom or never
//! writes.
//!
//! The test overwrites a leaf of a real volume, on all its copies, with crafted items and a correct
//! checksum. Both programs print the crafted block with `dump-tree -b`, although the block belongs
//! to no tree. Items are as long as their fields: for shorter ones the reference reads beyond their
//! end, where no comparison is possible.

mod bytes;
mod items;

use crate::compare::{equal, equal_but_wrong, equal_output, shows};
use anyhow::{Context, Result, ensure};
use buttress_oracle::loop_device::Mount;
use buttress_oracle::tools::reference_missing;
use buttress_oracle::tools::{buttress, newest, run};
use buttress_oracle::volumes::{Fill, Specification, format};
use buttress_proof::harness::{Case, Outcome};
use bytes::{Bytes, bytes};
use items::Item;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const NODE_BYTES: usize = 16384;
const HEADER_BYTES: usize = 101;
const ITEM_BYTES: usize = 25;
const ADDRESS_OFFSET: usize = 48;

/// A small volume, with the address of its uuid tree's root, and the offsets of this block in the
/// image.
struct Target {
    _folder: tempfile::TempDir,
    images: Vec<PathBuf>,
    address: u64,
    places: Vec<u64>,
}

impl Target {
    fn make() -> Result<Self> {
        let (folder, images) = format(&Specification {
            fill: Fill::Empty,
            device_mib: 256,
            ..Specification::default()
        })?;
        let image = images.first().context("an image")?;
        let dump = run(Command::new(newest("btrfs"))
            .args(["inspect-internal", "dump-tree", "-r"])
            .arg(image))?;
        let dump = String::from_utf8_lossy(&dump.stdout).into_owned();
        let line = dump
            .lines()
            .find(|line| line.starts_with("uuid tree"))
            .context("a uuid tree")?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let address: u64 = words.iter().rev().nth(2).context("an address")?.parse()?;
        let places = places(image, address)?;
        ensure!(
            places.len() == 2,
            "the uuid tree's root should have two copies, found at {places:?}"
        );
        Ok(Self {
            _folder: folder,
            images,
            address,
            places,
        })
    }

    /// Overwrites the leaf with these items.
    fn write(&self, mut items: Vec<Item>, flags: u64) -> Result<()> {
        items.sort_by_key(|(key, _)| *key);
        let image = File::options()
            .read(true)
            .write(true)
            .open(self.images.first().context("an image")?)?;
        let mut block = vec![0; NODE_BYTES];
        image.read_exact_at(&mut block, *self.places.first().context("a copy")?)?;
        block[56..64].copy_from_slice(&flags.to_le_bytes());
        block[96..100].copy_from_slice(&(items.len() as u32).to_le_bytes());
        block[HEADER_BYTES..].fill(0);
        let mut end = NODE_BYTES - HEADER_BYTES;
        for (number, ((objectid, item_type, offset), Bytes(data))) in items.iter().enumerate() {
            end -= data.len();
            let head = bytes()
                .key(*objectid, *item_type, *offset)
                .u32s(&[end as u32, data.len() as u32]);
            let at = HEADER_BYTES + number * ITEM_BYTES;
            ensure!(at + ITEM_BYTES <= HEADER_BYTES + end, "too many items for a leaf");
            block[at..at + ITEM_BYTES].copy_from_slice(&head.0);
            block[HEADER_BYTES + end..][..data.len()].copy_from_slice(data);
        }
        let checksum = crc32c::crc32c(&block[32..]);
        block[..4].copy_from_slice(&checksum.to_le_bytes());
        for place in &self.places {
            image.write_all_at(&block, *place)?;
        }
        Ok(())
    }
}

/// Returns the offsets of all blocks in an image whose header has this address.
fn places(image: &Path, address: u64) -> Result<Vec<u64>> {
    let file = File::open(image)?;
    let size = file.metadata()?.len();
    let mut places = Vec::new();
    let mut head = [0; ADDRESS_OFFSET + 8];
    // A superblock holds an address at the same offset, so the search distinguishes equal numbers
    // by their distance.
    for place in (0..size.saturating_sub(NODE_BYTES as u64)).step_by(4096) {
        file.read_exact_at(&mut head, place)?;
        if head[ADDRESS_OFFSET..] == address.to_le_bytes() {
            places.push(place);
        }
    }
    Ok(places)
}

const WRITTEN: u64 = 1 | 1 << 56;

fn leaf(items: fn() -> Vec<Item>) -> Result<Outcome> {
    let target = Target::make()?;
    target.write(items(), WRITTEN)?;
    let address = target.address.to_string();
    for words in [
        &["dump-tree", "-b", &address][..],
        &["dump-tree", "--hide-names", "--csum-headers", "-b", &address],
        &["dump-tree", "--csum-items", "-b", &address],
    ] {
        equal_output(words, &target.images)?;
    }
    Ok(Outcome::Passed)
}

/// For a replacement, the reference prints the start instead of the end; this item shows the
/// difference.
fn end_of_replacement() -> Result<Outcome> {
    let target = Target::make()?;
    let replacement = bytes().u64s(&[1, 2, 3, 0, 2, 100, 200, 0, 0]);
    target.write(vec![((0, 250, 0), replacement)], WRITTEN)?;
    let words = ["dump-tree", "-b", &target.address.to_string()];
    shows(
        &words,
        &target.images,
        "\t\tstop time 200 (1970-01-01 01:03:20)\n",
    )?;
    Ok(Outcome::Passed)
}

fn header_flags() -> Result<Outcome> {
    let target = Target::make()?;
    let address = target.address.to_string();
    for flags in [0, 1, 2, 3, 0x21, WRITTEN, 3 | 2 << 56, 1 << 55] {
        target.write(vec![((300, 48, 5), bytes())], flags)?;
        equal_output(&["dump-tree", "-b", &address], &target.images)?;
    }
    Ok(Outcome::Passed)
}

/// Returns changes of the primary superblock: an offset and bytes.
fn superblock_changes() -> Vec<(&'static str, usize, Vec<u8>, bool)> {
    let all = u64::MAX.to_le_bytes().to_vec();
    vec![
        ("checksum", 72, vec![99], false),
        ("magic", 64, b"_BH\xffa\0bc".to_vec(), true),
        ("fsid", 32, (0..16).collect(), true),
        ("flags", 56, all.clone(), true),
        ("checksum type 1", 196, vec![1, 0], true),
        ("checksum type 7", 196, vec![7, 0], true),
        ("incompat", 188, all.clone(), true),
        ("no features", 180, vec![0; 16], true),
        ("label", 299, b"a\nb\xff\x01\"\\t\0zz".to_vec(), true),
        ("long label", 299, vec![b'x'; 256], true),
        ("array of 5000", 160, 5000u32.to_le_bytes().to_vec(), true),
        ("array of 100", 160, 100u32.to_le_bytes().to_vec(), true),
        ("array of 10", 160, 10u32.to_le_bytes().to_vec(), true),
        ("array of 0", 160, vec![0; 4], true),
        ("array type", 811 + 8, vec![9], true),
        ("array stripes 0", 811 + 17 + 44, vec![0, 0], true),
        ("array stripes 90", 811 + 17 + 44, vec![90, 0], true),
        ("device fsid", 201 + 82, (0..16).collect(), true),
        ("address", 48, vec![1], true),
        ("levels", 198, vec![201, 202, 203], true),
        ("numbers", 80, all.repeat(7), true),
    ]
}

fn superblocks() -> Result<Outcome> {
    let target = Target::make()?;
    let image = target.images.first().context("an image")?;
    let file = File::options().read(true).write(true).open(image)?;
    let mut original = vec![0; 4096];
    file.read_exact_at(&mut original, 65536)?;
    for (name, offset, change, mend) in superblock_changes() {
        let mut changed = original.clone();
        changed[offset..offset + change.len()].copy_from_slice(&change);
        if mend {
            let checksum = crc32c::crc32c(&changed[32..]);
            changed[..4].copy_from_slice(&checksum.to_le_bytes());
        }
        file.write_all_at(&changed, 65536)?;
        let words = ["dump-super", "-f", "-F"];
        let broken_array = name.starts_with("array") && name != "array of 0";
        let result = if broken_array {
            equal_but_wrong(&words, &target.images).map(drop)
        } else {
            equal(&words, &target.images)
        };
        result.with_context(|| format!("superblock with another {name}"))?;
    }
    Ok(Outcome::Passed)
}

/// Destroys a leaf: its content is missing, with an error and the exit code; everything else is
/// printed.
fn lost_leaf() -> Result<Outcome> {
    let specification = Specification {
        fill: Fill::Kinds,
        ..Specification::default()
    };
    let (_folder, images) = format(&specification)?;
    let mount = Mount::new(&images, "")?;
    for number in 0..500 {
        std::fs::write(mount.path().join(format!("file-{number}")), [7; 100])?;
    }
    mount.close()?;
    let image = images.first().context("an image")?;
    let dump = run(Command::new(newest("btrfs"))
        .args(["inspect-internal", "dump-tree", "-t", "5"])
        .arg(image))?;
    let dump = String::from_utf8_lossy(&dump.stdout).into_owned();
    let pointers: Vec<&str> = dump.lines().filter(|line| line.starts_with("\tkey (")).collect();
    let pointer = pointers.get(pointers.len() / 2).context("a node")?;
    let words: Vec<&str> = pointer.split_whitespace().collect();
    let address: u64 = words.iter().rev().nth(2).context("an address")?.parse()?;
    let file = File::options().write(true).open(image)?;
    for place in places(image, address)? {
        file.write_all_at(b"damage", place + 9000)?;
    }
    // The reference continues after a lost leaf only if the items have this order.
    let said = equal_but_wrong(&["dump-tree", "--dfs", "-t", "5"], &images)?;
    ensure!(
        said.contains(&address.to_string()),
        "no message names block {address}:\n{said}"
    );
    shows(&["dump-tree", "-t", "5"], &images, "total bytes")?;
    let leaves = |order: &str| -> Result<usize> {
        let output = Command::new(buttress()?)
            .args(["inspect-internal", "dump-tree", order, "-t", "5"])
            .arg(image)
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.lines().filter(|line| line.starts_with("leaf ")).count())
    };
    ensure!(leaves("--bfs")? == leaves("--dfs")? && leaves("--dfs")? > 4);
    Ok(Outcome::Passed)
}

/// Destroys the root tree: single blocks, and the whole chunk tree, can still be printed.
fn lost_root_tree() -> Result<Outcome> {
    let target = Target::make()?;
    let image = target.images.first().context("an image")?;
    let file = File::options().read(true).write(true).open(image)?;
    let mut root = [0; 8];
    file.read_exact_at(&mut root, 65536 + 80)?;
    for place in places(image, u64::from_le_bytes(root))? {
        file.write_all_at(b"damage", place + 5000)?;
    }
    let address = target.address.to_string();
    equal(&["dump-tree", "-b", &address], &target.images)?;
    shows(
        &["dump-tree", "-t", "chunk"],
        &target.images,
        "DEV_ITEMS DEV_ITEM 1",
    )?;
    Ok(Outcome::Passed)
}

fn case(name: &str, body: impl Fn() -> Result<Outcome> + Send + Sync + 'static) -> Case {
    Case::new(format!("crafted::{name}"), move || match reference_missing() {
        Some(reason) => Ok(Outcome::Skipped(reason)),
        None => body(),
    })
}

type MakeItems = fn() -> Vec<Item>;

pub fn cases() -> Vec<Case> {
    let leaves: [(&str, MakeItems); 9] = [
        ("names", items::names),
        ("file_extents", items::file_extents),
        ("roots", items::roots),
        ("extents", items::extents),
        ("block_groups", items::block_groups),
        ("space_and_chunks", items::space_and_chunks),
        ("quotas", items::quotas),
        ("jobs", items::jobs),
        ("keys", items::keys),
    ];
    let mut cases: Vec<Case> = leaves
        .into_iter()
        .map(|(name, items)| case(name, move || leaf(items)))
        .collect();
    cases.push(case("end_of_replacement", end_of_replacement));
    cases.push(case("header_flags", header_flags));
    cases.push(case("superblocks", superblocks));
    cases.push(case("lost_leaf", lost_leaf));
    cases.push(case("lost_root_tree", lost_root_tree));
    cases
}
