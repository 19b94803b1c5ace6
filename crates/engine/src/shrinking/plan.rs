//! The plan of a shrink: which chunks are made, where, and what moves into them. Pure arithmetic on
//! block groups.
//!
//! The plan packs data towards the start of the devices, as a compacting collector does:
//!
//! 1. Chunks at the tail take all metadata and the chunk tree. Every edit of the job allocates there.
//! 2. Data groups are emptied in order of address. A new chunk of exactly the right length takes the
//!    content of as many groups as fit into the free space before them. A group that does not fit goes
//!    to the tail first, which frees its own range, and comes back last.
//! 3. Metadata and the chunk tree move to the lowest free ranges. Their chunks have the free space that
//!    volumes of minimal size have elsewhere ([`HEADROOM_BYTES`], [`SYSTEM_BYTES`]).
//!
//! Data groups at the start that are already packed stay. Mixed block groups count as metadata.
//!
//! # Invariants
//!
//! - The ends of the devices follow from the plan alone, so a plan is also the answer of a dry run.
//! - A chunk for data holds exactly the extents that move into it, in their order.
//! - Extents are never divided. The space before a superblock copy stays free if the next extent is longer.
//!
//! The module `packing` has the second step, and `pieces` the chunks of the third.
//!
//! Left out: the devices, transactions, and a sparser or denser packing of tree blocks.

mod packing;
mod pieces;

use super::places::{Place, Places, profile_of};
use crate::chunks::most_redundant;
use buttress_exact::Exact as _;
use buttress_format::{BlockGroupFlags, DeviceId, Logical, Profile, STRIPE_BYTES};
use buttress_fs::error::{Error, Result};
use std::collections::{BTreeMap, VecDeque};

/// The least free bytes of the metadata block groups of a shrunken volume. Linux and this crate need
/// them to begin a transaction.
const HEADROOM_BYTES: u64 = 2 << 20;

/// The headroom as a number of nodes.
const HEADROOM_NODES: u64 = 128;

/// The least length of the chunk for the chunk tree. Linux does not finish its cleaning beside a
/// smaller one.
const SYSTEM_BYTES: u64 = 1 << 20;

/// The free nodes in the chunk for the chunk tree.
const SYSTEM_NODES: u64 = 32;

/// The number of bytes of metadata that need one spare byte.
const SPARE_PART: u64 = 8;

/// The least gain of a move, in bytes and as a part of the size. A smaller gain is not worth a move.
const GAIN_BYTES: u64 = 2 << 20;
const GAIN_PART: u64 = 200;

/// A block group of the volume or of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum GroupRef {
    /// A block group of the volume, by its address.
    Old(Logical),
    /// The chunk that the plan makes as this one in order.
    New(usize),
}

/// A block group before the plan.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub start: Logical,
    pub flags: BlockGroupFlags,
    pub used: u64,
    pub place: Place,
}

/// A chunk of the plan.
#[derive(Clone, Debug)]
pub(crate) struct NewChunk {
    pub flags: BlockGroupFlags,
    pub place: Place,
    /// Whether extents go here only if no other group has space.
    pub is_last_resort: bool,
}

/// A step of the plan.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Make(NewChunk),
    /// Ends the job if metadata has grown too much for the planned chunks.
    CheckMetadata,
    /// No more extents go to these groups.
    Close(Vec<GroupRef>),
    /// All extents of these groups go to the chunks `into`, the first of which is tried first.
    Move {
        groups: Vec<GroupRef>,
        into: Vec<usize>,
    },
}

/// The steps of a shrink, and its result.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub steps: Vec<Step>,
    /// The end of the last device extent of each device after the steps.
    pub ends: BTreeMap<DeviceId, u64>,
    /// The end of the last device extent of each device before the steps.
    pub tails: BTreeMap<DeviceId, u64>,
    /// The size that each device needs during the steps.
    pub peaks: BTreeMap<DeviceId, u64>,
    /// The bytes to move, without copies.
    pub moved_bytes: u64,
    /// The bytes of data in mixed block groups. Metadata goes after them.
    pub mixed_data_bytes: u64,
    /// The length of the new metadata chunks, and the part of it that was counted as used.
    pub metadata: (u64, u64),
}

/// The facts of a volume for a plan.
pub(crate) struct Facts {
    pub devices: Vec<DeviceId>,
    pub groups: Vec<Source>,
    pub node_bytes: u64,
    /// The free bytes of the chunks that take metadata while data moves.
    pub spare_bytes: u64,
}

