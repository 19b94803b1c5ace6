//! Balances: the block groups to move, and the item in the root tree that makes a balance resumable.
//!
//! | step | what is durable after it |
//! |---|---|
//! | [start](Balances::start) | the item, before any block group is moved |
//! | pause, crash | the item stays: this program or Linux resumes the balance with the item's filters |
//! | [end](Balances::end) | the item is gone |
//!
//! [`choice`] selects block groups by Linux's filters, [`admission`] refuses what Linux refuses.
//! Choice and admission are pure functions of tables. While a balance runs, new chunks have the
//! profile that it converts to. A balance visits only block groups that existed at its start: a new
//! chunk has a higher address than any of them.
//!
//! [`job`] moves the chosen block groups one after another.
//!
//! Source: btrfs-balance(8); the behaviour of Linux 6.18 as tests compare it.

pub mod admission;
pub mod choice;
pub mod job;

use crate::areas::Balances;
use crate::balancing::Balancing;
use crate::block_groups::{BlockGroups, Group, TargetProfiles};
use crate::core_state::Core;
use crate::loading::block_groups_of;
use crate::running::Running;
use admission::{Facts, admit};
use buttress_format::{BalanceItem, ByteCount, Incompat, Logical, TreeId};
use buttress_fs::error::{BalanceRefusal, Corruption, Defect, Result};
use buttress_fs::filesystem::Filesystem;
use buttress_tree::NonBlocking;
use buttress_volume::{ChunkMap, Volume};
use choice::{Candidate, Choice, choose};

/// Returns the item of a balance that is in progress or paused.
///
/// # Errors
/// Fails if the root tree cannot be read, or if the balance item is corrupt.
pub fn balance_item(filesystem: &Filesystem) -> Result<Option<BalanceItem>> {
    let Some(found) = filesystem.root_tree().get(&BalanceItem::KEY)? else {
        return Ok(None);
    };
    let item = BalanceItem::parse(&BalanceItem::KEY, found.data());
    Ok(Some(item.map_err(|error| Corruption::Item {
        tree: TreeId::ROOT,
        error,
    })?))
}

/// Returns the profiles that a balance converts to. New chunks get the target profiles, also while
/// the balance is paused.
pub(crate) fn targets(item: &BalanceItem) -> TargetProfiles {
    TargetProfiles {
        data: item.data.target_profile(),
        metadata: item.metadata.target_profile(),
        system: item.system.target_profile(),
    }
}

/// Returns the block groups that a new balance with this item would move on a volume that is open
/// for reading.
///
/// # Errors
/// Fails with a refusal that Linux also makes, or if block groups cannot be read.
pub fn plan_unwritten(filesystem: &Filesystem, item: &BalanceItem) -> Result<Choice> {
    let superblock = filesystem.superblock();
    let groups = block_groups_of(filesystem)?;
    let candidates = candidates(&groups, filesystem.volume())?;
    let is_mixed = superblock.incompat.contains(Incompat::MIXED_GROUPS);
    // Clamp: a volume with more devices has enough of them for any profile.
    let devices = usize::try_from(superblock.num_devices).unwrap_or(usize::MAX);
    admit(item, &Facts::new(devices, is_mixed, &candidates))?;
    Ok(choose(item, candidates))
}

/// Returns every block group with the properties that the filters test.
fn candidates(groups: &BlockGroups, volume: &Volume) -> Result<Vec<Candidate>> {
    let map = volume.chunk_map();
    groups.iter().map(|group| candidate(group, &map)).collect()
}

fn candidate(group: &Group, map: &ChunkMap) -> Result<Candidate> {
    let start = Logical::new(group.start);
    let mapped = map.find(start).filter(|mapped| mapped.start() == start);
    let mapped =
        mapped.ok_or_else(|| Defect::new("a block group has no chunk").with("start", group.start))?;
    let stripes = mapped.chunk().stripes.iter();
    Ok(Candidate {
        start,
        length: ByteCount::new(group.length),
        used: ByteCount::new(group.used),
        flags: group.flags,
        stripes: stripes.map(|stripe| (stripe.device, stripe.physical)).collect(),
    })
}

