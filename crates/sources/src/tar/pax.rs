//! The records of extended headers: `LENGTH KEY=VALUE\n`. LENGTH includes its own digits.
//!
//! Source: POSIX.1-2017, pax, "pax Extended Header"; GNU tar manual, "Storing Sparse Files";
//! Further sources: star(5) for `SCHILY.*`; libarchive-formats(5) for `LIBARCHIVE.*`.

use std::collections::HashMap;

use buttress_format::Timestamp;
use buttress_format::printable::Printable;

use super::error::Problem;
use super::sparse::Sparse;
use crate::acl;

/// An extended attribute.
pub(super) type Xattr = (Vec<u8>, Vec<u8>);

/// The maximum number of extended attributes of one member.
const XATTRS_MAX: usize = 4096;

/// The fields of a member in extended headers.
#[derive(Clone, Debug, Default)]
pub(super) struct Extended {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u64>,
    pub(super) gid: Option<u64>,
    pub(super) modified: Option<Timestamp>,
    pub(super) device_major: Option<u64>,
    pub(super) device_minor: Option<u64>,
    pub(super) xattrs: Vec<Xattr>,
    /// The index in `xattrs` of each name: one header can repeat names many times.
    numbers: HashMap<Vec<u8>, usize>,
    pub(super) sparse: Sparse,
}

impl Extended {
    /// Adds the records of one extended header to the existing fields.
    pub(super) fn add(&mut self, body: &[u8]) -> Result<(), Problem> {
        let mut rest = body;
        while !rest.is_empty() {
            let at = body.len().saturating_sub(rest.len());
            let wrong = |what: String| Problem::Record { at, what };
            // Some programs pad extended headers with zeros.
            if rest.iter().all(|byte| *byte == 0) {
                return Ok(());
            }
            let space = rest.iter().take(20).position(|byte| *byte == b' ');
            let space = space.ok_or_else(|| wrong("a record does not start with its length".into()))?;
            let (digits, _) = rest.split_at_checked(space).unwrap_or_default();
            let length = decimal(digits)
                .and_then(|length| usize::try_from(length).ok())
                .ok_or_else(|| wrong(format!("\"{}\" is not a length", Printable(digits))))?;
            let (record, next) = rest.split_at_checked(length).ok_or_else(|| {
                wrong(format!(
                    "a record is incomplete (expected {length} bytes, found {})",
                    rest.len()
                ))
            })?;
            let text = record
                .get(space.saturating_add(1)..)
                .and_then(|text| text.strip_suffix(b"\n"))
                .ok_or_else(|| wrong(format!("a record of {length} bytes does not end with a newline")))?;
            let equals = text.iter().position(|byte| *byte == b'=');
            let (key, value) = equals
                .and_then(|equals| text.split_at_checked(equals))
                .ok_or_else(|| wrong("a record without \"=\"".into()))?;
            let value = value.get(1..).unwrap_or_default();
            self.record(key, value).map_err(|error| match error {
                Problem::Record { what, .. } => wrong(what),
                other => other,
            })?;
            rest = next;
        }
        Ok(())
    }

