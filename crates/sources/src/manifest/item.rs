//! A table of a manifest: its keys, and their joint meaning.

use std::collections::BTreeMap;

use buttress_build::{Attributes, Compress, Entry, EntryKind, EntryPath, Precedence, SubvolumeMark};
use buttress_format::compression::CompressionMethod;
use buttress_format::{InodeFlags, Timestamp};
use buttress_fs::NodeKind;
use buttress_fs::{DeviceNumber, Xattr};
use serde::Deserialize;

use super::error::Problem;
use super::time;
use crate::adapters::Rule;
use crate::base64;
use crate::member::is_xattr_name;

/// The flags and their names.
pub(super) const FLAGS: [(&str, InodeFlags); 10] = [
    ("nodatacow", InodeFlags::NODATACOW),
    ("nodatasum", InodeFlags::NODATASUM),
    ("nocompress", InodeFlags::NOCOMPRESS),
    ("compress", InodeFlags::COMPRESS),
    ("append", InodeFlags::APPEND),
    ("immutable", InodeFlags::IMMUTABLE),
    ("sync", InodeFlags::SYNC),
    ("dirsync", InodeFlags::DIRSYNC),
    ("noatime", InodeFlags::NOATIME),
    ("nodump", InodeFlags::NODUMP),
];

/// The keys of all tables.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Item {
    path: Option<String>,
    path_base64: Option<String>,
    mode: Option<String>,
    owner: Option<u32>,
    group: Option<u32>,
    time: Option<toml::Value>,
    accessed: Option<toml::Value>,
    changed: Option<toml::Value>,
    created: Option<toml::Value>,
    #[serde(default)]
    xattrs: BTreeMap<String, XattrValue>,
    #[serde(default)]
    xattrs_base64: Vec<(String, String)>,
    #[serde(default)]
    flags: Vec<String>,
    nodatacow: Option<bool>,
    compression: Option<String>,
    pub(super) source: Option<String>,
    pub(super) text: Option<String>,
    pub(super) base64: Option<String>,
    pub(super) size: Option<u64>,
    target: Option<String>,
    target_base64: Option<String>,
    to: Option<String>,
    to_base64: Option<String>,
    of: Option<String>,
    of_base64: Option<String>,
    kind: Option<String>,
    major: Option<u32>,
    minor: Option<u32>,
    read_only: Option<bool>,
    default: Option<bool>,
    below: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum XattrValue {
    Text(String),
    Bytes { base64: String },
}

/// A kind of table in a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Rule,
    Directory,
    Subvolume,
    Snapshot,
    File,
    Symlink,
    HardLink,
    Device,
    Fifo,
    Socket,
    Remove,
}

impl Kind {
    const NAMED: [(&'static str, Self); 11] = [
        ("rule", Self::Rule),
        ("directory", Self::Directory),
        ("subvolume", Self::Subvolume),
        ("snapshot", Self::Snapshot),
        ("file", Self::File),
        ("symlink", Self::Symlink),
        ("hard-link", Self::HardLink),
        ("device", Self::Device),
        ("fifo", Self::Fifo),
        ("socket", Self::Socket),
        ("remove", Self::Remove),
    ];

    pub(super) fn named(name: &str) -> Result<Self, Problem> {
        let found = Self::NAMED.into_iter().find(|(known, _)| *known == name);
        found
            .map(|(_, kind)| kind)
            .ok_or_else(|| Problem::NoTable(name.to_owned()))
    }

    pub(super) fn name(self) -> &'static str {
        let found = Self::NAMED.into_iter().find(|(_, kind)| *kind == self);
        found.map_or("", |(name, _)| name)
    }

    /// Returns true if a table of this kind describes an inode of its own.
    const fn has_attributes(self) -> bool {
        !matches!(self, Self::HardLink | Self::Snapshot | Self::Remove)
    }

    const fn mode(self) -> u32 {
        match self {
            Self::Directory | Self::Subvolume => 0o755,
            Self::Symlink => 0o777,
            _ => 0o644,
        }
    }
}

