//! Quotas and quota groups.
//!
//! Errors are those of Linux. Enabling classic quotas and `QUOTA_RESCAN` count before they return,
//! where Linux counts in the background: no rescan is in progress when a call returns, and
//! `QUOTA_RESCAN_WAIT` waits for nothing. A signal or an unmount cancels a count.
//!
//! The number of `QGROUP_LIMIT` says that it only returns data, so the kernel passes no limit with
//! it, and the server refuses it.
//!
//! Source: `linux/btrfs.h`, `struct btrfs_ioctl_quota_ctl_args` and the structures after it.

use super::super::MountedVolume;
use super::arguments::{Answer, Fields};
use super::rights::require_privileged;
use crate::vfs::{Answered, Control, Errno, Result};
use buttress::quota::{QgroupId, QuotaKind};

/// Commands of `QUOTA_CTL`.
const ENABLE: u64 = 1;
const DISABLE: u64 = 2;
const ENABLE_SIMPLE: u64 = 4;

/// Size of `struct btrfs_ioctl_quota_rescan_args` in bytes.
const RESCAN_BYTES: usize = 64;

impl MountedVolume {
    /// Enables or disables quotas.
    pub(super) fn control_quotas(&self, control: &Control<'_>) -> Result<Answered> {
        require_privileged(control.caller)?;
        let writer = self.writer()?;
        let mut fields = Fields(control.input);
        let (command, status) = (fields.u64()?, fields.u64()?);
        let changed = match command {
            ENABLE => writer.quotas().enable(QuotaKind::Classic),
            ENABLE_SIMPLE => writer.quotas().enable(QuotaKind::Simple),
            DISABLE => writer.quotas().disable(),
            _ => return Err(Errno::INVAL),
        };
        if changed.map_err(|error| self.failed(&error))? {
            self.committed()?;
            if command == ENABLE {
                self.count(control)?;
            }
        }
        let mut answer = Answer::default();
        answer.u64(command).u64(status);
        Ok(answer.0.into())
    }

    /// Makes or removes a quota group.
    pub(super) fn change_quota_group(&self, control: &Control<'_>) -> Result<Answered> {
        require_privileged(control.caller)?;
        let writer = self.writer()?;
        let mut fields = Fields(control.input);
        let (makes, group) = (fields.u64()? != 0, fields.u64()?);
        if group == 0 {
            return Err(Errno::INVAL);
        }
        let group = QgroupId::new(group);
        let changed = match makes {
            true => writer.quotas().create_group(group),
            false => writer.quotas().destroy_group(group),
        };
        changed.map_err(|error| self.failed(&error))?;
        Ok(Answered::default())
    }

    /// Makes a quota group a member of another one, or ends the membership. As in Linux, the call
    /// returns 1 if the counters need a rescan.
    pub(super) fn assign_quota_group(&self, control: &Control<'_>) -> Result<Answered> {
        require_privileged(control.caller)?;
        let writer = self.writer()?;
        let mut fields = Fields(control.input);
        let assigns = fields.u64()? != 0;
        let (member, parent) = (QgroupId::new(fields.u64()?), QgroupId::new(fields.u64()?));
        let changed = match assigns {
            true => writer.quotas().assign_group(member, parent),
            false => writer.quotas().unassign_group(member, parent),
        };
        let needs_rescan = changed.map_err(|error| match self.failed(&error) {
            // Linux reports a missing group as an invalid argument.
            Errno::NOENT if assigns => Errno::INVAL,
            errno => errno,
        })?;
        Ok(Answered {
            // A negated error number is a result that is no error.
            result: if needs_rescan { -1 } else { 0 },
            ..Answered::default()
        })
    }

    /// Counts classic quotas.
    pub(super) fn rescan_quotas(&self, control: &Control<'_>) -> Result<Answered> {
        require_privileged(control.caller)?;
        self.writer()?;
        if Fields(control.input).u64()? != 0 {
            return Err(Errno::INVAL);
        }
        self.count(control)?;
        Ok(Answered::default())
    }

    /// Returns that no rescan is in progress.
    pub(super) fn rescan_status(control: &Control<'_>) -> Result<Answered> {
        require_privileged(control.caller)?;
        let mut answer = Answer::default();
        answer.up_to(RESCAN_BYTES);
        Ok(answer.0.into())
    }

    /// Waits for a rescan. None is in progress.
    pub(super) fn wait_for_rescan(control: &Control<'_>) -> Result<Answered> {
        require_privileged(control.caller)?;
        Ok(Answered::default())
    }

    fn count(&self, control: &Control<'_>) -> Result<()> {
        let _job = self.begin_job(control)?;
        let counted = self.writer()?.quotas().rescan(control.progress);
        counted.map(drop).map_err(|error| self.failed(&error))
    }
}
