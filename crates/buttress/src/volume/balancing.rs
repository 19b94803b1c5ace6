//! Balances of a volume.

use super::{Access, Volume, WritableVolume};
use crate::error::Result;
use buttress_format::{BalanceItem, ByteCount};
use buttress_writer::balance::choice::Choice;
use buttress_writer::balance::job::{BalanceControl, BalanceSummary};
use buttress_writer::balance::plan_unwritten;
use buttress_writer::{AutoReclaim, AutoReclaiming, Reclaimed, balance_item};

impl Volume {
    /// Returns the balance that is in progress or paused.
    ///
    /// # Errors
    /// Fails if the root tree cannot be read, or the balance item is corrupt.
    pub fn balance_status(&self) -> Result<Option<BalanceItem>> {
        match &self.access {
            Access::Reading(shown) => Ok(balance_item(&shown.on_disk)?),
            Access::Writing(writer) => Ok(writer.balances().current()),
        }
    }

    /// Returns the block groups that a new balance would move, in the order in which it would move
    /// them. Nothing is changed.
    ///
    /// # Errors
    /// Fails if Linux would refuse the balance, such as a profile for which the volume has too few
    /// devices.
    pub fn plan_balance(&self, item: &BalanceItem) -> Result<Choice> {
        match &self.access {
            Access::Reading(shown) => Ok(plan_unwritten(&shown.on_disk, item)?),
            Access::Writing(writer) => Ok(writer.balances().plan(item)?),
        }
    }
}

impl WritableVolume {
    /// Moves block groups that pass the filters, and converts them. Other threads may read and
    /// write the volume during the balance.
    ///
    /// ```no_run
    /// use buttress::balance::{BalanceArguments, BalanceControl, BalanceFlags, BalanceItem};
    /// use buttress::{Profile, Volume};
    ///
    /// # fn main() -> buttress::Result<()> {
    /// let volume = Volume::open_writable("disk.img")?;
    /// let item = BalanceItem {
    ///     flags: BalanceFlags::DATA,
    ///     data: BalanceArguments::NONE.with_target(Profile::Dup),
    ///     metadata: BalanceArguments::NONE,
    ///     system: BalanceArguments::NONE,
    /// };
    /// let summary = volume.balance(item, None, &BalanceControl::default())?;
    /// println!("moved {} block groups", summary.counts.relocated);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails as [`start_balance`](Self::start_balance) and [`run_balance`](Self::run_balance) do.
    pub fn balance(
        &self,
        item: BalanceItem,
        bytes_per_second: Option<ByteCount>,
        control: &BalanceControl,
    ) -> Result<BalanceSummary> {
        let choice = self.start_balance(item)?;
        self.run_balance(&choice, bytes_per_second, control)
    }

    /// Starts a balance without moving anything: it is resumable when this returns, here and by Linux.
    ///
    /// # Errors
    /// A balance exists; Linux refuses such a balance; the commit fails.
    pub fn start_balance(&self, item: BalanceItem) -> Result<Choice> {
        Ok(self.writer().balances().start(item)?)
    }

    /// Returns the block groups that the paused balance still has to relocate.
    ///
    /// # Errors
    /// Fails if no balance is paused, or if the balance is already running.
    pub fn resume_balance(&self) -> Result<Choice> {
        Ok(self.writer().balances().resume()?)
    }

    /// Runs a balance that was started or resumed until its end, a pause or a cancellation.
    ///
    /// # Errors
    /// No balance exists, or it is running; an extent has no intact copy; a device fails. If
    /// `run_balance` returns one of these errors, the balance ends. A lack of space is no error of
    /// a balance: the summary lists the affected block groups.
    pub fn run_balance(
        &self,
        choice: &Choice,
        bytes_per_second: Option<ByteCount>,
        control: &BalanceControl,
    ) -> Result<BalanceSummary> {
        let limit = bytes_per_second.map(ByteCount::get);
        Ok(self.writer().balances().run(choice, limit, control)?)
    }

    /// Starts a thread that moves the content of little used data block groups together, so that
    /// their space is unallocated again. The thread calls `report` after each block group, and ends
    /// when the returned value is dropped.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// use buttress::AutoReclaim;
    ///
    /// let options = AutoReclaim {
    ///     percent: 20,
    ///     ..AutoReclaim::default()
    /// };
    /// let reclaiming = volume.start_auto_reclaim(options, |done| println!("{done:?}"))?;
    /// volume.root().write("ledger", "paid")?;
    /// drop(reclaiming);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the threshold is not from 1 to 99 percent, or if a reclaim of the volume is running.
    pub fn start_auto_reclaim(
        &self,
        options: AutoReclaim,
        report: impl Fn(&Reclaimed) + Send + 'static,
    ) -> Result<AutoReclaiming> {
        Ok(self.writer().start_auto_reclaim(options, report)?)
    }

    /// Ends the paused balance. Block groups that the balance already relocated stay relocated.
    ///
    /// # Errors
    /// Fails if no balance is paused, or if the commit fails.
    pub fn end_balance(&self) -> Result<()> {
        Ok(self.writer().balances().end()?)
    }
}