impl Item {
    /// Refuses keys that a table of this kind cannot have.
    fn check_keys(&self, kind: Kind) -> Result<(), Problem> {
        let attributes = kind.has_attributes();
        let is_rule = kind == Kind::Rule;
        let is = |kinds: &[Kind]| kinds.contains(&kind);
        let subvolumes = is(&[Kind::Subvolume, Kind::Snapshot]);
        let keys = [
            ("mode", self.mode.is_some(), attributes),
            ("owner", self.owner.is_some(), attributes),
            ("group", self.group.is_some(), attributes),
            ("time", self.time.is_some(), attributes),
            ("accessed", self.accessed.is_some(), attributes && !is_rule),
            ("changed", self.changed.is_some(), attributes && !is_rule),
            ("created", self.created.is_some(), attributes && !is_rule),
            ("xattrs", !self.xattrs.is_empty(), attributes),
            ("xattrs-base64", !self.xattrs_base64.is_empty(), attributes),
            ("flags", !self.flags.is_empty(), attributes),
            ("nodatacow", self.nodatacow.is_some(), attributes),
            (
                "compression",
                self.compression.is_some(),
                is_rule || kind == Kind::File,
            ),
            ("source", self.source.is_some(), kind == Kind::File),
            ("text", self.text.is_some(), kind == Kind::File),
            ("base64", self.base64.is_some(), kind == Kind::File),
            ("size", self.size.is_some(), kind == Kind::File),
            ("target", self.target.is_some(), kind == Kind::Symlink),
            (
                "target-base64",
                self.target_base64.is_some(),
                kind == Kind::Symlink,
            ),
            ("to", self.to.is_some(), kind == Kind::HardLink),
            ("to-base64", self.to_base64.is_some(), kind == Kind::HardLink),
            ("of", self.of.is_some(), kind == Kind::Snapshot),
            ("of-base64", self.of_base64.is_some(), kind == Kind::Snapshot),
            ("kind", self.kind.is_some(), kind == Kind::Device),
            ("major", self.major.is_some(), kind == Kind::Device),
            ("minor", self.minor.is_some(), kind == Kind::Device),
            ("read-only", self.read_only.is_some(), subvolumes),
            ("default", self.default.is_some(), subvolumes),
            ("below", self.below.is_some(), is_rule),
        ];
        match keys.into_iter().find(|(_, given, fits)| *given && !fits) {
            Some((key, ..)) => Err(Problem::NoKey {
                table: kind.name().to_owned(),
                key,
            }),
            None => Ok(()),
        }
    }

    /// Returns the path that the table describes.
    pub(super) fn path(&self, kind: Kind) -> Result<EntryPath, Problem> {
        let bytes = bytes(
            kind,
            ("path", "path-base64"),
            self.path.as_ref(),
            self.path_base64.as_ref(),
        )?;
        path("path", &bytes)
    }

    /// Converts the table to a rule. Without `below = false`, the rule also applies to everything
    /// below its path.
    pub(super) fn rule(self) -> Result<Rule, Problem> {
        self.check_keys(Kind::Rule)?;
        Ok(Rule {
            path: self.path(Kind::Rule)?,
            below: self.below.unwrap_or(true),
            permissions: self.mode()?,
            uid: self.owner,
            gid: self.group,
            mtime: time_of("time", self.time.as_ref())?,
            flags: self.flags()?,
            compression: self.compression()?,
            xattrs: self.xattrs()?,
        })
    }

