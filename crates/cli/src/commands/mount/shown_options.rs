//! Options that a remount changes while a server runs.
//!
//! The kernel sends no request for a remount of FUSE: it changes flags of the mount and of the superblock, in itself. The table of mounts
//! shows them, so the server reads the table whenever it changes. The table was opened before the server closed itself in.
//!
//! A request does not tell by which of several mounts it came. The oldest mount of the volume counts for all of them.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::sync::{Arc, Weak};

use anyhow::{Context as _, Result};
use buttress_mount::volume::MountedVolume;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};

use super::access_times;
use crate::mounted::places;

const TABLE: &str = "/proc/self/mountinfo";

/// The options of the oldest mount of a device.
pub(super) struct ShownOptions {
    device: String,
    volume: Weak<MountedVolume>,
    /// The table, and the options that it showed last. Leaf lock.
    shown: Mutex<(File, String)>,
}

impl ShownOptions {
    /// Follows the options of what is mounted with this device.
    pub(super) fn follow(device: String, volume: &Arc<MountedVolume>) -> Result<Arc<Self>> {
        let open = || File::open(TABLE).with_context(|| format!("opening {TABLE}"));
        let mut table = open()?;
        let options = options_of(&mut table, &device)?.unwrap_or_default();
        let shown = Arc::new(Self {
            device,
            volume: Arc::downgrade(volume),
            shown: Mutex::new((table, options)),
        });
        // Each file of the table has changes of its own to report.
        let (changes, followed) = (open()?, Arc::clone(&shown));
        std::thread::Builder::new()
            .name("buttress-remounts".to_owned())
            .spawn(move || followed.refresh_on_changes(&changes))?;
        Ok(shown)
    }

    fn refresh_on_changes(&self, changes: &File) {
        loop {
            let mut waits = [PollFd::new(changes, PollFlags::PRI)];
            match poll(&mut waits, None) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return,
            }
            if self.volume.strong_count() == 0 {
                return;
            }
            self.refresh();
        }
    }

    /// Reads the table, and has the volume follow options that changed.
    pub(super) fn refresh(&self) {
        let mut shown = self.shown.lock();
        let (table, last) = &mut *shown;
        // A table that cannot be read changes nothing, and neither does one without the mount, which ends then.
        let Ok(Some(options)) = options_of(table, &self.device) else {
            return;
        };
        if options == *last {
            return;
        }
        if let Some(volume) = self.volume.upgrade() {
            volume.set_accesses(access_times::of_table(&options));
        }
        *last = options;
    }
}

fn options_of(table: &mut File, device: &str) -> Result<Option<String>> {
    let mut text = Vec::new();
    table.rewind()?;
    table.read_to_end(&mut text)?;
    let mounts = places::of_text(&text);
    let oldest = mounts.into_iter().find(|mount| mount.device == device);
    Ok(oldest.map(|mount| mount.options))
}
