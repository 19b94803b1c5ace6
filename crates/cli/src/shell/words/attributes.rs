//! Attributes of inodes: times, modes, owners, extended attributes.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::str::FromStr;

use anyhow::{Context as _, Result, bail};
use buttress::{AttributeChanges, Follow, Location, SetXattr, Timestamp, WalkItem, WalkOptions, Xattr};
use clap::Args;

use super::mode::Mode;
use crate::output::escape_controls;
use crate::output::xattr::{self, Value};
use crate::shell::Session;
use crate::shell::table::Word;

/// A time: `@SECONDS`, with a fraction if need be, or a date and time such as `2024-02-29T12:00:00Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time(Timestamp);

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("invalid time {text:?} (expected a time such as @1700000000.5 or 2024-02-29T12:00:00Z)")
        };
        let Some(number) = text.strip_prefix('@') else {
            let time: jiff::Timestamp = text.parse().map_err(|_| wrong())?;
            // Before 1970, the calendar library's nanoseconds count backwards; btrfs's never do.
            let nanoseconds = i64::from(time.subsec_nanosecond());
            let borrowed = i64::from(nanoseconds < 0);
            return Ok(Self(Timestamp {
                seconds: time.as_second().saturating_sub(borrowed),
                nanoseconds: u32::try_from(nanoseconds.rem_euclid(1_000_000_000)).map_err(|_| wrong())?,
            }));
        };
        let (seconds, fraction) = number.split_once('.').unwrap_or((number, "0"));
        if fraction.is_empty() || fraction.len() > 9 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(wrong());
        }
        Ok(Self(Timestamp {
            seconds: seconds.parse().map_err(|_| wrong())?,
            nanoseconds: format!("{fraction:0<9}").parse().map_err(|_| wrong())?,
        }))
    }
}

/// Set the times of files to the current time, and create missing files
#[derive(Args, Debug)]
pub struct Touch {
    /// Only the time of the last access
    #[arg(short = 'a')]
    access: bool,
    /// Only the time of the last change of content
    #[arg(short = 'm')]
    modification: bool,
    /// Do not make files
    #[arg(short = 'c', long)]
    no_create: bool,
    /// This time, not now
    #[arg(short = 'd', long, value_name = "TIME")]
    date: Option<Time>,
    /// Files of the volume
    #[arg(value_name = "FILE", required = true)]
    files: Vec<OsString>,
}

impl Word for Touch {
    const NAME: &'static str = "touch";
    const WRITES: bool = true;

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let writing = session.require_writing()?;
        let time = self.date.map_or_else(|| writing.now(), |Time(time)| time);
        let both = self.access == self.modification;
        let changes = AttributeChanges {
            accessed: (both || self.access).then_some(time),
            modified: (both || self.modification).then_some(time),
            ..AttributeChanges::default()
        };
        for file in &self.files {
            let path = session.path(file);
            let location = match writing.resolve(&path, Follow::All) {
                Ok(location) => location,
                Err(_) if self.no_create => continue,
                Err(_) => writing.create_if_missing(&path)?,
            };
            writing
                .volume()
                .set_attributes(location, &changes)
                .with_context(|| path.escape_ascii().to_string())?;
        }
        Ok(())
    }
}

/// Change permission bits
#[derive(Args, Debug)]
pub struct Chmod {
    /// Of directories, also all that they hold
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Octal, or symbolic such as u+x,go-w
    #[arg(value_name = "MODE", allow_hyphen_values = true)]
    mode: Mode,
    /// Files of the volume
    #[arg(value_name = "FILE", required = true)]
    files: Vec<OsString>,
}

impl Word for Chmod {
    const NAME: &'static str = "chmod";
    const WRITES: bool = true;

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let writing = session.require_writing()?;
        for file in &self.files {
            for location in affected(session, file, self.recursive, Follow::All)? {
                session.check_cancelled()?;
                let metadata = writing.volume().metadata(location)?;
                if metadata.kind == buttress::FileKind::Symlink {
                    continue;
                }
                let mode = self.mode.apply(metadata.permissions(), metadata.is_directory());
                let changes = AttributeChanges {
                    mode: Some(mode),
                    ..AttributeChanges::default()
                };
                let changed = writing.volume().set_attributes(location, &changes);
                changed.with_context(|| file.to_string_lossy().into_owned())?;
            }
        }
        Ok(())
    }
}

/// Returns the inodes that a command changes: the argument's target and, if recursive, everything
/// below it.
pub(super) fn affected(
    session: &Session<'_>,
    argument: &OsString,
    recursive: bool,
    follow: Follow,
) -> Result<Vec<Location>> {
    let start = session.resolve(argument, follow)?;
    let mut found = vec![start];
    if recursive {
        let options = WalkOptions {
            one_file_system: true,
            progress: session.context().progress(),
            ..WalkOptions::without_content()
        };
        for item in session.view().volume().walk(start, options) {
            match item {
                WalkItem::Entry(entry) if !entry.name.is_empty() => {
                    let location = entry.metadata().location;
                    if location.subvolume == start.subvolume && location.placeholder().is_none() {
                        found.push(location);
                    }
                }
                WalkItem::Failed(error) => return Err(error.into()),
                _ => {}
            }
        }
    }
    Ok(found)
}

/// Owner and group, either of which may be left out: `1000:1000`, `1000`, `:1000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    user: Option<u32>,
    group: Option<u32>,
}

