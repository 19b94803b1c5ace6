//! `buttress ls IMAGE:/path…`: lists directories, in the formats of GNU `ls` in the C locale.
//!
//! The listing prints one name on each line. Names are sorted by their bytes, as in `LC_ALL=C ls`.
//! Owners are numbers, as in `ls -n`, because a volume's users are not this machine's users. The
//! listing is one walk in the order of `ls -R`, which loads the inodes of many entries at once.
//! Memory holds only the lines of one directory.

mod line;
mod listing;

use std::ffi::OsString;

use anyhow::Result;
use buttress::{Follow, Location, Subvolume, WalkEntry, WalkItem, WalkOptions, WalkOrder};
use clap::Args;
use serde_json::json;

use crate::context::{Context, Stdout};
use crate::exit::Outcome;
use crate::manual::{Example, example};
use crate::opening::Images;
use crate::opening::generation::{self, Wanted};
use crate::output::json::ArrayWriter;
use crate::output::time::{Clock, TimeStyle};
use crate::table::Subcommand;
use crate::target::Target;
pub(in crate::commands) use line::as_json;
pub(in crate::commands) use listing::Listing;

/// List directories
#[derive(Args, Clone, Debug)]
pub struct Ls {
    #[command(flatten)]
    look: Look,
    /// Do not sort; list entries in directory order
    #[arg(short = 'U', long)]
    unsorted: bool,
    /// Do not list the content of nested subvolumes
    #[arg(long)]
    one_file_system: bool,
    /// Files and directories to list
    #[arg(value_name = "IMAGE[:/path]", required = true)]
    targets: Vec<OsString>,
}

/// Options of listings, also for `stream ls`.
#[derive(Args, Clone, Debug)]
pub(in crate::commands) struct Look {
    /// Print mode, links, owner, group, size and time of each file
    #[arg(short = 'l')]
    long: bool,
    /// Same as -l, with numeric user and group ids
    #[arg(short = 'n', long)]
    numeric_uid_gid: bool,
    /// List directories recursively
    #[arg(short = 'R', long)]
    pub(in crate::commands) recursive: bool,
    /// Include names that begin with a dot, also . and ..
    #[arg(short = 'a', long)]
    pub(in crate::commands) all: bool,
    /// Same as -a, without . and ..
    #[arg(short = 'A', long)]
    almost_all: bool,
    /// Print the inode number before each name
    #[arg(short = 'i', long)]
    inode: bool,
    /// List directories themselves, not their entries
    #[arg(short = 'd', long)]
    pub(in crate::commands) directory: bool,
    /// With -l, print sizes as 1.5K, 23M
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// Print a name on each line (the default)
    #[arg(short = '1')]
    one: bool,
    /// Format of times
    #[arg(long, value_name = "STYLE", default_value = "locale")]
    time_style: TimeStyle,
    /// Same as -l --time-style=full-iso
    #[arg(long)]
    full_time: bool,
}

impl Look {
    fn is_long(&self) -> bool {
        self.long || self.full_time || self.numeric_uid_gid
    }

    fn style(&self) -> TimeStyle {
        if self.full_time {
            TimeStyle::FullIso
        } else {
            self.time_style
        }
    }

    /// Returns whether the listing shows an entry with this name.
    pub(in crate::commands) fn shows(&self, name: &[u8]) -> bool {
        self.all || self.almost_all || name.first() != Some(&b'.')
    }
}

impl Subcommand for Ls {
    const NAME: &'static str = "ls";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress ls -l backup.img:/home",
            "Lists a directory with modes, owners, sizes and times",
        ),
        example(
            "buttress ls -R --one-file-system backup.img:/",
            "Lists the top level recursively, without nested subvolumes",
        ),
    ];

    fn run(self, context: &Context) -> Result<Outcome> {
        let mut images = Images::new(context);
        let mut sink = if context.json() {
            Sink::Json(ArrayWriter::begin(context.stdout(), "ls")?)
        } else {
            let headings = self.look.recursive || self.targets.len() > 1;
            Sink::Text(Listing::new(
                self.look.clone(),
                headings,
                Clock::system(),
                context,
            ))
        };
        for argument in &self.targets {
            let target = context.target(argument);
            if target.state() == Wanted::List {
                if let Err(error) = list_states(context, &target, &mut sink) {
                    context.lost(&target.name_in(error));
                }
                continue;
            }
            let found = images.open(&target.image).and_then(|opened| {
                let start = opened.locate(&target.path, Follow::NotLast)?;
                Ok((opened, start))
            });
            match found {
                Ok((opened, start)) => self.list(context, &opened, start, &target, &mut sink)?,
                Err(error) => context.lost(&target.name_in(error)),
            }
        }
        match sink {
            Sink::Json(array) => array.finish()?,
            Sink::Text(listing) => listing.finish()?,
        }
        Ok(Outcome::Done)
    }
}

