//! Send streams as text: one line per command, byte for byte as `btrfs receive --dump` of
//! btrfs-progs 6.14 prints them.
//!
//! A line consists of the command, padded to 16 columns; the path, padded to 32; and the other
//! attributes as `key=value`. Each path begins with `./` and the name of the subvolume, so a dump
//! remembers the name of the current subvolume. The dump escapes control characters, bytes beyond
//! ASCII, spaces and backslashes as in C. A line of a dump therefore stays one line and prints on
//! any terminal.
//!
//! Some details only follow btrfs-progs. `fileattr=0x` precedes a decimal number. The dump prints
//! the mode of a preallocation as a signed number. The group comes before the owner. The target of
//! a hard link has no subvolume name before it, but the target of a rename has. The dump omits
//! creation times.
//!
//! A time in a year beyond 32 bits prints as `@seconds`; btrfs-progs fails with an error for such a
//! time.

use crate::command::Command;
use buttress_format::Timestamp;
use jiff::tz::TimeZone;
use std::io::Write;

/// Width of the command column, in characters.
const COMMAND_COLUMNS: usize = 16;

/// Width of the path column, in characters.
const PATH_COLUMNS: usize = 32;

/// Period after which the calendar repeats, weekdays included, in years.
const CYCLE_YEARS: i64 = 400;
const CYCLE_SECONDS: i64 = 146_097 * 86_400;

/// 18 calendar cycles in seconds. Before and after 1970, the calendar library supports more years
/// than this limit.
const CALENDAR_SECONDS: i64 = 18 * CYCLE_SECONDS;

/// Formatter that prints stream commands one after another.
#[derive(Clone, Debug)]
pub struct TextDump {
    zone: TimeZone,
    /// Escaped `./NAME` of the subvolume that began last.
    subvolume: Vec<u8>,
}

impl TextDump {
    /// Creates a dump with times in the time zone of the machine (`TZ`).
    #[must_use]
    pub fn new() -> Self {
        Self::with_zone(TimeZone::system())
    }

    /// Creates a dump with times in UTC, for output that must not depend on the machine.
    #[must_use]
    pub const fn utc() -> Self {
        Self::with_zone(TimeZone::UTC)
    }

    /// Creates a dump with times in `zone`.
    #[must_use]
    pub const fn with_zone(zone: TimeZone) -> Self {
        Self {
            zone,
            subvolume: Vec::new(),
        }
    }

    /// Appends the line of a command to `out`. The end command has no line.
    pub fn line(&mut self, command: &Command<'_>, out: &mut Vec<u8>) {
        let Some(path) = command.path() else { return };
        if let Command::Subvolume { path, .. } | Command::Snapshot { path, .. } = command {
            self.subvolume.clear();
            self.subvolume.extend_from_slice(b"./");
            escape(path, &mut self.subvolume);
            begin(command, out);
            out.extend_from_slice(&self.subvolume);
        } else {
            begin(command, out);
            self.path(path, out);
        }
        let line_bytes = out.len();
        pad(out);
        let padded_bytes = out.len();
        self.details(command, out);
        if out.len() == padded_bytes {
            out.truncate(line_bytes);
        }
        out.push(b'\n');
    }

