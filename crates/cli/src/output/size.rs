//! Sizes with the unit flags of btrfs-progs.
//!
//! Without a flag a size is scaled to the largest unit of 1024 that leaves at least 1, with two digits:
//! `16.00KiB`. Fixed units keep two digits too; `--raw` is the plain number of bytes.

use clap::Args;

/// Base and unit of printed sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Units {
    base: Base,
    unit: Unit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    Iec,
    Si,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Raw,
    Human,
    /// A power of the base.
    Fixed(u32),
}

impl Default for Units {
    fn default() -> Self {
        Self {
            base: Base::Iec,
            unit: Unit::Human,
        }
    }
}

const IEC: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const SI: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];

impl Units {
    /// Plain numbers of bytes.
    pub const RAW: Self = Self {
        base: Base::Iec,
        unit: Unit::Raw,
    };

    /// Formats a size.
    ///
    /// As in btrfs-progs, the division is in single precision. Each scaling step except the last
    /// drops the remainder: 263585792 bytes give `263.58MB`.
    #[expect(
        clippy::cast_precision_loss,
        reason = "two digits are printed, as btrfs-progs rounds them"
    )]
    pub fn text(self, bytes: u64) -> String {
        let (step, names) = match self.base {
            Base::Iec => (1024u64, &IEC),
            Base::Si => (1000, &SI),
        };
        let (power, dropped) = match self.unit {
            Unit::Raw => return bytes.to_string(),
            Unit::Fixed(power) => (power, 0),
            Unit::Human => {
                let power = bytes.checked_ilog(step).unwrap_or(0).min(6);
                (power, power.saturating_sub(1))
            }
        };
        let unit_of = |power: u32| step.checked_pow(power).unwrap_or(u64::MAX);
        let name = names.get(power as usize).copied().unwrap_or("B");
        let whole = bytes.checked_div(unit_of(dropped)).unwrap_or(0);
        let rest = unit_of(power.saturating_sub(dropped));
        format!("{:.2}{name}", whole as f32 / rest as f32)
    }

    /// Formats a size, with `-` for zero, as in tables.
    pub fn text_or_dash(self, bytes: u64) -> String {
        if bytes == 0 {
            "-".to_owned()
        } else {
            self.text(bytes)
        }
    }
}

// If flags contradict each other, the last one counts, as in btrfs-progs.

/// Flags that `--raw` overrides: every other flag.
pub(crate) const BYTES: [&str; 7] = [
    "human_readable",
    "iec",
    "si",
    "kbytes",
    "mbytes",
    "gbytes",
    "tbytes",
];

/// Flags that `--human-readable` overrides.
const FRIENDLY: [&str; 5] = ["raw", "kbytes", "mbytes", "gbytes", "tbytes"];

/// Flags that a fixed unit overrides.
const FIXED: [&str; 6] = ["raw", "human_readable", "kbytes", "mbytes", "gbytes", "tbytes"];

/// Flags that a base overrides.
const BASES: [&str; 3] = ["raw", "iec", "si"];

/// Flags that a short `-b` overrides, both short and long ones.
const SHORT_BYTES: [&str; 13] = [
    "human_readable",
    "iec",
    "si",
    "kbytes",
    "mbytes",
    "gbytes",
    "tbytes",
    "human_short",
    "si_short",
    "kbytes_short",
    "mbytes_short",
    "gbytes_short",
    "tbytes_short",
];

/// Short and long forms of [`FRIENDLY`].
const SHORT_FRIENDLY: [&str; 10] = [
    "raw",
    "raw_short",
    "kbytes",
    "mbytes",
    "gbytes",
    "tbytes",
    "kbytes_short",
    "mbytes_short",
    "gbytes_short",
    "tbytes_short",
];

/// Short and long forms of [`FIXED`].
const SHORT_FIXED: [&str; 12] = [
    "raw",
    "raw_short",
    "human_readable",
    "human_short",
    "kbytes",
    "mbytes",
    "gbytes",
    "tbytes",
    "kbytes_short",
    "mbytes_short",
    "gbytes_short",
    "tbytes_short",
];

