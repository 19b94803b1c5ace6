//! Places of prose: comments of Rust files, messages of errors, and pages.
//!
//! Consecutive comment lines of one kind are one block of text. Directives and licences do not
//! occur here. A message is the string of an `#[error("…")]` attribute.

use super::{COLUMNS_MAX, NAME_MAX};
use crate::run::root;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Folders with Rust files. Each crate is an area; a folder that is no crate is one area.
const CODE: [&str; 4] = ["bench", "crates", "examples", "xtask"];

/// Pages that quote the words that they reject.
const FREE: [&str; 1] = ["docs/internals/glossary.md"];

/// The prose of a file, or of a part of it, that counts for one area.
pub(crate) struct Piece {
    pub(crate) area: String,
    /// The path of the file, from the repository's root.
    pub(crate) file: String,
    pub(crate) blocks: Vec<Block>,
    /// Comment lines that are too wide, with their line numbers from 1.
    pub(crate) wide: Vec<(usize, String)>,
    /// Returns test names that are too long.
    pub(crate) long_names: Vec<(usize, String)>,
}

/// Consecutive lines of text.
pub(crate) struct Block {
    /// The block's first line in the file, from 1.
    pub(crate) line: usize,
    pub(crate) text: String,
}

/// Returns all prose of the repository, in order of files.
pub(crate) fn pieces() -> Result<Vec<Piece>> {
    let top = root()?;
    let mut found = Vec::new();
    for folder in CODE {
        for file in files(&top.join(folder), "rs")? {
            let name = relative(&top, &file)?;
            let text = read(&file)?;
            found.push(comments(area_of_code(&name), name.clone(), &text));
            found.push(messages(name, &text));
        }
    }
    let mut pages = files(&top.join("docs"), "md")?;
    for entry in std::fs::read_dir(&top)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    pages.sort();
    for page in pages {
        let name = relative(&top, &page)?;
        if !FREE.contains(&name.as_str()) {
            found.push(Piece::of(
                area_of_page(&name),
                name,
                vec![Block {
                    line: 1,
                    text: read(&page)?,
                }],
            ));
        }
    }
    Ok(found)
}

impl Piece {
    const fn of(area: String, file: String, blocks: Vec<Block>) -> Self {
        Self {
            area,
            file,
            blocks,
            wide: Vec::new(),
            long_names: Vec::new(),
        }
    }
}

fn area_of_code(name: &str) -> String {
    let mut parts = name.split('/');
    match (parts.next(), parts.next()) {
        (Some("crates"), Some(library)) => library.to_owned(),
        (first, _) => first.unwrap_or_default().to_owned(),
    }
}

/// Returns the area of a page. The generated page of commands is `help`.
fn area_of_page(name: &str) -> String {
    match name {
        "docs/commands.md" => "help".to_owned(),
        name => match name.rsplit_once('/') {
            Some((folder, _)) => folder.to_owned(),
            None => name.to_owned(),
        },
    }
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

fn relative(top: &Path, path: &Path) -> Result<String> {
    Ok(path.strip_prefix(top)?.display().to_string())
}

/// Returns the files below a folder with this extension, sorted.
fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        if !folder.is_dir() {
            continue;
        }
        for entry in std::fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|is| is == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the mark of a comment line and its text.
fn comment(line: &str) -> Option<(&'static str, &str)> {
    let line = line.trim_start();
    ["///", "//!", "//"].into_iter().find_map(|mark| {
        let text = line.strip_prefix(mark)?;
        Some((mark, text.strip_prefix(' ').unwrap_or(text)))
    })
}

fn comments(area: String, file: String, text: &str) -> Piece {
    let mut piece = Piece::of(area, file, Vec::new());
    let mut mark_before = None;
    let mut is_test = false;
    for (number, line) in (1_usize..).zip(text.lines()) {
        let found = comment(line);
        if let Some((mark, content)) = found {
            let joins = mark_before == Some(mark);
            match piece.blocks.last_mut().filter(|_| joins) {
                Some(block) => {
                    block.text.push('\n');
                    block.text.push_str(content);
                }
                None => piece.blocks.push(Block {
                    line: number,
                    text: content.to_owned(),
                }),
            }
            if line.chars().count() > COLUMNS_MAX {
                piece.wide.push((number, line.trim().to_owned()));
            }
        } else if line.trim_start().starts_with("#[test]") {
            is_test = true;
        } else if let Some(rest) = line.trim_start().strip_prefix("fn ") {
            let name = rest.split(['(', '<']).next().unwrap_or_default();
            if is_test && name.len() > NAME_MAX {
                piece.long_names.push((number, name.to_owned()));
            }
            is_test = false;
        }
        mark_before = found.map(|(mark, _)| mark);
    }
    piece
}

/// Returns the error messages that a source file defines.
fn messages(file: String, text: &str) -> Piece {
    let mut piece = Piece::of("messages".to_owned(), file, Vec::new());
    for (at, mark) in text.match_indices("#[error(\"") {
        let line = text.get(..at).map_or(0, |before| before.matches('\n').count());
        let start = at.saturating_add(mark.len());
        piece.blocks.push(Block {
            line: line.saturating_add(1),
            text: literal(text.get(start..).unwrap_or_default()),
        });
    }
    piece
}

/// Returns the text of a string literal that begins here, without its line breaks and escapes.
fn literal(code: &str) -> String {
    let mut text = String::new();
    let mut letters = code.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => break,
            '\\' => text.extend(letters.next().filter(|next| *next != '\n')),
            letter => text.push(letter),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comment_lines_of_one_kind_are_one_block() {
        let piece = comments(
            String::new(),
            String::new(),
            "//! a\n//! b\n\n/// c\n/// d\nfn e() {} // f\n// g\n",
        );
        let blocks: Vec<(usize, &str)> = piece
            .blocks
            .iter()
            .map(|block| (block.line, block.text.as_str()))
            .collect();
        assert_eq!(blocks, [(1, "a\nb"), (4, "c\nd"), (7, "g")]);
    }

    #[test]
    fn wide_lines_and_long_names_are_found() {
        let name = "a".repeat(NAME_MAX + 1);
        let text = format!(
            "// {}\n#[test]\nfn {name}() {{}}\nfn {name}() {{}}\n",
            "b".repeat(COLUMNS_MAX)
        );
        let piece = comments(String::new(), String::new(), &text);
        assert_eq!(piece.wide.len(), 1);
        assert_eq!(piece.long_names, [(3, name)], "only tests count");
    }

    #[test]
    fn messages_are_strings_of_error_attributes() {
        let piece = messages(String::new(), "x\n#[error(\"{0}: \\\"is\\\" full\", a)]\n \"b\"");
        let [block] = piece.blocks.as_slice() else {
            panic!("{} blocks", piece.blocks.len());
        };
        assert_eq!((block.line, block.text.as_str()), (2, "{0}: \"is\" full"));
    }

    #[test]
    fn areas_are_crates_and_folders() {
        assert_eq!(area_of_code("crates/fs/src/a.rs"), "fs");
        assert_eq!(area_of_code("xtask/src/a.rs"), "xtask");
        assert_eq!(area_of_page("README.md"), "README.md");
        assert_eq!(area_of_page("docs/decisions/1.md"), "docs/decisions");
        assert_eq!(area_of_page("docs/commands.md"), "help");
    }
}
