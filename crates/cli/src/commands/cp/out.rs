//! Copying out of a volume, into a directory of the host.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use buttress::{Location, Progress, Subvolume, WalkOptions};

use super::total::{Counting, Source};
use super::{How, JustMade, TargetDirectory, last_name};
use crate::context::Context;
use crate::exit::Advice;
use crate::extract::{Extractor, Totals};
use crate::opening::Images;
use crate::progress::Watch;
use crate::target::Target;

/// Copies the sources to the destination. Returns the totals of each source that was copied.
pub(crate) fn copy(
    context: &Context,
    how: How,
    sources: &[OsString],
    destination: &Path,
) -> Result<Vec<(String, Totals)>> {
    let how = how.for_sources(sources.len());
    let is_directory = destination.is_dir();
    if how.target == TargetDirectory::Always && !is_directory {
        let reason = if destination.exists() {
            "Not a directory"
        } else {
            "No such file or directory"
        };
        return Err(anyhow!("target '{}': {reason}", destination.display()));
    }
    let mut copying = Copying {
        context,
        how,
        images: Images::new(context),
        destination,
        into_directory: is_directory && how.target != TargetDirectory::Never,
        made: JustMade::default(),
    };
    let mut totals = Vec::new();
    let progress = context.progress();
    let counting = Counting::start(context, &progress, how.one_file_system, || {
        let found = sources
            .iter()
            .filter_map(|source| copying.found(&context.target(source)).ok());
        found
            .map(|(opened, start)| Source::Volume(opened.volume().clone(), start))
            .collect()
    });
    let losses = context.losses();
    let watch = Watch::start(context, "cp", progress.clone());
    for source in sources {
        if copying.made.is_repeated(context, source) {
            continue;
        }
        let target = context.target(source);
        match copying.copy(&target, &progress) {
            Ok(copied) => totals.push((target.display(), copied)),
            Err(error) => context.lost(&target.name_in(error)),
        }
    }
    drop(counting);
    watch.end_as(context.losses() == losses);
    Ok(totals)
}

/// Copies with a common destination.
struct Copying<'a> {
    context: &'a Context,
    how: How,
    images: Images<'a>,
    destination: &'a Path,
    into_directory: bool,
    made: JustMade,
}

impl Copying<'_> {
    /// Returns the volume of a source, and the source's location in the volume.
    fn found(&mut self, target: &Target) -> Result<(Subvolume, Location)> {
        let opened = self.images.open(&target.image)?;
        let start = opened.locate(&target.path, self.how.follow)?;
        Ok((opened, start))
    }

    fn copy(&mut self, target: &Target, progress: &Progress) -> Result<Totals> {
        let (context, how) = (self.context, self.how);
        let (opened, start) = self.found(target)?;
        let is_directory = opened.volume().metadata(start)?.is_directory();
        if is_directory && !how.recursive {
            return Err(anyhow!("is a directory")).context(Advice::new(
                "to copy directories, give -r, or -a to preserve owners and times too",
            ));
        }
        let (parent, name) = place(target, self.destination, self.into_directory, is_directory)?;
        if !is_directory && let Some(name) = &name {
            self.look_at(target, &parent, name)?;
        }
        let options = WalkOptions {
            one_file_system: how.one_file_system,
            progress: progress.clone(),
            ..WalkOptions::default()
        };
        let (preserve, replacing) = (how.preserve, how.replacing);
        let mut extractor = Extractor::new(
            &parent,
            name,
            preserve,
            replacing,
            context.sources(),
            progress.clone(),
            None,
        )?;
        for item in opened.volume().walk(start, options) {
            extractor.take(item);
            for error in extractor.errors() {
                context.lost(&target.name_in(error));
            }
            if extractor.has_ended() {
                break;
            }
        }
        let (totals, errors, refusals) = extractor.finish();
        for error in errors {
            context.lost(&target.name_in(error));
        }
        for refusal in refusals {
            if refusal.is_loss {
                context.lost(&target.name_in(anyhow!(refusal.text)));
            } else {
                context.warn(refusal.text);
            }
        }
        Ok(totals)
    }

    /// Refuses a target that would be invalid for a file other than a directory.
    fn look_at(&mut self, target: &Target, parent: &Path, name: &OsStr) -> Result<()> {
        let whole = parent.join(name);
        let destination = self.destination;
        if destination.as_os_str().as_bytes().ends_with(b"/") && !destination.is_dir() {
            let destination = destination.display();
            return Err(anyhow!(
                "cannot create regular file '{destination}': Not a directory"
            ));
        }
        let made = self.into_directory.then_some(name.as_bytes());
        self.made
            .refuse(made, &whole.display().to_string(), &target.display())
    }
}

/// Returns the target directory of the copy, and its name there; without a name, the directory
/// itself is the copy.
fn place(
    target: &Target,
    destination: &Path,
    into_directory: bool,
    is_directory: bool,
) -> Result<(PathBuf, Option<OsString>)> {
    if into_directory {
        let name = last_name(&target.path).map(|name| OsStr::from_bytes(name).to_owned());
        return Ok((destination.to_owned(), name));
    }
    // A link to a directory does not count as a directory, because the copy may replace it.
    let is_there = destination.is_dir() && !destination.is_symlink();
    if is_directory && is_there {
        return Ok((destination.to_owned(), None));
    }
    let name = destination
        .file_name()
        .with_context(|| format!("{} is not a name", destination.display()))?;
    let parent = destination.parent().unwrap_or(Path::new("."));
    Ok((parent.to_owned(), Some(name.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_go_into_directories_or_under_their_new_name() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        let target = |path: &[u8]| Target {
            word: None,
            image: "i".into(),
            path: path.to_vec(),
            has_path: true,
        };
        let case = |path: &[u8], to: &Path, into, is_directory| {
            let (parent, name) = place(&target(path), to, into, is_directory).unwrap();
            (parent, name.map(|name| name.into_string().unwrap()))
        };
        assert_eq!(
            case(b"/a/b", here, true, false),
            (here.to_owned(), Some("b".to_owned()))
        );
        assert_eq!(
            case(b"/a/b/", here, true, true),
            (here.to_owned(), Some("b".to_owned()))
        );
        assert_eq!(case(b"/", here, true, true), (here.to_owned(), None));
        assert_eq!(case(b"/a/..", here, true, true), (here.to_owned(), None));
        assert_eq!(case(b"/a", here, false, true), (here.to_owned(), None));
        let new = here.join("new");
        assert_eq!(
            case(b"/a", &new, false, true),
            (here.to_owned(), Some("new".to_owned()))
        );
        assert_eq!(
            case(b"/a", Path::new("new"), false, false),
            (PathBuf::new(), Some("new".to_owned()))
        );
    }
}
