//! Options of a mount, in the syntax of mount(8): `rw,subvol=/home,compress=zstd:3`.
//!
//! Names and meanings are those of btrfs(5) and mount(8). Options for only mount(8) and fstab are
//! accepted without effect.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use buttress::{AccessPolicy, AutoReclaim, ByteCount, DataOptions};
use clap::ValueEnum as _;

use super::access_times;
use super::known::{self, Meaning};
use crate::compression::Method;
use crate::exit::Advice;
use crate::globals::{Globals, Rescue, RescueList, parse_size};

/// The kernel's default interval between commits.
const COMMIT_SECONDS: u64 = 30;

/// The requested properties of a mount.
#[derive(Clone, Debug)]
pub(super) struct MountWishes {
    /// Files of the mount can be changed.
    pub(super) write: bool,
    /// The volume is mounted already, and its options change.
    pub(super) remount: bool,
    /// Users other than the mounting user have access.
    pub(super) allow_other: bool,
    /// Set-user-id bits have effect; `None`: only for mounts by root.
    pub(super) suid: Option<bool>,
    /// Device nodes can be opened as devices; `None`: only for mounts by root.
    pub(super) dev: Option<bool>,
    pub(super) no_exec: bool,
    pub(super) accesses: AccessPolicy,
    /// The kernel's write-back cache is in use.
    pub(super) writeback_cache: bool,
    /// All files appear with this owner.
    pub(super) uid: Option<u32>,
    /// All files appear with this group.
    pub(super) gid: Option<u32>,
    pub(super) commit_interval: Duration,
    pub(super) data: DataOptions,
    /// Freed space is discarded on the devices after commits.
    pub(super) discard: bool,
    /// The threshold of the automatic reclaim, in percent.
    pub(super) auto_reclaim: Option<u8>,
    /// The text of the options, if no other setting affects the mount.
    pub(super) options: Option<OsString>,
    /// Notes about options without effect.
    pub(super) notes: Vec<String>,
}

impl Default for MountWishes {
    fn default() -> Self {
        Self {
            write: false,
            remount: false,
            allow_other: false,
            suid: None,
            dev: None,
            no_exec: false,
            accesses: AccessPolicy::default(),
            writeback_cache: false,
            uid: None,
            gid: None,
            commit_interval: Duration::from_secs(COMMIT_SECONDS),
            data: DataOptions::default(),
            discard: false,
            auto_reclaim: None,
            options: None,
            notes: Vec::new(),
        }
    }
}

/// Splits a text at commas; a backslash escapes the next byte.
fn parts(text: &OsStr) -> Vec<OsString> {
    let (mut all, mut part, mut is_escaped) = (Vec::new(), Vec::new(), false);
    for byte in text.as_bytes() {
        match (byte, is_escaped) {
            (b'\\', false) => is_escaped = true,
            (b',', false) => all.push(OsString::from_vec(core::mem::take(&mut part))),
            (byte, _) => {
                part.push(*byte);
                is_escaped = false;
            }
        }
    }
    all.push(OsString::from_vec(part));
    all.retain(|part| !part.is_empty());
    all
}

fn number(value: &str) -> Result<u32> {
    value
        .parse()
        .with_context(|| format!("{value:?} is not the id of a user or group"))
}

impl MountWishes {
    /// Adds the options of a text, and stores those of the volume in the global flags.
    pub(super) fn take(&mut self, text: &OsStr, globals: &mut Globals) -> Result<()> {
        for part in parts(text) {
            self.take_one(&part, globals)
                .with_context(|| format!("-o {}", part.display()))?;
        }
        Ok(())
    }

    fn take_one(&mut self, part: &OsStr, globals: &mut Globals) -> Result<()> {
        let bytes = part.as_bytes();
        if let Some(path) = bytes.strip_prefix(b"subvol=") {
            globals.subvolume = Some(OsStr::from_bytes(path).to_owned());
            globals.subvolume_id = None;
            return Ok(());
        }
        if let Some(path) = bytes.strip_prefix(b"device=") {
            globals.devices.push(OsStr::from_bytes(path).into());
            return Ok(());
        }
        let text = part.to_str().context("not UTF-8")?;
        if access_times::take(&mut self.accesses, text) {
            return Ok(());
        }
        match known::meaning(text) {
            Some(Meaning::Nothing) => return Ok(()),
            Some(Meaning::Note(note)) => {
                self.notes.push(format!("-o {text} has no effect: {note}"));
                return Ok(());
            }
            None => {}
        }
        match text.split_once('=') {
            Some((name, value)) => self.take_value(name, value, globals),
            None => self.take_switch(text, globals),
        }
    }

