//! The seeds of random tests.
//!
//! An ordinary run is deterministic: each test names its seeds. A nightly run sets [`DATE`] to the
//! day's date, and each test then adds seeds derived from the date and the test's name. If the
//! test's own variable is set, its value is the only seed. Each seed is printed before use, with
//! the command that repeats it.
//!
//! A seed that ever failed is added to its test's named seeds.

use std::env;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

/// The variable that a nightly run sets to the day's date. Any text is a valid date.
pub const DATE: &str = "BUTTRESS_SEED_DATE";

/// Returns the day's date in UTC, such as `2026-11-25`.
#[must_use]
pub fn today() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    date_of(now.map_or(0, |time| time.as_secs() / 86_400))
}

/// Returns the date of a day since 1970-01-01.
fn date_of(day: u64) -> String {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut day) = (1970, day);
    while day >= 365 + u64::from(is_leap(year)) {
        day -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", day + 1)
}

/// The bound of seeds from the date, so that tests may multiply them.
const BOUND: u64 = 1 << 31;

/// Returns and prints the seeds of the test `test`: the value of `variable` if it is set, otherwise
/// `named`. A nightly run adds as many seeds from the date.
///
/// # Panics
/// Panics if `variable` is set to something other than a number.
#[must_use]
pub fn seeds(test: &str, variable: &str, named: &[u64]) -> Vec<u64> {
    let chosen = chosen(
        test,
        number::<u64>(variable),
        named,
        env::var(DATE).ok().as_deref(),
    );
    println!("{test}: seeds {chosen:?}; to run one of them: {variable}=SEED");
    chosen
}

/// Returns the single seed of the test `test`, or the first of several consecutive ones, as
/// [`seeds`] does. In a nightly run the seed from the date replaces the named one.
///
/// # Panics
/// `variable` is set to something other than a number.
#[must_use]
pub fn seed(test: &str, variable: &str, named: u64) -> u64 {
    let chosen = chosen(
        test,
        number::<u64>(variable),
        &[named],
        env::var(DATE).ok().as_deref(),
    );
    let seed = chosen.last().copied().unwrap_or(named);
    println!("{test}: seed {seed}; to run it again: {variable}={seed}");
    seed
}

/// Returns the size of a random run: the value of `variable` if it is set, otherwise `full` in a
/// nightly run and `ordinary` in other runs.
///
/// With the ordinary size the suite takes minutes. A nightly run has hours for the full size, and
/// new seeds.
///
/// # Panics
/// `variable` is set to something other than a number.
#[must_use]
pub fn budget(variable: &str, ordinary: u64, full: u64) -> u64 {
    size(number(variable), env::var_os(DATE).is_some(), ordinary, full)
}

fn size(set: Option<u64>, is_nightly: bool, ordinary: u64, full: u64) -> u64 {
    set.unwrap_or(if is_nightly { full } else { ordinary })
}

/// Returns the day's seed, from the date in [`DATE`] if it is set, otherwise from today's date.
/// Prints the seed with the command that repeats it.
#[must_use]
pub fn seed_of_day(run: &str) -> u64 {
    let date = env::var(DATE).unwrap_or_else(|_| today());
    let seed = hash(format!("{run} {date}").as_bytes()) % BOUND;
    println!("{run}: seed {seed}, of {date}; to run it again: --seed {seed}");
    seed
}

fn chosen(test: &str, set: Option<u64>, named: &[u64], date: Option<&str>) -> Vec<u64> {
    if let Some(set) = set {
        return vec![set];
    }
    let of_date = |date: &str| {
        let (test, date) = (test.to_owned(), date.to_owned());
        (0..named.len()).map(move |index| hash(format!("{test} {date} {index}").as_bytes()) % BOUND)
    };
    named
        .iter()
        .copied()
        .chain(date.into_iter().flat_map(of_date))
        .collect()
}

/// Returns the FNV-1a hash, which does not change between versions.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Returns the number in the environment variable `variable`, or `None` if it is not set.
///
/// # Panics
/// Panics if the variable is set to something other than a number.
#[must_use]
pub fn number<T: FromStr>(variable: &str) -> Option<T> {
    let text = env::var(variable).ok()?;
    match text.parse() {
        Ok(number) => Some(number),
        Err(_) => panic!("{variable}={text}: not a number"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_run_uses_named_seeds_only() {
        assert_eq!(chosen("test", None, &[16, 3], None), [16, 3]);
        assert_eq!(chosen("test", Some(9), &[16, 3], Some("2026-11-25")), [9]);
    }

    #[test]
    fn nightly_run_takes_full_budget() {
        assert_eq!(size(None, false, 3, 30), 3);
        assert_eq!(size(None, true, 3, 30), 30);
        assert_eq!(size(Some(7), true, 3, 30), 7, "the variable decides");
    }

    #[test]
    fn days_have_dates() {
        let dates = [0, 58, 59, 789, 790, 11_016, 11_017, 20_782, 20_819].map(date_of);
        assert_eq!(
            dates,
            [
                "1970-01-01",
                "1970-02-28",
                "1970-03-01",
                "1972-02-29",
                "1972-03-01",
                "2000-02-29",
                "2000-03-01",
                "2026-11-25",
                "2027-01-01",
            ]
        );
    }

    #[test]
    fn date_and_test_choose_further_seeds() {
        let on = |test, date| chosen(test, None, &[16, 3], Some(date));
        let today = on("test", "2026-11-25");
        assert_eq!(today.len(), 4);
        assert_eq!(today[..2], [16, 3]);
        assert_eq!(today, on("test", "2026-11-25"));
        assert_ne!(today[2..], on("test", "2026-11-26")[2..]);
        assert_ne!(today[2..], on("other", "2026-11-25")[2..]);
        assert!(today[2..].iter().all(|seed| *seed < BOUND));
    }
}
