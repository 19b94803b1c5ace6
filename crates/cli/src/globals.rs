//! The global flags, which may stand before or after the command, as in btrfs-progs.
//!
//! The program, every group and every command have these flags, and the parser merges them. A
//! switch counts at any position, the last of several values counts, and lists are joined. If a
//! command has its own short flag with the same letter (`subvolume list -q`), the command's meaning
//! applies after the command's name; the long form always works. [`attach`] adds the flags, and
//! [`Globals::collect`] merges them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{ArgMatches, Args, Command, FromArgMatches, ValueEnum};

/// Format of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text for people, and for scripts that read the output of btrfs-progs.
    Text,
    /// A JSON document.
    Json,
}

/// When to show progress on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Progress {
    /// If standard error is a terminal.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
    /// As a JSON object on each line.
    Json,
}

/// The engine that carries out reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// Worker threads with positioned reads.
    Threads,
    /// The kernel's io_uring.
    IoUring,
}

/// Parts of a damaged volume to ignore, as in mount's `rescue=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub enum Rescue {
    /// Take an older root from the superblock's backups when the newest cannot be read.
    UseBackupRoot,
    /// Ignore trees whose root cannot be read.
    #[value(alias = "ibadroots")]
    IgnoreBadRoots,
    /// Do not verify data checksums.
    #[value(alias = "idatacsums")]
    IgnoreDataCsums,
    /// Show the last commit, and not what a pending log tree has.
    NoLogReplay,
    /// All of them.
    All,
}

/// Several rescue options in one argument.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RescueList(pub Vec<Rescue>);

/// Parses options joined by `:`, as in mount's `rescue=`, or by `,`.
fn parse_rescue(text: &str) -> Result<RescueList, String> {
    let options = text
        .split([':', ','])
        .map(|name| <Rescue as ValueEnum>::from_str(name, false));
    options
        .collect::<Result<_, _>>()
        .map(RescueList)
        .map_err(|error| format!("{error} ({text})"))
}

/// Start of the volume in its image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offset {
    /// This byte offset.
    Bytes(u64),
    /// The start of this partition (GPT or MBR), counted from 1.
    Partition(u32),
}

impl FromStr for Offset {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(number) = text.strip_prefix("part=") {
            return match number.parse() {
                Ok(number) if number > 0 => Ok(Self::Partition(number)),
                _ => Err(format!(
                    "{number:?} is not a partition number (expected 1 or more)"
                )),
            };
        }
        parse_size(text).map(Self::Bytes)
    }
}

/// Parses a size in bytes: a number with an optional suffix K, M, G, T, P or E (powers of 1024,
/// `iB` may follow), or with the same suffix and `B` (powers of 1000, `KB` is 1000).
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at_checked(digits).unwrap_or((text, ""));
    let number: u64 = number
        .parse()
        .map_err(|_| format!("{text:?} is not a size such as 65536, 64K or 1GiB"))?;
    let suffix = suffix.to_ascii_lowercase();
    let (letter, base) = match suffix.strip_suffix("ib") {
        Some(letter) if !letter.is_empty() => (letter, 1024u64),
        _ => match suffix.strip_suffix('b') {
            Some(letter) => (letter, 1000),
            None => (suffix.as_str(), 1024),
        },
    };
    let power = match letter {
        "" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "p" => 5,
        "e" => 6,
        _ => {
            return Err(format!(
                "unknown size suffix in {text:?} (expected K, M, G, T, P or E)"
            ));
        }
    };
    base.checked_pow(power)
        .and_then(|unit| number.checked_mul(unit))
        .ok_or_else(|| format!("{text:?} is more than 16 EiB"))
}

