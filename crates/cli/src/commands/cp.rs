//! `buttress cp IMAGE:/path… DESTINATION`: files out of a volume.
//!
//! As with `cp(1)`: if the destination is a directory, things are put into it under their names; otherwise it
//! names the copy. The root of a volume has no name: its content goes into the destination itself.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use buttress_fs::{Follow, WalkOptions};
use clap::Args;
use serde_json::json;

use crate::context::Context;
use crate::exit::{Advice, Outcome};
use crate::extract::{Extractor, Preserve, Totals};
use crate::opening::Images;
use crate::progress::Watch;
use crate::table::Subcommand;
use crate::target::Target;

/// Copy files out of a volume
#[derive(Args, Debug)]
pub struct Cp {
    /// Copy directories and all they hold
    #[arg(short = 'r', short_alias = 'R', long)]
    recursive: bool,
    /// Copy directories, and keep owners, modes, times and extended attributes
    #[arg(short = 'a', long)]
    archive: bool,
    /// Never put the copy into the destination directory: the destination is the copy
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Do not descend into nested subvolumes
    #[arg(long)]
    one_file_system: bool,
    /// What to copy, then where to
    #[arg(value_name = "IMAGE:/path… DESTINATION", required = true)]
    places: Vec<OsString>,
}

impl Subcommand for Cp {
    const NAME: &'static str = "cp";

    fn run(self, context: &Context) -> Result<Outcome> {
        let Some((destination, sources)) = self
            .places
            .split_last()
            .filter(|(_, sources)| !sources.is_empty())
        else {
            return Err(anyhow::anyhow!("a destination is missing"))
                .context(Advice::new("the last argument says where to copy to"));
        };
        let destination = Path::new(destination);
        let into_directory = destination.is_dir() && !self.no_target_directory;
        if sources.len() > 1 && !into_directory {
            anyhow::bail!(
                "{} is not a directory, and there are several sources",
                destination.display()
            );
        }
        let mut images = Images::new(context);
        let mut totals = Vec::new();
        for source in sources {
            let target = Target::parse(source);
            match self.copy(context, &mut images, &target, destination, into_directory) {
                Ok(copied) => totals.push((target.display(), copied)),
                Err(error) => context.lost(&target.name_in(error)),
            }
        }
        if context.json() {
            let values = totals.iter().map(|(source, totals)| {
                json!({
                    "source": source,
                    "files": totals.files,
                    "directories": totals.directories,
                    "hard_links": totals.hard_links,
                    "others": totals.others,
                    "bytes": totals.bytes,
                })
            });
            context.print_json("cp", values.collect())?;
        }
        Ok(Outcome::Done)
    }
}

impl Cp {
    fn copy(
        &self,
        context: &Context,
        images: &mut Images<'_>,
        target: &Target,
        destination: &Path,
        into_directory: bool,
    ) -> Result<Totals> {
        let opened = images.open(&target.image)?;
        let recursive = self.recursive || self.archive;
        let follow = if recursive { Follow::NotLast } else { Follow::All };
        let start = opened.resolve(&target.path, follow)?;
        let is_directory = opened.filesystem.metadata(start)?.is_directory();
        if is_directory && !recursive {
            return Err(anyhow::anyhow!("is a directory")).context(Advice::new(
                "give -r to copy directories, or -a to keep owners and times too",
            ));
        }
        let (parent, name) = place(target, destination, into_directory, is_directory)?;
        let preserve = if self.archive {
            Preserve::All
        } else {
            Preserve::Nothing
        };
        let options = WalkOptions {
            one_file_system: self.one_file_system,
            ..WalkOptions::default()
        };
        let mut extractor = Extractor::new(&parent, name, preserve, options.progress.clone())?;
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
}

/// The directory in which the copy is made, and its name there; without a name, the directory is the copy.
fn place(
    target: &Target,
    destination: &Path,
    into_directory: bool,
    is_directory: bool,
) -> Result<(PathBuf, Option<OsString>)> {
    let last = target
        .path
        .rsplit(|byte| *byte == b'/')
        .find(|name| !name.is_empty() && *name != b".");
    if into_directory {
        let name = last
            .filter(|name| *name != b"..")
            .map(|name| OsStr::from_bytes(name).to_owned());
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
