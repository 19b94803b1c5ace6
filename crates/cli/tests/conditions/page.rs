//! The page `docs/exit-codes.md`: the tests' expectations as a table. With `BUTTRESS_WRITE_DOCS`
//! set, the test rewrites the page.

use std::fmt::Write;
use std::fs;

use crate::cases::{Answer, Case, Json, Source, cases};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/exit-codes.md");

const HEAD: &str = "\
# Exit codes

The test `conditions` of the command makes this page and runs every cell. `BUTTRESS_WRITE_DOCS=1 cargo test -p buttress-cli --test
conditions` writes it again.

| code | meaning |
|---|---|
| 0 | the command did everything that it was asked to do. A reader that closes the pipe is no failure |
| 1 | the command failed, or something was lost. `diff`: there are differences. `check`: there are findings. `replace`: data was lost, or metadata was lost and the replacement was cancelled |
| 2 | the command line is wrong. `diff`: the sides could not be compared. `check`: the check could not run. `scrub`, `balance`, `replace`: there is nothing to resume, pause or cancel |
| 3 | `scrub`: there are uncorrectable errors |
| by a signal | SIGINT, SIGTERM or SIGHUP ended the command. Each of its changes to a volume is complete or absent |

These rules hold in every cell:

- A failure is reported on standard error and names the object that failed. Standard output contains only results.
- No output file is left incomplete. `send -f` keeps its partial output in a file beside the output, to resume from.
- A command that reads never writes to the image.
- With `--progress json`, standard error contains only JSON lines, one event a line. `event` is `progress`, `done`, `stopped`, `step`,
  `note`, `warning` or `error`. The last event of a complete job is `done`, at 100 percent.
- With `--format json`, standard output is always one document. A command that fails before its document prints a document with `error`
  (`message`, `help`, `exit_code`). A command that fails within an array closes the array and adds `error`.

| column | condition |
|---|---|
| `closed` | standard output is closed (`>&-`) |
| `full` | standard output is `/dev/full` |
| `pipe` | standard output is a pipe without a reader. A stream is cut off, and the message says how to resume |
| `terminal` | standard output is a terminal |
| `JSON` | `--format json` is given. The cell has the name of the document, or the exit code of a refusal |
| `SIGINT` | the signal arrives while the command writes to a slow reader. The cell has `signal`, or the exit code of an orderly end |
| `wrong` | an unknown option is given |
| `missing` | the image, stream or directory does not exist |
| `path` | the path does not exist in the volume |
| `denied` | the user has no permission to read the source, or to write the image or the output directory |
| `no space` | the disk for outputs is full |

A dash means that the condition does not apply to the command.

";

const COLUMNS: [&str; 12] = [
    "command", "closed", "full", "pipe", "terminal", "JSON", "SIGINT", "wrong", "missing", "path", "denied",
    "no space",
];

pub(crate) fn compare() {
    let page = page();
    if std::env::var_os("BUTTRESS_WRITE_DOCS").is_some() {
        fs::write(PAGE, &page).unwrap();
    }
    let written = fs::read_to_string(PAGE).unwrap_or_default();
    assert!(
        written == page,
        "docs/exit-codes.md is not what is tested:\n{page}"
    );
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    writeln!(page, "| {} |", COLUMNS.join(" | ")).unwrap();
    writeln!(page, "|{}", "---|".repeat(COLUMNS.len())).unwrap();
    for case in cases() {
        writeln!(page, "| `{case}` | {} |", cells(&case).join(" | ")).unwrap();
    }
    page
}

fn cells(case: &Case) -> [String; 11] {
    let trouble = case.trouble().to_string();
    let dash = || "-".to_owned();
    let is_silent = case.answer == Answer::Silent;
    let sound = case.sound().to_string();
    let output = if is_silent { sound.clone() } else { trouble.clone() };
    let has_source = case.source != Source::Nothing;
    let if_so = |holds: bool| if holds { trouble.clone() } else { dash() };
    [
        output.clone(),
        output,
        case.unread().to_string(),
        match case.answer {
            Answer::Binary => trouble.clone(),
            _ => sound,
        },
        match case.json {
            Json::Own => format!("`{}`", case.document()),
            Json::Named(name) => format!("`{name}`"),
            Json::Refused => "2".to_owned(),
            Json::Words => "each word's".to_owned(),
        },
        match case.ends_in_order() {
            _ if is_silent => dash(),
            true => trouble.clone(),
            false => "signal".to_owned(),
        },
        "2".to_owned(),
        if_so(has_source),
        if_so(case.has_path()),
        if_so(has_source || case.makes_files),
        if_so(case.makes_files),
    ]
}
