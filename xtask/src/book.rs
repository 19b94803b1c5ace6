//! `cargo xtask book`: the pages of the repository as a site below `target/book`, made by the
//! program `mdbook`.
//!
//! `docs/README.md` is the index: each heading is a part of the book, and each list entry with a
//! link is a chapter. The chore copies the chapters to `target/book/source`, with their paths in
//! the repository, so that their links stay valid. It also copies other files that chapters link
//! to: Rust sources and pictures. `mdbook` needs no network.
//!
//! Invariant: each page below `docs` is a chapter (a test compares the index with the folder).

use crate::run::{root, run as run_command, target};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

/// The path of the book's index, from the repository's root.
const INDEX: &str = "docs/README.md";

/// The settings of `mdbook`. Rust code in the pages does not run in a browser.
const SETTINGS: &str = "\
[book]
title = \"Buttress\"
src = \"source\"

[build]
build-dir = \"site\"

[output.html.playground]
runnable = false
";

/// Generates the book's site.
pub(crate) fn run() -> Result<()> {
    let folder = target()?.join("book");
    let source = folder.join("source");
    if source.exists() {
        fs::remove_dir_all(&source).with_context(|| format!("removing {}", source.display()))?;
    }
    let index = read(&root()?.join(INDEX))?;
    for chapter in chapters(&index)? {
        copy_page(&chapter, &source)?;
    }
    copy_page(Path::new(INDEX), &source)?;
    write(&source.join("SUMMARY.md"), &summary(&index)?)?;
    write(&folder.join("book.toml"), SETTINGS)?;
    let has_mdbook = Command::new("mdbook")
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    ensure!(
        has_mdbook,
        "mdbook: not installed (the pages are in {}). Run `cargo install --locked mdbook`",
        source.display()
    );
    run_command(Command::new("mdbook").arg("build").arg(&folder))?;
    println!("{}", folder.join("site/index.html").display());
    Ok(())
}

/// Returns the target of a page's link, from the repository's root. Returns `None` for an address
/// or an anchor.
fn resolved(page: &Path, link: &str) -> Result<Option<PathBuf>> {
    let path = link.split('#').next().unwrap_or_default();
    if path.is_empty() || path.contains("://") {
        return Ok(None);
    }
    let mut found = page.parent().context("a page is in a folder")?.to_path_buf();
    for part in Path::new(path).components() {
        match part {
            Component::ParentDir => ensure!(
                found.pop(),
                "{}: {link}: outside of the repository",
                page.display()
            ),
            part => found.push(part),
        }
    }
    Ok(Some(found))
}

/// Returns the target of each link `[text](target)` in a text.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let starts = text
        .match_indices("](")
        .map(|(at, mark)| at.saturating_add(mark.len()));
    starts.filter_map(|start| text.get(start..)?.split(')').next())
}

/// Returns the chapters of an index, from the repository's root.
fn chapters(index: &str) -> Result<Vec<PathBuf>> {
    let entries = index.lines().filter(|line| line.starts_with("- ["));
    let found = entries.filter_map(|line| links(line).next());
    found
        .map(|link| resolved(Path::new(INDEX), link)?.with_context(|| format!("{INDEX}: {link}: not a page")))
        .collect()
}

/// Returns the index in `mdbook`'s form: headings of the first level, and links from the root.
fn summary(index: &str) -> Result<String> {
    let mut text = format!("# Summary\n\n[The pages]({INDEX})\n");
    for line in index.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            text += &format!("\n# {heading}\n\n");
        } else if line.starts_with("- [") {
            let title = line.split("](").next().unwrap_or_default();
            let link = links(line).next().unwrap_or_default();
            let page = resolved(Path::new(INDEX), link)?.context("an entry names a page")?;
            text += &format!("{title}]({})\n", page.display());
        }
    }
    Ok(text)
}

/// Returns a page with links as `mdbook` resolves them: `README.md` becomes the index of its
/// folder.
fn with_indices(text: &str) -> String {
    text.replace("README.md)", "index.md)")
        .replace("README.md#", "index.md#")
}

/// Copies a page, and the files other than pages that it links to.
fn copy_page(page: &Path, source: &Path) -> Result<()> {
    let top = root()?;
    let text = read(&top.join(page))?;
    write(&source.join(page), &with_indices(&text))?;
    for link in links(&text) {
        let Some(linked) = resolved(page, link)? else {
            continue;
        };
        let is_page = linked.extension().is_some_and(|extension| extension == "md");
        let (from, to) = (top.join(&linked), source.join(&linked));
        if from.is_file() && !is_page {
            write(&to, &read(&from)?)?;
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn index_lists_each_page_once() {
        let top = root().unwrap();
        let index = read(&top.join(INDEX)).unwrap();
        let chapters = chapters(&index).unwrap();
        let listed: BTreeSet<PathBuf> = chapters.iter().cloned().collect();
        assert_eq!(listed.len(), chapters.len(), "a page is listed twice");
        let mut pages = BTreeSet::new();
        let mut folders = vec![top.join("docs")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "md") {
                    pages.insert(path.strip_prefix(&top).unwrap().to_path_buf());
                }
            }
        }
        pages.remove(Path::new(INDEX));
        let missing: Vec<_> = pages.difference(&listed).collect();
        assert!(missing.is_empty(), "{INDEX} does not list {missing:?}");
        let gone: Vec<_> = listed.iter().filter(|page| !top.join(page).is_file()).collect();
        assert!(gone.is_empty(), "{INDEX} lists {gone:?}");
    }

    #[test]
    fn summary_has_parts_and_links_from_the_root() {
        let index = "# Title\n\nText.\n\n## Part\n\n- [One](../README.md): first\n- [Two](a/b.md)\n";
        let expected = "# Summary\n\n[The pages](docs/README.md)\n\n# Part\n\n- [One](README.md)\n- [Two](docs/a/b.md)\n";
        assert_eq!(summary(index).unwrap(), expected);
        assert_eq!(
            chapters(index).unwrap(),
            [Path::new("README.md"), Path::new("docs/a/b.md")]
        );
    }

    #[test]
    fn links_stay_in_the_repository() {
        let page = Path::new("docs/a.md");
        assert_eq!(
            resolved(page, "../crates/b.rs#c").unwrap(),
            Some(PathBuf::from("crates/b.rs"))
        );
        assert_eq!(resolved(page, "https://example.org/a").unwrap(), None);
        assert_eq!(resolved(page, "#anchor").unwrap(), None);
        assert!(resolved(page, "../../b.md").is_err());
        assert_eq!(
            with_indices("[a](../README.md) [b](README.md#c)"),
            "[a](../index.md) [b](index.md#c)"
        );
    }
}
