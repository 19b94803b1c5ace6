//! Timestamps in the formats of `ls`, `stat` and `btrfs subvolume show`.
//!
//! Times are printed in the local time zone (`TZ`), as in `ls`, `stat` and btrfs-progs. Seconds on
//! disk are any 64-bit number. A time outside of the calendar is printed as `@seconds`.

use std::sync::OnceLock;

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Time format of `ls -l`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TimeStyle {
    /// `Nov 21 01:47`, or `Nov 21  2025` when six months old or in the future
    Locale,
    /// `2026-11-21 01:47:58.123456789 +0000`
    FullIso,
    /// `2026-11-21 01:47`
    LongIso,
    /// Date without a time zone: `11-21 01:47`, or `2025-11-21` when six months old or in the
    /// future
    Iso,
}

/// Time zone of the machine at its first use, because a sandboxed server cannot read it later.
static ZONE: OnceLock<TimeZone> = OnceLock::new();

/// Half of a mean Gregorian year in seconds. For times outside this period, `ls` shows the year
/// instead of the time of day.
const HALF_YEAR_SECONDS: i64 = 31_556_952 / 2;

/// Formatter of timestamps in one time zone, relative to one current time.
#[derive(Clone, Debug)]
pub struct Clock {
    zone: TimeZone,
    now_seconds: i64,
}

impl Clock {
    /// Creates a formatter with the machine's time zone and the current time.
    pub fn system() -> Self {
        Self {
            zone: ZONE.get_or_init(TimeZone::system).clone(),
            now_seconds: Timestamp::now().as_second(),
        }
    }

    /// Creates a formatter with UTC and a fixed current time, for output that must not depend on
    /// the machine.
    pub fn fixed(now_seconds: i64) -> Self {
        Self {
            zone: TimeZone::UTC,
            now_seconds,
        }
    }

    fn format(&self, seconds: i64, nanoseconds: u32, pattern: &str) -> String {
        let fraction = i32::try_from(nanoseconds)
            .ok()
            .filter(|fraction| *fraction < 1_000_000_000);
        match Timestamp::new(seconds, fraction.unwrap_or(0)) {
            Ok(moment) => moment.to_zoned(self.zone.clone()).strftime(pattern).to_string(),
            Err(_) => format!("@{seconds}"),
        }
    }

    /// Formats as `2026-11-21 01:47:58.123456789 +0000`, as `stat` does.
    pub fn full(&self, seconds: i64, nanoseconds: u32) -> String {
        self.format(seconds, nanoseconds, "%Y-%m-%d %H:%M:%S.%9f %z")
    }

    /// Formats as `2026-11-21 01:47:58 +0000`, as `btrfs subvolume show` does.
    pub fn with_zone(&self, seconds: i64) -> String {
        self.format(seconds, 0, "%Y-%m-%d %H:%M:%S %z")
    }

    /// Formats as `2026-11-21 01:47:58`, as `btrfs subvolume list -s` does.
    pub fn plain(&self, seconds: i64) -> String {
        self.format(seconds, 0, "%Y-%m-%d %H:%M:%S")
    }

    /// Formats as `Sun Nov 22 13:02:33 2026`, as `btrfs scrub status` does.
    pub fn long_date(&self, seconds: i64) -> String {
        self.format(seconds, 0, "%a %b %e %H:%M:%S %Y")
    }

    /// Formats as `22.Nov 13:02:33`, as `btrfs replace status` does.
    pub fn day_and_time(&self, seconds: i64) -> String {
        self.format(seconds, 0, "%e.%b %T")
    }

    /// Formats as `ls -l --time-style` does.
    pub fn ls(&self, style: TimeStyle, seconds: i64, nanoseconds: u32) -> String {
        let recent =
            seconds <= self.now_seconds && seconds > self.now_seconds.saturating_sub(HALF_YEAR_SECONDS);
        match (style, recent) {
            (TimeStyle::FullIso, _) => self.full(seconds, nanoseconds),
            (TimeStyle::LongIso, _) => self.format(seconds, nanoseconds, "%Y-%m-%d %H:%M"),
            (TimeStyle::Iso, true) => self.format(seconds, nanoseconds, "%m-%d %H:%M"),
            (TimeStyle::Iso, false) => self.format(seconds, nanoseconds, "%Y-%m-%d "),
            (TimeStyle::Locale, true) => self.format(seconds, nanoseconds, "%b %e %H:%M"),
            (TimeStyle::Locale, false) => self.format(seconds, nanoseconds, "%b %e  %Y"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_ls_and_stat_print_them() {
        let clock = Clock::fixed(1_795_225_678);
        assert_eq!(
            clock.full(1_795_225_678, 5),
            "2026-11-21 01:47:58.000000005 +0000"
        );
        assert_eq!(clock.with_zone(0), "1970-01-01 00:00:00 +0000");
        assert_eq!(clock.long_date(1_795_225_678), "Sat Nov 21 01:47:58 2026");
        assert_eq!(clock.ls(TimeStyle::Locale, 1_795_225_678, 0), "Nov 21 01:47");
        assert_eq!(clock.ls(TimeStyle::Locale, 1_795_225_679, 0), "Nov 21  2026");
        assert_eq!(clock.ls(TimeStyle::Locale, 86_400 * 3, 0), "Jan  4  1970");
        assert_eq!(clock.ls(TimeStyle::LongIso, -1, 999_999_999), "1969-12-31 23:59");
        assert_eq!(clock.ls(TimeStyle::Iso, 86_400, 0), "1970-01-02 ");
    }

    #[test]
    fn no_number_on_disk_makes_it_fail() {
        let clock = Clock::fixed(0);
        for seconds in [i64::MIN, i64::MAX, -377_705_116_800] {
            assert!(clock.full(seconds, u32::MAX).starts_with('@'), "{seconds}");
        }
        assert!(clock.full(0, u32::MAX).starts_with("1970"));
    }
}
