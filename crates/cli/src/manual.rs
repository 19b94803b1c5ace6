//! Man pages: one for each command and each group, generated from the command table.
//!
//! Synopsis, description and options come from clap; examples and exit codes come from the rows.
//! Manual pages depend on nothing else, so the same program gives the same bytes.

use clap::Command;
use clap_mangen::roff::{Roff, bold, roman};

use crate::table::{self, Kind, Row};

/// An example command line with its description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Example {
    /// The command line, `buttress` first; a `|` may follow.
    pub line: &'static str,
    /// Description of the example, a sentence without its full stop.
    pub does: &'static str,
}

/// Creates an example.
pub const fn example(line: &'static str, does: &'static str) -> Example {
    Example { line, does }
}

/// An exit code with its meaning.
pub type ExitCode = (u8, &'static str);

/// The exit codes of most commands.
pub const EXIT_CODES: &[ExitCode] = &[
    (
        0,
        "The command succeeded. A reader that closes the pipe is no failure",
    ),
    (
        1,
        "The command failed, or something was lost; standard error names it",
    ),
    (2, "The command line is wrong"),
];

/// A man page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// File name, such as `buttress-subvolume-list.1`.
    pub file_name: String,
    /// Content of the man page.
    pub text: String,
}

/// Returns all pages in the table's order: the page of the program first, the page of a group
/// before those of its commands.
pub fn pages() -> Vec<Page> {
    let mut root = table::command();
    root.build();
    let mut pages = vec![page(&root, &["buttress"], &examples_of(table::ROWS), EXIT_CODES)];
    add_pages(&mut pages, &root, &["buttress"], table::ROWS);
    pages
}

fn add_pages(pages: &mut Vec<Page>, parent: &Command, above: &[&str], rows: &[Row]) {
    for row in rows {
        let Some(command) = parent.find_subcommand(row.name()).filter(|it| !it.is_hide_set()) else {
            continue;
        };
        let words: Vec<&str> = above.iter().copied().chain([row.name()]).collect();
        match row.kind() {
            Kind::Leaf {
                examples, exit_codes, ..
            } => pages.push(page(command, &words, examples, exit_codes)),
            Kind::Group { rows, .. } => {
                pages.push(page(command, &words, &examples_of(rows), EXIT_CODES));
                add_pages(pages, command, &words, rows);
            }
        }
    }
}

/// Returns the first example of each visible command.
fn examples_of(rows: &[Row]) -> Vec<Example> {
    let mut found = Vec::new();
    for row in rows {
        match row.kind() {
            Kind::Leaf {
                hidden: false,
                examples,
                ..
            } => found.extend(examples.first().copied()),
            Kind::Leaf { .. } => {}
            Kind::Group { rows, .. } => found.extend(examples_of(rows).first().copied()),
        }
    }
    found
}

fn page(command: &Command, words: &[&str], examples: &[Example], exit_codes: &[ExitCode]) -> Page {
    let name = words.join("-");
    let source = format!("buttress {}", env!("CARGO_PKG_VERSION"));
    let man = clap_mangen::Man::new(command.clone())
        .title(name.to_uppercase())
        .source(source)
        .manual("Buttress Manual");
    let mut text = Vec::new();
    // Writing to memory does not fail.
    let _ = man
        .render_title(&mut text)
        .and_then(|()| man.render_name_section(&mut text))
        .and_then(|()| synopsis(command, words).to_writer(&mut text))
        .and_then(|()| man.render_description_section(&mut text))
        .and_then(|()| man.render_options_section(&mut text))
        .and_then(|()| match command.has_subcommands() {
            true => man.render_subcommands_section(&mut text),
            false => Ok(()),
        });
    let mut text = String::from_utf8_lossy(&text).into_owned();
    let mut own = Roff::new();
    if words.len() == 1
        && let Some(notes) = command.get_after_help()
    {
        own.control("SH", ["NOTES"]);
        for paragraph in notes.to_string().split("\n\n") {
            own.control("PP", []);
            own.text([roman(paragraph.replace('\n', " "))]);
        }
    }
    own.control("SH", ["EXAMPLES"]);
    for Example { line, does } in examples {
        own.control("TP", []);
        own.text([bold(*line)]);
        own.text([roman(format!("{does}."))]);
    }
    own.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in exit_codes {
        own.control("TP", []);
        own.text([bold(code.to_string())]);
        own.text([roman(format!("{meaning}."))]);
    }
    own.control("PP", []);
    own.text([roman(
        "A signal that ends it (SIGINT, SIGTERM, SIGHUP) shows in the status as usual; a volume that it changed is whole.",
    )]);
    own.control("SH", ["SEE ALSO"]);
    let above = words.split_last().map_or(&[][..], |(_, above)| above);
    let mut others: Vec<String> = Vec::new();
    for count in (1..=above.len()).rev() {
        others.extend(above.get(..count).map(|words| format!("{}(1)", words.join("-"))));
    }
    others.extend(["btrfs(5)", "btrfs(8)"].map(str::to_owned));
    own.text([roman(others.join(", "))]);
    text.push_str(&own.render());
    Page {
        file_name: format!("{name}.1"),
        text,
    }
}

