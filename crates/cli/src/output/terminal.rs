//! The only access to standard output and standard error. It prevents the content of a volume from
//! controlling a terminal.
//!
//! - [`Stdout`] is the output for results. On a terminal it passes only text, line feeds and tabs.
//!   Other control characters, marks that reorder text, and bytes that are not UTF-8 become C
//!   escapes (in JSON, `\u` escapes). Other outputs get all bytes unchanged, so scripts get the
//!   same output as from `ls` and btrfs-progs.
//! - [`message`], [`line()`], [`prompt`], [`status_line`] and [`print_clap_error`] write to
//!   standard error, always escaped.
//!
//! At this point, a line feed in a name cannot be distinguished from a line end. A command that
//! prints a name passes it through [`Context::printable`](crate::context::Context::printable),
//! which escapes line feeds too.
//!
//! Left out: contents (`cat`, `tar`, `send`) go through
//! [`DirectOutput`](super::stdout::DirectOutput) unchanged, as in `cat(1)`. Lints forbid any other
//! access (`clippy.toml` of this crate).

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

/// Size of the buffer for standard output in bytes.
const BUFFER_BYTES: usize = 256 << 10;

/// Buffered standard output for results. The buffer must be flushed before it is dropped: dropping
/// would lose an error.
pub type Stdout = BufWriter<Screened<Raw>>;

/// Returns standard output for text, or for JSON.
pub fn stdout(is_json: bool) -> Stdout {
    let screen = match (stdout_is_terminal(), is_json) {
        (false, _) => Screen::Off,
        (true, false) => Screen::Text,
        (true, true) => Screen::Json,
    };
    BufWriter::with_capacity(BUFFER_BYTES, Screened::new(Raw::stdout(), screen))
}

/// Returns whether standard output is a terminal.
pub fn stdout_is_terminal() -> bool {
    elsewhere::is_terminal().unwrap_or_else(|| io::stdout().is_terminal())
}

/// Returns whether standard error is a terminal.
pub fn stderr_is_terminal() -> bool {
    !elsewhere::is_set() && io::stderr().is_terminal()
}

/// Prepares any text, such as an image's name, for a line of standard output: escaped on a
/// terminal.
pub fn shown(text: impl Display) -> String {
    let text = text.to_string();
    if stdout_is_terminal() {
        escape_controls(text.as_bytes())
    } else {
        text
    }
}

/// Prints a line on standard error, with its label in bold colour. The text may contain any bytes,
/// including control characters.
pub fn message(label: &str, colour: AnsiColor, text: &dyn Display) {
    if elsewhere::tell(Some(label), &text.to_string()) {
        return;
    }
    let style = Style::new().bold().fg_color(Some(colour.into()));
    let text = escape_controls(text.to_string().as_bytes());
    // If the terminal or pipe is closed, this must not cause another failure.
    let _ = writeln!(anstream::stderr().lock(), "{style}{label}:{style:#} {text}");
}

/// Prints a line on standard error. The printed text may contain any characters.
pub fn line(text: &dyn Display) {
    if elsewhere::tell(None, &text.to_string()) {
        return;
    }
    let text = escape_controls(text.to_string().as_bytes());
    let _ = writeln!(anstream::stderr().lock(), "{text}");
}

/// Prints the beginning of a line on standard error, which the user completes. The text may contain
/// any bytes, including control characters.
pub fn prompt(text: &dyn Display) {
    let text = escape_controls(text.to_string().as_bytes());
    // A failure is ignored: the user can type without a prompt.
    let _ = write!(io::stderr(), "{text}");
}

/// Ends the current line on standard error.
pub fn end_line() {
    if !elsewhere::is_set() {
        let _ = writeln!(io::stderr());
    }
}

/// Replaces the last line of the terminal with text, or clears it: for progress.
pub fn status_line(text: &str) {
    if elsewhere::is_set() {
        return;
    }
    let text = escape_controls(text.as_bytes());
    // The program ignores a failure to show progress.
    let _ = write!(io::stderr(), "\r\x1b[K{text}");
}

/// Prints a JSON line on standard error unchanged, because JSON has its own escapes.
pub fn json_line(line: &serde_json::Value) {
    let line = format!("{line}\n");
    // A failure to report an error cannot be reported.
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Prints the output of the command-line parser: help, or an error, which quotes the user's
/// arguments.
///
/// # Errors
/// Fails if help, which goes to standard output, cannot be written.
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
    // After escaping, control characters can only come from the message of a value parser.
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

/// Escapes a user's argument, if it cannot be printed unchanged.
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

/// Removes the sequences that set colours.
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

/// Escaping of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Screen {
    /// No escaping of control characters, because the output is not a terminal.
    Off,
    /// Control characters become C escapes.
    Text,
    /// Control characters become JSON escapes; they can only occur in JSON strings.
    Json,
}

/// A writer that escapes control characters for a terminal.
#[derive(Debug)]
pub struct Screened<W> {
    out: W,
    screen: Screen,
    /// Beginning of an incomplete character at the end of the last write.
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

/// Returns the number of bytes before an incomplete character at the end.
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
            // The screened output is the same for any split of the input.
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
