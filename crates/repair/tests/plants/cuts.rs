//! Power cuts during a rebuild in place.

use super::lost::{blocks_of, grow, zero_on};
use super::{check, repair, text};
use buttress_device::{Backend, Device, Engine};
use buttress_format::TreeId;
use buttress_fs::OpenOptions;
use buttress_hostile::plants;
use buttress_lab::crash::{CrashLab, Cuts, copy_of};
use buttress_repair::Kept;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Of this number of damaged states, one is repaired.
const REPAIRED_EVERY: u64 = 7;

/// A cut leaves the damaged state, which the same repair then repairs, or the rebuilt state.
#[test]
fn power_cut_of_a_rebuild_leaves_either_state() {
    cut_rebuild_of(TreeId::EXTENT, grow);
}

#[test]
fn power_cut_of_a_small_rebuild_leaves_either_state() {
    cut_rebuild_of(TreeId::DEVICE, |_| ());
}

/// Cuts the rebuild of a lost tree at every write.
fn cut_rebuild_of(tree: TreeId, prepare: fn(&[Device])) {
    let seed = plants::seed("kinds");
    let base = copy_of(Arc::new(seed.devices()[0].clone()));
    let devices = [Device::with_backend(Arc::clone(&base), Engine::Inline)];
    prepare(&devices);
    let grown = OpenOptions::new(devices.to_vec()).open().unwrap();
    let root = blocks_of(&grown, tree)[0];
    drop(grown);
    zero_on(&devices, root, seed.node_bytes());
    let before = check(&devices, false);
    let damaged: Arc<dyn Backend> = base;
    let history = CrashLab::record([damaged], |lab, devices| {
        let outcome = repair(&devices, &before, false);
        assert_eq!(outcome.kept, Kept::Better, "{}", text(&outcome.after));
        lab.mark(1);
        Ok::<(), ()>(())
    })
    .unwrap();
    let (old, new) = (AtomicU64::new(0), AtomicU64::new(0));
    let verdict = history.judge(&Cuts::every().draws(2), |state| {
        let devices = state.devices();
        let found = check(&devices, false);
        if found.is_clean() {
            new.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        if state.last_mark().is_some() || found.counts != before.counts {
            return Err(text(&found));
        }
        // A repair costs more than a check, so some states stand for all.
        if old.fetch_add(1, Ordering::Relaxed) % REPAIRED_EVERY != 0 {
            return Ok(());
        }
        let outcome = repair(&devices, &found, true);
        match outcome.after.is_clean() && outcome.lost.is_empty() {
            true => Ok(()),
            false => Err(format!("lost {:?}\n{}", outcome.lost, text(&outcome.after))),
        }
    });
    let accepted = verdict.accepted().unwrap();
    let (old, new) = (old.into_inner(), new.into_inner());
    assert!(old > 4 && new > 2, "{old} old and {new} new of {accepted} states");
}
