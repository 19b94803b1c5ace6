//! Reads a tar stream (ustar, pax, GNU sparse 1.0) into a manifest, sequentially.
//!
//! The reader follows the formats' documents (POSIX pax, the GNU tar manual's "Sparse Formats"),
//! independently of the writer that it tests. The reader is strict: an unknown type, a bad checksum
//! or a missing end is an error.

use anyhow::{Context, Result, bail, ensure};
use buttress_oracle::manifest::{DataRange, Entry, Manifest, Time, link_groups, shown};
use std::collections::{BTreeMap, HashMap};
use std::io::Read;

const BLOCK: usize = 512;

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// Returns the manifest of the tar stream `reader`. The manifest names members `./…`, the top
/// directory first.
pub fn manifest(mut reader: impl Read) -> Result<Manifest> {
    let mut manifest = Manifest::new();
    let mut groups: HashMap<Vec<u8>, Vec<Vec<u8>>> = HashMap::new();
    let mut records = Records::new();
    loop {
        let header = block(&mut reader)?;
        if header.iter().all(|byte| *byte == 0) {
            ensure!(
                block(&mut reader)?.iter().all(|byte| *byte == 0),
                "one zero block, not two, at the end"
            );
            break;
        }
        check_sum(&header)?;
        let length = number(&header[124..136])?;
        if header[156] == b'x' {
            records = pax_records(&data(&mut reader, length)?)?;
            continue;
        }
        let (path, entry) = member(&mut reader, &header, &std::mem::take(&mut records))?;
        if header[156] == b'1' {
            let target = relative(&entry.target)?;
            let Some(original) = manifest.get(&target).cloned() else {
                bail!(
                    "{} links to {}, which did not come before it",
                    shown(&path),
                    shown(&target)
                );
            };
            groups
                .entry(target.clone())
                .or_insert_with(|| vec![target])
                .push(path.clone());
            manifest.insert(path, original);
        } else if manifest.insert(path.clone(), entry).is_some() {
            bail!("{} comes twice", shown(&path));
        }
    }
    link_groups(&mut manifest, groups.into_values());
    Ok(manifest)
}

fn member(reader: &mut impl Read, header: &[u8; BLOCK], records: &Records) -> Result<(Vec<u8>, Entry)> {
    let text = |name: &str| records.get(name.as_bytes());
    let mut name = match text("GNU.sparse.name").or_else(|| text("path")) {
        Some(name) => name.clone(),
        None => header_name(header),
    };
    let length = match text("size") {
        Some(size) => decimal(size)?,
        None => number(&header[124..136])?,
    };
    let type_bits = match header[156] {
        b'0' | 0 | b'1' => 0o100_000,
        b'2' => 0o120_000,
        b'3' => 0o020_000,
        b'4' => 0o060_000,
        b'5' => 0o040_000,
        b'6' => 0o010_000,
        other => bail!("type {:?} of {}", char::from(other), shown(&name)),
    };
    if type_bits == 0o040_000 && name.ends_with(b"/") {
        name.pop();
    }
    let id = |field: &str, range: std::ops::Range<usize>| match text(field) {
        Some(value) => decimal(value),
        None => number(&header[range]),
    };
    let mut entry = Entry {
        mode: type_bits | u32::try_from(number(&header[100..108])?)?,
        uid: u32::try_from(id("uid", 108..116)?)?,
        gid: u32::try_from(id("gid", 116..124)?)?,
        modified: match text("mtime") {
            Some(value) => pax_time(value)?,
            None => (i64::try_from(number(&header[136..148])?)?, 0),
        },
        ..Entry::default()
    };
    if matches!(header[156], b'1' | b'2') {
        entry.target = text("linkpath")
            .cloned()
            .unwrap_or_else(|| until_zero(&header[157..257]));
    }
    if matches!(header[156], b'3' | b'4') {
        entry.device = (
            u32::try_from(number(&header[329..337])?)?,
            u32::try_from(number(&header[337..345])?)?,
        );
    }
    for (key, value) in records {
        if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
            entry.xattrs.insert(name.to_vec(), value.clone());
        }
    }
    let path = relative(&name)?;
    content(reader, records, length, &mut entry).with_context(|| shown(&path))?;
    Ok((path, entry))
}

