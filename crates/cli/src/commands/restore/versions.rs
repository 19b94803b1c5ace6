//! Versions of files from several states, written to a directory.
//!
//! Each state is opened once, the newest first. The extraction is that of `restore`, so that files get
//! verdicts, temporary names and attributes in the same way. Directories get their attributes after the
//! files of all states.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use buttress::salvage::{Identity, Version, VersionDirectories, ViewOptions, open_state, version_entries};
use buttress::{Device, Generation, Logical, Progress, WalkItem};

use super::report::{Judging, LeftOut};
use crate::context::Context;
use crate::ending::ends_the_job;
use crate::extract::{Extractor, Preserve, Review};
use crate::replacing::{DirectoryFinish, Replacing};

/// The largest number of bytes of a name.
const NAME_MAX: usize = 255;

/// The way to write versions.
pub(crate) struct VersionWriter<'a> {
    pub(crate) devices: &'a [Device],
    pub(crate) identity: &'a Identity,
    pub(crate) options: &'a ViewOptions,
    pub(crate) directory: &'a Path,
    pub(crate) preserve: Preserve,
    pub(crate) replacing: Replacing,
    /// True if names get the generation of the version: `NAME.g12`.
    pub(crate) numbered: bool,
}

impl VersionWriter<'_> {
    /// Writes versions, state by state. Returns whether the destination can take no more.
    pub(crate) fn write<'v>(
        &self,
        context: &Context,
        versions: impl IntoIterator<Item = &'v Version>,
        judging: &Arc<Judging>,
        progress: &Progress,
    ) -> Result<bool> {
        // The newest state comes first.
        let mut by_state: BTreeMap<core::cmp::Reverse<(Generation, Logical)>, Vec<&Version>> =
            BTreeMap::new();
        for version in versions {
            let root = version.state.root;
            let group = by_state.entry(core::cmp::Reverse((root.generation, root.logical)));
            group.or_default().push(version);
        }
        let rivals = self.rivals(by_state.values().flatten().copied());
        let mut directories = VersionDirectories::default();
        let (mut last, mut is_cut) = (None, false);
        for versions in by_state.into_values() {
            let Some(first) = versions.first() else { continue };
            let view = open_state(self.devices, self.identity, &first.state, self.options)?;
            judging.read_from(first.judge(&view), first.state.generation().get());
            let name_of = |version: &Version| self.name_of(version, &rivals);
            let items = version_entries(&view, versions, name_of).inspect(|item| match item {
                WalkItem::Entry(entry) if entry.metadata().is_directory() => directories.take(entry),
                _ => {}
            });
            is_cut = self.extract(context, judging, items, DirectoryFinish::Later, progress)?;
            last = Some(view);
            if is_cut {
                break;
            }
        }
        let Some(view) = last else { return Ok(is_cut) };
        let items = directories.into_items(&view).into_iter();
        Ok(self.extract(context, judging, items, DirectoryFinish::Now, progress)? || is_cut)
    }

    /// Returns the versions with the path and generation of an earlier version, by path and root.
    fn rivals<'v>(&self, versions: impl Iterator<Item = &'v Version>) -> HashSet<(&'v [u8], Logical)> {
        let (mut known, mut rivals) = (HashSet::new(), HashSet::new());
        for version in versions.filter(|_| self.numbered) {
            if !known.insert((version.path.as_slice(), version.generation)) {
                rivals.insert((version.path.as_slice(), version.state.root.logical));
            }
        }
        rivals
    }

    fn name_of(&self, version: &Version, rivals: &HashSet<(&[u8], Logical)>) -> Vec<u8> {
        let name = version.path.rsplit(|byte| *byte == b'/').next();
        let name = name.unwrap_or_default(); // Clamp: a path has a last name.
        if !self.numbered {
            return name.to_vec();
        }
        let root = version.state.root.logical;
        let root = match rivals.contains(&(version.path.as_slice(), root)) {
            true => format!("-{root}"),
            false => String::new(),
        };
        numbered(name, &format!(".g{}{root}", version.generation))
    }

    fn extract(
        &self,
        context: &Context,
        judging: &Arc<Judging>,
        items: impl Iterator<Item = WalkItem>,
        directories: DirectoryFinish,
        progress: &Progress,
    ) -> Result<bool> {
        let review: Arc<dyn Review> = Arc::<Judging>::clone(judging);
        let mut extractor = Extractor::new(
            self.directory,
            None,
            self.preserve,
            Replacing {
                directories,
                ..self.replacing
            },
            context.sources(),
            progress.clone(),
            Some(review),
        )?;
        for item in items {
            progress.check()?;
            if let WalkItem::Failed(failed) = &item {
                judging.lost(&failed.path, &failed.error.to_string());
                continue;
            }
            extractor.take(item);
            report_errors(context, extractor.errors());
            if extractor.has_ended() {
                break;
            }
        }
        let was_cut = extractor.has_ended();
        let (_, errors, refusals) = extractor.finish();
        let is_cut = was_cut || errors.iter().any(ends_the_job);
        report_errors(context, errors);
        for refusal in refusals {
            context.warn(refusal.text);
        }
        Ok(is_cut)
    }
}

/// Prints errors of the destination. The report has the errors of the volume.
fn report_errors(context: &Context, errors: Vec<anyhow::Error>) {
    for error in errors {
        match error.downcast_ref::<LeftOut>() {
            Some(_) => context.warn(format_args!("{error:#}")),
            None => context.lost(&error),
        }
    }
}

/// Returns a name with a suffix. A name that becomes too long loses its last bytes.
fn numbered(name: &[u8], suffix: &str) -> Vec<u8> {
    let room = NAME_MAX.saturating_sub(suffix.len()); // Clamp: a suffix is shorter.
    let kept: Vec<u8> = name.iter().copied().take(room).collect();
    [kept.as_slice(), suffix.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::numbered;

    #[test]
    fn numbered_name_has_255_bytes_at_most() {
        assert_eq!(numbered(b"letter", ".g7"), b"letter.g7");
        let long = numbered(&[b'a'; 255], ".g12345");
        assert_eq!(long.len(), 255);
        assert!(long.ends_with(b"a.g12345"));
    }
}
