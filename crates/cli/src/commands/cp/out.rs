//! Out of a volume, into a directory of the host.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use buttress_fs::{Follow, WalkOptions};

use super::{How, last_name};
use crate::context::Context;
use crate::exit::Advice;
use crate::extract::{Extractor, Totals};
use crate::opening::Images;
use crate::progress::Watch;
use crate::target::Target;

/// Copies what the sources name to the destination. What was copied for each that could be.
pub(crate) fn copy(
    context: &Context,
    how: How,
    sources: &[OsString],
    destination: &Path,
) -> Result<Vec<(String, Totals)>> {
    let into_directory = destination.is_dir() && !how.no_target_directory;
    if sources.len() > 1 && !into_directory {
        anyhow::bail!(
            "{} is not a directory, and there are several sources",
            destination.display()
        );
    }
    let mut images = Images::new(context);
    let mut totals = Vec::new();
    for source in sources {
        let target = context.target(source);
        match copy_one(context, how, &mut images, &target, destination, into_directory) {
            Ok(copied) => totals.push((target.display(), copied)),
            Err(error) => context.lost(&target.name_in(error)),
        }
    }
    Ok(totals)
}

fn copy_one(
    context: &Context,
    how: How,
    images: &mut Images<'_>,
    target: &Target,
    destination: &Path,
    into_directory: bool,
) -> Result<Totals> {
    let opened = images.open(&target.image)?;
    let recursive = how.recursive;
    let follow = if recursive { Follow::NotLast } else { Follow::All };
    let start = opened.resolve(&target.path, follow)?;
    let is_directory = opened.filesystem.metadata(start)?.is_directory();
    if is_directory && !recursive {
        return Err(anyhow::anyhow!("is a directory")).context(Advice::new(
            "give -r to copy directories, or -a to keep owners and times too",
        ));
    }
    let (parent, name) = place(target, destination, into_directory, is_directory)?;
    let options = WalkOptions {
        one_file_system: how.one_file_system,
        ..WalkOptions::default()
    };
    let mut extractor = Extractor::new(&parent, name, how.preserve, options.progress.clone())?;
    let watch = Watch::start(context, "cp", options.progress.clone());
    for item in opened.filesystem.walk(start, options) {
        extractor.take(item);
        for error in extractor.errors() {
            context.lost(&target.name_in(error));
        }
    }
    let (totals, errors, refusals) = extractor.finish();
    watch.end();
    for error in errors {
        context.lost(&target.name_in(error));
    }
    for refusal in refusals {
        context.warn(refusal);
    }
    Ok(totals)
}

/// The directory in which the copy is made, and its name there; without a name, the directory is the copy.
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
    if is_directory && destination.is_dir() {
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
    fn where_copies_go() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        let target = |path: &[u8]| Target {
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
