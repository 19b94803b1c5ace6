//! Fast formatting of many dates in the local time zone.
//!
//! A dump prints four timestamps per inode, and adjacent ones often share their second. The
//! formatter of dates therefore caches the last date. Any 64-bit number of seconds has a date in
//! the proleptic Gregorian calendar.

use std::fmt::Write as _;

use jiff::Timestamp;
use jiff::tz::{Offset, TimeZone};

const DAY_SECONDS: i64 = 86_400;
/// Days in 400 years, after which the calendar repeats.
const CYCLE_DAYS: i64 = 146_097;
const CYCLE_YEARS: i64 = 400;
/// Days from the first of March of the year 0 to 1970-01-01.
const EPOCH_DAYS: i64 = 719_468;

/// Formatter of dates in the local time zone (`TZ`).
#[derive(Clone, Debug)]
pub(crate) struct LocalTime {
    zone: TimeZone,
    /// Offset of the time zone, if it never changes.
    fixed: Option<Offset>,
    last_seconds: i64,
    last: String,
}

impl Default for LocalTime {
    fn default() -> Self {
        Self::new(TimeZone::system())
    }
}

impl LocalTime {
    /// Creates a formatter for this time zone.
    pub(crate) fn new(zone: TimeZone) -> Self {
        let fixed = zone.to_fixed_offset().ok();
        Self {
            zone,
            fixed,
            last_seconds: 0,
            last: String::new(),
        }
    }

    /// Formats date and time, as in `2026-11-21 01:50:18`.
    pub(crate) fn date(&mut self, seconds: i64) -> &str {
        if self.last.is_empty() || seconds != self.last_seconds {
            let local = seconds.saturating_add(self.offset_seconds(seconds));
            self.last.clear();
            self.last_seconds = seconds;
            push_date(&mut self.last, local);
        }
        &self.last
    }

    fn offset_seconds(&self, seconds: i64) -> i64 {
        let offset = self.fixed.unwrap_or_else(|| {
            let range = Timestamp::MIN.as_second()..=Timestamp::MAX.as_second();
            let nearest = seconds.clamp(*range.start(), *range.end());
            Timestamp::from_second(nearest).map_or(Offset::UTC, |moment| self.zone.to_offset(moment))
        });
        i64::from(offset.seconds())
    }
}

/// Appends the date for a number of seconds after 1970-01-01 00:00:00 in the same time zone.
fn push_date(out: &mut String, seconds: i64) {
    let days = seconds.div_euclid(DAY_SECONDS).saturating_add(EPOCH_DAYS);
    let second_of_day = seconds.rem_euclid(DAY_SECONDS);
    // Years begin in March, so that the leap day is the last day.
    let cycle = days.div_euclid(CYCLE_DAYS);
    let day_of_cycle = days.rem_euclid(CYCLE_DAYS);
    let leap_days = (day_of_cycle / 1460)
        .saturating_sub(day_of_cycle / 36_524)
        .saturating_add(day_of_cycle / 146_096);
    let year_of_cycle = day_of_cycle.saturating_sub(leap_days) / 365;
    let days_before_year = year_of_cycle
        .saturating_mul(365)
        .saturating_add(year_of_cycle / 4)
        .saturating_sub(year_of_cycle / 100);
    let day_of_year = day_of_cycle.saturating_sub(days_before_year);
    let month_from_march = day_of_year.saturating_mul(5).saturating_add(2) / 153;
    let days_before_month = month_from_march.saturating_mul(153).saturating_add(2) / 5;
    let day = day_of_year.saturating_sub(days_before_month).saturating_add(1);
    let (month, carry) = if month_from_march < 10 {
        (month_from_march.saturating_add(3), 0)
    } else {
        (month_from_march.saturating_sub(9), 1)
    };
    let year = cycle
        .saturating_mul(CYCLE_YEARS)
        .saturating_add(year_of_cycle)
        .saturating_add(carry);
    let (hour, minute, second) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_near_and_far() {
        let mut clock = LocalTime::new(TimeZone::UTC);
        let cases = [
            (0, "1970-01-01 00:00:00"),
            (-1, "1969-12-31 23:59:59"),
            (1_795_225_818, "2026-11-21 01:50:18"),
            (951_782_400, "2000-02-29 00:00:00"),
            (951_868_799, "2000-02-29 23:59:59"),
            (951_868_800, "2000-03-01 00:00:00"),
            (4_107_542_400, "2100-03-01 00:00:00"),
            (4_107_456_000, "2100-02-28 00:00:00"),
            (253_402_300_800, "10000-01-01 00:00:00"),
            (-1_099_511_627_776, "-32873-11-12 23:23:44"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(clock.date(seconds), expected);
            assert_eq!(clock.date(seconds), expected, "remembered");
        }
        for seconds in [i64::MIN, i64::MAX] {
            assert!(clock.date(seconds).contains(':'));
        }
    }

    #[test]
    fn every_day_agrees_with_the_calendar() {
        let mut clock = LocalTime::new(TimeZone::UTC);
        for day in (-800_000..2_900_000i64).step_by(17) {
            let seconds = day * DAY_SECONDS;
            let Ok(moment) = Timestamp::from_second(seconds) else {
                continue;
            };
            let date = moment.to_zoned(TimeZone::UTC).date();
            if date.year() >= 0 {
                assert_eq!(clock.date(seconds), format!("{date} 00:00:00"));
            }
        }
    }

    #[test]
    fn zones_with_daylight_saving_are_followed() {
        let Ok(zone) = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3") else {
            panic!("a valid zone")
        };
        let mut clock = LocalTime::new(zone);
        assert_eq!(clock.date(1_795_225_818), "2026-11-21 02:50:18");
        assert_eq!(clock.date(1_783_000_000), "2026-07-02 15:46:40");
    }
}