    /// Appends a path below the current subvolume.
    fn path(&self, path: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&self.subvolume);
        out.push(b'/');
        escape(path, out);
    }

    /// Appends the attributes that follow the path.
    fn details(&self, command: &Command<'_>, out: &mut Vec<u8>) {
        match *command {
            Command::Mkfile { .. }
            | Command::Mkdir { .. }
            | Command::Mkfifo { .. }
            | Command::Mksock { .. }
            | Command::Unlink { .. }
            | Command::Rmdir { .. }
            | Command::End => {}
            Command::Rename { to, .. } => {
                out.extend_from_slice(b"dest=");
                self.path(to, out);
            }
            Command::Symlink { target, .. } | Command::Link { target, .. } => {
                out.extend_from_slice(b"dest=");
                escape(target, out);
            }
            Command::SetXattr { name, value, .. } => {
                out.extend_from_slice(b"name=");
                escape(name, out);
                out.push(b' ');
                escape(value, out);
                print(out, format_args!(" len={}", value.len()));
            }
            Command::RemoveXattr { name, .. } => {
                out.extend_from_slice(b"name=");
                escape(name, out);
            }
            Command::Clone {
                offset,
                length,
                source_path,
                source_offset,
                ..
            } => {
                print(out, format_args!("offset={offset} len={length} from="));
                self.path(source_path, out);
                print(out, format_args!(" clone_offset={source_offset}"));
            }
            Command::Utimes {
                atime, mtime, ctime, ..
            } => {
                for (key, time) in [("atime", atime), (" mtime", mtime), (" ctime", ctime)] {
                    print(out, format_args!("{key}="));
                    self.time(time, out);
                }
            }
            _ => numbers(command, out),
        }
    }

    /// Appends a time as `2026-11-21T01:47:58+0000`. A year has as many digits as it needs.
    fn time(&self, time: Timestamp, out: &mut Vec<u8>) {
        let cycles = cycles_outside(time.seconds);
        let within = time.seconds.saturating_sub(cycles.saturating_mul(CYCLE_SECONDS));
        let Ok(moment) = jiff::Timestamp::from_second(within) else {
            return print(out, format_args!("@{}", time.seconds));
        };
        let moment = moment.to_zoned(self.zone.clone());
        let year = i64::from(moment.year()).saturating_add(cycles.saturating_mul(CYCLE_YEARS));
        if i32::try_from(year.saturating_sub(1900)).is_err() {
            return print(out, format_args!("@{}", time.seconds));
        }
        let offset = moment.offset().seconds();
        let sign = if offset < 0 { '-' } else { '+' };
        let offset_minutes = offset.unsigned_abs() / 60;
        print(
            out,
            format_args!(
                "{year}-{:02}-{:02}T{:02}:{:02}:{:02}{sign}{:02}{:02}",
                moment.month(),
                moment.day(),
                moment.hour(),
                moment.minute(),
                moment.second(),
                offset_minutes / 60,
                offset_minutes % 60,
            ),
        );
    }
}

/// Returns the number of calendar cycles by which a time exceeds the years that the calendar
/// library supports.
const fn cycles_outside(seconds: i64) -> i64 {
    let known = if seconds > CALENDAR_SECONDS {
        CALENDAR_SECONDS
    } else if seconds < -CALENDAR_SECONDS {
        -CALENDAR_SECONDS
    } else {
        return 0;
    };
    seconds.saturating_sub(known) / CYCLE_SECONDS
}

impl Default for TextDump {
    fn default() -> Self {
        Self::new()
    }
}

