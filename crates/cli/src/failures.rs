//! Reports of devices that fail while a command changes a volume. Each device is reported once: in
//! a session after the shell command that met the failure, otherwise at the end of the command.

use buttress::Notice;
use buttress::unstable::volume::Notice as VolumeNotice;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Device failures that were already reported.
#[derive(Clone, Debug, Default)]
pub struct ToldFailures {
    told: Arc<Mutex<BTreeSet<String>>>,
}

impl ToldFailures {
    /// Returns the messages about failed devices that were not reported before.
    pub fn news_of(&self, notices: &[Notice]) -> Vec<String> {
        let mut told = self.told.lock();
        notices
            .iter()
            .filter(|notice| matches!(notice, Notice::Volume(VolumeNotice::DeviceLeftOut { .. })))
            .map(Notice::to_string)
            .filter(|text| told.insert(text.clone()))
            .collect()
    }
}
