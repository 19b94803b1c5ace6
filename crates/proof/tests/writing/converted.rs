//! Volumes that a balance converts, from each layout to each profile: content and sharing stay, and
//! the check finds nothing.
//!
//! The suite converts some pairs of layouts, from each layout at least once. `cargo xtask soak
//! --conversions N` converts more pairs, of volumes with more snapshots. From [`PAIRS`] on, the
//! soak converts all pairs.

mod cuts;

use crate::number;
use crate::relocated::without_last_snapshots;
use anyhow::{Context, Result, ensure};
use buttress::balance::{BalanceArguments, BalanceControl, BalanceEnd, BalanceFlags, BalanceItem};
use buttress::mkfs::{Feature, Options};
use buttress::unstable::accounts::Accounts as _;
use buttress::unstable::format::{BlockGroupFlags, Profile};
use buttress::unstable::fs::Filesystem;
use buttress::unstable::writer::WritableFilesystem;
use buttress::{Location, Progress, SubvolumeId};
use buttress_oracle::content::Random;
use buttress_oracle::tools::kernel_missing;
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::writing::state::{describe, first_difference};
use buttress_proof::writing::volume::{
    Backends, empty, expect_kernel_agrees, open_checked, open_for_writing,
};
use buttress_proof::writing::workload::Workload;
use std::collections::BTreeMap;
use std::time::Instant;

/// The layouts of a volume: nine profiles, and four of mixed block groups.
const LAYOUTS: [(Profile, bool); 13] = [
    (Profile::Single, false),
    (Profile::Dup, false),
    (Profile::Raid0, false),
    (Profile::Raid1, false),
    (Profile::Raid1C3, false),
    (Profile::Raid1C4, false),
    (Profile::Raid10, false),
    (Profile::Raid5, false),
    (Profile::Raid6, false),
    (Profile::Single, true),
    (Profile::Dup, true),
    (Profile::Raid1, true),
    (Profile::Raid10, true),
];

/// The number of profiles without mixed block groups, which are the targets.
const TARGETS: usize = 9;

/// The number of pairs of a layout and a target of data.
const PAIRS: usize = LAYOUTS.len() * TARGETS;

const DEVICE_BYTES: usize = 384 << 20;

/// A conversion, and the seed of its volume.
#[derive(Clone, Copy, Debug)]
struct Conversion {
    source: Profile,
    is_mixed: bool,
    data: Profile,
    metadata: Profile,
    devices: usize,
    snapshots: u64,
    seed: u64,
}

impl Conversion {
    /// Returns a pair by its number. The seed draws the target of metadata.
    fn of_pair(pair: usize, snapshots: u64, seed: u64) -> Result<Self> {
        let (source, is_mixed) = LAYOUTS[pair / TARGETS];
        let (data, _) = LAYOUTS[pair % TARGETS];
        let seed = seed + u64::try_from(pair)?;
        let drawn = Random::new(seed).below(u64::try_from(TARGETS)?);
        let metadata = match is_mixed {
            true => data,
            false => LAYOUTS[usize::try_from(drawn)?].0,
        };
        Ok(Self {
            source,
            is_mixed,
            data,
            metadata,
            devices: 4,
            snapshots,
            seed,
        })
    }

    fn options(&self) -> Options {
        let mut random = Random::new(self.seed);
        let mut features = vec![(Feature::MixedBlockGroups, self.is_mixed)];
        if random.one_in(3) {
            features.push((Feature::FreeSpaceTree, false));
        }
        if random.one_in(3) {
            features.push((Feature::NoHoles, false));
        }
        Options {
            data: Some(self.source),
            metadata: Some(self.source),
            node_bytes: (!self.is_mixed && random.one_in(2)).then_some(4096),
            features,
            ..Options::default()
        }
    }

    fn item(&self) -> BalanceItem {
        let metadata = BalanceArguments::NONE.with_target(self.metadata);
        BalanceItem {
            flags: BalanceFlags::DATA
                .union(BalanceFlags::METADATA)
                .union(BalanceFlags::SYSTEM)
                .union(BalanceFlags::FORCE),
            data: BalanceArguments::NONE.with_target(self.data),
            metadata,
            system: metadata,
        }
    }

    /// Makes the volume: random operations, then snapshots with changes in between.
    fn volume(&self, steps: u64) -> Result<Backends> {
        let backends = empty(&vec![DEVICE_BYTES; self.devices], &self.options())?;
        let filesystem = open_for_writing(&backends)?;
        let mut workload = Workload::on(&filesystem, self.seed)?;
        for _ in 0..steps {
            workload.step(&filesystem)?;
        }
        let top = Location::root_of(SubvolumeId::TOP_LEVEL);
        for number in 0..self.snapshots {
            let name = format!("snapshot {number}");
            filesystem
                .subvolumes()
                .snapshot(SubvolumeId::TOP_LEVEL, top, name.as_bytes(), false)?;
            for _ in 0..8 {
                workload.step(&filesystem)?;
            }
        }
        drop(workload);
        filesystem.commit()?;
        filesystem.subvolumes().drop_deleted(&Progress::new())?;
        filesystem.close()?;
        // Opening removes the inodes without names of snapshots.
        open_for_writing(&backends)?.close()?;
        Ok(backends)
    }

    /// Checks that no block group has another profile than the conversion's.
    fn expect_converted(&self, filesystem: &Filesystem) -> Result<()> {
        for chunk in filesystem.volume().chunk_map().chunks() {
            let expected = match chunk.flags().contains(BlockGroupFlags::DATA) {
                true => self.data,
                false => self.metadata,
            };
            let found = chunk.flags().profile();
            ensure!(
                found == Some(expected),
                "{} has {found:?}, not {expected}",
                chunk.start()
            );
        }
        Ok(())
    }
}

