//! Devices that fail while a command changes a volume: each is told once, in a session after the word that met it, else when
//! the command ends.

use buttress::Notice;
use buttress::unstable::volume::Notice as VolumeNotice;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What was told already.
#[derive(Clone, Debug, Default)]
pub struct ToldFailures {
    told: Arc<Mutex<BTreeSet<String>>>,
}

impl ToldFailures {
    /// What is to be told of devices that failed, and was not told before.
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
