//! Options that a remount changes while the server runs.
//!
//! For a remount of FUSE, the kernel sends no request: it only changes flags of the mount and of
//! the superblock. The mount table shows the options, so the server reads the table after each
//! change. The server opens the table of mounts before it restricts itself.
//!
//! A FUSE request does not identify its mount. The options of the oldest mount of the volume
//! therefore apply to all of them.

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

/// The options of a mount, and whether its file system is read-only.
type Options = (String, bool);

/// The options of the oldest mount of a device.
pub(super) struct ShownOptions {
    device: String,
    volume: Weak<MountedVolume>,
    /// The table, and the options at its last reading. Leaf lock.
    shown: Mutex<(File, Options)>,
}

impl ShownOptions {
    /// Applies the shown options of the mounts with this device to the volume.
    pub(super) fn follow(device: String, volume: &Arc<MountedVolume>) -> Result<Arc<Self>> {
        let open = || File::open(TABLE).with_context(|| format!("opening {TABLE}"));
        let mut table = open()?;
        let options = options_of(&mut table, &device)?.unwrap_or_default();
        let shown = Arc::new(Self {
            device,
            volume: Arc::downgrade(volume),
            shown: Mutex::new((table, options)),
        });
        // Each open file of the table reports changes independently.
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

    /// Reads the table of mounts, and applies changed options to the volume.
    pub(super) fn refresh(&self) {
        let mut shown = self.shown.lock();
        let (table, last) = &mut *shown;
        // An unreadable mount table changes no options, nor does a table without the mount, because
        // then the mount is ending.
        let Ok(Some(options)) = options_of(table, &self.device) else {
            return;
        };
        if options == *last {
            return;
        }
        if let Some(volume) = self.volume.upgrade() {
            let (of_mount, is_read_only) = &options;
            volume.set_remounted(access_times::of_table(of_mount), *is_read_only);
        }
        *last = options;
    }
}

fn options_of(table: &mut File, device: &str) -> Result<Option<Options>> {
    let mut text = Vec::new();
    table.rewind()?;
    table.read_to_end(&mut text)?;
    let mounts = places::of_text(&text);
    let oldest = mounts.into_iter().find(|mount| mount.device == device);
    Ok(oldest.map(|mount| (mount.options, mount.is_file_system_read_only)))
}