    /// Converts the table to an entry without its content, which only files have.
    pub(super) fn entry(&self, kind: Kind, default_time: Timestamp) -> Result<Entry, Problem> {
        self.check_keys(kind)?;
        let mark = SubvolumeMark {
            read_only: self.read_only.unwrap_or(false),
            default: self.default.unwrap_or(false),
        };
        let entry_kind = match kind {
            Kind::Directory => EntryKind::Directory(None),
            Kind::Subvolume => EntryKind::Directory(Some(mark)),
            Kind::Snapshot => {
                let of = bytes(
                    kind,
                    ("of", "of-base64"),
                    self.of.as_ref(),
                    self.of_base64.as_ref(),
                )?;
                EntryKind::Snapshot {
                    of: path("of", &of)?,
                    mark,
                }
            }
            Kind::File | Kind::Rule => EntryKind::File(buttress_build::FileContent::default()),
            Kind::Symlink => EntryKind::Symlink(self.target()?),
            Kind::HardLink => {
                let to = bytes(
                    kind,
                    ("to", "to-base64"),
                    self.to.as_ref(),
                    self.to_base64.as_ref(),
                )?;
                EntryKind::HardLink(path("to", &to)?)
            }
            Kind::Device => EntryKind::Node(self.device()?),
            Kind::Fifo => EntryKind::Node(NodeKind::Fifo),
            Kind::Socket => EntryKind::Node(NodeKind::Socket),
            Kind::Remove => EntryKind::Whiteout,
        };
        let mut flags = self.flags()?;
        if kind != Kind::File && flags.contains(InodeFlags::NODATACOW) && self.nodatacow == Some(true) {
            // A directory passes its flags on to its files, but checksums belong to files.
            flags.remove(InodeFlags::NODATASUM);
        }
        let mtime = time_of("time", self.time.as_ref())?.unwrap_or(default_time);
        Ok(Entry {
            path: self.path(kind)?,
            // A removal affects the entries of other sources, not those of this manifest.
            precedence: Precedence(u64::from(kind != Kind::Remove)),
            kind: entry_kind,
            attributes: Attributes {
                permissions: self.mode()?.unwrap_or(kind.mode()),
                uid: self.owner.unwrap_or(0),
                gid: self.group.unwrap_or(0),
                mtime,
                atime: time_of("accessed", self.accessed.as_ref())?,
                ctime: time_of("changed", self.changed.as_ref())?,
                otime: time_of("created", self.created.as_ref())?,
                xattrs: self.xattrs()?,
                flags,
                compression: self.compression()?,
                link: None,
            },
        })
    }

    fn target(&self) -> Result<Vec<u8>, Problem> {
        let keys = ("target", "target-base64");
        let target = bytes(
            Kind::Symlink,
            keys,
            self.target.as_ref(),
            self.target_base64.as_ref(),
        )?;
        if target.is_empty() || target.len() > 4095 || target.contains(&0) {
            return Err(Problem::Value {
                key: "target",
                found: format!("{} bytes", target.len()),
                wanted: "expected a target of 1 to 4095 bytes, without zero bytes",
            });
        }
        Ok(target)
    }

    fn device(&self) -> Result<NodeKind, Problem> {
        let missing = |key| Problem::Missing {
            table: Kind::Device.name().to_owned(),
            key,
        };
        let number = DeviceNumber {
            major: self.major.ok_or_else(|| missing("major"))?,
            minor: self.minor.ok_or_else(|| missing("minor"))?,
        };
        match self.kind.as_deref() {
            Some("character") => Ok(NodeKind::CharacterDevice(number)),
            Some("block") => Ok(NodeKind::BlockDevice(number)),
            None => Err(missing("kind")),
            Some(other) => Err(Problem::Value {
                key: "kind",
                found: format!("{other:?}"),
                wanted: "expected \"character\" or \"block\"",
            }),
        }
    }

    fn mode(&self) -> Result<Option<u32>, Problem> {
        let Some(text) = &self.mode else {
            return Ok(None);
        };
        let digits = !text.is_empty() && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
        match u32::from_str_radix(text, 8) {
            Ok(mode) if digits && mode <= 0o7777 => Ok(Some(mode)),
            _ => Err(Problem::Value {
                key: "mode",
                found: format!("{text:?}"),
                wanted: "expected octal digits up to \"7777\"",
            }),
        }
    }