/// The global flags as they stand at one place of the command line.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Global options")]
pub struct Globals {
    /// Print errors only
    #[arg(id = "global-quiet", short = 'q', long = "quiet")]
    pub quiet: bool,
    /// Print more details; repeat for even more
    #[arg(id = "global-verbose", short = 'v', long = "verbose", action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Format of results [default: text]
    #[arg(id = "global-format", long = "format", value_name = "FORMAT")]
    pub format: Option<Format>,
    /// When to show progress on standard error [default: auto]
    #[arg(id = "global-progress", long = "progress", value_name = "WHEN")]
    pub progress: Option<Progress>,
    /// Additional device or image of the volume; may be repeated
    #[arg(id = "global-device", long = "device", value_name = "DEVICE")]
    pub devices: Vec<PathBuf>,
    /// Write changes to this file, and leave the image unchanged. A command that gets the same file
    /// reads the changes
    #[arg(id = "global-overlay", long = "overlay", value_name = "FILE")]
    pub overlay: Option<PathBuf>,
    /// Start of the volume in the image: a byte offset, or part=N for a GPT or MBR partition
    #[arg(id = "global-offset", long = "offset", value_name = "BYTES|part=N")]
    pub offset: Option<Offset>,
    /// Size of the cache in memory [default: 256M]
    #[arg(id = "global-cache", long = "cache", value_name = "SIZE", value_parser = parse_size)]
    pub cache_bytes: Option<u64>,
    /// Resolve paths from this subvolume instead of the top level
    #[arg(id = "global-subvol", long = "subvol", value_name = "PATH")]
    pub subvolume: Option<OsString>,
    /// Resolve paths from the subvolume with this id
    #[arg(id = "global-subvolid", long = "subvolid", value_name = "ID")]
    pub subvolume_id: Option<u64>,
    /// Open a volume with missing devices, if its profiles allow it
    #[arg(id = "global-degraded", long = "degraded")]
    pub degraded: bool,
    /// Rescue options for a damaged volume, joined by colons: usebackuproot, ignorebadroots,
    /// ignoredatacsums, nologreplay, all
    #[arg(id = "global-rescue", long = "rescue", value_name = "OPTION[:OPTION…]", value_parser = parse_rescue)]
    pub rescue: Vec<RescueList>,
    /// Read the volume as the commit with this generation left it; `buttress generations` lists them
    #[arg(id = "global-generation", long = "generation", value_name = "N")]
    pub generation: Option<u64>,
    /// Open devices with O_DIRECT, which bypasses the page cache
    #[arg(id = "global-direct", long = "direct")]
    pub direct: bool,
    /// I/O engine for reads [default: threads]
    #[arg(id = "global-engine", long = "engine", value_name = "ENGINE")]
    pub engine: Option<Engine>,
}

/// Default cache budget in bytes.
pub const DEFAULT_CACHE_BYTES: u64 = 256 << 20;

/// The global options about volumes that a command uses. A command refuses all other global
/// options, because an option without effect would cause a wrong result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uses {
    /// The command uses `--device`.
    pub devices: bool,
    /// True if the command uses `--overlay` and `--offset`.
    pub image: bool,
    /// The command uses `--degraded` and `--rescue`.
    pub volume: bool,
    /// The command uses `--generation`.
    pub state: bool,
    /// The command uses `--subvol`.
    pub root: bool,
    /// The command uses `--subvolid`.
    pub root_id: bool,
}

impl Uses {
    /// All options, for a command with paths in a volume.
    pub const PATHS: Self = Self {
        devices: true,
        image: true,
        volume: true,
        state: true,
        root: true,
        root_id: true,
    };
    /// Options for a command about a whole volume.
    pub const VOLUME: Self = Self {
        root: false,
        root_id: false,
        ..Self::PATHS
    };
    /// Options for a command about one device.
    pub const DEVICE: Self = Self {
        devices: false,
        volume: false,
        state: false,
        ..Self::VOLUME
    };
    /// No options, for a command that opens no volume.
    pub const NOTHING: Self = Self {
        image: false,
        ..Self::DEVICE
    };
}

