//! `buttress tree IMAGE[:/path]`: draws a directory tree, as `tree(1)` does.
//!
//! Names are sorted by their bytes. The walk does not enter a directory twice, so it also ends on a
//! damaged volume with a cycle of directories.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::Write;

use anyhow::{Context as _, Result};
use buttress::{DirEntry, FileKind, Follow, Location, Subvolume};
use clap::Args;
use serde_json::{Map, Value};

use crate::commands::stat::kind_name;
use crate::context::Context;
use crate::exit::Outcome;
use crate::manual::{Example, example};
use crate::output::json::{ArrayWriter, insert_name};
use crate::table::Subcommand;

/// Largest depth of the drawing.
const DEPTH_MAX: usize = 4096;

/// Draw a directory tree
#[derive(Args, Debug)]
pub struct Tree {
    /// Show names that begin with a dot
    #[arg(short = 'a', long)]
    all: bool,
    /// Show only directories
    #[arg(short = 'd')]
    directories: bool,
    /// Show at most this many levels
    #[arg(short = 'L', value_name = "LEVELS")]
    levels: Option<usize>,
    /// Do not descend into nested subvolumes
    #[arg(short = 'x', long)]
    one_file_system: bool,
    /// Directories to draw
    #[arg(value_name = "IMAGE[:/path]")]
    target: OsString,
}

impl Subcommand for Tree {
    const NAME: &'static str = "tree";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress tree -L 2 backup.img:/home",
            "Draws two levels of a directory",
        ),
        example(
            "buttress tree -d backup.img",
            "Draws the directories of the whole volume",
        ),
    ];

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.target);
        let (opened, start) = context.open_target(&target, Follow::All)?;
        let mut drawing = Drawing {
            options: &self,
            context,
            opened: &opened,
            seen: HashSet::from([start]),
            directories: 0,
            files: 0,
        };
        if context.json() {
            let mut array = ArrayWriter::begin(context.stdout(), "tree")?;
            drawing.draw(start, &mut |entry, path, _| {
                let mut object = Map::new();
                insert_name(&mut object, "path", path);
                object.insert("type".into(), kind_name(entry.kind).into());
                object.insert("subvolume".into(), entry.target.subvolume.get().into());
                object.insert("inode".into(), entry.target.inode.get().into());
                Ok(array.element(&Value::Object(object))?)
            })?;
            array.finish()?;
            return Ok(Outcome::Done);
        }
        let mut out = context.stdout();
        out.write_all(&context.printable(&target.path))?;
        writeln!(out)?;
        drawing.draw(start, &mut |entry, _, prefix| {
            write!(out, "{prefix}")?;
            out.write_all(&context.printable(&entry.name))?;
            if entry.kind == FileKind::Symlink
                && let Ok(link) = opened.volume().read_link(entry.target)
            {
                write!(out, " -> ")?;
                out.write_all(&context.printable(&link))?;
            }
            Ok(writeln!(out)?)
        })?;
        let plural = |count: u64, one: &'static str, many: &'static str| if count == 1 { one } else { many };
        write!(
            out,
            "\n{} {}",
            drawing.directories,
            plural(drawing.directories, "directory", "directories")
        )?;
        if !self.directories {
            write!(
                out,
                ", {} {}",
                drawing.files,
                plural(drawing.files, "file", "files")
            )?;
        }
        writeln!(out)?;
        out.flush()?;
        Ok(Outcome::Done)
    }
}

struct Drawing<'a> {
    options: &'a Tree,
    context: &'a Context,
    opened: &'a Subvolume,
    seen: HashSet<Location>,
    directories: u64,
    files: u64,
}

/// A directory on the current path, with its remaining entries.
struct Level {
    location: Location,
    path: Vec<u8>,
    entries: std::iter::Peekable<std::vec::IntoIter<DirEntry>>,
    /// Text before the lines of the directory's entries.
    prefix: String,
}

/// Function that shows one entry. The arguments are the entry, its path from the start, and the
/// text before its name.
type Show<'a> = dyn FnMut(&DirEntry, &[u8], &str) -> Result<()> + 'a;

impl Drawing<'_> {
    fn draw(&mut self, start: Location, show: &mut Show<'_>) -> Result<()> {
        let mut stack = vec![self.level(start, Vec::new(), String::new())];
        let progress = self.context.progress();
        while let Some(level) = stack.last_mut() {
            progress.check()?;
            let Some(entry) = level.entries.next() else {
                stack.pop();
                continue;
            };
            let (branch, below) = if level.entries.peek().is_some() {
                ("├── ", "│   ")
            } else {
                ("└── ", "    ")
            };
            let mut path = level.path.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(&entry.name);
            show(&entry, &path, &format!("{}{branch}", level.prefix))?;
            if entry.kind != FileKind::Directory {
                self.files = self.files.saturating_add(1);
                continue;
            }
            self.directories = self.directories.saturating_add(1);
            let prefix = format!("{}{below}", level.prefix);
            let crosses = entry.target.subvolume != level.location.subvolume;
            let depth = stack.len();
            if self.options.levels.is_some_and(|levels| depth >= levels)
                || (self.options.one_file_system && crosses)
            {
                continue;
            }
            let met = entry.target.placeholder().is_none() && !self.seen.insert(entry.target);
            if depth >= DEPTH_MAX || met {
                let error = anyhow::anyhow!("the directory was already visited, or is nested too deeply");
                self.context.lost(&error.context(path.escape_ascii().to_string()));
                continue;
            }
            let level = self.level(entry.target, path, prefix);
            stack.push(level);
        }
        Ok(())
    }

    /// Returns the entries of a directory to show, sorted.
    fn level(&self, location: Location, path: Vec<u8>, prefix: String) -> Level {
        let mut entries = Vec::new();
        match self.opened.volume().read_dir(location) {
            Ok(listing) => {
                for entry in listing {
                    match entry {
                        Ok(entry) => entries.push(entry),
                        Err(error) => self.lost(&path, error),
                    }
                }
            }
            Err(error) => self.lost(&path, error),
        }
        entries.retain(|entry| {
            (self.options.all || entry.name.first() != Some(&b'.'))
                && (!self.options.directories || entry.kind == FileKind::Directory)
        });
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Level {
            location,
            path,
            entries: entries.into_iter().peekable(),
            prefix,
        }
    }

    fn lost(&self, path: &[u8], error: buttress::Error) {
        let error = Err::<(), _>(error).with_context(|| format!("/{}", path.escape_ascii()));
        if let Err(error) = error {
            self.context.lost(&error);
        }
    }
}