/// Appends the attributes of commands that have only numbers.
fn numbers(command: &Command<'_>, out: &mut Vec<u8>) {
    match *command {
        Command::Subvolume { uuid, transid, .. } => {
            print(out, format_args!("uuid={uuid} transid={transid}"));
        }
        Command::Snapshot {
            uuid,
            transid,
            clone_uuid,
            clone_transid,
            ..
        } => print(
            out,
            format_args!(
                "uuid={uuid} transid={transid} parent_uuid={clone_uuid} parent_transid={clone_transid}"
            ),
        ),
        Command::Mknod { device, mode, .. } => print(out, format_args!("mode={mode:o} dev={device:#x}")),
        Command::Write { offset, data, .. } => {
            print(out, format_args!("offset={offset} len={}", data.len()));
        }
        Command::Truncate { size, .. } => print(out, format_args!("size={size}")),
        Command::Chmod { mode, .. } => print(out, format_args!("mode={mode:o}")),
        Command::Chown { uid, gid, .. } => print(out, format_args!("gid={gid} uid={uid}")),
        Command::UpdateExtent { offset, length, .. } => {
            print(out, format_args!("offset={offset} len={length}"));
        }
        Command::Fallocate {
            mode, offset, length, ..
        } => print(
            out,
            format_args!("mode={} offset={offset} len={length}", mode.cast_signed()),
        ),
        Command::FileAttributes { attributes, .. } => print(out, format_args!("fileattr=0x{attributes}")),
        Command::EncodedWrite {
            offset,
            unencoded_file_bytes,
            unencoded_bytes,
            unencoded_offset,
            compression,
            encryption,
            data,
            ..
        } => print(
            out,
            format_args!(
                "offset={offset} len={} unencoded_file_len={unencoded_file_bytes} \
                 unencoded_len={unencoded_bytes} unencoded_offset={unencoded_offset} compression={} encryption={}",
                data.len(),
                compression.unwrap_or(0),
                encryption.unwrap_or(0),
            ),
        ),
        Command::EnableVerity {
            algorithm,
            block_size,
            salt,
            signature,
            ..
        } => print(
            out,
            format_args!(
                "algorithm={algorithm} block_size={block_size} salt_len={} sig_len={}",
                salt.len(),
                signature.len(),
            ),
        ),
        _ => {}
    }
}

/// Appends the command's name, padded to its column.
fn begin(command: &Command<'_>, out: &mut Vec<u8>) {
    print(out, format_args!("{:<COMMAND_COLUMNS$}", command.kind()));
}

/// Pads the path at the end of `out` to its column. In a dump line, a longer path gets one space
/// after it.
fn pad(out: &mut Vec<u8>) {
    let line_start = out
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |at| at.saturating_add(1));
    let columns = out
        .len()
        .saturating_sub(line_start)
        .saturating_sub(COMMAND_COLUMNS);
    let spaces = PATH_COLUMNS.saturating_sub(columns).max(1);
    out.resize(out.len().saturating_add(spaces), b' ');
}

/// Appends formatted text.
fn print(out: &mut Vec<u8>, text: core::fmt::Arguments<'_>) {
    // Writing to a vector does not fail.
    let _ = out.write_fmt(text);
}

