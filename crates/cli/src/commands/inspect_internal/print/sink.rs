//! Outputs of printed structures: lines of text in the format of btrfs-progs, or JSON values.
//!
//! A structure is described once, as lines of named fields. A [`Sink`] converts the printed values
//! to its format:
//!
//! - [`Text`]: `\t\tname value name value\n`, in a byte buffer. This is the hot path of
//!   `dump-tree`: it formats numbers without `core::fmt`, and allocates nothing per line.
//! - [`Tree`]: one JSON object with the same names; spaces and dots become underscores. Text that
//!   only connects fields is omitted. Repeated parts (stripes, names, inline references) become
//!   arrays of objects.
//!
//! Sinks cannot fail, because both write to memory. The owner of a sink writes the result out.

use serde_json::{Map, Value as Json};

use super::time::LocalTime;
use super::value::Value;
use crate::output::escape_controls_bytes;

/// Receiver of the fields of structures, line by line.
pub(crate) trait Sink {
    /// Begins a line with this indentation.
    fn begin(&mut self, indent_tabs: usize);
    /// Ends the line.
    fn end(&mut self);
    /// Adds words to the text output only.
    fn words(&mut self, words: &str);
    /// Adds a number to the text output only.
    fn words_number(&mut self, number: u64);
    /// Adds a field, printed as `name value`.
    fn field(&mut self, name: &str, value: impl Value);
    /// Adds a field, of which only the value is printed.
    fn bare(&mut self, name: &str, value: impl Value);
    /// Adds a field whose value is printed without a space before it.
    fn joined(&mut self, name: &str, value: impl Value);
    /// Adds text without a space before it, to the text output only.
    fn punctuation(&mut self, text: &str);
    /// Adds a field that the text output omits.
    fn hidden(&mut self, name: &str, value: impl Value);
    /// Begins an array of objects.
    fn begin_list(&mut self, name: &str);
    /// Begins the next object of the array.
    fn next_entry(&mut self);
    /// Ends the array.
    fn end_list(&mut self);
    /// Closes the open parts of an abandoned item: its line, and all arrays except the outermost
    /// `lists`.
    fn abandon(&mut self, lists: usize);
}

/// Writer of lines of text.
#[derive(Debug, Default)]
pub(crate) struct Text {
    bytes: Vec<u8>,
    for_terminal: bool,
    clock: LocalTime,
    within_line: bool,
    line_open: bool,
}

impl Text {
    /// Creates a writer. For a terminal it escapes user-controlled bytes that btrfs-progs prints
    /// unchanged.
    pub(crate) fn new(for_terminal: bool) -> Self {
        Self {
            for_terminal,
            ..Self::default()
        }
    }

    /// Appends user-controlled bytes.
    pub(crate) fn push_foreign(&mut self, bytes: &[u8]) {
        if self.for_terminal {
            self.bytes.extend_from_slice(&escape_controls_bytes(bytes));
        } else {
            self.push_bytes(bytes);
        }
    }

    /// Returns the text so far.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Clears the text, and keeps its memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Appends text unchanged.
    pub(crate) fn push(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
    }

    /// Appends bytes unchanged.
    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends a decimal number.
    pub(crate) fn push_decimal(&mut self, number: u64) {
        self.bytes
            .extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }

    /// Appends a number in hexadecimal, without leading zeros.
    pub(crate) fn push_hex(&mut self, number: u64) {
        let digits = 16u32.saturating_sub(number.leading_zeros() / 4).max(1);
        for place in (0..digits).rev() {
            self.push_nibble((number >> place.saturating_mul(4)) & 15);
        }
    }

    /// Appends bytes in hexadecimal, two digits each.
    pub(crate) fn push_hex_bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.push_nibble(u64::from(byte >> 4));
            self.push_nibble(u64::from(byte & 15));
        }
    }

    /// Appends a date in the local time zone.
    pub(crate) fn push_date(&mut self, seconds: i64) {
        let date = self.clock.date(seconds);
        self.bytes.extend_from_slice(date.as_bytes());
    }

    fn push_nibble(&mut self, nibble: u64) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digit = usize::try_from(nibble).ok().and_then(|nibble| DIGITS.get(nibble));
        self.bytes.push(digit.copied().unwrap_or(b'?'));
    }

    fn separate(&mut self) {
        if self.within_line {
            self.bytes.push(b' ');
        }
        self.within_line = true;
    }
}

impl std::fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.push(text);
        Ok(())
    }
}

impl Sink for Text {
    fn begin(&mut self, indent_tabs: usize) {
        self.bytes.extend(std::iter::repeat_n(b'\t', indent_tabs));
        self.within_line = false;
        self.line_open = true;
    }

    fn end(&mut self) {
        self.bytes.push(b'\n');
        self.within_line = false;
        self.line_open = false;
    }

    fn words(&mut self, words: &str) {
        self.separate();
        self.push(words);
    }