/// The content of a volume, and the bytes of each set of subvolumes that share them.
pub(super) struct State {
    content: String,
    shares: BTreeMap<Vec<SubvolumeId>, (u64, u64)>,
}

impl State {
    pub(super) fn of(filesystem: &Filesystem) -> Result<Self> {
        let accounting = filesystem.account_space(&Default::default(), &Progress::new())?;
        ensure!(accounting.failure_count() == 0, "{:?}", accounting.failures());
        let mut shares: BTreeMap<_, (u64, u64)> = BTreeMap::new();
        for group in accounting.groups(usize::MAX).0 {
            let owners = group.owners.iter();
            let owners = owners.map(|owner| accounting.owners()[*owner as usize].subvolume());
            let mut owners: Vec<SubvolumeId> = owners.flatten().collect();
            owners.sort_unstable();
            // Blocks of the volume itself change with the number of its block groups.
            if !owners.is_empty() {
                let sum = shares.entry(owners).or_default();
                let occupied = &group.occupied;
                *sum = (sum.0 + occupied.data().get(), sum.1 + occupied.metadata.get());
            }
        }
        Ok(Self {
            content: without_last_snapshots(&describe(filesystem)?),
            shares,
        })
    }

    /// Compares the content alone.
    pub(super) fn expect_content(&self, found: &Filesystem) -> Result<()> {
        let (expected, content) = (&self.content, &without_last_snapshots(&describe(found)?));
        ensure!(expected == content, "{}", first_difference(expected, content));
        Ok(())
    }

    pub(super) fn expect(&self, found: &Self) -> Result<()> {
        let (expected, content) = (&self.content, &found.content);
        ensure!(expected == content, "{}", first_difference(expected, content));
        let differs = |owners: &&Vec<SubvolumeId>| self.shares.get(*owners) != found.shares.get(*owners);
        if let Some(owners) = self.shares.keys().chain(found.shares.keys()).find(differs) {
            let of = |state: &Self| state.shares.get(owners).copied();
            anyhow::bail!("{owners:?} had {:?} bytes, and have {:?}", of(self), of(found));
        }
        Ok(())
    }
}

pub(super) fn run_to_the_end(filesystem: &WritableFilesystem, item: Option<BalanceItem>) -> Result<()> {
    let choice = match item {
        Some(item) => filesystem.balances().start(item)?,
        None => filesystem.balances().resume()?,
    };
    let summary = filesystem
        .balances()
        .run(&choice, None, &BalanceControl::default())?;
    ensure!(summary.end == BalanceEnd::Finished, "{summary:?}");
    ensure!(summary.without_space.is_empty(), "{summary:?}");
    Ok(())
}

/// Returns whether a profile has parity. For an extent across stripes, `btrfs check` of btrfs-progs
/// 6.14 computes wrong content from parity. The kernel's scrub finds no error on these volumes.
fn has_parity(profile: Profile) -> bool {
    matches!(profile, Profile::Raid5 | Profile::Raid6)
}

/// Conversions that failed once. A data chunk in DUP left no space for a system chunk on all devices.
const FAILED_ONCE: [Conversion; 1] = [Conversion {
    source: Profile::Raid1,
    is_mixed: false,
    data: Profile::Dup,
    metadata: Profile::Raid1C4,
    devices: 4,
    snapshots: 3,
    seed: 29,
}];

fn converts(conversion: &Conversion, with_kernel: bool) -> Result<()> {
    let backends = conversion.volume(250)?;
    let before = State::of(&open_checked(&backends).context("before")?)?;
    let filesystem = open_for_writing(&backends)?;
    run_to_the_end(&filesystem, Some(conversion.item()))?;
    filesystem.close()?;
    let after = open_checked(&backends).context("after")?;
    before.expect(&State::of(&after)?)?;
    conversion.expect_converted(&after)?;
    drop(after);
    if with_kernel && !has_parity(conversion.data) && kernel_missing().is_none() {
        expect_kernel_agrees(&backends).context("beside the kernel")?;
    }
    Ok(())
}

/// Converts every `step`-th pair from `first` on. The kernel compares the content of every
/// `kernel_every`-th pair.
fn convert_pairs(first: usize, step: usize, snapshots: u64, kernel_every: usize) -> Result<()> {
    let seed = number("BUTTRESS_SOAK_SEED", 1);
    let mut failures = Vec::new();
    for pair in (first..PAIRS).step_by(step) {
        let conversion = Conversion::of_pair(pair, snapshots, seed)?;
        let begin = Instant::now();
        match converts(&conversion, pair % kernel_every == 0) {
            Ok(()) => eprintln!("{conversion:?} in {} ms", begin.elapsed().as_millis()),
            Err(error) => failures.push(format!("{conversion:?}: {error:#}")),
        }
    }
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

/// The number of cases that share the pairs.
const PARTS: usize = 3;

pub fn cases() -> Vec<Case> {
    let pairs = (0..PARTS).map(|part| {
        Case::new(format!("converted::pairs_{part}"), move || {
            match usize::try_from(number("BUTTRESS_CONVERSIONS", 0))? {
                // Each layout occurs.
                0 => convert_pairs(1 + 7 * part, 20, 3, 41)?,
                PAIRS.. => convert_pairs(part, PARTS, 50, 5)?,
                wanted => convert_pairs(part, PAIRS / wanted * PARTS, 50, 5)?,
            }
            Ok(Outcome::Passed)
        })
    });
    let failed_once = Case::new("converted::failed_once", || {
        for conversion in &FAILED_ONCE {
            converts(conversion, false).with_context(|| format!("{conversion:?}"))?;
        }
        Ok(Outcome::Passed)
    });
    pairs.chain([failed_once]).chain(cuts::cases()).collect()
}
