//! The one way to standard output and standard error, which keeps what a volume holds from driving a terminal.
//!
//! - [`Stdout`] is what commands print results through. On a terminal it lets nothing pass but text, line feeds and tabs:
//!   any other control character, marks that reorder text, and bytes that are not UTF-8 become C escapes (in JSON, `\u`
//!   escapes). Elsewhere bytes pass as they are: scripts get what `ls` and btrfs-progs would give them.
//! - [`message`], [`line()`], [`prompt`], [`status_line`] and [`print_clap_error`] write to standard error, escaped wherever it goes.
//!
//! A line feed in a name cannot be told here from one that ends a line: a command that prints a name passes it through
//! [`Context::printable`](crate::context::Context::printable), which knows that it is one.
//!
//! What it leaves out: contents (`cat`, `tar`, `send`) go through [`DirectOutput`](super::stdout::DirectOutput) as they are,
//! as those of `cat(1)` do. The lints refuse any other way (`clippy.toml` of this crate).

#![expect(
    clippy::disallowed_methods,
    reason = "this is the place that the others are told to go through"
)]

use std::fmt::Display;
use std::io::{self, BufWriter, IsTerminal, Write};

use anstyle::{AnsiColor, Style};
use buttress::is_printable;
use clap::error::{ContextKind, ContextValue};

use super::stdout::Raw;
use super::{elsewhere, escape_controls, push_escape};

/// Bytes that are gathered before they go to standard output.
const BUFFER_BYTES: usize = 256 << 10;

/// Standard output for results, buffered. Flush it before letting go of it: an error in a dropped buffer would be lost.
pub type Stdout = BufWriter<Screened<Raw>>;

/// Standard output for text, or for JSON.
pub fn stdout(is_json: bool) -> Stdout {
    let screen = match (stdout_is_terminal(), is_json) {
        (false, _) => Screen::Off,
        (true, false) => Screen::Text,
        (true, true) => Screen::Json,
    };
    BufWriter::with_capacity(BUFFER_BYTES, Screened::new(Raw::stdout(), screen))
}

/// Whether standard output is a terminal.
pub fn stdout_is_terminal() -> bool {
    elsewhere::is_terminal().unwrap_or_else(|| io::stdout().is_terminal())
}

/// Whether standard error is a terminal.
pub fn stderr_is_terminal() -> bool {
    !elsewhere::is_set() && io::stderr().is_terminal()
}

/// Text for a line of standard output that may hold anything, the name of an image for one: escaped on a terminal.
pub fn shown(text: impl Display) -> String {
    let text = text.to_string();
    if stdout_is_terminal() {
        escape_controls(text.as_bytes())
    } else {
        text
    }
}

/// Prints a line on standard error, its label in bold colour. The text may hold anything.
pub fn message(label: &str, colour: AnsiColor, text: &dyn Display) {
    if elsewhere::tell(Some(label), &text.to_string()) {
        return;
    }
    let style = Style::new().bold().fg_color(Some(colour.into()));
    let text = escape_controls(text.to_string().as_bytes());
    // A terminal that is gone, or a pipe that nobody reads, is no reason to fail in another way.
    let _ = writeln!(anstream::stderr().lock(), "{style}{label}:{style:#} {text}");
}

/// Prints a line on standard error. The text may hold anything.
pub fn line(text: &dyn Display) {
    if elsewhere::tell(None, &text.to_string()) {
        return;
    }
    let text = escape_controls(text.to_string().as_bytes());
    let _ = writeln!(anstream::stderr().lock(), "{text}");
}

/// Prints the beginning of a line on standard error, for the user to go on with. The text may hold anything.
pub fn prompt(text: &dyn Display) {
    let text = escape_controls(text.to_string().as_bytes());
    // Who does not see it can type all the same.
    let _ = write!(io::stderr(), "{text}");
}

/// Ends a line that was begun on standard error.
pub fn end_line() {
    if !elsewhere::is_set() {
        let _ = writeln!(io::stderr());
    }
}

/// Puts text in the place of the last line of the terminal, or nothing: for progress.
pub fn status_line(text: &str) {
    if elsewhere::is_set() {
        return;
    }
    let text = escape_controls(text.as_bytes());
    // Nothing depends on progress being seen.
    let _ = write!(io::stderr(), "\r\x1b[K{text}");
}