    fn record(&mut self, key: &[u8], value: &[u8]) -> Result<(), Problem> {
        if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
            return self.xattr(keyword_decoded(name), value.to_vec());
        }
        if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
            let name = percent_decoded(name);
            let value = crate::base64::decode(value).ok_or_else(|| wrong_value(key, value))?;
            return self.xattr(name, value);
        }
        if let Some(key) = key.strip_prefix(b"GNU.sparse.") {
            return self.sparse.record(key, value);
        }
        match key {
            b"path" => self.path = text(value),
            b"linkpath" => self.link = text(value),
            b"size" => self.size = number(key, value)?,
            b"uid" => self.uid = number(key, value)?,
            b"gid" => self.gid = number(key, value)?,
            b"mtime" => self.modified = time(key, value)?,
            b"SCHILY.devmajor" => self.device_major = number(key, value)?,
            b"SCHILY.devminor" => self.device_minor = number(key, value)?,
            b"SCHILY.acl.access" => self.access_list(b"system.posix_acl_access", value)?,
            b"SCHILY.acl.default" => self.access_list(b"system.posix_acl_default", value)?,
            b"RHT.security.selinux" => {
                // The attribute's value includes the terminating zero byte, as in the kernel.
                let mut label = value.to_vec();
                label.push(0);
                self.xattr(b"security.selinux".to_vec(), label)?;
            }
            // The reader ignores comments, owners' names, access times, character sets, and private
            // keys of other programs.
            _ => {}
        }
        Ok(())
    }

    fn access_list(&mut self, name: &[u8], value: &[u8]) -> Result<(), Problem> {
        if value.is_empty() {
            return Ok(());
        }
        let stored = acl::stored(value)?;
        self.xattr(name.to_vec(), stored)
    }

    fn xattr(&mut self, name: Vec<u8>, value: Vec<u8>) -> Result<(), Problem> {
        let count = self.xattrs.len();
        let number = self.numbers.get(&name).copied();
        match number.and_then(|number| self.xattrs.get_mut(number)) {
            Some((_, known)) => *known = value,
            None if count >= XATTRS_MAX => {
                return Err(Problem::Record {
                    at: 0,
                    what: format!("more than {XATTRS_MAX} extended attributes"),
                });
            }
            None => {
                self.numbers.insert(name.clone(), count);
                self.xattrs.push((name, value));
            }
        }
        Ok(())
    }
}

/// Returns a text value. An empty value removes an earlier value of the same key.
fn text(value: &[u8]) -> Option<Vec<u8>> {
    (!value.is_empty()).then(|| value.to_vec())
}

fn number(key: &[u8], value: &[u8]) -> Result<Option<u64>, Problem> {
    if value.is_empty() {
        return Ok(None);
    }
    match decimal(value) {
        Some(number) => Ok(Some(number)),
        None => Err(wrong_value(key, value)),
    }
}

pub(super) fn wrong_value(key: &[u8], value: &[u8]) -> Problem {
    let (head, _) = value.split_at_checked(80).unwrap_or((value, &[]));
    Problem::Record {
        at: 0,
        what: format!("invalid value of {}: \"{}\"", Printable(key), Printable(head)),
    }
}

/// Parses a decimal number without a sign.
pub(super) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 20 {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, digit| match digit {
        b'0'..=b'9' => number
            .checked_mul(10)?
            .checked_add(u64::from(digit.wrapping_sub(b'0'))),
        _ => None,
    })
}

/// Parses a time: seconds, possibly negative, with an optional fraction, of which nine digits
/// count.
fn time(key: &[u8], value: &[u8]) -> Result<Option<Timestamp>, Problem> {
    if value.is_empty() {
        return Ok(None);
    }
    parse_time(value).map(Some).ok_or_else(|| wrong_value(key, value))
}

fn parse_time(value: &[u8]) -> Option<Timestamp> {
    let (negative, digits) = match value.strip_prefix(b"-") {
        Some(digits) => (true, digits),
        None => (false, value),
    };
    let mut parts = digits.splitn(2, |byte| *byte == b'.');
    let seconds = i64::try_from(decimal(parts.next()?)?).ok()?;
    let mut nanoseconds = 0_u32;
    if let Some(fraction) = parts.next() {
        if !fraction.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let digits = fraction.iter().copied().chain(std::iter::repeat(b'0')).take(9);
        for digit in digits {
            nanoseconds = nanoseconds
                .checked_mul(10)?
                .checked_add(u32::from(digit.wrapping_sub(b'0')))?;
        }
    }
    if !negative {
        return Some(Timestamp { seconds, nanoseconds });
    }
    // The time -1.25 is two seconds before 1970 plus three quarters of a second.
    let seconds = seconds.checked_neg()?;
    Some(if nanoseconds == 0 {
        Timestamp { seconds, nanoseconds }
    } else {
        Timestamp {
            seconds: seconds.checked_sub(1)?,
            nanoseconds: 1_000_000_000_u32.checked_sub(nanoseconds)?,
        }
    })
}

