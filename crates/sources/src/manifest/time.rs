//! Times in manifests: `2024-02-29T12:00:00.5Z`, or `"@1709208000.5"` if the year does not have
//! four digits.

use std::fmt::Write as _;

use buttress_format::Timestamp;

/// Parses a time; returns `None` if the value is no time.
pub(super) fn parse(value: &toml::Value) -> Option<Timestamp> {
    match value {
        toml::Value::Datetime(date) => {
            let time: jiff::Timestamp = date.to_string().parse().ok()?;
            let nanoseconds = i64::from(time.subsec_nanosecond());
            // In this form, fractions of seconds count backwards before 1970.
            let (seconds, nanoseconds) = if nanoseconds < 0 {
                (
                    time.as_second().checked_sub(1)?,
                    nanoseconds.checked_add(1_000_000_000)?,
                )
            } else {
                (time.as_second(), nanoseconds)
            };
            Some(Timestamp {
                seconds,
                nanoseconds: u32::try_from(nanoseconds).ok()?,
            })
        }
        toml::Value::Integer(seconds) => Some(Timestamp {
            seconds: *seconds,
            nanoseconds: 0,
        }),
        toml::Value::String(text) => {
            let text = text.strip_prefix('@')?;
            let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
            if fraction.len() > 9 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            let nanoseconds = format!("{fraction:0<9}").parse().ok()?;
            Some(Timestamp {
                seconds: seconds.parse().ok()?,
                nanoseconds,
            })
        }
        _ => None,
    }
}

/// Formats a time. In the form `@` with a fraction, the fraction counts upwards from the second
/// below, also before 1970.
pub(super) fn write(time: Timestamp) -> String {
    let mut text = match jiff::Timestamp::from_second(time.seconds) {
        // TOML's dates hold the years 0001 to 9999.
        Ok(date)
            if (-62_135_596_800..=253_402_300_799).contains(&time.seconds)
                && time.nanoseconds < 1_000_000_000 =>
        {
            let text = date.to_string();
            text.strip_suffix('Z').unwrap_or(&text).to_owned()
        }
        _ => {
            let mut text = format!("\"@{}", time.seconds);
            if time.nanoseconds > 0 {
                let _ = write!(text, ".{:09}", time.nanoseconds.min(999_999_999));
            }
            text.push('"');
            return text;
        }
    };
    if time.nanoseconds > 0 {
        let _ = write!(text, ".{:09}", time.nanoseconds);
    }
    text.push('Z');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> toml::Value {
        let table: toml::Table = toml::from_str(&format!("a = {text}")).unwrap();
        table["a"].clone()
    }

    #[test]
    fn times_survive_a_round_trip() {
        for seconds in [
            0,
            1,
            -1,
            951_782_400,
            253_402_300_799,
            253_402_300_800,
            -62_135_596_800,
            -62_135_596_801,
            i64::MIN,
            i64::MAX,
        ] {
            for nanoseconds in [0, 1, 500_000_000, 999_999_999] {
                let time = Timestamp { seconds, nanoseconds };
                let text = write(time);
                assert_eq!(parse(&value(&text)), Some(time), "{text}");
            }
        }
        assert_eq!(
            write(Timestamp {
                seconds: 951_782_400,
                nanoseconds: 7
            }),
            "2000-02-29T00:00:00.000000007Z"
        );
    }

    #[test]
    fn spellings_and_what_is_none() {
        let seconds = |text: &str| parse(&value(text)).map(|time| (time.seconds, time.nanoseconds));
        assert_eq!(seconds("1970-01-01T01:00:00.5+01:00"), Some((0, 500_000_000)));
        assert_eq!(seconds("1969-12-31T23:59:59.25Z"), Some((-1, 250_000_000)));
        assert_eq!(seconds("17"), Some((17, 0)));
        assert_eq!(seconds("\"@-5\""), Some((-5, 0)));
        for text in [
            "1970-01-01",
            "1970-01-01T00:00:00",
            "\"yesterday\"",
            "\"@1.1234567890\"",
            "1.5",
            "true",
        ] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }
}