/// Appends a name and escapes unprintable and non-ASCII bytes, spaces and backslashes.
fn escape(name: &[u8], out: &mut Vec<u8>) {
    for &byte in name {
        match byte {
            0x07 => out.extend_from_slice(b"\\a"),
            0x08 => out.extend_from_slice(b"\\b"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            0x0b => out.extend_from_slice(b"\\v"),
            0x0c => out.extend_from_slice(b"\\f"),
            b'\r' => out.extend_from_slice(b"\\r"),
            0x1b => out.extend_from_slice(b"\\e"),
            b' ' => out.extend_from_slice(b"\\ "),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'!'..=b'~' => out.push(byte),
            _ => print(out, format_args!("\\{byte:03o}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use buttress_format::{ByteCount, FileOffset, Generation, Uuid};

    fn dump(zone: TimeZone, commands: &[Command<'_>]) -> String {
        let mut dump = TextDump::with_zone(zone);
        let mut out = Vec::new();
        for command in commands {
            dump.line(command, &mut out);
        }
        String::from_utf8(out).unwrap()
    }

    fn begin<'a>(path: &'a [u8]) -> Command<'a> {
        Command::Subvolume {
            path,
            uuid: Uuid::nil(),
            transid: Generation::new(1),
        }
    }

    #[test]
    fn paths_are_padded_and_long_ones_get_one_space() {
        for length in 20..40 {
            let path = vec![b'x'; length];
            let text = dump(
                TimeZone::UTC,
                &[
                    begin(b"s"),
                    Command::Chmod {
                        path: &path,
                        mode: 0o644,
                    },
                    Command::Unlink { path: &path },
                ],
            );
            let lines: Vec<_> = text.lines().collect();
            let path = String::from_utf8(path).unwrap();
            assert_eq!(
                lines[1],
                format!("chmod           {:<31} mode=644", format!("./s/{path}"))
            );
            assert_eq!(lines[2], format!("unlink          ./s/{path}"));
        }
    }

    #[test]
    fn every_byte_is_escaped_as_btrfs_progs_does() {
        let all: Vec<u8> = (0..=255).collect();
        let mut out = Vec::new();
        escape(&all, &mut out);
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with(
            "\\000\\001\\002\\003\\004\\005\\006\\a\\b\\t\\n\\v\\f\\r\\016\\017\\020\\021\\022\\023\\024\\025\\026\
             \\027\\030\\031\\032\\e\\034\\035\\036\\037\\ !\"#$%"
        ));
        assert!(text.contains("[\\\\]^"));
        assert!(text.contains("}~\\177\\200"));
        assert!(text.ends_with("\\376\\377"));
    }

    #[test]
    fn times_are_local_and_any_number_prints() {
        let berlin = TimeZone::get("Europe/Berlin").unwrap();
        let time = |seconds| Timestamp {
            seconds,
            nanoseconds: u32::MAX,
        };
        let text = dump(
            berlin,
            &[
                begin(b"s"),
                Command::Utimes {
                    path: b"f",
                    atime: time(-1),
                    mtime: time(-62_135_596_801),
                    ctime: time(i64::MIN),
                    otime: Some(time(0)),
                },
            ],
        );
        assert_eq!(
            text.lines().last().unwrap(),
            "utimes          ./s/f                           atime=1970-01-01T00:59:59+0100 \
             mtime=1-01-01T00:53:27+0053 ctime=@-9223372036854775808"
        );
    }

    #[test]
    fn years_may_have_any_number_of_digits() {
        let cases = [
            (253_402_300_800, "10000-01-01T00:00:00+0000"),
            (1 << 40, "36812-02-20T00:36:16+0000"),
            (-(1 << 40), "-32873-11-12T23:23:44+0000"),
            (67_768_036_191_676_799, "2147485547-12-31T23:59:59+0000"),
            (67_768_036_191_676_800, "@67768036191676800"),
            (-67_768_040_609_740_800, "-2147481748-01-01T00:00:00+0000"),
            (-67_768_040_609_740_801, "@-67768040609740801"),
            (18 * CYCLE_SECONDS, "9170-01-01T00:00:00+0000"),
            (18 * CYCLE_SECONDS + 1, "9170-01-01T00:00:01+0000"),
            (19 * CYCLE_SECONDS - 1, "9569-12-31T23:59:59+0000"),
            (-18 * CYCLE_SECONDS - 1, "-5231-12-31T23:59:59+0000"),
        ];
        for (seconds, expected) in cases {
            let mut out = Vec::new();
            let time = Timestamp {
                seconds,
                nanoseconds: 0,
            };
            TextDump::utc().time(time, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }

    #[test]
    fn odd_text_equals_that_of_btrfs_progs() {
        let text = dump(
            TimeZone::UTC,
            &[
                begin(b"s u"),
                Command::Fallocate {
                    path: b"f",
                    mode: u32::MAX,
                    offset: FileOffset::new(1),
                    length: ByteCount::new(2),
                },
                Command::FileAttributes {
                    path: b"f",
                    attributes: 16,
                },
                Command::SetXattr {
                    path: b"f",
                    name: b"user.n",
                    value: b"",
                },
                Command::Link {
                    path: b"f",
                    target: b"",
                },
            ],
        );
        assert_eq!(
            text,
            "subvol          ./s\\ u                          uuid=00000000-0000-0000-0000-000000000000 transid=1\n\
             fallocate       ./s\\ u/f                        mode=-1 offset=1 len=2\n\
             fileattr        ./s\\ u/f                        fileattr=0x16\n\
             set_xattr       ./s\\ u/f                        name=user.n  len=0\n\
             link            ./s\\ u/f                        dest=\n"
        );
    }
}
