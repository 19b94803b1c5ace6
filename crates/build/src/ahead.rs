//! Entries fetched ahead: a thread of its own reads a source, while the caller sorts earlier
//! entries.
//!
//! Entries travel in batches, so passing entries on costs next to nothing. Few batches of entries
//! are queued, so memory does not depend on the speed of a source. A batch keeps the order of the
//! source. The receiver may stop at any entry, and the source is then asked for a bounded number of
//! further entries.

use crate::entry::{Entry, EntryKind};
use crate::error::{Error, Result};
use crate::source::{Source, SourceError};
use crossbeam_channel::{Sender, bounded};
use std::thread;

/// The maximum number of entries in a batch.
const BATCH_ENTRIES: usize = 256;

/// The size in bytes at which a batch is full.
const BATCH_BYTES: usize = 256 << 10;

/// The number of batches of entries that may be queued.
const BATCHES_WAITING: usize = 4;

/// Passes all entries of a source to `take`.
pub(crate) fn for_each(source: &mut dyn Source, take: &mut dyn FnMut(Entry) -> Result<()>) -> Result<()> {
    let (to, batches) = bounded(BATCHES_WAITING);
    thread::scope(|scope| {
        thread::Builder::new()
            .name("buttress-build-source".to_owned())
            .spawn_scoped(scope, move || fetch(source, &to))
            .map_err(|_| Error::Defect {
                what: "no thread can be started",
            })?;
        for batch in batches {
            let (entries, failure) = batch;
            entries.into_iter().try_for_each(&mut *take)?;
            if let Some(error) = failure {
                return Err(Error::Source(error));
            }
        }
        Ok(())
    })
}

/// A batch of entries, and the source's error after them.
type Batch = (Vec<Entry>, Option<SourceError>);

/// Fetches entries until the source ends or the receiver is gone.
fn fetch(source: &mut dyn Source, to: &Sender<Batch>) {
    let mut ends = false;
    while !ends {
        let mut entries = Vec::with_capacity(BATCH_ENTRIES);
        let mut bytes = 0_usize;
        let mut failure = None;
        while !ends && entries.len() < BATCH_ENTRIES && bytes < BATCH_BYTES {
            match source.next_entry() {
                Ok(Some(entry)) => {
                    bytes = bytes.saturating_add(bytes_of(&entry));
                    entries.push(entry);
                }
                Ok(None) => ends = true,
                Err(error) => {
                    failure = Some(error);
                    ends = true;
                }
            }
        }
        if to.send((entries, failure)).is_err() {
            return;
        }
    }
}

/// Returns the approximate memory of an entry.
fn bytes_of(entry: &Entry) -> usize {
    let content = match &entry.kind {
        EntryKind::File(content) => content.locator.len(),
        EntryKind::Symlink(target) => target.len(),
        _ => 0,
    };
    let xattrs = entry.attributes.xattrs.iter();
    xattrs.fold(
        entry.path.as_bytes().len().saturating_add(content),
        |sum, xattr| {
            sum.saturating_add(xattr.name.len())
                .saturating_add(xattr.value.len())
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Attributes, EntryPath, Precedence};
    use crate::source::Contents;
    use std::sync::Arc;

    /// A source of a given number of entries, which then fails or ends.
    struct Numbers {
        given: usize,
        most: usize,
        fails: bool,
    }

    impl Source for Numbers {
        fn name(&self) -> String {
            "numbers".to_owned()
        }

        fn next_entry(&mut self) -> std::result::Result<Option<Entry>, SourceError> {
            if self.given == self.most {
                return match self.fails {
                    false => Ok(None),
                    true => Err(SourceError::Unsupported {
                        place: "numbers".to_owned(),
                        what: "the last one".to_owned(),
                    }),
                };
            }
            self.given += 1;
            Ok(Some(Entry {
                path: EntryPath::new(format!("number {}", self.given).as_bytes()).unwrap(),
                precedence: Precedence::default(),
                kind: EntryKind::Symlink(vec![b'x'; 1000]),
                attributes: Attributes::default(),
            }))
        }

        fn contents(&mut self) -> std::result::Result<Arc<dyn Contents>, SourceError> {
            Ok(Arc::new(crate::source::LocatorContents))
        }
    }

    fn numbers(most: usize, fails: bool) -> Numbers {
        Numbers {
            given: 0,
            most,
            fails,
        }
    }

    #[test]
    fn entries_keep_their_order_and_the_error_comes_last() {
        for (most, fails) in [(0, false), (1, false), (255, true), (256, false), (3000, true)] {
            let mut taken = 0;
            let result = for_each(&mut numbers(most, fails), &mut |entry| {
                taken += 1;
                assert_eq!(entry.path.as_bytes(), format!("number {taken}").as_bytes());
                Ok(())
            });
            assert_eq!((taken, result.is_err()), (most, fails));
        }
    }

    #[test]
    fn receiver_that_stops_bounds_further_source_calls() {
        let mut source = numbers(1_000_000, false);
        let mut taken = 0;
        let result = for_each(&mut source, &mut |_| {
            taken += 1;
            match taken {
                10 => Err(Error::Cancelled),
                _ => Ok(()),
            }
        });
        assert!(matches!(result, Err(Error::Cancelled)));
        assert!(
            source.given <= BATCH_ENTRIES * (BATCHES_WAITING + 3),
            "{}",
            source.given
        );
    }
}
