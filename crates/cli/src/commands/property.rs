//! `buttress property …`, with the commands and formats of `btrfs property`.
//!
//! | property | of | meaning |
//! |---|---|---|
//! | `ro` | subvolumes | true if the subvolume is read-only |
//! | `label` | volumes | the label |
//! | `compression` | files and directories | compression of new content |

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use anyhow::{Context as _, Result};
use buttress::{COMPRESSION_NAME, Follow, Location, ReceivedUuid, SetXattr, Volume};
use clap::{Args, ValueEnum};
use serde_json::{Map, Value};

use crate::context::Context;
use crate::exit::{Outcome, usage};
use crate::manual::{Example, example};
use crate::output::json::insert_name;
use crate::table::{Row, Subcommand, leaf};
use crate::target::Target;

/// Rows of the group in the command table.
pub const ROWS: &[Row] = &[leaf::<Get>(), leaf::<Set>(), leaf::<List>()];

/// A property.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Property {
    /// Whether a subvolume is read-only: true or false
    Ro,
    /// The label of the volume
    Label,
    /// How the content of a file or directory is compressed: zlib, lzo, zstd, no, none
    Compression,
}

/// Kind of object that a property belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    #[value(alias = "s")]
    Subvol,
    #[value(alias = "f")]
    Filesystem,
    #[value(alias = "i")]
    Inode,
}

impl Property {
    const ALL: [Self; 3] = [Self::Ro, Self::Label, Self::Compression];

    const fn name(self) -> &'static str {
        match self {
            Self::Ro => "ro",
            Self::Label => "label",
            Self::Compression => "compression",
        }
    }

    const fn kind(self) -> Kind {
        match self {
            Self::Ro => Kind::Subvol,
            Self::Label => Kind::Filesystem,
            Self::Compression => Kind::Inode,
        }
    }

    /// Returns the value; `None` if the property is unset, or the object cannot have it.
    fn get(self, filesystem: &Volume, location: Location) -> Result<Option<Vec<u8>>> {
        Ok(match self {
            Self::Ro if location.is_subvolume_root() => {
                let read_only = filesystem.subvolume_info(location.subvolume)?.is_read_only();
                Some(read_only.to_string().into_bytes())
            }
            Self::Ro => None,
            Self::Label => Some(filesystem.label()),
            Self::Compression => filesystem.xattr(location, COMPRESSION_NAME)?,
        })
    }
}

/// Lists the properties of an object: of one kind, or all that it can have. The label belongs only
/// to the whole volume, not to other objects.
fn wanted(target: &Target, kind: Option<Kind>) -> impl Iterator<Item = Property> {
    let is_volume = !target.has_path;
    let any = move |property: &Property| match kind {
        Some(kind) => property.kind() == kind,
        None => *property != Property::Label || is_volume,
    };
    Property::ALL.into_iter().filter(any)
}

/// Refuses a property that does not belong to the requested kind of object.
fn refuse_kind(kind: Option<Kind>, name: Option<Property>) -> Result<()> {
    match (kind, name) {
        (Some(kind), Some(property)) if property.kind() != kind => Err(usage(format_args!(
            "property {} does not belong to this type",
            property.name()
        ))),
        _ => Ok(()),
    }
}

/// Show properties
#[derive(Args, Debug)]
pub struct Get {
    /// Type of the object
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<Kind>,
    /// The object
    #[arg(value_name = "IMAGE:/PATH")]
    object: OsString,
    /// Name of the property [default: all]
    #[arg(value_name = "NAME")]
    name: Option<Property>,
}

impl Subcommand for Get {
    const NAME: &'static str = "get";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress property get backup.img:/monday ro",
        "Prints whether a subvolume is read-only",
    )];

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.object);
        let (opened, location) = context.open_target(&target, Follow::All)?;
        refuse_kind(self.kind, self.name)?;
        let properties: Vec<Property> = match self.name {
            Some(property) => vec![property],
            None => wanted(&target, self.kind).collect(),
        };
        let mut values = Vec::new();
        for property in properties {
            let value = property
                .get(opened.volume(), location)
                .with_context(|| target.display())?;
            if value.is_none() && self.name == Some(Property::Ro) {
                return Err(anyhow::anyhow!("{} is not a subvolume", target.display()));
            }
            values.extend(value.map(|value| (property.name(), value)));
        }
        if context.json() {
            let mut object = Map::new();
            for (name, value) in &values {
                insert_name(&mut object, name, value);
            }
            context.print_json("property-get", Value::Object(object))?;
            return Ok(Outcome::Done);
        }
        let mut out = context.stdout();
        for (name, value) in &values {
            write!(out, "{name}=")?;
            out.write_all(&context.printable(value))?;
            writeln!(out)?;
        }
        out.flush()?;
        Ok(Outcome::Done)
    }
}

