//! Exclusive operations: a volume has one balance, change of its devices or replacement at a time,
//! as in Linux.
//!
//! Invariants:
//! - A change of the devices holds the membership lock for its whole length. A balance acquires the
//!   lock for a moment, when it starts and when it continues; a replacement and a device's return,
//!   when they start.
//! - A paused balance excludes every other operation except a new device.
//!
//! A process that has a volume open for writing excludes other processes by the locks of its images
//! and devices.
//!
//! Source: btrfs-balance(8) and btrfs-device(8), on exclusive operations; messages of Linux 6.18.

use crate::engine::{Engine, MembershipLock};
use buttress_fs::error::{BalanceRefusal, Error, Result};
use buttress_locks::MutexGuard;
use buttress_volume::{MembershipRefusal, WriteRefusal};

/// A change of the devices, by Linux's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Add,
    Remove,
    Resize,
    Replace,
}

impl Change {
    const fn name(self) -> &'static str {
        match self {
            Self::Add => "device add",
            Self::Remove => "device remove",
            Self::Resize => "resize",
            Self::Replace => "device replace",
        }
    }
}

/// The only change of the devices in progress. When this value is dropped, the change has ended.
#[derive(Debug)]
pub(crate) struct Changing<'a> {
    engine: &'a Engine,
    _alone: MutexGuard<'a, (), MembershipLock>,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        *self.engine.shared.exclusive.lock() = None;
    }
}

impl Engine {
    /// Begins a change of the devices, and excludes other exclusive operations.
    ///
    /// # Errors
    /// Another exclusive operation is in progress.
    pub(crate) fn begin_change(&self, change: Change) -> Result<Changing<'_>> {
        let wanted = change.name();
        let refused = |refusal: MembershipRefusal| Error::from(buttress_volume::Error::from(refusal));
        let alone = self.shared.membership.try_lock();
        let alone = alone.ok_or_else(|| {
            let running = self.change_in_progress();
            refused(MembershipRefusal::Busy { wanted, running })
        })?;
        let balancing = self.shared.running.lock().core.balancing;
        match balancing {
            Some(balancing) if balancing.runs || balancing.ends => {
                let running = "balance";
                return Err(refused(MembershipRefusal::Busy { wanted, running }));
            }
            Some(_) if change != Change::Add && !buttress_faults::on("exclusive-paused-balance-ignored") => {
                return Err(refused(MembershipRefusal::BalancePaused { wanted }));
            }
            _ => {}
        }
        if self.replacements().current().is_some() || self.forest().volume().replacement().is_some() {
            return Err(buttress_volume::Error::from(WriteRefusal::Replacing).into());
        }
        *self.shared.exclusive.lock() = Some(wanted);
        Ok(Changing {
            engine: self,
            _alone: alone,
        })
    }

    /// Excludes changes of the devices while a balance begins.
    ///
    /// # Errors
    /// [`BalanceRefusal::Excluded`].
    pub(crate) fn begin_beside_no_change(&self) -> Result<MutexGuard<'_, (), MembershipLock>> {
        let alone = self.shared.membership.try_lock();
        alone.ok_or_else(|| {
            let running = self.change_in_progress();
            BalanceRefusal::Excluded { running }.into()
        })
    }

    /// Excludes changes of the devices while a device's return begins.
    ///
    /// # Errors
    /// [`MembershipRefusal::Busy`].
    pub(crate) fn begin_resync_beside_no_change(&self) -> Result<MutexGuard<'_, (), MembershipLock>> {
        let alone = self.shared.membership.try_lock();
        alone.ok_or_else(|| {
            let refusal = MembershipRefusal::Busy {
                wanted: "device resync",
                running: self.change_in_progress(),
            };
            buttress_volume::Error::from(refusal).into()
        })
    }

    fn change_in_progress(&self) -> &'static str {
        // A change that begins or ends at this moment has no name here.
        let name = *self.shared.exclusive.lock();
        name.unwrap_or("change of the devices")
    }
}