/// Output of entries.
enum Sink<'a> {
    Json(ArrayWriter<Stdout>),
    Text(Listing<'a>),
}

impl Ls {
    fn list(
        &self,
        context: &Context,
        opened: &Subvolume,
        start: Location,
        target: &Target,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let record = opened.volume().inode(start)?;
        if !record.metadata.is_directory() || self.look.directory {
            let name = if target.has_path {
                target.path.clone()
            } else {
                b"/".to_vec()
            };
            let link = opened.volume().read_link(start).unwrap_or_default();
            return match sink {
                Sink::Json(array) => Ok(array.element(&as_json(&name, &name, &record, &link))?),
                Sink::Text(listing) => listing.single(&name, &record, &link),
            };
        }
        let options = WalkOptions {
            order: WalkOrder::ByDirectory {
                sorted: !self.unsorted,
            },
            one_file_system: self.one_file_system,
            progress: context.progress(),
            ..WalkOptions::without_content()
        };
        let top = trimmed(&target.path);
        let mut entered = 0u64;
        for item in opened.volume().walk(start, options) {
            match item {
                WalkItem::Enter(directory) => {
                    entered = entered.saturating_add(1);
                    if entered > 1 && !self.look.recursive {
                        break;
                    }
                    if self.is_hidden_below(&directory) {
                        continue;
                    }
                    if let Sink::Text(listing) = sink {
                        let path = shown_path(top, &directory);
                        listing.enter(&path)?;
                        listing.add_dots(&path, opened, start, &directory);
                    }
                }
                WalkItem::Entry(entry) => self.entry(*entry, top, context, target, sink)?,
                WalkItem::Leave(directory) => {
                    if let (Sink::Text(listing), false) = (&mut *sink, self.is_hidden_below(&directory)) {
                        listing.leave()?;
                    }
                }
                WalkItem::Failed(error) => {
                    context.lost(&target.name_in(error));
                }
            }
        }
        Ok(())
    }

    fn entry(
        &self,
        entry: WalkEntry,
        top: &[u8],
        context: &Context,
        target: &Target,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        // The directory at which the walk starts is not an entry of the listing.
        if entry.name.is_empty() || !self.look.shows(&entry.name) || self.is_hidden_below(&entry.directory) {
            return Ok(());
        }
        let link = match entry.metadata().kind {
            buttress::FileKind::Symlink => match entry.link_target() {
                Ok(link) => link,
                Err(error) => {
                    let place = format!("{}: {}", target.display(), entry.path().escape_ascii());
                    context.lost(&anyhow::Error::new(error).context(place));
                    Vec::new()
                }
            },
            _ => Vec::new(),
        };
        match sink {
            Sink::Json(array) => {
                let path = shown_path(top, &entry.path());
                Ok(array.element(&as_json(&entry.name, &path, &entry.record, &link))?)
            }
            Sink::Text(listing) => {
                listing.add(entry.name, &entry.record, &link);
                Ok(())
            }
        }
    }

    /// Returns whether a path below the start passes through a hidden directory that the listing
    /// omits.
    fn is_hidden_below(&self, path: &[u8]) -> bool {
        path.split(|byte| *byte == b'/')
            .any(|name| !self.look.shows(name))
    }
}

/// Lists the generations of older states as names.
fn list_states(context: &Context, target: &Target, sink: &mut Sink<'_>) -> Result<()> {
    for generation in generation::generations_at(context, &target.image)? {
        let name = generation.to_string();
        match sink {
            Sink::Json(array) => {
                let path = format!("/.generations/{name}");
                array.element(&json!({ "name": name, "path": path, "type": "state" }))?;
            }
            Sink::Text(listing) => listing.state(&name)?,
        }
    }
    Ok(())
}

/// Returns a path without trailing slashes.
pub(in crate::commands) fn trimmed(path: &[u8]) -> &[u8] {
    let end = path
        .iter()
        .rposition(|byte| *byte != b'/')
        .map_or(0, |last| last.saturating_add(1));
    path.get(..end).unwrap_or(path)
}

/// Returns the path of a file below `top`, from the volume's root.
pub(in crate::commands) fn shown_path(top: &[u8], inner: &[u8]) -> Vec<u8> {
    match (top.is_empty(), inner.is_empty()) {
        (true, true) => b"/".to_vec(),
        (false, true) => top.to_vec(),
        _ => [top, b"/", inner].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_shown_from_the_root() {
        assert_eq!(shown_path(trimmed(b"/"), b""), b"/");
        assert_eq!(shown_path(trimmed(b"/"), b"a/b"), b"/a/b");
        assert_eq!(shown_path(trimmed(b"/x//"), b""), b"/x");
        assert_eq!(shown_path(trimmed(b"/x/"), b"a"), b"/x/a");
    }
}