/// Short and long forms of [`BASES`].
const SHORT_BASES: [&str; 5] = ["raw", "raw_short", "iec", "si", "si_short"];

/// The unit flags, long ones only. Flatten these flags into a command's arguments.
#[derive(Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "Units")]
pub struct UnitFlags {
    /// Print sizes in bytes
    #[arg(long, overrides_with_all = BYTES)]
    pub raw: bool,
    /// Print each size in the largest fitting unit of 1024 (the default)
    #[arg(long, overrides_with_all = FRIENDLY)]
    pub human_readable: bool,
    /// Print each size in the largest fitting unit of 1024
    #[arg(long, overrides_with_all = BASES)]
    pub iec: bool,
    /// Print each size in the largest fitting unit of 1000
    #[arg(long, overrides_with_all = BASES)]
    pub si: bool,
    /// Print sizes in KiB, or kB with --si
    #[arg(long, overrides_with_all = FIXED)]
    pub kbytes: bool,
    /// Print sizes in MiB, or MB with --si
    #[arg(long, overrides_with_all = FIXED)]
    pub mbytes: bool,
    /// Print sizes in GiB, or GB with --si
    #[arg(long, overrides_with_all = FIXED)]
    pub gbytes: bool,
    /// Print sizes in TiB, or TB with --si
    #[arg(long, overrides_with_all = FIXED)]
    pub tbytes: bool,
}

impl UnitFlags {
    /// Returns whether any of the flags was given.
    pub const fn are_given(self) -> bool {
        let one = self.raw || self.human_readable || self.iec || self.si;
        one || self.kbytes || self.mbytes || self.gbytes || self.tbytes
    }

    /// Returns the units that the flags select.
    pub fn units(self) -> Units {
        let base = if self.si && !self.iec { Base::Si } else { Base::Iec };
        let unit = match self {
            Self { raw: true, .. } => Unit::Raw,
            Self { kbytes: true, .. } => Unit::Fixed(1),
            Self { mbytes: true, .. } => Unit::Fixed(2),
            Self { gbytes: true, .. } => Unit::Fixed(3),
            Self { tbytes: true, .. } => Unit::Fixed(4),
            _ => Unit::Human,
        };
        Units { base, unit }
    }
}

/// The short unit flags that `filesystem df` and `filesystem usage` have beside the long ones.
#[derive(Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "Units")]
pub struct ShortUnitFlags {
    /// Short for --raw
    #[arg(short = 'b', overrides_with_all = SHORT_BYTES)]
    pub raw_short: bool,
    /// Short for --human-readable
    #[arg(short = 'h', overrides_with_all = SHORT_FRIENDLY)]
    pub human_short: bool,
    /// Short for --si
    #[arg(short = 'H', overrides_with_all = SHORT_BASES)]
    pub si_short: bool,
    /// Short for --kbytes
    #[arg(short = 'k', overrides_with_all = SHORT_FIXED)]
    pub kbytes_short: bool,
    /// Short for --mbytes
    #[arg(short = 'm', overrides_with_all = SHORT_FIXED)]
    pub mbytes_short: bool,
    /// Short for --gbytes
    #[arg(short = 'g', overrides_with_all = SHORT_FIXED)]
    pub gbytes_short: bool,
    /// Short for --tbytes
    #[arg(short = 't', overrides_with_all = SHORT_FIXED)]
    pub tbytes_short: bool,
}

impl ShortUnitFlags {
    /// Returns the units that these flags and the long ones select together.
    pub fn units(self, long: UnitFlags) -> Units {
        UnitFlags {
            raw: long.raw || self.raw_short,
            human_readable: long.human_readable || self.human_short,
            iec: long.iec,
            si: long.si || self.si_short,
            kbytes: long.kbytes || self.kbytes_short,
            mbytes: long.mbytes || self.mbytes_short,
            gbytes: long.gbytes || self.gbytes_short,
            tbytes: long.tbytes || self.tbytes_short,
        }
        .units()
    }
}

