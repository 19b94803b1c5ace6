//! Volumes that are repeatedly filled with data, metadata or snapshots until there is no space, and
//! emptied: no error but `NoSpace` occurs, deleting always works, and the space is freed.

use anyhow::{Result, ensure};
use buttress::mkfs::{Feature, Options};
use buttress::unstable::writer::WritableFilesystem;
use buttress::{Profile, Progress};
use buttress_oracle::seeds::budget;
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::writing::fill::{Filling, make_source};
use buttress_proof::writing::volume::{empty, open_checked, open_for_writing};

/// Number of fillings of each volume: in the suite, in which every way of emptying occurs, and in a
/// nightly run.
const ROUNDS: (u64, u64) = (6, 20);

/// Number of rounds per checked one.
const CHECKED_ROUNDS: u64 = 5;

/// Number of files in the subvolume to snapshot, each with its own leaf.
const SOURCE_FILES: u64 = 20;

struct Volume {
    name: &'static str,
    filling: Filling,
    devices: Vec<usize>,
    options: Options,
    rounds: u64,
}

fn volumes() -> Vec<Volume> {
    let rounds = budget("BUTTRESS_FULL_ROUNDS", ROUNDS.0, ROUNDS.1);
    let plain = Options::default;
    let profiles = |data, metadata| Options {
        data: Some(data),
        metadata: Some(metadata),
        ..plain()
    };
    let small = || profiles(Profile::Single, Profile::Single);
    let mixed = || Options {
        features: vec![(Feature::MixedBlockGroups, true)],
        ..plain()
    };
    let volume = |name, filling, devices: &[usize], options, rounds| Volume {
        name,
        filling,
        devices: devices.iter().map(|mib| mib << 20).collect(),
        options,
        rounds,
    };
    vec![
        volume("data", Filling::Data, &[160], plain(), rounds),
        volume("metadata", Filling::Metadata, &[72], small(), rounds),
        volume("snapshots", Filling::Snapshots, &[72], small(), rounds),
        volume("mixed_data", Filling::Data, &[72], mixed(), 4),
        volume("mixed_metadata", Filling::Metadata, &[72], mixed(), 2),
        // Rows of the following parity profiles contain superblock copies.
        volume(
            "parity",
            Filling::Data,
            &[128; 3],
            profiles(Profile::Raid5, Profile::Raid5),
            2,
        ),
        volume(
            "double_parity",
            Filling::Data,
            &[128; 4],
            profiles(Profile::Raid6, Profile::Raid6),
            2,
        ),
        volume(
            "two_copies",
            Filling::Data,
            &[128; 3],
            profiles(Profile::Raid10, Profile::Raid1),
            2,
        ),
    ]
}

impl Volume {
    /// Removes pieces, and waits until their space is free.
    fn remove(
        &self,
        filesystem: &WritableFilesystem,
        prefix: &str,
        numbers: impl Iterator<Item = u64>,
    ) -> Result<()> {
        for number in numbers {
            self.filling
                .remove(filesystem, &self.filling.name(prefix, number))?;
        }
        filesystem.subvolumes().drop_deleted(&Progress::new())?;
        filesystem.commit()?;
        Ok(())
    }

    fn run(&self) -> Result<()> {
        let backends = empty(&self.devices, &self.options)?;
        let mut filesystem = open_for_writing(&backends)?;
        if self.filling == Filling::Snapshots {
            make_source(&filesystem, SOURCE_FILES)?;
        }
        let mut least = 0;
        for round in 0..self.rounds {
            let count = self.filling.fill(&filesystem, "first", u64::MAX)?;
            ensure!(
                count > 20 && count >= least,
                "round {round}: {count} pieces, {least} before"
            );
            // The remaining space of the full volume may differ slightly between rounds.
            least = count * 9 / 10;
            if round % 2 == 1 {
                // In each round, half of the pieces are removed and added again. Items that share a
                // leaf are removed together, because otherwise no leaf becomes free.
                let goes = |number: &u64| match self.filling {
                    Filling::Metadata => *number < count / 2,
                    Filling::Data | Filling::Snapshots => number.is_multiple_of(2),
                };
                self.remove(&filesystem, "first", (0..count).filter(goes))?;
                let again = self.filling.fill(&filesystem, "second", u64::MAX)?;
                ensure!(
                    again >= count * 2 / 5,
                    "round {round}: {again} pieces for half of {count}"
                );
                self.remove(&filesystem, "second", 0..again)?;
                self.remove(&filesystem, "first", (0..count).filter(|number| !goes(number)))?;
            } else if round % 4 == 0 {
                // When the volume is closed, it is still full.
                filesystem.commit()?;
                drop(filesystem);
                open_checked(&backends)?;
                filesystem = open_for_writing(&backends)?;
                self.remove(&filesystem, "first", 0..count)?;
            } else {
                self.remove(&filesystem, "first", 0..count)?;
            }
            if round % CHECKED_ROUNDS == CHECKED_ROUNDS - 1 || round + 1 == self.rounds {
                open_checked(&backends)?;
            }
        }
        Ok(())
    }
}

pub fn cases() -> Vec<Case> {
    let case = |volume: Volume| {
        Case::new(format!("full::{}", volume.name), move || {
            volume.run()?;
            Ok(Outcome::Passed)
        })
    };
    volumes().into_iter().map(case).collect()
}
