//! Treatment of existing files in a volume: see [`crate::replacing`] for the rules.

use anyhow::{Result, bail};
use buttress::{DirEntry, Error, FileKind, Follow, Location, Metadata};

use super::{Facts, Inserter};
use crate::replacing::{dangling, directory_in_the_way, kind_name, same_file};

/// Target of the copy for a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// No file has the target name any more.
    Free,
    /// The content goes into the existing file at this location.
    Into(Location),
    /// The existing file stays unchanged, because replacing it was declined.
    Closed,
}

/// An existing file with the name.
struct There {
    entry: DirEntry,
    /// File to write into: the target of a link, if the link is followed.
    target: Location,
    metadata: Metadata,
}

impl Inserter<'_> {
    /// Checks for an existing file with the target's name, and removes it if necessary.
    pub(super) fn way(&self, name: &[u8], facts: &Facts) -> Result<Way> {
        let Some(there) = self.there(name, facts)? else {
            return Ok(Way::Free);
        };
        let replacing = self.replacing;
        if replacing.no_clobber {
            return Ok(Way::Closed);
        }
        let shown = self.shown(name);
        if self.is_same_file(name, facts, &there)? {
            return Err(same_file(&self.source_shown(name), &shown));
        }
        if self.is_same_link(facts, &there) {
            return Ok(Way::Closed);
        }
        if there.metadata.is_directory() {
            return Err(directory_in_the_way(&shown));
        }
        let is_file = facts.kind == FileKind::Regular;
        let keeps_content = replacing.keep_links && there.metadata.nlink > 1;
        let removed = replacing.remove || keeps_content || (replacing.by_others && !is_file);
        if removed || self.is_below(&there) {
            return self.clear(name);
        }
        if !is_file {
            bail!("cannot create {} '{shown}': File exists", kind_name(facts.kind));
        }
        match there.metadata.kind {
            FileKind::Regular => Ok(Way::Into(there.target)),
            _ if replacing.force => self.clear(name),
            kind => bail!(
                "cannot create regular file '{shown}': a {} is in the way",
                kind_name(kind)
            ),
        }
    }

    /// Checks for an existing file with the name of a hard link. Returns `None` if the existing
    /// name already belongs to the linked file.
    pub(super) fn way_for_link(&self, name: &[u8], linked: Location) -> Result<Option<Way>> {
        let Some(entry) = self.writing.volume().lookup(self.here(), name)? else {
            return Ok(Some(Way::Free));
        };
        if entry.target == linked {
            return Ok(None);
        }
        if self.replacing.no_clobber {
            return Ok(Some(Way::Closed));
        }
        if entry.kind == FileKind::Directory {
            return Err(directory_in_the_way(&self.shown(name)));
        }
        self.clear(name).map(Some)
    }

    fn clear(&self, name: &[u8]) -> Result<Way> {
        self.writing.volume().unlink(self.here(), name)?;
        Ok(Way::Free)
    }

    fn there(&self, name: &[u8], facts: &Facts) -> Result<Option<There>> {
        let filesystem = self.writing.volume();
        let Some(entry) = filesystem.lookup(self.here(), name)? else {
            return Ok(None);
        };
        let is_link = entry.kind == FileKind::Symlink;
        let follows = is_link && facts.kind == FileKind::Regular && !self.replacing.remove && self.is_top();
        let target = if follows {
            let path = self.path(name);
            match self.writing.resolve(&path, Follow::All) {
                Ok(target) => target,
                Err(error) => {
                    let is_dangling = error.downcast_ref().is_some_and(Error::is_not_found);
                    return Err(match is_dangling {
                        true => dangling(&self.shown(name)),
                        false => error,
                    });
                }
            }
        } else {
            entry.target
        };
        let metadata = filesystem.metadata(target)?;
        Ok(Some(There {
            entry,
            target,
            metadata,
        }))
    }

    /// If the user did not name an existing link below the copied directory, the link must be
    /// replaced. Returns whether this is the case.
    fn is_below(&self, there: &There) -> bool {
        there.entry.kind == FileKind::Symlink && !self.is_top()
    }

    /// Returns whether source and existing file are the same, so that removing or truncating one
    /// would affect the other.
    fn is_same_file(&self, name: &[u8], facts: &Facts, there: &There) -> Result<bool> {
        let Some(origin) = facts.origin else {
            return Ok(false);
        };
        let is_own_entry = self.is_top()
            && self
                .source_entry
                .as_ref()
                .is_some_and(|(directory, own)| *directory == self.here() && own == name);
        let is_link = there.entry.kind == FileKind::Symlink;
        if facts.kind == FileKind::Symlink {
            // A copied link may replace another link, but never its own target.
            return Ok(is_own_entry || (!is_link && facts.referent == Some(there.entry.target)));
        }
        if origin != there.target && origin != there.entry.target {
            return Ok(false);
        }
        let other_name = is_link || self.writing.volume().metadata(there.entry.target)?.nlink > 1;
        Ok(is_own_entry || !(self.replacing.remove && other_name))
    }

    /// Returns whether both are names of one symbolic link, so that nothing is to be done.
    fn is_same_link(&self, facts: &Facts, there: &There) -> bool {
        facts.kind == FileKind::Symlink && facts.origin == Some(there.entry.target)
    }
}