    fn flags(&self) -> Result<InodeFlags, Problem> {
        let mut flags = InodeFlags::empty();
        for name in &self.flags {
            let found = FLAGS.into_iter().find(|(known, _)| known == name);
            let (_, flag) = found.ok_or_else(|| Problem::Value {
                key: "flags",
                found: format!("{name:?}"),
                wanted: "expected nodatacow, nodatasum, nocompress, compress, append, immutable, sync, dirsync, noatime or nodump",
            })?;
            flags |= flag;
        }
        if self.nodatacow == Some(true) {
            flags |= InodeFlags::NODATACOW | InodeFlags::NODATASUM;
        }
        Ok(flags)
    }

    fn compression(&self) -> Result<Option<Compress>, Problem> {
        match self.compression.as_deref() {
            None => Ok(None),
            Some("none" | "no") => Ok(Some(Compress::No)),
            Some(text) => match text.parse::<CompressionMethod>() {
                Ok(method) => Ok(Some(Compress::With(method))),
                Err(_) => Err(Problem::Value {
                    key: "compression",
                    found: format!("{text:?}"),
                    wanted: "expected none, lzo, zlib:1 to zlib:9, or zstd:-15 to zstd:15",
                }),
            },
        }
    }

    fn xattrs(&self) -> Result<Vec<Xattr>, Problem> {
        let wrong = |found: String| Problem::Value {
            key: "xattrs",
            found,
            wanted: "expected unique names of 1 to 255 bytes, with values that are text or { base64 = \"…\" }",
        };
        let mut xattrs: Vec<Xattr> = Vec::new();
        for (name, value) in &self.xattrs {
            let value = match value {
                XattrValue::Text(text) => text.clone().into_bytes(),
                XattrValue::Bytes { base64: text } => {
                    base64::decode(text.as_bytes()).ok_or_else(|| wrong(format!("{text:?}")))?
                }
            };
            xattrs.push(Xattr {
                name: name.clone().into_bytes(),
                value,
            });
        }
        for (name, value) in &self.xattrs_base64 {
            let decoded =
                |text: &String| base64::decode(text.as_bytes()).ok_or_else(|| wrong(format!("{text:?}")));
            let name = decoded(name)?;
            let value = decoded(value)?;
            xattrs.push(Xattr { name, value });
        }
        xattrs.sort_by(|a, b| a.name.cmp(&b.name));
        let twice = xattrs.array_windows().any(|[a, b]| a.name == b.name);
        if twice || !xattrs.iter().all(|xattr| is_xattr_name(&xattr.name)) {
            return Err(wrong("a name that cannot be".to_owned()));
        }
        Ok(xattrs)
    }
}

/// Returns bytes that are given as text or as base64.
fn bytes(
    kind: Kind,
    keys: (&'static str, &'static str),
    text: Option<&String>,
    encoded: Option<&String>,
) -> Result<Vec<u8>, Problem> {
    match (text, encoded) {
        (Some(text), None) => Ok(text.clone().into_bytes()),
        (None, Some(encoded)) => base64::decode(encoded.as_bytes()).ok_or_else(|| Problem::Value {
            key: keys.1,
            found: format!("{encoded:?}"),
            wanted: "base64",
        }),
        (Some(_), Some(_)) => Err(Problem::Both(keys.0, keys.1)),
        (None, None) => Err(Problem::Missing {
            table: kind.name().to_owned(),
            key: keys.0,
        }),
    }
}

/// Parses a path of the image.
pub(super) fn path(key: &'static str, bytes: &[u8]) -> Result<EntryPath, Problem> {
    EntryPath::new(bytes).map_err(|problem| Problem::Path {
        key,
        path: String::from_utf8_lossy(bytes).chars().take(200).collect(),
        problem,
    })
}

fn time_of(key: &'static str, value: Option<&toml::Value>) -> Result<Option<Timestamp>, Problem> {
    let Some(value) = value else {
        return Ok(None);
    };
    time::parse(value).map(Some).ok_or_else(|| Problem::Value {
        key,
        found: format!("{value:?}"),
        wanted: "expected a date and time with an offset, such as 2024-02-29T12:00:00Z, or seconds, or \"@SECONDS.FRACTION\"",
    })
}
