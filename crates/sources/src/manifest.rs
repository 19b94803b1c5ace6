//! Manifests: an image as one declarative plan, in TOML.
//!
//! ```toml
//! manifest = 1
//!
//! [volume]
//! label = "root"
//!
//! [[rule]]
//! path = "/var/log"
//! compression = "zstd:9"
//!
//! [[subvolume]]
//! path = "/home"
//!
//! [[file]]
//! path = "/etc/hostname"
//! text = "guest\n"
//! ```
//!
//! The head describes the volume, and the place of contents that no table names. Rules precede all
//! other tables. The remaining tables are read one by one while the image is built (`tables`). A
//! manifest of millions of entries therefore takes no more memory than its largest table, and 16
//! bytes for each path to detect duplicates.
//!
//! Paths of the host are relative to the manifest. Contents are files of the host, text in the
//! manifest, or the content of the same path in another image. The caller that opens the manifest
//! also opens the other image ([`OpenImage`]).
//!
//! [`mod@write`] writes the manifest of an existing image. `docs/manifest.md` describes the format.

mod content;
mod error;
mod head;
mod item;
mod tables;
mod time;
pub mod write;

pub use error::{ManifestError, Problem};
pub use head::VolumeWishes;

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::fs::File;
use std::hash::{Hash as _, Hasher as _};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use buttress_build::{Contents, Entry, EntryKind, FileContent, Source, SourceError};
use buttress_format::{ByteCount, Timestamp};
use buttress_fs::Filesystem;

use crate::adapters::Rules;
use content::{Base, ManifestContents};
use item::{Item, Kind};
use tables::{Table, Tables};

/// A function that opens an image from which contents are taken.
pub type OpenImage<'a> = &'a dyn Fn(&Path) -> Result<Filesystem, Box<dyn std::error::Error + Send + Sync>>;

/// A manifest whose head and rules were read.
pub struct Manifest {
    name: String,
    volume: VolumeWishes,
    rules: Rules,
    contents: Arc<ManifestContents>,
    tables: Tables,
    /// The first table after the rules, which was read with them.
    pending: Option<Table>,
    default_time: Timestamp,
    /// The line of each path's description, by the path's hash.
    seen: HashMap<u64, u64>,
}

impl core::fmt::Debug for Manifest {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Manifest")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Manifest {
    /// Opens a manifest: a file, or standard input for `-`. Entries without a time get
    /// `default_time`.
    ///
    /// # Errors
    /// Fails if the manifest cannot be opened, or if its head or rules are invalid.
    pub fn open(
        path: &Path,
        default_time: Timestamp,
        open_image: OpenImage<'_>,
    ) -> Result<Self, SourceError> {
        if path == Path::new("-") {
            let input = rustix::io::dup(io::stdin()).map(File::from);
            let input = input.map_err(|error| cannot_open("standard input", error.into()))?;
            let input = Box::new(BufReader::new(input));
            return Self::new("standard input", input, Path::new(""), default_time, open_image);
        }
        let name = path.display().to_string();
        let file = File::open(path).map_err(|cause| cannot_open(&name, cause))?;
        let input = Box::new(BufReader::with_capacity(1 << 16, file));
        let folder = path.parent().unwrap_or(Path::new(""));
        Self::new(&name, input, folder, default_time, open_image)
    }

    /// Reads a manifest that is called `name` in messages. Host paths of the manifest are relative
    /// to `folder`.
    ///
    /// # Errors
    /// Fails if the head or the rules are invalid.
    pub fn new(
        name: &str,
        input: Box<dyn BufRead + Send>,
        folder: &Path,
        default_time: Timestamp,
        open_image: OpenImage<'_>,
    ) -> Result<Self, SourceError> {
        let mut manifest = Self {
            name: name.to_owned(),
            volume: VolumeWishes::default(),
            rules: Rules::default(),
            contents: Arc::new(ManifestContents::new(folder.to_owned())),
            tables: Tables::new(input),
            pending: None,
            default_time,
            seen: HashMap::new(),
        };
        manifest
            .begin(folder, open_image)
            .map_err(|error| invalid(name, error))?;
        Ok(manifest)
    }

    /// Returns the options of the volume in the head.
    #[must_use]
    pub const fn volume(&self) -> &VolumeWishes {
        &self.volume
    }

    /// Returns the rules, which apply to all sources.
    #[must_use]
    pub fn rules(&self) -> Rules {
        self.rules.clone()
    }