/// Builds the command line of the help text, because clap's own synopsis lists every option.
fn synopsis(command: &Command, words: &[&str]) -> Roff {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").to_owned();
    let name = words.join(" ");
    let rest = usage.strip_prefix(&name).unwrap_or(&usage).to_owned();
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([bold(name), roman(rest)]);
    roff
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::commands;

    fn sections(text: &str) -> Vec<&str> {
        text.lines()
            .filter_map(|line| line.strip_prefix(".SH "))
            .map(|name| name.trim_matches('"'))
            .collect()
    }

    /// Returns the lines of a section.
    fn section<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
        let mut lines = text.lines();
        let found = lines.any(|line| {
            line.strip_prefix(".SH ")
                .is_some_and(|at| at.trim_matches('"') == name)
        });
        assert!(found, "{name}");
        lines.take_while(|line| !line.starts_with(".SH ")).collect()
    }

    #[test]
    fn every_command_has_a_page_with_every_section() {
        let pages = pages();
        for name in commands().into_iter().filter(|name| name != "reference") {
            let file_name = format!("buttress-{}.1", name.replace(' ', "-"));
            let page = pages.iter().find(|page| page.file_name == file_name);
            let text = &page.unwrap_or_else(|| panic!("{file_name}")).text;
            let found = sections(text);
            for wanted in [
                "NAME",
                "SYNOPSIS",
                "DESCRIPTION",
                "GLOBAL OPTIONS",
                "EXAMPLES",
                "EXIT STATUS",
                "SEE ALSO",
            ] {
                assert!(found.contains(&wanted), "{file_name} has no {wanted}: {found:?}");
            }
            let examples = section(text, "EXAMPLES");
            assert!(
                examples.iter().any(|line| line.contains("buttress ")),
                "{file_name}"
            );
            let codes = section(text, "EXIT STATUS");
            for code in ["0", "1", "2"] {
                assert!(
                    codes.contains(&format!("\\fB{code}\\fR").as_str()),
                    "{file_name}: {codes:?}"
                );
            }
        }
        for group in [
            "buttress.1",
            "buttress-subvolume.1",
            "buttress-inspect-internal.1",
        ] {
            assert!(pages.iter().any(|page| page.file_name == group), "{group}");
        }
    }

    #[test]
    fn pages_of_commands_whose_codes_differ_say_so() {
        for (name, meaning) in [("check", "could not"), ("diff", "are equal")] {
            let pages = pages();
            let page = pages
                .iter()
                .find(|page| page.file_name == format!("buttress-{name}.1"));
            let codes = section(&page.unwrap().text, "EXIT STATUS").join(" ");
            assert!(codes.contains(meaning), "{codes}");
        }
    }

    /// Splits a command line into words as a shell does, with support for spaces and single quotes
    /// only.
    fn words_of(line: &str) -> Vec<std::ffi::OsString> {
        let mut words = Vec::new();
        for (number, part) in line.split('\'').enumerate() {
            match number % 2 {
                0 => words.extend(part.split_whitespace().map(Into::into)),
                _ => words.push(part.into()),
            }
        }
        words
    }

    /// The parser accepts each example.
    #[test]
    fn examples_are_understood() {
        fn look(rows: &[Row], above: &str) -> usize {
            let mut count = 0;
            for row in rows {
                let name = format!("{above} {}", row.name());
                match row.kind() {
                    Kind::Group { rows, .. } => count += look(rows, &name),
                    Kind::Leaf { examples, .. } => {
                        assert!(!examples.is_empty(), "{name} has no example");
                        for example in *examples {
                            let line = example.line;
                            let is_of_it = |part: &str| format!("{part} ").starts_with(&format!("{name} "));
                            assert!(line.split(" | ").any(is_of_it), "{line} is not of {name}");
                            assert!(!example.does.ends_with('.'), "{line}");
                            for part in line.split(" | ").filter(|part| part.starts_with("buttress ")) {
                                let parsed = table::parse(&words_of(part.split(" > ").next().unwrap()));
                                assert!(parsed.is_ok(), "{part}: {}", parsed.unwrap_err());
                            }
                            count += 1;
                        }
                    }
                }
            }
            count
        }
        assert!(look(table::ROWS, "buttress") >= commands().len());
    }

    #[test]
    fn pages_are_the_same_each_time() {
        assert_eq!(pages(), pages());
    }
}
