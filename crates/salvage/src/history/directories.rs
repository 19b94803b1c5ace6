//! Attributes of the directories above versions, over several states.
//!
//! Files of one directory can come from several states. A directory is finished once, after all of
//! them, with the attributes of the newest state that has them.

use crate::view::View;
use buttress_fs::{InodeRecord, WalkEntry, WalkItem};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The directories of versions, from states in order: the newest comes first.
#[derive(Debug, Default)]
pub struct Directories {
    /// The attributes by path, in the order of a walk. A record with true may be wrong.
    records: BTreeMap<Vec<Vec<u8>>, (InodeRecord, bool)>,
}

impl Directories {
    /// Remembers a directory. A newer state with attributes has precedence.
    pub fn take(&mut self, entry: &WalkEntry) {
        let path = entry.path();
        let parts = path.split(|byte| *byte == b'/').map(<[u8]>::to_vec);
        let parts: Vec<Vec<u8>> = parts.filter(|part| !part.is_empty()).collect();
        let known = self.records.get(&parts);
        if known.is_none_or(|(_, is_lost)| *is_lost && entry.lost.is_none()) {
            let record = entry.record.clone();
            self.records.insert(parts, (record, entry.lost.is_some()));
        }
    }

    /// Returns the walk items of all directories. Directories without attributes have the mark of a lost
    /// entry. `view` is any state.
    #[must_use]
    pub fn into_items(self, view: &View) -> Vec<WalkItem> {
        let (mut items, mut stack) = (Vec::new(), Vec::<Vec<u8>>::new());
        let leave = |stack: &mut Vec<Vec<u8>>, items: &mut Vec<WalkItem>| {
            items.push(WalkItem::Leave(stack.join(&b'/').into()));
            stack.pop();
        };
        for (parts, (record, is_lost)) in self.records {
            while !parts.starts_with(&stack) {
                leave(&mut stack, &mut items);
            }
            let location = record.metadata.location;
            let lost = is_lost.then_some(buttress_fs::Error::InodeNotFound { location });
            let name = parts.last().cloned().unwrap_or_default(); // Clamp: the destination has no name.
            let place = (Arc::from(stack.join(&b'/')), name);
            let entry = WalkEntry::new(view.filesystem.clone(), place, record, lost);
            items.push(WalkItem::Entry(Box::new(entry)));
            stack = parts;
            items.push(WalkItem::Enter(stack.join(&b'/').into()));
        }
        while !stack.is_empty() {
            leave(&mut stack, &mut items);
        }
        if !items.is_empty() {
            items.push(WalkItem::Leave(Arc::from(&b""[..])));
        }
        items
    }
}