/// Decodes `%3D` to `=` and `%25` to `%`, as GNU tar and `buttress tar` write names in keywords.
fn keyword_decoded(name: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((first, after)) = rest.split_first() {
        let (byte, after) = match rest.split_first_chunk::<3>() {
            Some((b"%3D", after)) => (b'=', after),
            Some((b"%25", after)) => (b'%', after),
            _ => (*first, after),
        };
        decoded.push(byte);
        rest = after;
    }
    decoded
}

/// Decodes `%41` to `A`, as in libarchive's names of attributes.
fn percent_decoded(name: &[u8]) -> Vec<u8> {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let mut decoded = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((first, after)) = rest.split_first() {
        let value = match (first, digit(after.first()), digit(after.get(1))) {
            (b'%', Some(high), Some(low)) => u8::try_from(high.wrapping_mul(16).wrapping_add(low)).ok(),
            _ => None,
        };
        match value {
            Some(value) => {
                decoded.push(value);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                decoded.push(*first);
                rest = after;
            }
        }
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &str, value: &[u8]) -> Vec<u8> {
        let rest = key.len() + value.len() + 3;
        let mut length = rest + 1;
        while length != rest + length.to_string().len() {
            length = rest + length.to_string().len();
        }
        [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
    }

    #[test]
    fn records_say_what_a_header_cannot() {
        let body = [
            record("path", b"a/long/name"),
            record("size", b"9000000000"),
            record("mtime", b"-1.25"),
            record("SCHILY.xattr.user.with\n=", b"a\0b\nc="),
            record("SCHILY.xattr.user.a%3Db%25%253D%41%3", b"%25"),
            record("LIBARCHIVE.xattr.user.%C3%A4", b"aGVsbG8"),
            record("SCHILY.xattr.user.empty", b""),
            record("comment", b"nothing"),
        ]
        .concat();
        let mut extended = Extended::default();
        extended.add(&body).unwrap();
        assert_eq!(extended.path.as_deref(), Some(&b"a/long/name"[..]));
        assert_eq!(extended.size, Some(9_000_000_000));
        assert_eq!(
            extended.modified,
            Some(Timestamp {
                seconds: -2,
                nanoseconds: 750_000_000
            })
        );
        assert_eq!(
            extended.xattrs,
            [
                // The name ends at the first "=".
                (b"user.with\n".to_vec(), b"=a\0b\nc=".to_vec()),
                (b"user.a=b%%3D%41%3".to_vec(), b"%25".to_vec()),
                ("user.ä".as_bytes().to_vec(), b"hello".to_vec()),
                (b"user.empty".to_vec(), Vec::new()),
            ]
        );
    }

    #[test]
    fn repeated_attribute_keeps_its_place_and_last_value() {
        let record =
            |name: usize, value: &str| record(&format!("SCHILY.xattr.user.{name}"), value.as_bytes());
        let mut extended = Extended::default();
        for round in ["first", "second"] {
            let body: Vec<Vec<u8>> = (0..XATTRS_MAX).map(|name| record(name, round)).collect();
            extended.add(&body.concat()).unwrap();
        }
        assert_eq!(extended.xattrs.len(), XATTRS_MAX);
        for (number, (name, value)) in extended.xattrs.iter().enumerate() {
            assert_eq!(
                (name, value),
                (&format!("user.{number}").into_bytes(), &b"second".to_vec())
            );
        }
        extended.add(&record(XATTRS_MAX, "more")).unwrap_err();
    }

    #[test]
    fn empty_value_removes_an_earlier_value() {
        let mut extended = Extended::default();
        extended.add(&record("path", b"x")).unwrap();
        extended.add(&record("path", b"")).unwrap();
        assert_eq!(extended.path, None);
    }

    #[test]
    fn invalid_records_are_reported_with_their_place() {
        let first = record("comment", b"fine");
        for wrong in [
            &b"x path=a\n"[..],
            b"99 path=a\n",
            b"9 path=a ",
            b"7 path\n",
            b"0 path=a\n",
            b"18446744073709551616 path=a\n",
            b"12 size=abc\n",
            b"path",
        ] {
            let mut extended = Extended::default();
            let body = [first.as_slice(), wrong].concat();
            let error = extended.add(&body).unwrap_err();
            assert!(
                matches!(&error, Problem::Record { at, .. } if *at == first.len()),
                "{wrong:?}: {error}"
            );
        }
    }
}
