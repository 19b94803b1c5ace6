//! Histories from seeds, and reductions of a history that fails.
//!
//! Equal seeds give equal histories. Names come from a small set, so that they are reused, and
//! moves often go to former places. Offsets are mostly aligned to sectors, and sizes go from inline
//! files to a few hundred KiB. Each history favours names, data or attributes, or mixes them.

mod changes;
mod smaller;

pub use smaller::smaller;

use super::names::{Kind, Names, join};
use super::operation::{Operation, PathBytes};
use super::{Base, History, Step, Transfer};
use crate::content::Random;

/// The main subject of a history's changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Theme {
    Names,
    Data,
    Attributes,
    Mixed,
}

struct Generator {
    random: Random,
    theme: Theme,
    names: Names,
    /// The names in each snapshot.
    snapshots: Vec<Names>,
    operations: Vec<Operation>,
}

/// Returns a name from a small set. The set contains a name that is not UTF-8, one with a space,
/// and one of the maximum length.
fn name(random: &mut Random) -> Vec<u8> {
    match random.below(40) {
        0 => b"\xff\xfe not utf-8 \x80".to_vec(),
        1 => b"with space".to_vec(),
        2 => vec![b'n'; 255],
        3 => b"new\nline".to_vec(),
        4..=9 => format!("name-{}", random.below(1000)).into_bytes(),
        number => vec![b'a' + (number % 12) as u8],
    }
}

/// Returns the history of `seed`.
#[must_use]
pub fn history(seed: u64) -> History {
    let mut random = Random::new(seed ^ 0x5eed_0f5e_4d00);
    let theme = match random.below(5) {
        0 | 1 => Theme::Names,
        2 => Theme::Data,
        3 => Theme::Attributes,
        _ => Theme::Mixed,
    };
    let snapshots = 2 + random.below(4);
    let mut generator = Generator {
        random,
        theme,
        names: Names::default(),
        snapshots: Vec::new(),
        operations: Vec::new(),
    };
    let mut steps = Vec::new();
    for number in 0..snapshots {
        steps.push(generator.step(number == 0));
    }
    let transfers = transfers(&mut generator.random, steps.len());
    History { steps, transfers }
}

/// Returns a send for each snapshot: mostly in order, each with the previous one as its parent.
fn transfers(random: &mut Random, snapshots: usize) -> Vec<Transfer> {
    let mut order: Vec<usize> = (0..snapshots).collect();
    match random.below(10) {
        0 => order.reverse(),
        1 | 2 => {
            for end in (1..order.len()).rev() {
                order.swap(end, random.below(end as u64 + 1) as usize);
            }
        }
        _ => {}
    }
    let mut transfers = Vec::new();
    for (place, snapshot) in order.iter().enumerate() {
        let sent = &order[..place];
        let parent = match random.below(10) {
            0 => None,
            1 | 2 => sent.get(random.below(place as u64) as usize).copied(),
            _ => sent.last().copied(),
        };
        let clones = if parent.is_some() && random.one_in(3) {
            sent.iter().copied().filter(|_| random.one_in(2)).collect()
        } else {
            Vec::new()
        };
        transfers.push(Transfer {
            snapshot: *snapshot,
            parent,
            clones,
        });
    }
    transfers
}

impl Generator {
    fn step(&mut self, first: bool) -> Step {
        let base = match self.random.below(20) {
            _ if first => Base::Continued,
            0 => Base::Empty,
            1 | 2 => Base::Snapshot(self.random.below(self.snapshots.len() as u64) as usize),
            _ => Base::Continued,
        };
        match base {
            Base::Continued => {}
            Base::Empty => self.names = Names::default(),
            Base::Snapshot(number) => {
                // In a snapshot the nested subvolume is an empty directory, which no change uses.
                self.names = self.snapshots[number].clone();
            }
        }
        if first || base == Base::Empty {
            for _ in 0..6 + self.random.below(20) {
                self.create();
            }
        }
        let changes = match self.random.below(8) {
            0 => self.random.below(4),
            1 => 60 + self.random.below(60),
            _ => 8 + self.random.below(40),
        };
        for _ in 0..changes {
            self.change();
        }
        self.snapshots.push(self.names.clone());
        Step {
            base,
            operations: std::mem::take(&mut self.operations),
        }
    }

    fn change(&mut self) {
        let theme = match self.theme {
            Theme::Mixed => match self.random.below(3) {
                0 => Theme::Names,
                1 => Theme::Data,
                _ => Theme::Attributes,
            },
            other if self.random.one_in(6) => match self.random.below(3) {
                0 => Theme::Names,
                1 => Theme::Data,
                _ => other,
            },
            other => other,
        };
        match theme {
            Theme::Names | Theme::Mixed => self.change_names(),
            Theme::Data => self.change_data(),
            Theme::Attributes => self.change_attributes(),
        }
    }

    fn push(&mut self, operation: Operation) {
        self.operations.push(operation);
    }

    /// Returns an unused path.
    fn free_path(&mut self) -> Option<PathBytes> {
        let directory = self.names.directory(&mut self.random);
        self.free_path_in(&directory)
    }

    fn free_path_in(&mut self, directory: &[u8]) -> Option<PathBytes> {
        // The path is deep, but short enough for receivers.
        if directory.len() > 2500 {
            return None;
        }
        (0..8)
            .map(|_| join(directory, &name(&mut self.random)))
            .find(|path| self.names.kind(path).is_none())
    }

    fn create(&mut self) {
        let Some(path) = self.free_path() else { return };
        match self.random.below(12) {
            0..=4 => self.make_directory(path),
            5 => {
                let target = name(&mut self.random);
                self.names.add(path.clone(), Kind::Other);
                self.push(Operation::Symlink(path, target));
            }
            6 => {
                let kind = self.special();
                self.names.add(path.clone(), Kind::Other);
                self.push(Operation::Special(path, kind));
            }
            _ => self.make_file(path),
        }
    }

    fn make_directory(&mut self, path: PathBytes) {
        self.names.add(path.clone(), Kind::Directory);
        self.push(Operation::Directory(path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_history_and_another_another() {
        assert_eq!(history(7), history(7));
        assert_ne!(history(7), history(8));
    }

    #[test]
    fn what_a_transfer_needs_was_sent_before() {
        for seed in 0..200 {
            let history = history(seed);
            assert!((2..=5).contains(&history.steps.len()));
            let mut sent = Vec::new();
            for transfer in &history.transfers {
                let needed = transfer.parent.iter().chain(&transfer.clones);
                assert!(needed.clone().all(|number| sent.contains(number)), "seed {seed}");
                sent.push(transfer.snapshot);
            }
            sent.sort_unstable();
            assert_eq!(sent, (0..history.steps.len()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn every_kind_of_change_comes_up() {
        let operations = |seed| history(seed).steps.into_iter().flat_map(|step| step.operations);
        let seen: std::collections::HashSet<_> = (0..300)
            .flat_map(operations)
            .map(|operation| std::mem::discriminant(&operation))
            .collect();
        assert_eq!(seen.len(), 25, "not all variants of Operation");
    }
}