    fn words_number(&mut self, number: u64) {
        self.separate();
        self.push_decimal(number);
    }

    fn field(&mut self, name: &str, value: impl Value) {
        self.separate();
        self.push(name);
        self.bytes.push(b' ');
        value.text(self);
    }

    fn bare(&mut self, _name: &str, value: impl Value) {
        self.separate();
        value.text(self);
    }

    fn joined(&mut self, _name: &str, value: impl Value) {
        value.text(self);
        self.within_line = true;
    }

    fn punctuation(&mut self, text: &str) {
        self.push(text);
    }

    fn hidden(&mut self, _name: &str, _value: impl Value) {}
    fn begin_list(&mut self, _name: &str) {}
    fn next_entry(&mut self) {}
    fn end_list(&mut self) {}

    fn abandon(&mut self, _lists: usize) {
        if self.line_open {
            self.end();
        }
    }
}

/// Collector of fields in a JSON object.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    object: Map<String, Json>,
    /// Open arrays, each with the fields collected before it, its name and its elements.
    open: Vec<(Map<String, Json>, String, Vec<Json>)>,
    /// True if the open array's current object has begun.
    entry_begun: bool,
}

impl Tree {
    /// Takes the object, and leaves an empty one.
    pub(crate) fn take(&mut self) -> Map<String, Json> {
        std::mem::take(&mut self.object)
    }

    fn insert(&mut self, name: &str, value: Json) {
        // The part in parentheses is a remark.
        let name = name.split(" (").next().unwrap_or(name);
        self.object.insert(name.replace([' ', '.'], "_"), value);
    }

    fn close_entry(&mut self) {
        if std::mem::take(&mut self.entry_begun) {
            let entry = std::mem::take(&mut self.object);
            if let Some((_, _, entries)) = self.open.last_mut() {
                entries.push(Json::Object(entry));
            }
        }
    }
}

impl Sink for Tree {
    fn begin(&mut self, _indent_tabs: usize) {}
    fn end(&mut self) {}
    fn words(&mut self, _words: &str) {}
    fn words_number(&mut self, _number: u64) {}
    fn punctuation(&mut self, _text: &str) {}

    fn field(&mut self, name: &str, value: impl Value) {
        self.insert(name, value.json());
    }

    fn bare(&mut self, name: &str, value: impl Value) {
        self.insert(name, value.json());
    }

    fn joined(&mut self, name: &str, value: impl Value) {
        self.insert(name, value.json());
    }

    fn hidden(&mut self, name: &str, value: impl Value) {
        self.insert(name, value.json());
    }

    fn begin_list(&mut self, name: &str) {
        let outer = std::mem::take(&mut self.object);
        self.open.push((outer, name.to_owned(), Vec::new()));
        self.entry_begun = false;
    }

    fn next_entry(&mut self) {
        self.close_entry();
        self.entry_begun = true;
    }

    fn end_list(&mut self) {
        self.close_entry();
        if let Some((outer, name, entries)) = self.open.pop() {
            self.object = outer;
            self.insert(&name, Json::Array(entries));
            // The surrounding object has begun, or is the outermost one.
            self.entry_begun = !self.open.is_empty();
        }
    }

    fn abandon(&mut self, lists: usize) {
        while self.open.len() > lists {
            self.end_list();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abandoned_entries_are_closed() {
        let (mut text, mut tree) = (Text::default(), Tree::default());
        fn half(sink: &mut impl Sink) {
            sink.begin_list("items");
            sink.next_entry();
            sink.field("item", 0u64);
            sink.begin_list("names");
            sink.next_entry();
            sink.begin(1);
            sink.field("index", 5u64);
            sink.abandon(1);
            sink.next_entry();
            sink.begin(0);
            sink.field("item", 1u64);
            sink.end();
            sink.end_list();
        }
        half(&mut text);
        half(&mut tree);
        assert_eq!(text.as_bytes(), b"item 0\tindex 5\nitem 1\n");
        assert_eq!(
            Json::Object(tree.take()),
            serde_json::json!({"items": [{"item": 0, "names": [{"index": 5}]}, {"item": 1}]})
        );
    }

    #[test]
    fn lists_nest() {
        let mut tree = Tree::default();
        tree.field("refs", 2u64);
        tree.begin_list("outer list");
        tree.next_entry();
        tree.field("a", 1u64);
        tree.begin_list("inner");
        tree.end_list();
        tree.field("b", 2u64);
        tree.next_entry();
        tree.field("a", 3u64);
        tree.end_list();
        tree.field("dev_item.type", "x");
        assert_eq!(
            Json::Object(tree.take()),
            serde_json::json!({
                "refs": 2,
                "outer_list": [{"a": 1, "inner": [], "b": 2}, {"a": 3}],
                "dev_item_type": "x",
            })
        );
        assert!(tree.take().is_empty());
    }
}
