//! File modes in the formats of `ls -l` and `stat`.

/// Bits of `st_mode` that hold the kind of file.
pub const KIND_MASK: u32 = 0o170_000;

/// Returns the letter of the file kind: `-`, `d`, `l`, `c`, `b`, `p`, `s`, or `?`.
pub fn kind_letter(mode: u32) -> char {
    match mode & KIND_MASK {
        0o100_000 => '-',
        0o040_000 => 'd',
        0o120_000 => 'l',
        0o020_000 => 'c',
        0o060_000 => 'b',
        0o010_000 => 'p',
        0o140_000 => 's',
        _ => '?',
    }
}

/// Returns the file kind in the words of `stat`.
pub fn kind_words(mode: u32, size_bytes: u64) -> &'static str {
    match mode & KIND_MASK {
        0o100_000 if size_bytes == 0 => "regular empty file",
        0o100_000 => "regular file",
        0o040_000 => "directory",
        0o120_000 => "symbolic link",
        0o020_000 => "character special file",
        0o060_000 => "block special file",
        0o010_000 => "fifo",
        0o140_000 => "socket",
        _ => "weird file",
    }
}

/// Returns the ten characters of `ls -l`, such as `drwxr-sr-t`.
pub fn permissions(mode: u32) -> String {
    let mut text = String::with_capacity(10);
    text.push(kind_letter(mode));
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (false, false) => '-',
            (false, true) => 'x',
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
        });
    }
    text
}

/// Returns the major number of a device from Linux's `st_rdev`.
pub fn device_major(rdev: u64) -> u64 {
    ((rdev >> 8) & 0xfff) | ((rdev >> 32) & 0xffff_f000)
}

/// Returns the minor number of a device.
pub fn device_minor(rdev: u64) -> u64 {
    (rdev & 0xff) | ((rdev >> 12) & 0xffff_ff00)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_as_ls_prints_them() {
        let cases = [
            (0o100_644, "-rw-r--r--"),
            (0o040_755, "drwxr-xr-x"),
            (0o041_777, "drwxrwxrwt"),
            (0o041_776, "drwxrwxrwT"),
            (0o104_755, "-rwsr-xr-x"),
            (0o104_644, "-rwSr--r--"),
            (0o102_745, "-rwxr-Sr-x"),
            (0o102_755, "-rwxr-sr-x"),
            (0o120_777, "lrwxrwxrwx"),
            (0o020_600, "crw-------"),
            (0o060_000, "b---------"),
            (0o010_000, "p---------"),
            (0o140_000, "s---------"),
            (0, "?---------"),
        ];
        for (mode, expected) in cases {
            assert_eq!(permissions(mode), expected, "{mode:o}");
        }
    }
}