/// Formats a size as `ls -h` does: rounded up, with one decimal below 10 (`1.5K`, `12M`).
pub fn ls_human(bytes: u64) -> String {
    if bytes < 1024 {
        return bytes.to_string();
    }
    let mut power = bytes.ilog(1024).clamp(1, 6);
    loop {
        let unit = 1024u128.saturating_pow(power);
        let tenths = u128::from(bytes).saturating_mul(10).div_ceil(unit);
        let letter = ["", "K", "M", "G", "T", "P", "E"]
            .get(power as usize)
            .copied()
            .unwrap_or("");
        if tenths < 100 {
            let (whole, tenth) = (
                tenths.checked_div(10).unwrap_or(0),
                tenths.checked_rem(10).unwrap_or(0),
            );
            return format!("{whole}.{tenth}{letter}");
        }
        let whole = u128::from(bytes).div_ceil(unit);
        if whole < 1024 || power == 6 {
            return format!("{whole}{letter}");
        }
        power = power.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_btrfs_progs_prints_them() {
        let human = Units::default();
        let cases = [
            (0, "0.00B"),
            (1, "1.00B"),
            (1023, "1023.00B"),
            (1024, "1.00KiB"),
            (16384, "16.00KiB"),
            (8388608, "8.00MiB"),
            (114294784, "109.00MiB"),
            (u64::MAX, "16.00EiB"),
        ];
        for (bytes, expected) in cases {
            assert_eq!(human.text(bytes), expected);
        }
        assert_eq!(Units::RAW.text(12345), "12345");
        let si = UnitFlags {
            si: true,
            ..UnitFlags::default()
        }
        .units();
        assert_eq!(si.text(16384), "16.38kB");
        assert_eq!(si.text(263_585_792), "263.58MB");
        let mbytes = UnitFlags {
            mbytes: true,
            ..UnitFlags::default()
        }
        .units();
        assert_eq!(mbytes.text(16384), "0.02MiB");
        let gbytes = UnitFlags {
            gbytes: true,
            ..UnitFlags::default()
        }
        .units();
        assert_eq!(gbytes.text(16_711_680), "0.02GiB");
    }

    #[test]
    fn last_unit_flag_counts() {
        #[derive(clap::Parser)]
        #[command(disable_help_flag = true)]
        struct Line {
            #[command(flatten)]
            long: UnitFlags,
            #[command(flatten)]
            short: ShortUnitFlags,
        }
        for (words, expected) in [
            ("--raw", "2000000"),
            ("--raw --si", "2.00MB"),
            ("--si --raw", "2000000"),
            ("--si --iec", "1.91MiB"),
            ("--iec --si", "2.00MB"),
            ("--si --kbytes", "2000.00kB"),
            ("--kbytes --si", "2000.00kB"),
            ("--kbytes --mbytes", "1.91MiB"),
            ("--mbytes --kbytes", "1953.12KiB"),
            ("--mbytes --human-readable --si", "2.00MB"),
            ("-b -H", "2.00MB"),
            ("-H -b", "2000000"),
            ("-k -m", "1.91MiB"),
            ("-m --kbytes", "1953.12KiB"),
            ("--raw -h", "1.91MiB"),
            ("-k -k", "1953.12KiB"),
        ] {
            let words = ["line"].into_iter().chain(words.split(' '));
            let line = <Line as clap::Parser>::parse_from(words.clone());
            let text = line.short.units(line.long).text(2_000_000);
            assert_eq!(text, expected, "{:?}", words.collect::<Vec<_>>());
        }
    }

    #[test]
    fn sizes_as_ls_prints_them() {
        let cases = [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10 * 1024 - 1, "10K"),
            (1024 * 1024 - 1, "1.0M"),
            (1024 * 1024, "1.0M"),
            (1536 * 1024, "1.5M"),
            (u64::MAX, "16E"),
        ];
        for (bytes, expected) in cases {
            assert_eq!(ls_human(bytes), expected, "{bytes}");
        }
    }
}
