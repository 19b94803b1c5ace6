//! Balances of a volume that is mounted: its server runs them beside readers and writers.
//!
//! `balance start` and `resume` wait in the server for the end; a client that stops waiting does
//! not stop the balance. An end of the mount pauses its balance, as an unmount does with Linux.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail};
use buttress::balance::{BalanceControl, BalanceCounts, BalanceSummary, Choice};
use buttress::{ByteCount, Progress, Subvolume, Volume, WritableVolume};
use buttress_mount::volume::Log;
use parking_lot::{Condvar, Mutex};

use crate::context::Context;
use crate::exit::Advice;
use crate::writing::Writing;

/// The balances of a volume that this process serves: one at a time.
pub struct Balances {
    kept: Mutex<Kept>,
    ended: Condvar,
    log: Log,
}

impl std::fmt::Debug for Balances {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Balances").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Kept {
    /// The control of the running balance.
    under_way: Option<BalanceControl>,
    /// Once this is true, no further balance starts.
    is_over: bool,
}

/// The volume of a mount that this process serves, and its balances.
pub(super) struct Online {
    pub(super) balances: Arc<Balances>,
    opened: Subvolume,
    writing: Option<Writing>,
}

/// Returns the volume of the mount that this process serves, if the command is for one.
///
/// # Errors
/// Another server is to be asked, or the argument is no image.
pub(super) fn find(context: &Context, image: &Path) -> Result<Option<Online>> {
    let Some(opened) = context.present(image)? else {
        return Ok(None);
    };
    let mount = context.place().and_then(|place| place.mount);
    Ok(mount.map(|mount| Online {
        balances: mount.balances,
        opened,
        writing: mount.writing,
    }))
}

impl Online {
    /// Returns the mounted volume, for changes.
    pub(super) fn writable(&self) -> Result<&WritableVolume> {
        let writing = self.writing.as_ref().context("it is mounted read-only");
        let writing = writing.map_err(|error| error.context(Advice::new("mount it with -o rw")))?;
        Ok(writing.volume())
    }

    /// Returns the volume as it is now, uncommitted chunks included.
    pub(super) fn volume(&self) -> &Volume {
        match &self.writing {
            Some(writing) => writing.volume(),
            None => self.opened.volume(),
        }
    }
}

/// When this value is dropped, the balance has stopped running.
struct Ends(Arc<Balances>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.kept.lock().under_way = None;
        self.0.ended.notify_all();
    }
}

impl Balances {
    /// Creates a set without running balances. `log` receives failures of balances in the
    /// background.
    pub fn new(log: Log) -> Self {
        Self {
            kept: Mutex::default(),
            ended: Condvar::new(),
            log,
        }
    }

    /// Pauses the running balance, waits until it is paused, and prevents further starts.
    pub fn end(&self) {
        let mut kept = self.kept.lock();
        kept.is_over = true;
        while let Some(control) = &kept.under_way {
            control.pause();
            self.ended.wait(&mut kept);
        }
    }

    /// Asks the running balance to stop, and waits until it has stopped. Returns whether a balance
    /// was running.
    pub(super) fn stop(&self, ask: impl Fn(&BalanceControl)) -> bool {
        let mut kept = self.kept.lock();
        let Some(control) = &kept.under_way else {
            return false;
        };
        ask(control);
        while kept.under_way.is_some() {
            self.ended.wait(&mut kept);
        }
        true
    }

    /// Returns how far the balance is that is running.
    pub(super) fn counts(&self) -> Option<BalanceCounts> {
        self.kept.lock().under_way.as_ref().map(BalanceControl::counts)
    }

    /// Runs a balance and waits for its end. `choose` starts or resumes the balance.
    pub(super) fn run(
        self: &Arc<Self>,
        volume: &WritableVolume,
        limit: Option<u64>,
        choose: impl FnOnce(&WritableVolume) -> Result<Choice>,
    ) -> Result<BalanceSummary> {
        let (control, ends) = self.begin()?;
        let choice = choose(volume)?;
        let summary = volume.run_balance(&choice, bytes(limit), &control);
        drop(ends);
        Ok(summary?)
    }

    /// Runs a balance in a thread of its own.
    pub(super) fn run_in_background(
        self: &Arc<Self>,
        volume: WritableVolume,
        limit: Option<u64>,
        choose: impl FnOnce(&WritableVolume) -> Result<Choice>,
    ) -> Result<()> {
        let (control, ends) = self.begin()?;
        let choice = choose(&volume)?;
        let log = Arc::clone(&self.log);
        let job = move || {
            let ended = volume.run_balance(&choice, bytes(limit), &control);
            // Waiters for the balance's end want to use the volume, so release the volume first.
            drop(volume);
            match ended {
                Err(error) => log(&format!("the balance failed: {error}")),
                Ok(summary) if !summary.without_space.is_empty() => log(&format!(
                    "the balance had no space for {} block groups",
                    summary.without_space.len()
                )),
                Ok(_) => {}
            }
            drop(ends);
        };
        let thread = std::thread::Builder::new().name("buttress-balance".to_owned());
        thread.spawn(job)?;
        Ok(())
    }

    fn begin(self: &Arc<Self>) -> Result<(BalanceControl, Ends)> {
        let mut kept = self.kept.lock();
        if kept.under_way.is_some() {
            return Err(anyhow!("a balance is already running")).map_err(|error| {
                error.context(Advice::new(
                    "`buttress balance status` shows its progress; `buttress balance pause` pauses it",
                ))
            });
        }
        if kept.is_over {
            bail!("the volume is being unmounted");
        }
        let control = BalanceControl::new(Progress::new());
        kept.under_way = Some(control.clone());
        Ok((control, Ends(Arc::clone(self))))
    }
}

fn bytes(limit: Option<u64>) -> Option<ByteCount> {
    limit.filter(|limit| *limit > 0).map(ByteCount::new)
}