impl Balances<'_> {
    /// Returns the balance that is in progress or paused.
    #[must_use]
    pub fn current(&self) -> Option<BalanceItem> {
        let running = self.engine.shared.running.lock();
        let balancing = running.core.balancing.filter(|balancing| !balancing.ends);
        balancing.map(|balancing| balancing.item)
    }

    /// Returns the block groups that a new balance with this item would move, in the order in which
    /// it would move them. The plan counts uncommitted chunks too.
    ///
    /// # Errors
    /// Returns Linux's errors for a balance that Linux refuses.
    pub fn plan(&self, item: &BalanceItem) -> Result<Choice> {
        self.engine.start_reading().core.plan_balance(item)
    }

    /// Starts a balance: the balance item is durable when this call returns, and new chunks get the
    /// balance's target profiles. Returns the block groups that the balance will move.
    ///
    /// # Errors
    /// Fails with [`BalanceRefusal::InProgress`], with an error that Linux also returns, or if the
    /// commit fails.
    pub fn start(&self, item: BalanceItem) -> Result<Choice> {
        let choice = {
            let _no_change = self.engine.begin_beside_no_change()?;
            let mut running = self.engine.shared.running.lock();
            if running.core.balancing.is_some() {
                return Err(BalanceRefusal::InProgress.into());
            }
            let choice = running.core.plan_balance(&item)?;
            running.core.balancing = Some(Balancing {
                is_changed: true,
                ..Balancing::recorded(item)
            });
            choice
        };
        self.engine.relocations().set_target_profiles(targets(&item));
        if !buttress_faults::on("balance-item-late") {
            self.engine.commit_metadata()?;
        }
        Ok(choice)
    }

    /// Resumes the paused balance, as Linux does: filters leave out what was already moved. Returns
    /// the block groups that the balance will move.
    ///
    /// # Errors
    /// Fails with [`BalanceRefusal::NotInProgress`], [`BalanceRefusal::Running`], or a refusal that
    /// Linux also makes.
    pub fn resume(&self) -> Result<Choice> {
        let item = {
            let running = self.engine.shared.running.lock();
            match running.core.balancing.filter(|balancing| !balancing.ends) {
                None => return Err(BalanceRefusal::NotInProgress.into()),
                Some(balancing) if balancing.runs => return Err(BalanceRefusal::Running.into()),
                Some(balancing) => balancing.item,
            }
        };
        self.plan(&choice::resumed(item))
    }

    /// Ends the balance, finished or cancelled: the balance item is gone when this method returns.
    ///
    /// # Errors
    /// [`BalanceRefusal::NotInProgress`]; the commit fails.
    pub fn end(&self) -> Result<()> {
        {
            let mut running = self.engine.shared.running.lock();
            let balancing = running
                .core
                .balancing
                .as_mut()
                .filter(|balancing| !balancing.ends);
            let balancing = balancing.ok_or(BalanceRefusal::NotInProgress)?;
            balancing.ends = true;
            balancing.is_changed = true;
        }
        self.engine
            .relocations()
            .set_target_profiles(TargetProfiles::default());
        self.engine.commit_metadata()?;
        Ok(())
    }
}

impl Core {
    fn plan_balance(&self, item: &BalanceItem) -> Result<Choice> {
        let core = self;
        if core.replacing.is_some() {
            return Err(BalanceRefusal::Replacing.into());
        }
        let candidates = candidates(&core.groups, core.forest.volume())?;
        let is_mixed = core.has(Incompat::MIXED_GROUPS);
        let facts = Facts::new(core.devices.rooms.len(), is_mixed, &candidates);
        admit(item, &facts)?;
        Ok(choose(item, candidates))
    }

    /// Returns a block group as the filters see it now; `None` if it is gone.
    fn candidate_at(&self, start: Logical) -> Result<Option<Candidate>> {
        let groups = &self.groups;
        let group = groups
            .holding(start.get())
            .filter(|group| group.start == start.get());
        let map = self.forest.volume().chunk_map();
        group.map(|group| candidate(group, &map)).transpose()
    }

    /// Returns whether the root tree's item of the balance is out of date.
    pub fn has_balance_change(&self) -> bool {
        self.balancing.is_some_and(|balancing| balancing.is_changed)
    }
}

impl Running {
    /// Brings the balance's item up to date. If a block is not in memory, the method ends before it
    /// changes anything.
    pub fn record_balance(&mut self) -> Result<()> {
        let Some(balancing) = self.core.balancing.filter(|balancing| balancing.is_changed) else {
            return Ok(());
        };
        self.reach(TreeId::ROOT, &BalanceItem::KEY)?;
        NonBlocking::lifted(|| match balancing.ends {
            true => self.remove(TreeId::ROOT, &BalanceItem::KEY).map(|_| ()),
            false => self.put(TreeId::ROOT, &BalanceItem::KEY, &balancing.item.to_bytes()),
        })?;
        self.core.balancing = match balancing.ends {
            true => None,
            false => Some(Balancing {
                is_changed: false,
                ..balancing
            }),
        };
        Ok(())
    }
}