/// Set a property
#[derive(Args, Debug)]
pub struct Set {
    /// Type of the object
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<Kind>,
    /// Make a received subvolume writable, and clear its received uuid
    #[arg(short = 'f')]
    force: bool,
    /// The object
    #[arg(value_name = "IMAGE:/PATH")]
    object: OsString,
    /// Name of the property
    #[arg(value_name = "NAME")]
    name: Property,
    /// New value; an empty value removes the property
    #[arg(value_name = "VALUE")]
    value: OsString,
}

impl Subcommand for Set {
    const NAME: &'static str = "set";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress property set new.img:/monday ro true",
            "Makes a subvolume read-only",
        ),
        example(
            "buttress property set new.img:/logs compression zstd",
            "Compresses new files below a directory",
        ),
    ];

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.object);
        refuse_kind(self.kind, Some(self.name))?;
        if self.force && (self.name != Property::Ro || self.value == "true") {
            return Err(usage(
                "-f applies only to `ro false`, which makes a received subvolume writable",
            ));
        }
        let read_only = match self.name {
            Property::Ro => Some(self.read_only(&target)?),
            _ => None,
        };
        let volume = context.open_for_writing(&target.image)?;
        let location = volume
            .resolve(&target.path, Follow::All)
            .with_context(|| target.display())?;
        let value = self.value.as_bytes();
        let set = match self.name {
            Property::Label => volume.volume().set_label(value),
            Property::Compression if value.is_empty() => {
                volume.volume().remove_xattr(location, COMPRESSION_NAME)
            }
            Property::Compression => {
                volume
                    .volume()
                    .set_xattr(location, COMPRESSION_NAME, value, SetXattr::CreateOrReplace)
            }
            Property::Ro => {
                if !location.is_subvolume_root() {
                    return Err(anyhow::anyhow!("{} is not a subvolume", target.display()));
                }
                let received = if self.force {
                    ReceivedUuid::Clear
                } else {
                    ReceivedUuid::Refuse
                };
                volume
                    .volume()
                    .set_read_only(location.subvolume, read_only.unwrap_or_default(), received)
            }
        };
        set.with_context(|| target.display())?;
        volume.commit()?;
        if context.json() {
            let mut object = target.as_json();
            insert_name(&mut object, self.name.name(), value);
            context.print_json("property-set", Value::Object(object))?;
        }
        Ok(Outcome::Done)
    }
}

impl Set {
    fn read_only(&self, target: &Target) -> Result<bool> {
        match self.value.as_bytes() {
            b"true" => Ok(true),
            b"false" => Ok(false),
            _ => Err(usage(format_args!(
                "{}: invalid value of ro (found {:?}, expected true or false)",
                target.display(),
                self.value.display().to_string()
            ))),
        }
    }
}

/// List the properties that an object can have
#[derive(Args, Debug)]
pub struct List {
    /// Type of the object
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<Kind>,
    /// The object
    #[arg(value_name = "IMAGE:/PATH")]
    object: OsString,
}

impl Subcommand for List {
    const NAME: &'static str = "list";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress property list backup.img:/monday",
        "Lists the properties that an object can have",
    )];

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.object);
        let (_, location) = context.open_target(&target, Follow::All)?;
        let fits = |property: &Property| *property != Property::Ro || location.is_subvolume_root();
        let properties: Vec<Property> = wanted(&target, self.kind).filter(fits).collect();
        if context.json() {
            let names = properties.iter().map(|property| property.name().into());
            context.print_json("property-list", Value::Array(names.collect()))?;
            return Ok(Outcome::Done);
        }
        let mut out = context.stdout();
        for property in properties {
            let help = property
                .to_possible_value()
                .and_then(|value| value.get_help().map(ToString::to_string));
            writeln!(out, "{:<20}{}", property.name(), help.unwrap_or_default())?;
        }
        out.flush()?;
        Ok(Outcome::Done)
    }
}
