//! Refuses the start or resumption of balances that Linux refuses, on the same grounds.
//!
//! Source: btrfs-balance(8); mkfs.btrfs(8), section "Profiles".

use super::choice::{Candidate, Kind};
use buttress_format::{BalanceArgumentFlags, BalanceFlags, BalanceItem, BlockGroupFlags, Profile};
use buttress_fs::error::BalanceRefusal;

/// What admission knows of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    devices: usize,
    is_mixed: bool,
    /// The profiles of metadata, then those of system, as sets.
    profiles: [BlockGroupFlags; 2],
}

impl Facts {
    pub(crate) fn new(devices: usize, is_mixed: bool, candidates: &[Candidate]) -> Self {
        Self {
            devices,
            is_mixed,
            profiles: [
                profiles_of(candidates, BlockGroupFlags::METADATA),
                profiles_of(candidates, BlockGroupFlags::SYSTEM),
            ],
        }
    }
}

/// Refuses a balance that Linux refuses.
///
/// # Errors
/// The first refusal.
pub fn admit(item: &BalanceItem, facts: &Facts) -> Result<(), BalanceRefusal> {
    let both = BalanceFlags::DATA | BalanceFlags::METADATA;
    if facts.is_mixed
        && item.flags.intersects(both)
        && (!item.flags.contains(both) || item.data != item.metadata)
    {
        return Err(BalanceRefusal::MixedFilters);
    }
    for kind in Kind::ALL {
        let filters = kind.filters(item);
        if !filters.flags.contains(BalanceArgumentFlags::CONVERT) {
            continue;
        }
        let Some(profile) = filters.target_profile() else {
            return Err(BalanceRefusal::TargetInvalid {
                kind: kind.name(),
                target: filters.target.bits(),
            });
        };
        let least = usize::from(profile.min_devices());
        if facts.devices < least {
            return Err(BalanceRefusal::TooFewDevices {
                kind: kind.name(),
                profile,
                expected: least,
                found: facts.devices,
            });
        }
    }
    let reduces = [Kind::Metadata, Kind::System]
        .into_iter()
        .zip(facts.profiles)
        .find(|(kind, profiles)| {
            let target = kind.filters(item).target_profile();
            target.is_some_and(|target| !is_redundant(target)) && redundant(*profiles)
        });
    match reduces {
        Some((kind, _)) if !item.flags.contains(BalanceFlags::FORCE) => {
            Err(BalanceRefusal::ReducesRedundancy { kind: kind.name() })
        }
        _ => Ok(()),
    }
}

/// Returns whether a profile has more than one copy, or parity.
const fn is_redundant(profile: Profile) -> bool {
    profile.copies() > 1 || profile.parity_stripes() > 0
}

/// Returns whether a set of profiles has a redundant one.
fn redundant(profiles: BlockGroupFlags) -> bool {
    Profile::ALL
        .into_iter()
        .any(|profile| is_redundant(profile) && profiles.contains(profile.flag()))
}

/// Returns the union of the profiles that block groups with one of `types` have, as a set of balance items.
fn profiles_of(candidates: &[Candidate], types: BlockGroupFlags) -> BlockGroupFlags {
    candidates
        .iter()
        .filter(|candidate| candidate.flags.intersects(types))
        .fold(BlockGroupFlags::empty(), |profiles, candidate| {
            profiles | candidate.flags.profile_in_set()
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use buttress_format::BalanceArguments;

    fn item(flags: BalanceFlags, data: BalanceArguments, metadata: BalanceArguments) -> BalanceItem {
        BalanceItem {
            flags,
            data,
            metadata,
            system: metadata,
        }
    }

    fn facts(devices: usize, is_mixed: bool, profile: Profile) -> Facts {
        let set = profile.flag().profile_in_set();
        Facts {
            devices,
            is_mixed,
            profiles: [set; 2],
        }
    }

    const NONE: BalanceArguments = BalanceArguments::NONE;
    const BOTH: BalanceFlags = BalanceFlags::DATA.union(BalanceFlags::METADATA);

    #[test]
    fn mixed_groups_need_the_same_filters() {
        let mixed = facts(1, true, Profile::Single);
        let usage = NONE.with_usage(5);
        assert_eq!(admit(&item(BOTH, usage, usage), &mixed), Ok(()));
        assert_eq!(admit(&item(BalanceFlags::SYSTEM, usage, NONE), &mixed), Ok(()));
        for refused in [item(BOTH, usage, NONE), item(BalanceFlags::DATA, usage, usage)] {
            assert_eq!(admit(&refused, &mixed), Err(BalanceRefusal::MixedFilters));
            assert_eq!(admit(&refused, &facts(1, false, Profile::Single)), Ok(()));
        }
    }

    #[test]
    fn targets_need_enough_devices() {
        for (profile, least) in [
            (Profile::Single, 1),
            (Profile::Dup, 1),
            (Profile::Raid0, 1),
            (Profile::Raid1, 2),
            (Profile::Raid10, 2),
            (Profile::Raid5, 2),
            (Profile::Raid6, 3),
            (Profile::Raid1C3, 3),
            (Profile::Raid1C4, 4),
        ] {
            let wanted = item(BalanceFlags::DATA, NONE.with_target(profile), NONE);
            for devices in 1..=4 {
                let admitted = admit(&wanted, &facts(devices, false, Profile::Single));
                assert_eq!(admitted.is_ok(), devices >= least, "{profile} on {devices}");
            }
        }
        let several = BalanceArguments {
            target: BlockGroupFlags::RAID1 | BlockGroupFlags::DUP,
            ..NONE.with_target(Profile::Dup)
        };
        let admitted = admit(
            &item(BalanceFlags::DATA, several, NONE),
            &facts(4, false, Profile::Single),
        );
        assert!(matches!(admitted, Err(BalanceRefusal::TargetInvalid { .. })));
    }

    #[test]
    fn less_redundancy_of_metadata_needs_force() {
        let to_single = item(BalanceFlags::METADATA, NONE, NONE.with_target(Profile::Single));
        let dup = facts(2, false, Profile::Dup);
        assert_eq!(
            admit(&to_single, &dup),
            Err(BalanceRefusal::ReducesRedundancy { kind: "metadata" })
        );
        let forced = BalanceItem {
            flags: to_single.flags | BalanceFlags::FORCE,
            ..to_single
        };
        assert_eq!(admit(&forced, &dup), Ok(()));
        assert_eq!(admit(&to_single, &facts(2, false, Profile::Raid0)), Ok(()));
        let of_data = item(BalanceFlags::DATA, NONE.with_target(Profile::Single), NONE);
        assert_eq!(admit(&of_data, &dup), Ok(()));
    }
}