/// Prints a line for machines on standard error as it is: JSON, which has escapes of its own.
pub fn json_line(line: &serde_json::Value) {
    let line = format!("{line}\n");
    // Nobody can be told that nobody can be told.
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Prints what the parser of command lines has to say: help, or an error, which quotes what the user wrote.
///
/// # Errors
/// That help, which goes to standard output, cannot be written.
pub fn print_clap_error(error: &mut clap::Error) -> io::Result<()> {
    if elsewhere::is_set() {
        for part in error.render().to_string().lines() {
            line(&part);
        }
        return Ok(());
    }
    let quoted: Vec<(ContextKind, ContextValue)> = error
        .context()
        .filter_map(|(kind, value)| Some((kind, escaped(value)?)))
        .collect();
    for (kind, value) in quoted {
        error.insert(kind, value);
    }
    // What is left of it can only be in the words of one who looked at a value.
    let text = without_colours(&error.render().ansi().to_string());
    let is_plain = |character: char| matches!(character, '\n' | '\t') || is_printable(character);
    if text.chars().all(is_plain) {
        return error.print();
    }
    for part in text.lines() {
        line(&part);
    }
    Ok(())
}

/// What the user wrote, if it cannot be printed as it is.
fn escaped(value: &ContextValue) -> Option<ContextValue> {
    let is_clean = |text: &String| text.chars().all(is_printable);
    let escape = |text: &String| escape_controls(text.as_bytes());
    match value {
        ContextValue::String(text) if !is_clean(text) => Some(ContextValue::String(escape(text))),
        ContextValue::Strings(texts) if !texts.iter().all(is_clean) => {
            Some(ContextValue::Strings(texts.iter().map(escape).collect()))
        }
        _ => None,
    }
}

/// Text without the sequences that set colours.
fn without_colours(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for (index, part) in text.split("\x1b[").enumerate() {
        let end = part.find(|character: char| !character.is_ascii_digit() && character != ';');
        match end.and_then(|end| part.split_at_checked(end)?.1.strip_prefix('m')) {
            Some(rest) if index > 0 => plain.push_str(rest),
            _ if index > 0 => {
                plain.push_str("\x1b[");
                plain.push_str(part);
            }
            _ => plain.push_str(part),
        }
    }
    plain
}

/// What is kept from passing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Screen {
    /// Nothing: no terminal is behind it.
    Off,
    /// What could drive a terminal; it becomes C escapes.
    Text,
    /// The same; it becomes escapes of JSON, in whose strings alone it can stand.
    Json,
}

/// A writer that keeps from a terminal what could drive it. See the module.
#[derive(Debug)]
pub struct Screened<W> {
    out: W,
    screen: Screen,
    /// The beginning of a character whose end was not written yet.
    begun: Vec<u8>,
}

impl<W> Screened<W> {
    fn new(out: W, screen: Screen) -> Self {
        Self {
            out,
            screen,
            begun: Vec::new(),
        }
    }

    fn screened(&self, bytes: &[u8]) -> String {
        let mut text = String::with_capacity(bytes.len());
        for chunk in bytes.utf8_chunks() {
            for character in chunk.valid().chars() {
                if matches!(character, '\n' | '\t') || is_printable(character) {
                    text.push(character);
                } else {
                    self.push_escaped(&mut text, character);
                }
            }
            for byte in chunk.invalid() {
                push_escape(&mut text, *byte);
            }
        }
        text
    }

    fn push_escaped(&self, text: &mut String, character: char) {
        if self.screen == Screen::Json {
            let mut units = [0; 2];
            for unit in character.encode_utf16(&mut units) {
                text.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            let mut bytes = [0; 4];
            for byte in character.encode_utf8(&mut bytes).bytes() {
                push_escape(text, byte);
            }
        }
    }
}

impl<W: Write> Write for Screened<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.screen == Screen::Off {
            return self.out.write(bytes);
        }
        let mut all = std::mem::take(&mut self.begun);
        all.extend_from_slice(bytes);
        self.begun = all.split_off(complete_length(&all));
        let text = self.screened(&all);
        self.out.write_all(text.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let begun = std::mem::take(&mut self.begun);
        if !begun.is_empty() {
            let text = self.screened(&begun);
            self.out.write_all(text.as_bytes())?;
        }
        self.out.flush()
    }
}

/// How many bytes there are before a character at the end that may go on.
fn complete_length(bytes: &[u8]) -> usize {
    let begun = bytes
        .utf8_chunks()
        .last()
        .map_or(0, |chunk| match std::str::from_utf8(chunk.invalid()) {
            Err(error) if error.error_len().is_none() => chunk.invalid().len(),
            _ => 0,
        });
    bytes.len().saturating_sub(begun)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(screen: Screen, pieces: &[&[u8]]) -> Vec<u8> {
        let mut out = Screened::new(Vec::new(), screen);
        for piece in pieces {
            out.write_all(piece).unwrap();
        }
        out.flush().unwrap();
        out.out
    }

    #[test]
    fn nothing_that_drives_a_terminal_passes() {
        let cases: [(&[u8], &str); 7] = [
            ("grün\tline\n".as_bytes(), "grün\tline\n"),
            (b"\x1b]52;c;eA==\x07", "\\033]52;c;eA==\\007"),
            (b"\xc2\x9b2J", "\\302\\2332J"),
            (b"a\rb\x7f", "a\\rb\\177"),
            ("\u{202e}".as_bytes(), "\\342\\200\\256"),
            (b"\x9b2J\xff", "\\2332J\\377"),
            (b"\xe2\x80", "\\342\\200"),
        ];
        for (given, expected) in cases {
            assert_eq!(through(Screen::Text, &[given]), expected.as_bytes());
            assert_eq!(through(Screen::Off, &[given]), given);
            // However it comes in pieces.
            let bytes: Vec<&[u8]> = given.chunks(1).collect();
            assert_eq!(through(Screen::Text, &bytes), expected.as_bytes());
        }
    }

    #[test]
    fn only_colours_are_taken_away() {
        assert_eq!(
            without_colours("\x1b[1;31mred\x1b[0m \x1b[2J\x1b]0;t"),
            "red \x1b[2J\x1b]0;t"
        );
    }

    #[test]
    fn json_stays_json() {
        let value = serde_json::json!({"name": "a\u{9b}\u{7f}\u{202e}\u{e0041}\n\u{1b}"});
        let text = through(Screen::Json, &[value.to_string().as_bytes()]);
        assert!(text.is_ascii() && !text.contains(&0x7f));
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&text).unwrap(), value);
    }
}