impl Globals {
    /// Returns the name of a given option that the command does not use.
    pub fn unused(&self, uses: Uses) -> Option<&'static str> {
        let given = [
            (!uses.devices && !self.devices.is_empty(), "--device"),
            (!uses.image && self.overlay.is_some(), "--overlay"),
            (!uses.image && self.offset.is_some(), "--offset"),
            (!uses.volume && self.degraded, "--degraded"),
            (!uses.volume && !self.rescue.is_empty(), "--rescue"),
            (!uses.state && self.generation.is_some(), "--generation"),
            (!uses.root && self.subvolume.is_some(), "--subvol"),
            (!uses.root_id && self.subvolume_id.is_some(), "--subvolid"),
        ];
        given
            .into_iter()
            .find(|(is_unused, _)| *is_unused)
            .map(|(_, name)| name)
    }

    /// Merges the flags of each level of the command line; the program's level comes first.
    pub fn collect(levels: &[&ArgMatches]) -> Result<Self, clap::Error> {
        let mut merged = Self::default();
        for matches in levels {
            merged.merge(Self::from_arg_matches(matches)?);
        }
        Ok(merged)
    }

    fn merge(&mut self, later: Self) {
        self.quiet |= later.quiet;
        self.verbose = self.verbose.saturating_add(later.verbose);
        self.format = later.format.or(self.format);
        self.progress = later.progress.or(self.progress);
        self.devices.extend(later.devices);
        self.overlay = later.overlay.or(self.overlay.take());
        self.offset = later.offset.or(self.offset);
        self.cache_bytes = later.cache_bytes.or(self.cache_bytes);
        if later.subvolume.is_some() || later.subvolume_id.is_some() {
            self.subvolume = later.subvolume;
            self.subvolume_id = later.subvolume_id;
        }
        self.degraded |= later.degraded;
        self.rescue.extend(later.rescue);
        self.generation = later.generation.or(self.generation);
        self.direct |= later.direct;
        self.engine = later.engine.or(self.engine);
    }

    /// Returns the rescue options for opening a volume.
    pub(crate) fn rescue(&self) -> buttress::Rescue {
        buttress::Rescue {
            use_backup_root: self.rescues(Rescue::UseBackupRoot),
            ignore_bad_roots: self.rescues(Rescue::IgnoreBadRoots),
            ignore_data_checksums: self.rescues(Rescue::IgnoreDataCsums),
            no_log_replay: self.rescues(Rescue::NoLogReplay),
        }
    }

    /// Returns whether the user gave this rescue option.
    pub fn rescues(&self, option: Rescue) -> bool {
        self.rescue
            .iter()
            .flat_map(|list| &list.0)
            .any(|given| *given == option || *given == Rescue::All)
    }
}

/// Adds the global flags to a command. If the command uses a short flag itself, the command's flag
/// takes precedence: `--help` loses its `-h`. A command may also define a flag with the id of a
/// global one, for example to allow several values.
pub fn attach(command: Command) -> Command {
    let taken: Vec<char> = command.get_arguments().filter_map(clap::Arg::get_short).collect();
    // Adding a derived group of arguments also replaces the command's description, so restore it.
    let about = command.get_about().cloned();
    let long_about = command.get_long_about().cloned();
    let own: Vec<clap::Id> = command.get_arguments().map(|own| own.get_id().clone()).collect();
    let globals = Globals::augment_args(Command::new("globals"));
    let added = globals
        .get_arguments()
        .filter(|global| !own.contains(global.get_id()));
    let mut command = command
        .args(added.cloned())
        .about(clap::builder::Resettable::from(about))
        .long_about(clap::builder::Resettable::from(long_about));
    for (letter, id) in [('q', "global-quiet"), ('v', "global-verbose")] {
        if taken.contains(&letter) {
            command = command.mut_arg(id, |argument| argument.short(None));
        }
    }
    if taken.contains(&'h') {
        command = command.disable_help_flag(true).arg(
            clap::Arg::new("help")
                .long("help")
                .action(clap::ArgAction::Help)
                .help("Print help"),
        );
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let cases = [
            ("0", Ok(0)),
            ("4096", Ok(4096)),
            ("64K", Ok(65536)),
            ("64k", Ok(65536)),
            ("64KiB", Ok(65536)),
            ("64KB", Ok(64000)),
            ("1G", Ok(1 << 30)),
            ("12b", Ok(12)),
            ("15E", Ok(15 << 60)),
            ("16E", Err(())),
            ("", Err(())),
            ("K", Err(())),
            ("-1", Err(())),
            ("1X", Err(())),
            ("1ib", Err(())),
            ("é", Err(())),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_size(text).map_err(|_| ()), expected, "{text:?}");
        }
    }

    #[test]
    fn rescue_options() {
        let all = parse_rescue("usebackuproot:ignorebadroots,idatacsums").unwrap();
        assert_eq!(
            all.0,
            [
                Rescue::UseBackupRoot,
                Rescue::IgnoreBadRoots,
                Rescue::IgnoreDataCsums
            ]
        );
        assert!(parse_rescue("").is_err());
        assert!(parse_rescue("usebackuproot:").is_err());
    }

    #[test]
    fn offsets() {
        assert_eq!("1M".parse(), Ok(Offset::Bytes(1 << 20)));
        assert_eq!("part=2".parse(), Ok(Offset::Partition(2)));
        assert!("part=0".parse::<Offset>().is_err());
        assert!("part=x".parse::<Offset>().is_err());
    }
}