/// Reads a member's data and its padding into `entry.data` and `entry.size`.
fn content(reader: &mut impl Read, records: &Records, length: u64, entry: &mut Entry) -> Result<()> {
    let mut left = length;
    let sparse = records.contains_key(b"GNU.sparse.major".as_slice());
    let ranges = if sparse {
        let real = records
            .get(b"GNU.sparse.realsize".as_slice())
            .context("no GNU.sparse.realsize")?;
        entry.size = decimal(real)?;
        sparse_map(reader, &mut left)?
    } else {
        entry.size = length;
        if length == 0 {
            Vec::new()
        } else {
            vec![(0, length)]
        }
    };
    for (start, count) in ranges {
        let mut crc = 0;
        let mut rest = count;
        let mut buffer = vec![0u8; 65_536];
        while rest > 0 {
            let part = rest.min(buffer.len() as u64) as usize;
            reader
                .read_exact(&mut buffer[..part])
                .context("data ends early")?;
            crc = crc32c::crc32c_append(crc, &buffer[..part]);
            rest -= part as u64;
        }
        left = left
            .checked_sub(count)
            .context("the sparse map names more data than the member holds")?;
        let range = DataRange {
            start,
            end: start + count,
            crc32c: crc,
        };
        match entry.data.last_mut() {
            Some(last) if last.end >= start => bail!("ranges that touch are not merged: {last:?}, {range:?}"),
            _ if count > 0 => entry.data.push(range),
            _ => {}
        }
    }
    ensure!(
        left == 0,
        "{left} bytes of data that the sparse map does not name"
    );
    let padding = length.next_multiple_of(BLOCK as u64) - length;
    drop(exactly(reader, padding as usize)?);
    Ok(())
}

fn sparse_map(reader: &mut impl Read, left: &mut u64) -> Result<Vec<(u64, u64)>> {
    let mut bytes = Vec::new();
    let mut numbers: Vec<u64> = Vec::new();
    let mut wanted = 1;
    while numbers.len() < wanted {
        bytes.extend_from_slice(&block(reader)?);
        *left = left
            .checked_sub(BLOCK as u64)
            .context("the sparse map is longer than the member")?;
        numbers.clear();
        let mut parts: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
        parts.pop();
        for part in parts {
            numbers.push(decimal(part)?);
        }
        if let Some(count) = numbers.first() {
            wanted = 1 + 2 * usize::try_from(*count)?;
        }
    }
    Ok(numbers[1..wanted]
        .chunks_exact(2)
        .map(|pair| (pair[0], pair[1]))
        .collect())
}

fn block(reader: &mut impl Read) -> Result<[u8; BLOCK]> {
    let mut block = [0; BLOCK];
    reader.read_exact(&mut block).context("the stream ends early")?;
    Ok(block)
}

fn exactly(reader: &mut impl Read, length: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes).context("the stream ends early")?;
    Ok(bytes)
}

fn data(reader: &mut impl Read, length: u64) -> Result<Vec<u8>> {
    let mut bytes = exactly(reader, usize::try_from(length.next_multiple_of(BLOCK as u64))?)?;
    bytes.truncate(usize::try_from(length)?);
    Ok(bytes)
}

fn check_sum(header: &[u8; BLOCK]) -> Result<()> {
    let stored = number(&header[148..156])?;
    let sum: u64 = header
        .iter()
        .enumerate()
        .map(|(at, byte)| {
            if (148..156).contains(&at) {
                32
            } else {
                u64::from(*byte)
            }
        })
        .sum();
    ensure!(sum == stored, "header checksum is {stored}, computed {sum}");
    ensure!(&header[257..262] == b"ustar", "no ustar magic");
    Ok(())
}

/// Parses an octal number, or GNU's base-256 form.
fn number(field: &[u8]) -> Result<u64> {
    if field[0] & 0x80 != 0 {
        let mut value = u64::from(field[0] & 0x7f);
        for byte in &field[1..] {
            value = value.checked_mul(256).context("base-256 number too large")? + u64::from(*byte);
        }
        return Ok(value);
    }
    let text = std::str::from_utf8(field)?.trim_matches(['\0', ' ']);
    if text.is_empty() {
        Ok(0)
    } else {
        Ok(u64::from_str_radix(text, 8)?)
    }
}

