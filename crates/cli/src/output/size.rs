//! Sizes with the unit flags of btrfs-progs.
//!
//! Without a flag a size is scaled to the largest unit of 1024 that leaves at least 1, with two digits:
//! `16.00KiB`. Fixed units keep two digits too; `--raw` is the plain number of bytes.

use clap::Args;

/// The base and the unit that sizes are printed in.
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

    /// The size as text.
    ///
    /// As in btrfs-progs the division is in single precision, and on the way to a friendly unit each step but
    /// the last drops the remainder: 263585792 bytes are `263.58MB`.
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

    /// The size as text, with `-` for zero, as tables show it.
    pub fn text_or_dash(self, bytes: u64) -> String {
        if bytes == 0 {
            "-".to_owned()
        } else {
            self.text(bytes)
        }
    }
}

/// The unit flags, long ones only. Flatten them into a command's arguments.
#[derive(Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "Units")]
pub struct UnitFlags {
    /// Sizes in bytes
    #[arg(long)]
    pub raw: bool,
    /// Sizes in friendly units of 1024 (the default)
    #[arg(long)]
    pub human_readable: bool,
    /// Sizes in units of 1024
    #[arg(long)]
    pub iec: bool,
    /// Sizes in units of 1000
    #[arg(long)]
    pub si: bool,
    /// Sizes in KiB, or kB with --si
    #[arg(long)]
    pub kbytes: bool,
    /// Sizes in MiB, or MB with --si
    #[arg(long)]
    pub mbytes: bool,
    /// Sizes in GiB, or GB with --si
    #[arg(long)]
    pub gbytes: bool,
    /// Sizes in TiB, or TB with --si
    #[arg(long)]
    pub tbytes: bool,
}

impl UnitFlags {
    /// What the flags ask for.
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
    /// The same as --raw
    #[arg(short = 'b')]
    pub raw_short: bool,
    /// The same as --human-readable
    #[arg(short = 'h')]
    pub human_short: bool,
    /// The same as --si
    #[arg(short = 'H')]
    pub si_short: bool,
    /// The same as --kbytes
    #[arg(short = 'k')]
    pub kbytes_short: bool,
    /// The same as --mbytes
    #[arg(short = 'm')]
    pub mbytes_short: bool,
    /// The same as --gbytes
    #[arg(short = 'g')]
    pub gbytes_short: bool,
    /// The same as --tbytes
    #[arg(short = 't')]
    pub tbytes_short: bool,
}

impl ShortUnitFlags {
    /// What these and the long flags ask for together.
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

/// A size as `ls -h` prints it: rounded up, one digit below 10 (`1.5K`, `12M`).
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