impl FromStr for Owner {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (user, group) = text.split_once(':').unwrap_or((text, ""));
        let number = |part: &str| match part {
            "" => Ok(None),
            digits => digits.parse().map(Some).map_err(|_| {
                format!(
                    "{digits:?} is not a number: give owners as numbers, because a volume has no user names"
                )
            }),
        };
        let owner = Self {
            user: number(user)?,
            group: number(group)?,
        };
        if owner.user.is_none() && owner.group.is_none() {
            return Err("the owner and group are missing: give UID, :GID or UID:GID".to_owned());
        }
        Ok(owner)
    }
}

/// Change the owner and group, by number
#[derive(Args, Debug)]
pub struct Chown {
    /// Of directories, also all that they hold
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Of a symbolic link, its own owner
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// The numbers
    #[arg(value_name = "UID[:GID]")]
    owner: Owner,
    /// Files of the volume
    #[arg(value_name = "FILE", required = true)]
    files: Vec<OsString>,
}

impl Word for Chown {
    const NAME: &'static str = "chown";
    const WRITES: bool = true;

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let writing = session.require_writing()?;
        let follow = if self.no_dereference || self.recursive {
            Follow::NotLast
        } else {
            Follow::All
        };
        let changes = AttributeChanges {
            uid: self.owner.user,
            gid: self.owner.group,
            ..AttributeChanges::default()
        };
        for file in &self.files {
            for location in affected(session, file, self.recursive, follow)? {
                session.check_cancelled()?;
                let changed = writing.volume().set_attributes(location, &changes);
                changed.with_context(|| file.to_string_lossy().into_owned())?;
            }
        }
        Ok(())
    }
}

/// Show extended attributes, in the format of getfattr
#[derive(Args, Debug)]
pub struct Getfattr {
    /// Only this attribute
    #[arg(short = 'n', long, value_name = "NAME")]
    name: Option<OsString>,
    /// Print values, too (without -n only names are printed)
    #[arg(short = 'd', long)]
    dump: bool,
    /// Of a symbolic link, its own attributes
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// Files of the volume
    #[arg(value_name = "FILE", required = true)]
    files: Vec<OsString>,
}

impl Word for Getfattr {
    const NAME: &'static str = "getfattr";

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let follow = follow(self.no_dereference);
        let mut out = session.context().stdout();
        for file in &self.files {
            let location = session.resolve(file, follow)?;
            let mut xattrs = session.view().volume().xattrs(location)?;
            if let Some(name) = &self.name {
                xattrs.retain(|xattr| xattr.name == name.as_bytes());
                if xattrs.is_empty() {
                    bail!("{}: no such attribute {}", file.display(), name.display());
                }
            }
            if xattrs.is_empty() {
                continue;
            }
            writeln!(out, "# file: {}", escape_controls(file.as_bytes()))?;
            for Xattr { name, value } in &xattrs {
                write!(out, "{}", escape_controls(name))?;
                if self.dump || self.name.is_some() {
                    write!(out, "={}", xattr::text(value))?;
                }
                writeln!(out)?;
            }
            writeln!(out)?;
        }
        Ok(out.flush()?)
    }
}

fn follow(no_dereference: bool) -> Follow {
    if no_dereference {
        Follow::NotLast
    } else {
        Follow::All
    }
}

/// Set or remove an extended attribute
#[derive(Args, Debug)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["name", "remove"])))]
pub struct Setfattr {
    /// Set this attribute
    #[arg(short = 'n', long, value_name = "NAME")]
    name: Option<OsString>,
    /// Its value: text, hexadecimal after 0x, or base64 after 0s
    #[arg(short = 'v', long, value_name = "VALUE", requires = "name")]
    value: Option<Value>,
    /// Remove this attribute
    #[arg(short = 'x', long, value_name = "NAME")]
    remove: Option<OsString>,
    /// For a symbolic link, use the attributes of the link itself
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// Files of the volume
    #[arg(value_name = "FILE", required = true)]
    files: Vec<OsString>,
}

impl Word for Setfattr {
    const NAME: &'static str = "setfattr";
    const WRITES: bool = true;

    fn run(self, session: &mut Session<'_>) -> Result<()> {
        let writing = session.require_writing()?;
        let value = self.value.map_or_else(Vec::new, |Value(bytes)| bytes);
        for file in &self.files {
            let location = session.resolve(file, follow(self.no_dereference))?;
            let filesystem = writing.volume();
            let done = match (&self.name, &self.remove) {
                (Some(name), _) => {
                    filesystem.set_xattr(location, name.as_bytes(), &value, SetXattr::CreateOrReplace)
                }
                (None, Some(name)) => filesystem.remove_xattr(location, name.as_bytes()),
                (None, None) => Ok(()),
            };
            done.with_context(|| file.to_string_lossy().into_owned())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_owners() {
        let time = |seconds, nanoseconds| Ok(Time(Timestamp { seconds, nanoseconds }));
        assert_eq!("@1700000000.5".parse(), time(1_700_000_000, 500_000_000));
        assert_eq!("@-1.000000001".parse(), time(-1, 1));
        assert_eq!("1970-01-01T00:00:01.25Z".parse(), time(1, 250_000_000));
        assert_eq!("1969-12-31T23:59:59.75Z".parse(), time(-1, 750_000_000));
        for text in ["", "@", "@x", "@1.", "@1.0000000001", "now"] {
            assert!(text.parse::<Time>().is_err(), "{text:?}");
        }
        let owner = |user, group| Ok(Owner { user, group });
        assert_eq!("1:2".parse(), owner(Some(1), Some(2)));
        assert_eq!("1".parse(), owner(Some(1), None));
        assert_eq!(":2".parse(), owner(None, Some(2)));
        for text in ["", ":", "root", "1:x", "-1"] {
            assert!(text.parse::<Owner>().is_err(), "{text:?}");
        }
    }
}
