//! `docs/exit-codes.md`: what the tests expect, as a table. With `BUTTRESS_WRITE_DOCS` set it is written anew.

use std::fmt::Write;
use std::fs;

use crate::cases::{Answer, Case, Json, Source, cases};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/exit-codes.md");

const HEAD: &str = "\
# Exit codes

Made by the test `conditions` of the command, which runs every cell; `BUTTRESS_WRITE_DOCS=1 cargo test -p buttress-cli --test
conditions` writes it anew.

| code | meaning |
|---|---|
| 0 | all of it was done; also where the reader of the output closed the pipe |
| 1 | it failed, or something was lost on the way; `diff`: there are differences; `check`: something was found; `replace`: data is lost, or metadata is and the replacement was given up |
| 2 | the command line is wrong; `diff`: it could not compare; `check`: it could not check; `scrub`, `replace`: there is nothing to resume or to cancel |
| 3 | `scrub`: there are uncorrectable errors |
| by a signal | SIGINT, SIGTERM or SIGHUP ended it; what it changed in a volume is whole or not there |

What holds in every cell: a failure is told on standard error with what it is about; standard output holds results and nothing
else; no output is left half-made (`send -f` keeps what there is beside the file, to go on with); a command that only looks does not touch the image. With `--progress json` standard error
holds JSON lines and nothing else, one event a line ([`event`] is `progress`, `done`, `stopped`, `step`, `note`, `warning` or
`error`), and the last of a job that came to its end is `done`, at 100 percent. With `--format json` standard output
is one document in any case: a command that fails without one prints a document with `error` (`message`, `help`, `exit_code`), and one
that fails within an array closes the array and adds `error`.

`closed`: standard output is closed (`>&-`). `full`: it is `/dev/full`. `pipe`: nobody reads it; a stream is then
cut off, which is told with how to go on. `terminal`: it is one. `JSON`:
`--format json`; the name of the document, or the code of a refusal. `SIGINT`: it comes while the command waits for its reader:
`signal`, or the code of an end in order. `wrong`: an option that is not there. `missing`: the image, stream or folder does not
exist. `path`: the path is not in the volume. `denied`: an ordinary user may not read the source, or write the image or the
folder for outputs. `no space`: the disk for outputs is full. `-`: the command has no such thing.

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
    let mut page = HEAD.replace("[`event`]", "`event`");
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
