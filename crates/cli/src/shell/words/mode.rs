//! Modes in the syntax of chmod: octal, or symbolic such as `u+rwx,go-w,a=rX`.

use std::str::FromStr;

/// A change of permission bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Set exactly these permission bits.
    Octal(u32),
    /// Consecutive changes.
    Symbolic(Vec<Change>),
}

/// One clause of a symbolic mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Mode bits of the affected classes of users.
    who: u32,
    action: Action,
    /// Permission bits for all classes, with set-id and sticky.
    bits: u32,
    /// `X`: execute permission for directories, and for files that any user may execute.
    search: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Add,
    Remove,
    Set,
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return match u32::from_str_radix(text, 8) {
                Ok(bits) if bits <= 0o7777 => Ok(Self::Octal(bits)),
                _ => Err(format!("{text:?} is not an octal mode up to 7777")),
            };
        }
        let clauses = text.split(',').map(clause);
        clauses
            .collect::<Option<Vec<Vec<Change>>>>()
            .map(|changes| Self::Symbolic(changes.concat()))
            .ok_or_else(|| format!("{text:?} is not a mode such as 755 or u+rw,go-w"))
    }
}

/// Parses the changes of a clause such as `ug+r-w`.
fn clause(text: &str) -> Option<Vec<Change>> {
    let mut letters = text.chars().peekable();
    let mut who = 0;
    while let Some(letter) = letters.next_if(|letter| "ugoa".contains(*letter)) {
        who |= match letter {
            'u' => 0o4700,
            'g' => 0o2070,
            'o' => 0o1007,
            _ => 0o7777,
        };
    }
    if who == 0 {
        who = 0o7777;
    }
    let mut changes = Vec::new();
    while let Some(letter) = letters.next() {
        let action = match letter {
            '+' => Action::Add,
            '-' => Action::Remove,
            '=' => Action::Set,
            _ => return None,
        };
        let mut change = Change {
            who,
            action,
            bits: 0,
            search: false,
        };
        while let Some(letter) = letters.next_if(|letter| "rwxXst".contains(*letter)) {
            match letter {
                'r' => change.bits |= 0o444,
                'w' => change.bits |= 0o222,
                'x' => change.bits |= 0o111,
                's' => change.bits |= 0o6000,
                't' => change.bits |= 0o1000,
                _ => change.search = true,
            }
        }
        changes.push(change);
    }
    (!changes.is_empty()).then_some(changes)
}

impl Mode {
    /// Applies the change to permission bits.
    pub fn apply(&self, permissions: u32, is_directory: bool) -> u32 {
        match self {
            Self::Octal(bits) => *bits,
            Self::Symbolic(changes) => changes.iter().fold(permissions & 0o7777, |bits, change| {
                let mut changed = change.bits;
                if change.search && (is_directory || bits & 0o111 != 0) {
                    changed |= 0o111;
                }
                changed &= change.who;
                match change.action {
                    Action::Add => bits | changed,
                    Action::Remove => bits & !changed,
                    // A directory keeps its set-id bits, as with GNU chmod.
                    Action::Set if is_directory => (bits & !(change.who & 0o777)) | changed,
                    Action::Set => (bits & !change.who) | changed,
                }
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_as_chmod_takes_them() {
        let cases = [
            ("755", 0o644, false, 0o755),
            ("4755", 0o644, false, 0o4755),
            ("u+x", 0o644, false, 0o744),
            ("+x", 0o644, false, 0o755),
            ("go-rw", 0o666, false, 0o600),
            ("a=r", 0o777, false, 0o444),
            ("u=rx", 0o4755, false, 0o555),
            ("u=rx", 0o4755, true, 0o4555),
            ("u=rwx,g=rx,o=", 0o666, false, 0o750),
            ("a+X", 0o644, false, 0o644),
            ("a+X", 0o644, true, 0o755),
            ("a+X", 0o744, false, 0o755),
            ("u+s,g+s,+t", 0o755, false, 0o7755),
            ("u+r-w", 0o600, false, 0o400),
            ("g+s", 0o755, true, 0o2755),
        ];
        for (text, before, is_directory, after) in cases {
            let mode: Mode = text.parse().unwrap();
            assert_eq!(mode.apply(before, is_directory), after, "{text}");
        }
        for text in ["", "8", "77777", "u", "u+q", "x+u", "u+r,", "rwx"] {
            assert!(text.parse::<Mode>().is_err(), "{text:?}");
        }
    }
}