/// Returns the lengths of a data group's extents, in order of address.
pub(crate) type Lengths<'a> = dyn FnMut(Logical) -> Result<Vec<u64>> + 'a;

/// A group whose extents are still to be moved.
#[derive(Clone, Debug)]
struct Left {
    group: GroupRef,
    flags: BlockGroupFlags,
    used: u64,
    place: Place,
    /// The groups of the volume that the extents came from, in their order.
    origins: Vec<Logical>,
}

impl Left {
    fn profile(&self) -> Profile {
        profile_of(self.flags)
    }
}

struct Planner<'a, 'b> {
    places: Places,
    plan: Plan,
    made: usize,
    /// Data groups by their address on the devices.
    left: VecDeque<Left>,
    facts: &'a Facts,
    lengths: &'a mut Lengths<'b>,
}

/// Plans the shrink of a volume.
///
/// # Errors
/// Fails if the extents of a group cannot be read, or if the profiles do not fit the devices.
pub(crate) fn plan(facts: &Facts, lengths: &mut Lengths<'_>) -> Result<Plan> {
    let places = Places::new(
        facts.devices.iter().copied(),
        facts.groups.iter().map(|group| &group.place),
    );
    let now: BTreeMap<DeviceId, u64> = places.ends().collect();
    let unchanged = Plan {
        ends: now.clone(),
        tails: now.clone(),
        peaks: now.clone(),
        ..Plan::default()
    };
    let mut planner = Planner {
        places,
        plan: Plan::default(),
        made: 0,
        left: VecDeque::new(),
        facts,
        lengths,
    };
    match planner.run() {
        Ok(()) => {}
        Err(Stop::NoPlace) => return Ok(unchanged),
        Err(Stop::Failed(error)) => return Err(error),
    }
    let plan = planner.plan;
    let sum = |ends: &BTreeMap<DeviceId, u64>| ends.values().fold(0_u64, |sum, end| sum.exact_add(*end));
    let (before, after) = (sum(&now), sum(&plan.ends));
    let least = GAIN_BYTES.max(before.quotient(GAIN_PART));
    let is_worth_it = before >= after.exact_add(least);
    Ok(if is_worth_it { plan } else { unchanged })
}

/// The reason for which planning ends early.
#[derive(Debug)]
enum Stop {
    /// A long extent fits nowhere below the tail, so the volume cannot shrink.
    NoPlace,
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

const fn is_data(flags: BlockGroupFlags) -> bool {
    flags.contains(BlockGroupFlags::DATA) && !flags.contains(BlockGroupFlags::METADATA)
}

const fn is_system(flags: BlockGroupFlags) -> bool {
    flags.contains(BlockGroupFlags::SYSTEM)
}

impl Planner<'_, '_> {
    fn run(&mut self) -> Result<(), Stop> {
        let (data, trees): (Vec<Source>, Vec<Source>) = self
            .facts
            .groups
            .iter()
            .cloned()
            .partition(|group| is_data(group.flags));
        let (system, metadata): (Vec<Source>, Vec<Source>) =
            trees.into_iter().partition(|group| is_system(group.flags));
        let kinds = (Kind::of(&system), Kind::of(&metadata));
        let data_profile = most_redundant(data.iter().filter_map(|group| group.flags.profile()));
        self.keep_packed(data);
        let node = self.facts.node_bytes;
        let spare = self
            .facts
            .spare_bytes
            .exact_add(kinds.1.used.quotient(SPARE_PART));
        let system_bytes = kinds
            .0
            .used
            .exact_add(node.exact_mul(SYSTEM_NODES))
            .max(SYSTEM_BYTES);
        let (spare_system, _) = self.make_at_tail(kinds.0.flags, system_bytes.exact_mul(2), false)?;
        let (spare_metadata, _) = self.make_at_tail(kinds.1.flags, kinds.1.used.exact_add(spare), false)?;
        let old = |groups: &[Source]| {
            groups
                .iter()
                .map(|group| GroupRef::Old(group.start))
                .collect::<Vec<_>>()
        };
        let mut closed = old(&system);
        closed.extend(old(&metadata));
        closed.extend(self.left.iter().map(|group| group.group));
        self.plan.steps.push(Step::Close(closed));
        self.go(old(&system), vec![spare_system], kinds.0.used);
        self.go(old(&metadata), vec![spare_metadata], kinds.1.used);
        system
            .iter()
            .chain(&metadata)
            .for_each(|group| self.places.free(&group.place));
        let has_data = self
            .facts
            .groups
            .iter()
            .any(|group| is_data(group.flags) && group.used > 0);
        self.pack()?;
        self.plan.steps.push(Step::CheckMetadata);
        let tail = self.tail_bound();
        if let Some(profile) = data_profile.filter(|profile| !has_data && *profile != Profile::Single) {
            // Writers take the profile of new chunks from existing ones.
            let flags = BlockGroupFlags::DATA | profile.flag();
            let place = self.places.low(profile, STRIPE_BYTES, &tail);
            self.make(flags, place.ok_or(Stop::NoPlace)?);
        }
        let place = self.places.low(kinds.0.profile(), system_bytes, &tail);
        let last_system = self.make(kinds.0.flags, place.ok_or(Stop::NoPlace)?);
        let headroom = HEADROOM_BYTES.max(node.exact_mul(HEADROOM_NODES));
        let (mixed, longest) = self.data_of_mixed(&metadata)?;
        self.plan.mixed_data_bytes = mixed;
        // In mixed groups, an extent of data needs a free range between tree blocks.
        let wanted = kinds.1.used.exact_add(headroom).exact_add(longest);
        let last = self.make_pieces(kinds.1, wanted, &tail)?;
        self.plan.ends = self.ends_without_tail();
        let (resort, _) = self.make_at_tail(kinds.1.flags, spare, true)?;
        let (system, metadata) = (GroupRef::New(spare_system), GroupRef::New(spare_metadata));
        self.plan.steps.push(Step::Close(vec![system, metadata]));
        self.go(vec![system], vec![last_system], kinds.0.used);
        self.go(vec![metadata], last.clone(), kinds.1.used);
        self.plan.steps.push(Step::Close(vec![GroupRef::New(resort)]));
        self.go(vec![GroupRef::New(resort)], last, 0);
        self.plan.tails = self.tail_starts();
        self.plan.peaks = self.places.tail_ends().collect();
        self.plan.metadata.1 = kinds.1.used;
        Ok(())
    }

