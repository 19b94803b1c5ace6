//! Sentences of a text in Markdown.
//!
//! A sentence ends at a full stop, a question mark or an exclamation mark before white space or the
//! end of its paragraph. Paragraphs end at empty lines. List items, headings and table cells are
//! separate paragraphs. Code blocks are left out. Code between back quotes and a link's target
//! count as one word.

/// A sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sentence {
    /// The line of the text on which the sentence begins, from 0.
    pub(crate) line: usize,
    /// The sentence, unchanged.
    pub(crate) text: String,
    /// The sentence's words, in lower case and without marks.
    pub(crate) words: Vec<String>,
}

/// Abbreviations whose full stop ends no sentence.
const ABBREVIATIONS: [&str; 4] = ["e.g.", "i.e.", "etc.", "vs."];

/// Returns the sentences of a text, in order.
pub(crate) fn sentences(text: &str) -> Vec<Sentence> {
    let mut found = Vec::new();
    let mut paragraph = Paragraph::default();
    let mut is_code = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with("```") {
            paragraph.end(&mut found);
            is_code = !is_code;
        } else if is_code || line.is_empty() || line.starts_with("<!--") {
            paragraph.end(&mut found);
        } else if line.starts_with('|') {
            paragraph.end(&mut found);
            for cell in line.split('|') {
                paragraph.add(number, cell.trim());
                paragraph.end(&mut found);
            }
        } else {
            let item = item_text(line);
            if item.len() != line.len() {
                paragraph.end(&mut found);
            }
            paragraph.add(number, item);
        }
    }
    paragraph.end(&mut found);
    found
}

/// Returns a line without the mark of a list item or heading.
fn item_text(line: &str) -> &str {
    let mark_end = line.find(' ').unwrap_or(0);
    let (mark, rest) = line.split_at(mark_end);
    let is_number = mark
        .strip_suffix('.')
        .is_some_and(|number| number.chars().all(|digit| digit.is_ascii_digit()));
    let is_mark =
        matches!(mark, "-" | "*" | ">") || (!mark.is_empty() && mark.chars().all(|letter| letter == '#'));
    match is_mark || (is_number && mark.len() > 1) {
        true => rest.trim_start(),
        false => line,
    }
}

/// The words of a paragraph so far, with their lines.
#[derive(Default)]
struct Paragraph {
    words: Vec<(usize, String)>,
    is_in_code: bool,
}

impl Paragraph {
    fn add(&mut self, line: usize, text: &str) {
        for word in text.split_whitespace() {
            match self.words.last_mut() {
                Some((_, last)) if self.is_in_code => {
                    last.push(' ');
                    last.push_str(word);
                }
                _ => self.words.push((line, word.to_owned())),
            }
            if word.matches('`').count() % 2 == 1 {
                self.is_in_code = !self.is_in_code;
            }
        }
    }

    fn end(&mut self, found: &mut Vec<Sentence>) {
        self.is_in_code = false;
        let words = core::mem::take(&mut self.words);
        let mut sentence: Vec<(usize, String)> = Vec::new();
        for (line, word) in words {
            let is_end = ends_sentence(&word);
            sentence.push((line, word));
            if is_end {
                found.extend(finished(&mut sentence));
            }
        }
        found.extend(finished(&mut sentence));
    }
}

fn ends_sentence(word: &str) -> bool {
    let bare = word.trim_end_matches([')', '"', '*', '\'']);
    bare.ends_with(['.', '!', '?']) && !bare.ends_with("...") && !ABBREVIATIONS.contains(&bare)
}

fn finished(words: &mut Vec<(usize, String)>) -> Option<Sentence> {
    let words = core::mem::take(words);
    let line = words.first()?.0;
    let text: Vec<&str> = words.iter().map(|(_, word)| word.as_str()).collect();
    let plain = words
        .iter()
        .map(|(_, word)| plain(word))
        .filter(|word| !word.is_empty());
    Some(Sentence {
        line,
        text: text.join(" "),
        words: plain.collect(),
    })
}

/// Returns a word in lower case without marks; code and targets of links are one letter.
fn plain(word: &str) -> String {
    if word.contains('`') {
        return "x".to_owned();
    }
    let shown = word.split_once("](").map_or(word, |(shown, _)| shown);
    let is_mark = |letter: char| !letter.is_alphanumeric();
    shown.trim_matches(is_mark).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<String> {
        sentences(text)
            .into_iter()
            .map(|sentence| sentence.text)
            .collect()
    }

    #[test]
    fn sentences_end_at_marks_and_paragraphs() {
        assert_eq!(
            texts("One thing. Another\nthing (there). Rest\n\nMore"),
            ["One thing.", "Another thing (there).", "Rest", "More"]
        );
        assert_eq!(texts("- a b\n  c\n- d\n# e"), ["a b c", "d", "e"]);
        assert_eq!(
            texts("Version 6.18 of e.g. Linux."),
            ["Version 6.18 of e.g. Linux."]
        );
    }

    #[test]
    fn code_and_tables_are_no_running_text() {
        assert_eq!(texts("a\n```\nWho. What.\n```\nb"), ["a", "b"]);
        assert_eq!(texts("| a. b | c |\n|---|---|"), ["a.", "b", "c", "---", "---"]);
    }

    #[test]
    fn code_spans_and_links_are_one_word() {
        let found = sentences("Run `a b. c` as [the page](x.md) says, \"now\".");
        assert_eq!(found[0].words, ["run", "x", "as", "the", "page", "says", "now"]);
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn a_sentence_knows_its_line() {
        let lines: Vec<usize> = sentences("a\nb. c\nd")
            .iter()
            .map(|sentence| sentence.line)
            .collect();
        assert_eq!(lines, [0, 1]);
    }
}