    fn begin(&mut self, folder: &Path, open_image: OpenImage<'_>) -> Result<(), ManifestError> {
        if let Some(table) = self.tables.next_table()? {
            let (volume, base) = head::read(&table)?;
            self.volume = volume;
            let base = match base {
                None => Base::None,
                Some(head::Contents::Directory(directory)) => Base::Directory(folder.join(directory)),
                Some(head::Contents::Image(image)) => {
                    let place: PathBuf = folder.join(image);
                    let opened = open_image(&place).map_err(|cause| ManifestError {
                        line: table.line,
                        problem: Problem::Content {
                            place: place.display().to_string(),
                            cause,
                        },
                    })?;
                    Base::Image(Box::new(opened))
                }
            };
            self.contents = Arc::new(ManifestContents::with_base(folder.to_owned(), base));
        }
        while let Some(table) = self.tables.next_table()? {
            if table.name.as_deref() != Some(Kind::Rule.name()) {
                self.pending = Some(table);
                break;
            }
            let rule = parse(&table).and_then(|(_, item)| at(&table, item.rule()))?;
            self.rules.add(rule);
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Entry>, ManifestError> {
        let table = match self.pending.take() {
            Some(table) => table,
            None => match self.tables.next_table()? {
                Some(table) => table,
                None => return Ok(None),
            },
        };
        let (kind, item) = parse(&table)?;
        if kind == Kind::Rule {
            return at(&table, Err(Problem::LateRule));
        }
        let mut entry = at(&table, item.entry(kind, self.default_time))?;
        if let EntryKind::File(content) = &mut entry.kind {
            *content = at(&table, self.content(&item, entry.path.as_bytes()))?;
        }
        self.see(&table, kind, &entry)?;
        Ok(Some(entry))
    }

    /// Returns the place and the length of a file's content.
    fn content(&self, item: &Item, path: &[u8]) -> Result<FileContent, Problem> {
        let (locator, size) = match (&item.source, &item.text, &item.base64) {
            (Some(source), None, None) => self.contents.of_host(Path::new(source))?,
            (None, Some(text), None) => content::inline(text.clone().into_bytes()),
            (None, None, Some(text)) => {
                let bytes = crate::base64::decode(text.as_bytes()).ok_or_else(|| Problem::Value {
                    key: "base64",
                    found: format!("{} characters", text.len()),
                    wanted: "base64",
                })?;
                content::inline(bytes)
            }
            (None, None, None) => self.contents.of_base(path, item.size)?,
            (Some(_), Some(_), _) => return Err(Problem::Both("source", "text")),
            (Some(_), _, Some(_)) => return Err(Problem::Both("source", "base64")),
            (_, Some(_), Some(_)) => return Err(Problem::Both("text", "base64")),
        };
        if let Some(wanted) = item.size
            && wanted != size
        {
            return Err(Problem::Size {
                place: String::from_utf8_lossy(path).into_owned(),
                found: size,
                wanted,
            });
        }
        Ok(FileContent {
            size: ByteCount::new(size),
            data: self.contents.data_of(&locator, path),
            locator,
            share: None,
        })
    }

    /// Refuses a path that an earlier table described.
    fn see(&mut self, table: &Table, kind: Kind, entry: &Entry) -> Result<(), ManifestError> {
        // The hash has fixed keys, so the same manifest yields the same result.
        let mut hasher = DefaultHasher::new();
        (kind == Kind::Remove).hash(&mut hasher);
        entry.path.as_bytes().hash(&mut hasher);
        match self.seen.insert(hasher.finish(), table.line) {
            None => Ok(()),
            Some(line) => Err(ManifestError {
                line: table.line,
                problem: Problem::Twice {
                    path: format!("/{}", String::from_utf8_lossy(entry.path.as_bytes())),
                    line,
                },
            }),
        }
    }
}

fn cannot_open(name: &str, cause: io::Error) -> SourceError {
    SourceError::Io {
        action: "opening",
        place: name.to_owned(),
        cause,
    }
}

fn invalid(name: &str, error: ManifestError) -> SourceError {
    SourceError::Invalid {
        place: name.to_owned(),
        problem: Box::new(error),
    }
}

/// Converts a problem to an error at the beginning of a table.
fn at<T>(table: &Table, result: Result<T, Problem>) -> Result<T, ManifestError> {
    result.map_err(|problem| ManifestError {
        line: table.line,
        problem,
    })
}

/// Converts an error of the TOML parser, with the line in the manifest.
fn toml_error(table: &Table, error: &toml::de::Error) -> ManifestError {
    let before = error.span().and_then(|span| table.text.get(..span.start));
    let lines = before.map_or(0, |text| {
        text.bytes().filter(|byte| *byte == b'\n').count() as u64
    });
    ManifestError {
        line: table.line.saturating_add(lines),
        problem: Problem::Toml(error.message().to_owned()),
    }
}

/// Parses the keys of a table.
fn parse(table: &Table) -> Result<(Kind, Item), ManifestError> {
    let name = table.name.as_deref().unwrap_or_default();
    let kind = at(table, Kind::named(name))?;
    let parsed: Result<HashMap<String, Vec<Item>>, _> = toml::from_str(&table.text);
    let parsed = parsed.map_err(|error| toml_error(table, &error))?;
    match parsed.into_iter().next() {
        Some((_, mut items)) if items.len() == 1 => Ok((kind, items.pop().unwrap_or_default())),
        _ => Err(ManifestError {
            line: table.line,
            problem: Problem::NoTable(name.to_owned()),
        }),
    }
}

impl Source for Manifest {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn next_entry(&mut self) -> Result<Option<Entry>, SourceError> {
        self.next().map_err(|error| invalid(&self.name, error))
    }

    fn contents(&mut self) -> Result<Arc<dyn Contents>, SourceError> {
        let contents: Arc<dyn Contents> = Arc::<ManifestContents>::clone(&self.contents);
        Ok(contents)
    }
}

#[cfg(test)]
mod tests;
