//! Owner maps: `--uid-map INSIDE:OUTSIDE:COUNT`, the inverse of the maps of user namespaces.
//!
//! A tree that was made in a user namespace has owners with the host's numbers, such as 100000 for
//! root. A map assigns numbers of the image to numbers of the source: `0:100000:65536` maps 100000
//! to 165535 to 0 to 65535. An entry with a number outside all ranges is an error, since it would
//! belong to another user in the image.

use std::str::FromStr;
use std::sync::Arc;

use buttress_build::{Contents, Entry, EntryKind, Source, SourceError};
use buttress_format::printable::Printable;

/// Ranges of numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdMap(Vec<IdRange>);

/// A range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IdRange {
    image: u32,
    source: u32,
    count: u32,
}

/// The reason why text is no map.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdMapError {
    /// A range is not valid.
    #[error("{0:?} is not a valid range (expected IMAGE:SOURCE:COUNT, with numbers up to 4294967295)")]
    Range(String),
    /// Two ranges of an owner map hold the same id.
    #[error("{0:?} overlaps an earlier range")]
    Overlap(String),
}

impl FromStr for IdMap {
    type Err = IdMapError;

    /// Parses `IMAGE:SOURCE:COUNT`, or several of them separated by commas.
    fn from_str(text: &str) -> Result<Self, IdMapError> {
        let mut ranges: Vec<IdRange> = Vec::new();
        for part in text.split(',') {
            let wrong = || IdMapError::Range(part.to_owned());
            let numbers: Vec<u32> = part
                .split(':')
                .map(|number| number.parse().map_err(|_| wrong()))
                .collect::<Result<_, _>>()?;
            let [image, source, count] = *numbers.as_slice() else {
                return Err(wrong());
            };
            let fits = |first: u32| count > 0 && first.checked_add(count.wrapping_sub(1)).is_some();
            if !fits(image) || !fits(source) {
                return Err(wrong());
            }
            let range = IdRange { image, source, count };
            if ranges.iter().any(|other| range.overlaps(other)) {
                return Err(IdMapError::Overlap(part.to_owned()));
            }
            ranges.push(range);
        }
        Ok(Self(ranges))
    }
}

impl IdRange {
    fn overlaps(&self, other: &Self) -> bool {
        let end = |range: &Self| u64::from(range.source).saturating_add(u64::from(range.count));
        u64::from(self.source) < end(other) && u64::from(other.source) < end(self)
    }
}

impl IdMap {
    /// Returns the number in the image of a number of the source; `None` if no range holds it.
    #[must_use]
    pub fn image_id(&self, id: u32) -> Option<u32> {
        self.0.iter().find_map(|range| {
            let above = id.checked_sub(range.source)?;
            (above < range.count)
                .then(|| range.image.checked_add(above))
                .flatten()
        })
    }
}

/// A source with mapped owners.
pub struct Mapped {
    inner: Box<dyn Source>,
    users: IdMap,
    groups: IdMap,
}

/// The error of an owner outside all ranges.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no range of the map contains {what} {id} of \"{}\"", Printable(.path))]
struct Unmapped {
    what: &'static str,
    id: u32,
    path: Vec<u8>,
}

impl Mapped {
    /// Maps the users and groups of a source.
    #[must_use]
    pub fn new(inner: Box<dyn Source>, users: IdMap, groups: IdMap) -> Self {
        Self { inner, users, groups }
    }

    fn map(&self, entry: &mut Entry) -> Result<(), Unmapped> {
        if !matches!(
            entry.kind,
            EntryKind::Directory(_) | EntryKind::File(_) | EntryKind::Symlink(_) | EntryKind::Node(_)
        ) {
            return Ok(());
        }
        let unmapped = |what, id| Unmapped {
            what,
            id,
            path: entry.path.as_bytes().to_vec(),
        };
        let (uid, gid) = (entry.attributes.uid, entry.attributes.gid);
        let mapped_uid = self.users.image_id(uid).ok_or_else(|| unmapped("user", uid))?;
        let mapped_gid = self.groups.image_id(gid).ok_or_else(|| unmapped("group", gid))?;
        entry.attributes.uid = mapped_uid;
        entry.attributes.gid = mapped_gid;
        Ok(())
    }
}

impl Source for Mapped {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn next_entry(&mut self) -> Result<Option<Entry>, SourceError> {
        let Some(mut entry) = self.inner.next_entry()? else {
            return Ok(None);
        };
        match self.map(&mut entry) {
            Ok(()) => Ok(Some(entry)),
            Err(problem) => Err(SourceError::Invalid {
                place: self.inner.name(),
                problem: Box::new(problem),
            }),
        }
    }

    fn contents(&mut self) -> Result<Arc<dyn Contents>, SourceError> {
        self.inner.contents()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_outside_all_ranges_are_refused() {
        let map: IdMap = "0:100000:65536,70000:5:1".parse().unwrap();
        for (id, mapped) in [
            (100_000, Some(0)),
            (165_535, Some(65_535)),
            (165_536, None),
            (99_999, None),
            (5, Some(70_000)),
            (0, None),
        ] {
            assert_eq!(map.image_id(id), mapped);
        }
        let all: IdMap = "0:0:4294967295".parse().unwrap();
        assert_eq!(all.image_id(4_294_967_294), Some(4_294_967_294));
    }

    #[test]
    fn invalid_owner_maps_are_refused() {
        for text in [
            "",
            "0",
            "0:1",
            "0:1:0",
            "0:1:2:3",
            "0:4294967295:2",
            "a:b:c",
            "0:1:1,",
        ] {
            assert!(
                matches!(text.parse::<IdMap>(), Err(IdMapError::Range(_))),
                "{text}"
            );
        }
        assert!(matches!(
            "0:10:5,100:14:1".parse::<IdMap>(),
            Err(IdMapError::Overlap(_))
        ));
        assert!("0:10:5,100:15:1".parse::<IdMap>().is_ok());
    }
}