    fn take_switch(&mut self, name: &str, globals: &mut Globals) -> Result<()> {
        match name {
            "ro" => self.write = false,
            "rw" => self.write = true,
            "remount" => self.remount = true,
            "allow_other" => self.allow_other = true,
            "suid" => self.suid = Some(true),
            "nosuid" => self.suid = Some(false),
            "dev" => self.dev = Some(true),
            "nodev" => self.dev = Some(false),
            "noexec" => self.no_exec = true,
            "exec" => self.no_exec = false,
            "datacow" => (self.data.copy_on_write, self.data.checksums) = (true, true),
            "datasum" => self.data.checksums = true,
            "writeback_cache" => self.writeback_cache = true,
            "nowriteback_cache" => self.writeback_cache = false,
            "compress" => self.data.compression = Some(method("zlib")?),
            "compress-force" => return self.take_value(name, "zlib", globals),
            "nodatacow" => (self.data.copy_on_write, self.data.checksums) = (false, false),
            "nodatasum" => self.data.checksums = false,
            "discard" => self.discard = true,
            "nodiscard" => self.discard = false,
            "auto_reclaim" => self.auto_reclaim = Some(AutoReclaim::default().percent),
            "degraded" => globals.degraded = true,
            "fakeroot" => (self.uid, self.gid) = (Some(0), Some(0)),
            "usebackuproot" | "recovery" => globals.rescue.push(RescueList(vec![Rescue::UseBackupRoot])),
            "nologreplay" | "norecovery" => globals.rescue.push(RescueList(vec![Rescue::NoLogReplay])),
            _ => {
                return Err(anyhow!("unknown option"))
                    .context(Advice::new("`buttress mount --help` lists all options"));
            }
        }
        Ok(())
    }

    fn take_value(&mut self, name: &str, value: &str, globals: &mut Globals) -> Result<()> {
        match name {
            "subvolid" => {
                let id = value.parse().context("not a subvolume id")?;
                (globals.subvolume, globals.subvolume_id) = (None, Some(id));
            }
            "compress" | "compress-force" => {
                self.data.compression = match value {
                    "no" | "none" => None,
                    value => Some(method(value)?),
                };
                self.data.compress_force = name == "compress-force" && self.data.compression.is_some();
            }
            "discard" if matches!(value, "sync" | "async") => self.discard = true,
            "max_inline" => {
                self.data.max_inline = ByteCount::new(parse_size(value).map_err(anyhow::Error::msg)?);
            }
            "commit" => {
                let seconds: u64 = value.parse().context("invalid number of seconds")?;
                if seconds == 0 {
                    bail!("the commit interval is 0 seconds (expected at least 1)");
                }
                self.commit_interval = Duration::from_secs(seconds);
            }
            "auto_reclaim" => {
                let percent = value.parse().ok().filter(|percent| (1..100).contains(percent));
                self.auto_reclaim = Some(percent.context("expected a percentage from 1 to 99")?);
            }
            "uid" => self.uid = Some(number(value)?),
            "gid" => self.gid = Some(number(value)?),
            "rescue" => {
                for one in value.split(':') {
                    let rescue = Rescue::from_str(one, false).map_err(anyhow::Error::msg)?;
                    globals.rescue.push(RescueList(vec![rescue]));
                }
            }
            "generation" => globals.generation = Some(value.parse().context("not a generation")?),
            "offset" => globals.offset = Some(value.parse().map_err(anyhow::Error::msg)?),
            _ => bail!("unknown option"),
        }
        Ok(())
    }
}

fn method(text: &str) -> Result<buttress::CompressionMethod> {
    let Method(method) = text.parse().map_err(anyhow::Error::msg)?;
    Ok(method)
}

#[cfg(test)]
mod tests {
    use super::*;
    use buttress::AccessTimes;

    fn taken(text: &str) -> Result<(MountWishes, Globals)> {
        let (mut wishes, mut globals) = (MountWishes::default(), Globals::default());
        wishes.take(OsStr::new(text), &mut globals)?;
        Ok((wishes, globals))
    }

    #[test]
    fn options_are_those_of_the_kernel() {
        let (wishes, globals) = taken(
            "rw,noatime,subvol=/a\\,b,compress-force=zstd:9,max_inline=0,commit=5,degraded,rescue=usebackuproot:ibadroots,\
             uid=7,ssd,writeback_cache,x-systemd.automount,nofail",
        )
        .unwrap();
        assert!(
            wishes.write
                && wishes.accesses.times == AccessTimes::Never
                && wishes.data.compress_force
                && wishes.writeback_cache
        );
        assert!(globals.degraded);
        assert_eq!(wishes.data.max_inline, ByteCount::ZERO);
        assert_eq!((wishes.uid, wishes.gid), (Some(7), None));
        assert_eq!(wishes.commit_interval, Duration::from_secs(5));
        assert_eq!(globals.subvolume.as_deref(), Some(OsStr::new("/a,b")));
        assert!(globals.rescues(Rescue::UseBackupRoot) && globals.rescues(Rescue::IgnoreBadRoots));
    }

    #[test]
    fn mounts_are_read_only_by_default_and_the_last_option_counts() {
        assert!(!taken("").unwrap().0.write);
        assert!(!taken("rw,ro").unwrap().0.write);
        let data = taken("nodatacow").unwrap().0.data;
        assert!(!data.copy_on_write && !data.checksums);
        let data = taken("nodatacow,datacow").unwrap().0.data;
        assert!(data.copy_on_write && data.checksums);
        assert!(!taken("noexec,exec").unwrap().0.no_exec);
        let said = taken("relatime,sync,x-a,noacl").unwrap().0.notes;
        assert_eq!(said.len(), 2, "{said:?}");
        for wrong in [
            "nonsense",
            "commit=0",
            "commit=x",
            "compress=gzip",
            "subvolid=x",
            "rescue=no",
        ] {
            assert!(taken(wrong).is_err(), "{wrong}");
        }
    }
}