    fn make_at_tail(
        &mut self,
        flags: BlockGroupFlags,
        bytes: u64,
        is_last_resort: bool,
    ) -> Result<(usize, Place), Stop> {
        let profile = profile_of(flags);
        let place = self.places.tail(profile, bytes).ok_or(Stop::NoPlace)?;
        let number = self.push(NewChunk {
            flags,
            place: place.clone(),
            is_last_resort,
        });
        Ok((number, place))
    }

    fn make(&mut self, flags: BlockGroupFlags, place: Place) -> usize {
        self.places.take(&place);
        self.push(NewChunk {
            flags,
            place,
            is_last_resort: false,
        })
    }

    fn push(&mut self, chunk: NewChunk) -> usize {
        let number = self.made;
        self.made = number.exact_add(1);
        self.plan.steps.push(Step::Make(chunk));
        number
    }

    fn go(&mut self, groups: Vec<GroupRef>, into: Vec<usize>, bytes: u64) {
        self.plan.moved_bytes = self.plan.moved_bytes.exact_add(bytes);
        self.plan.steps.push(Step::Move { groups, into });
    }

    fn tail_starts(&self) -> BTreeMap<DeviceId, u64> {
        let devices = self.facts.devices.iter();
        devices
            .map(|device| (*device, self.places.tail_start(*device)))
            .collect()
    }

    fn tail_bound(&self) -> impl Fn(DeviceId) -> u64 + use<> {
        let starts = self.tail_starts();
        // Clamp: nothing is placed on a device that the plan does not have.
        move |device| starts.get(&device).copied().unwrap_or(0)
    }

    /// Returns the end of the device extents below the tail.
    fn ends_without_tail(&self) -> BTreeMap<DeviceId, u64> {
        self.facts
            .devices
            .iter()
            .map(|device| (*device, self.places.end_below_tail(*device)))
            .collect()
    }
}

/// The block groups of one kind.
#[derive(Clone, Copy, Debug)]
struct Kind {
    flags: BlockGroupFlags,
    used: u64,
}

impl Kind {
    fn of(groups: &[Source]) -> Self {
        let profile = most_redundant(groups.iter().filter_map(|group| group.flags.profile()));
        let types = groups
            .iter()
            .fold(BlockGroupFlags::empty(), |all, group| all | group.flags);
        Self {
            // Clamp: a kind without groups makes single chunks.
            flags: (types & BlockGroupFlags::TYPES) | profile.unwrap_or(Profile::Single).flag(),
            used: groups.iter().fold(0_u64, |sum, group| sum.exact_add(group.used)),
        }
    }

    fn profile(self) -> Profile {
        profile_of(self.flags)
    }
}

#[cfg(test)]
mod tests;