fn decimal(text: &[u8]) -> Result<u64> {
    let text = std::str::from_utf8(text)?;
    text.parse()
        .with_context(|| format!("{text:?} is not a decimal number"))
}

fn pax_time(text: &[u8]) -> Result<Time> {
    let text = std::str::from_utf8(text)?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let negative = whole.starts_with('-');
    let seconds: i64 = whole.parse().with_context(|| format!("time {text:?}"))?;
    let nanoseconds: u32 = format!("{fraction:0<9}").get(..9).context("fraction")?.parse()?;
    // The text -1.25 means a quarter of a second before -1: seconds round down, nanoseconds count
    // up.
    if negative && nanoseconds > 0 {
        Ok((seconds - 1, 1_000_000_000 - nanoseconds))
    } else {
        Ok((seconds, nanoseconds))
    }
}

fn pax_records(mut bytes: &[u8]) -> Result<Records> {
    let mut records = Records::new();
    while !bytes.is_empty() {
        let space = bytes
            .iter()
            .position(|byte| *byte == b' ')
            .context("a pax record without a length")?;
        let length = usize::try_from(decimal(&bytes[..space])?)?;
        ensure!(
            length > space + 2 && length <= bytes.len(),
            "pax record of {length} bytes"
        );
        let (record, rest) = bytes.split_at(length);
        let body = record[space + 1..]
            .strip_suffix(b"\n")
            .context("a pax record without a newline")?;
        let equals = body
            .iter()
            .position(|byte| *byte == b'=')
            .context("a pax record without =")?;
        records.insert(body[..equals].to_vec(), body[equals + 1..].to_vec());
        bytes = rest;
    }
    Ok(records)
}

fn header_name(header: &[u8; BLOCK]) -> Vec<u8> {
    let (prefix, name) = (until_zero(&header[345..500]), until_zero(&header[0..100]));
    if prefix.is_empty() {
        name
    } else {
        [prefix, name].join(&b'/')
    }
}

fn until_zero(field: &[u8]) -> Vec<u8> {
    field.split(|byte| *byte == 0).next().unwrap_or_default().to_vec()
}

fn relative(name: &[u8]) -> Result<Vec<u8>> {
    match name {
        b"." | b"./" => Ok(Vec::new()),
        _ => Ok(name
            .strip_prefix(b"./")
            .with_context(|| format!("member {} is not ./…", shown(name)))?
            .to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_the_epoch_round_down() {
        assert_eq!(pax_time(b"-86400.999999999").unwrap(), (-86_401, 1));
        assert_eq!(pax_time(b"12.5").unwrap(), (12, 500_000_000));
        assert_eq!(pax_time(b"7").unwrap(), (7, 0));
    }

    #[test]
    fn gnu_tar_is_read_as_it_meant() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().join("top");
        std::fs::create_dir(&top).unwrap();
        std::fs::write(top.join("a"), b"alpha").unwrap();
        std::fs::hard_link(top.join("a"), top.join("b")).unwrap();
        std::fs::write(top.join("x".repeat(200)), b"long").unwrap();
        std::os::unix::fs::symlink("y".repeat(150), top.join("s")).unwrap();
        let sparse = std::fs::File::create(top.join("sparse")).unwrap();
        sparse.set_len(10 << 20).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&sparse, &[7; 8192], 4 << 20).unwrap();
        let tar = std::process::Command::new("tar")
            .args(["--format=posix", "--sparse", "-cf", "-", "-C"])
            .arg(&top)
            .arg(".")
            .output()
            .unwrap();
        let mut expected = buttress_oracle::manifest::of_directory(&top).unwrap();
        for entry in expected.values_mut() {
            entry.extra = None;
            entry.xattrs.clear();
        }
        buttress_oracle::manifest::expect_equal("tar", &expected, &manifest(&tar.stdout[..]).unwrap())
            .unwrap();
    }
}
