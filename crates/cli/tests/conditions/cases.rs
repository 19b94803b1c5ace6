//! A valid command line for each command, and the command's expected answers.
//!
//! Words are templates: `{image}` is a volume, `{stream}` a send stream, `{host}` a folder of the
//! host, `{out}` the folder for outputs, `{target}` an empty image, `{ext}` an ext4 image.
//! `{quotas}` is the volume after quotas were enabled, and `{deleted}` the volume after the file
//! `/deleted` was made and removed.

use std::fmt;

use crate::world::World;

/// Standard output of a successful run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Results as text.
    Text,
    /// The output holds contents that the command refuses to write to a terminal.
    Binary,
    /// The command prints nothing: its effect is visible in the volume or in files.
    Silent,
}

/// Effect of `--format json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Json {
    /// A document under the command's own name, with `-` between its words.
    Own,
    /// A JSON document under this name.
    Named(&'static str),
    /// The command is refused with exit code 2, because contents have no JSON form.
    Refused,
    /// The documents of the session's commands.
    Words,
}

/// Origin of the command's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Image,
    /// An ext4 image.
    Ext,
    Overlay,
    Stream,
    Host,
    Nothing,
}

/// A command line with its expected answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    /// Command as in the command table.
    pub(crate) command: &'static str,
    /// Name that distinguishes several command lines of one command.
    pub(crate) form: &'static str,
    words: &'static str,
    /// The same command line, with a path that is not in the volume.
    missing_path: &'static str,
    pub(crate) answer: Answer,
    pub(crate) json: Json,
    pub(crate) source: Source,
    /// True if the command changes the volume.
    pub(crate) writes: bool,
    /// True if the command creates files on the host.
    pub(crate) makes_files: bool,
    /// True if the command reports progress.
    pub(crate) is_job: bool,
}

impl Case {
    /// Returns the arguments of a valid command line.
    pub(crate) fn words(&self, world: &World) -> Vec<String> {
        self.filled(self.words, world)
    }

    /// Returns the arguments with a source that does not exist.
    pub(crate) fn missing(&self, world: &World) -> Option<Vec<String>> {
        let placeholder = match self.source {
            Source::Image => "{image}",
            Source::Ext => "{ext}",
            Source::Overlay => "{overlay}",
            Source::Stream => "{stream}",
            Source::Host => "{host}",
            Source::Nothing => return None,
        };
        // These volumes are the image, too.
        let words = self.words.replace("{quotas}", "{image}");
        let words = words.replace("{deleted}", "{image}");
        Some(self.filled(&words.replace(placeholder, "{absent}"), world))
    }

    /// Returns the arguments with a path that is not in the volume.
    pub(crate) fn missing_path(&self, world: &World) -> Option<Vec<String>> {
        self.has_path().then(|| self.filled(self.missing_path, world))
    }

    /// Returns whether the command ends in order after a signal, even while it waits for its
    /// reader.
    pub(crate) fn ends_in_order(&self) -> bool {
        self.command == "send"
    }

    /// Returns whether a failure leaves nothing of the command's outputs. A send keeps its partial
    /// output to resume it, and a scan its index. The tour continues after a failed step.
    /// Man pages are separate files.
    pub(crate) fn leaves_nothing(&self) -> bool {
        !matches!(self.command, "send" | "tour" | "man" | "rescue scan")
    }

    /// Returns the name of the command's JSON document.
    pub(crate) fn document(&self) -> String {
        let own = self.command.strip_prefix("inspect-internal ");
        own.unwrap_or(self.command).replace(' ', "-")
    }

    /// Returns whether the command handles signals until its results are ready, and so may end in
    /// order before a signal ends it.
    pub(crate) fn may_finish(&self) -> bool {
        matches!(self.command, "send" | "fiemap" | "space" | "compression")
    }

    /// Returns the exit code of a successful run.
    pub(crate) fn sound(&self) -> i32 {
        match self.command {
            // No job is running, and no job can be resumed.
            "scrub cancel" | "scrub resume" | "replace cancel" | "balance pause" | "balance cancel"
            | "balance resume" => 2,
            _ => i32::from(self.form == "of what differs"),
        }
    }

    /// Returns the expected exit code if the output has no reader: no failure, except for a
    /// truncated stream.
    pub(crate) fn unread(&self) -> i32 {
        match self.command {
            "send" => i32::from(self.answer == Answer::Binary),
            _ => self.sound(),
        }
    }

    /// Returns whether the command has a path in a volume or a stream.
    pub(crate) fn has_path(&self) -> bool {
        !self.missing_path.is_empty()
    }

    fn filled(&self, words: &str, world: &World) -> Vec<String> {
        let all = format!("{} {words}", self.command);
        all.split_whitespace().map(|word| world.fill(word)).collect()
    }

    /// Returns the exit code of a failure.
    pub(crate) fn trouble(&self) -> i32 {
        match self.command {
            "check" | "diff" | "restore" | "undelete" => 2,
            _ => 1,
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.command)?;
        if !self.form.is_empty() {
            write!(f, " {}", self.form)?;
        }
        Ok(())
    }
}

/// A command that reads a volume and prints results.
const LOOK: Case = Case {
    command: "",
    form: "",
    words: "{image}",
    missing_path: "",
    answer: Answer::Text,
    json: Json::Own,
    source: Source::Image,
    writes: false,
    makes_files: false,
    is_job: false,
};

const fn look(command: &'static str, words: &'static str, missing_path: &'static str) -> Case {
    Case {
        command,
        words,
        missing_path,
        ..LOOK
    }
}

/// Builds the case of a command that changes a volume.
const fn write(command: &'static str, words: &'static str, missing_path: &'static str) -> Case {
    Case {
        writes: true,
        ..look(command, words, missing_path)
    }
}

/// Builds the case of a command about a stream.
const fn stream(command: &'static str, words: &'static str, missing_path: &'static str) -> Case {
    Case {
        source: Source::Stream,
        is_job: true,
        ..look(command, words, missing_path)
    }
}

const SILENT: Answer = Answer::Silent;

/// Returns all cases, in the order of the command table.
pub(crate) fn cases() -> Vec<Case> {
    let mut all = taking_out();
    all.extend(about_whole_volumes());
    all.extend(about_streams());
    all.extend(about_volumes());
    all.extend(about_devices());
    all.extend(about_rescues());
    all.extend(about_quotas());
    all.extend(about_structures());
    all.extend(sessions());
    all
}

fn taking_out() -> Vec<Case> {
    vec![
        look("ls", "-lR {image}", "{image}:/no/such/path"),
        Case {
            json: Json::Refused,
            ..look("cat", "{image}:/home/many/file-0001", "{image}:/no/such/path")
        },
        look("stat", "{image}:/home", "{image}:/no/such/path"),
        look("tree", "{image}:/home", "{image}:/no/such/path"),
        Case {
            form: "out of a volume",
            answer: SILENT,
            makes_files: true,
            is_job: true,
            ..look(
                "cp",
                "-r {image}:/home/plain {out}/copy",
                "-r {image}:/no/such/path {out}/copy",
            )
        },
        Case {
            form: "into a volume",
            answer: SILENT,
            is_job: true,
            ..write(
                "cp",
                "-r {host} {image}:/new",
                "-r {host} {image}:/no/such/path/new",
            )
        },
        Case {
            answer: Answer::Binary,
            json: Json::Refused,
            is_job: true,
            ..look("tar", "{image}:/home", "{image}:/no/such/path")
        },
        Case {
            form: "-f",
            answer: SILENT,
            makes_files: true,
            is_job: true,
            ..look(
                "tar",
                "-f {out}/a.tar {image}:/home",
                "-f {out}/a.tar {image}:/no/such/path",
            )
        },
        Case {
            json: Json::Refused,
            is_job: true,
            ..look("manifest", "{image}", "")
        },
        Case {
            form: "-f",
            answer: SILENT,
            makes_files: true,
            is_job: true,
            ..look("manifest", "-f {out}/plan.toml {image}", "")
        },
        Case {
            form: "of what is the same",
            answer: SILENT,
            ..look("diff", "{image}:/home {image}:/home", "")
        },
        Case {
            form: "of what differs",
            ..look(
                "diff",
                "{image}:/home {image}:/home/many",
                "{image}:/home {image}:/no/such/path",
            )
        },
    ]
}

fn about_whole_volumes() -> Vec<Case> {
    vec![
        Case {
            source: Source::Nothing,
            makes_files: true,
            ..look("mkfs", "-b 128M {out}/new.img", "")
        },
        Case {
            form: "-r",
            source: Source::Host,
            makes_files: true,
            is_job: true,
            ..look("mkfs", "-r {host} {out}/new.img", "")
        },
        Case {
            form: "--tar",
            source: Source::Nothing,
            makes_files: true,
            is_job: true,
            ..look("mkfs", "--tar {archive} {out}/new.img", "")
        },
        Case {
            form: "--manifest",
            source: Source::Nothing,
            makes_files: true,
            is_job: true,
            ..look("mkfs", "--manifest {plan} {out}/new.img", "")
        },
        Case {
            is_job: true,
            ..look("check", "{image}", "")
        },
        Case {
            form: "--repair",
            is_job: true,
            ..look("check", "--repair --dry-run {image}", "")
        },
        Case {
            is_job: true,
            ..look("generations", "{image}", "")
        },
        Case {
            makes_files: true,
            is_job: true,
            ..look("restore", "{image} {out}/restored", "")
        },
        Case {
            is_job: true,
            ..look("undelete", "{deleted} /deleted", "")
        },
        Case {
            form: "-o",
            makes_files: true,
            is_job: true,
            ..look("undelete", "-o {out}/undeleted {deleted} /deleted", "")
        },
        Case {
            is_job: true,
            ..look("space", "{image}", "")
        },
        Case {
            is_job: true,
            ..look("compression", "{image}", "{image}:/no/such/path")
        },
        Case {
            answer: Answer::Binary,
            json: Json::Refused,
            is_job: true,
            ..look("send", "{image}:/home-monday", "{image}:/no/such/path")
        },
        Case {
            form: "-f",
            answer: SILENT,
            makes_files: true,
            is_job: true,
            ..look(
                "send",
                "-f {out}/s {image}:/home-monday",
                "-f {out}/s {image}:/no/such/path",
            )
        },
    ]
}

fn about_streams() -> Vec<Case> {
    vec![
        Case {
            json: Json::Named("receive-dump"),
            is_job: false,
            ..stream("receive", "--dump -f {stream}", "")
        },
        Case {
            form: "into a volume",
            answer: SILENT,
            is_job: true,
            ..write(
                "receive",
                "-f {stream} {image}:/home",
                "-f {stream} {image}:/no/such/path",
            )
        },
        Case {
            source: Source::Image,
            ..stream(
                "fiemap",
                "-v {image}:/home/many/file-0001",
                "-v {image}:/no/such/path",
            )
        },
        stream("stream ls", "{stream}", "{stream}:/no/such/path"),
        Case {
            json: Json::Refused,
            ..stream("stream cat", "{stream}:/many/file-0001", "{stream}:/no/such/path")
        },
        Case {
            answer: Answer::Binary,
            json: Json::Refused,
            ..stream("stream tar", "{stream}", "{stream}:/no/such/path")
        },
        Case {
            form: "-f",
            answer: SILENT,
            makes_files: true,
            ..stream(
                "stream tar",
                "-f {out}/a.tar {stream}",
                "-f {out}/a.tar {stream}:/no/such/path",
            )
        },
        Case {
            answer: Answer::Binary,
            json: Json::Refused,
            ..stream("stream merge", "{stream}", "")
        },
        Case {
            form: "-f",
            answer: SILENT,
            makes_files: true,
            ..stream("stream merge", "-f {out}/merged {stream}", "")
        },
        Case {
            answer: Answer::Binary,
            json: Json::Refused,
            ..stream("stream rebase", "--onto {stream} {incremental}", "")
        },
        Case {
            form: "-f",
            answer: SILENT,
            makes_files: true,
            ..stream(
                "stream rebase",
                "-f {out}/rebased --onto {stream} {incremental}",
                "",
            )
        },
        stream("stream verify", "{stream}", ""),
    ]
}

fn about_volumes() -> Vec<Case> {
    vec![
        look("subvolume list", "{image}", ""),
        look("subvolume show", "{image}:/home", "{image}:/no/such/path"),
        write("subvolume create", "{image}:/new", "{image}:/no/such/path/new"),
        write(
            "subvolume snapshot",
            "{image}:/home {image}:/new",
            "{image}:/no/such/path {image}:/new",
        ),
        write(
            "subvolume delete",
            "{image}:/home-monday",
            "{image}:/no/such/path",
        ),
        look("subvolume get-default", "{image}", ""),
        Case {
            answer: SILENT,
            ..write("subvolume set-default", "{image}:/home", "{image}:/no/such/path")
        },
        look("subvolume find-new", "{image}:/home 0", "{image}:/no/such/path 0"),
        Case {
            answer: SILENT,
            ..write("subvolume sync", "{image}", "")
        },
        look("filesystem show", "{image}", ""),
        look("filesystem df", "{image}", ""),
        look("filesystem usage", "{image}", ""),
        look("filesystem du", "{image}:/home", "{image}:/no/such/path"),
        look("filesystem label", "{image}", ""),
        Case {
            form: "to set it",
            answer: SILENT,
            ..write("filesystem label", "{image} new", "")
        },
        Case {
            answer: SILENT,
            ..write("filesystem sync", "{image}", "")
        },
        write("filesystem trim", "{image}", ""),
        Case {
            answer: SILENT,
            is_job: true,
            ..write(
                "filesystem defragment",
                "-r {image}:/home",
                "-r {image}:/no/such/path",
            )
        },
        Case {
            is_job: true,
            ..write("tune", "-m {image}", "")
        },
        Case {
            is_job: true,
            ..write("filesystem resize", "+64M {image}", "")
        },
        Case {
            is_job: true,
            ..write("filesystem shrink", "{image}", "")
        },
        write("device add", "{target} {image}", ""),
        Case {
            is_job: true,
            ..write("device remove", "2 --device {second} {image}", "")
        },
        Case {
            is_job: true,
            json: Json::Named("device-remove"),
            ..write("device delete", "2 --device {second} {image}", "")
        },
    ]
}

/// Devices, and jobs on all of a volume.
fn about_devices() -> Vec<Case> {
    vec![
        look("device stats", "{image}", ""),
        Case {
            form: "-z",
            ..write("device stats", "-z {image}", "")
        },
        look("device usage", "{image}", ""),
        Case {
            is_job: true,
            ..write("device resync", "{image}", "")
        },
        Case {
            is_job: true,
            ..write("scrub start", "-B {image}", "")
        },
        Case {
            answer: SILENT,
            ..look("scrub cancel", "{image}", "")
        },
        look("scrub resume", "-B {image}", ""),
        look("scrub status", "{image}", ""),
        Case {
            is_job: true,
            ..write("balance start", "-dusage=0 {image}", "")
        },
        Case {
            answer: SILENT,
            ..look("balance pause", "{image}", "")
        },
        Case {
            answer: SILENT,
            ..look("balance cancel", "{image}", "")
        },
        Case {
            answer: SILENT,
            ..look("balance resume", "{image}", "")
        },
        look("balance status", "{image}", ""),
        Case {
            is_job: true,
            ..write("replace start", "-B 1 {target} {image}", "")
        },
        look("replace status", "{image}", ""),
        Case {
            answer: SILENT,
            ..look("replace cancel", "{image}", "")
        },
    ]
}

/// Properties, overlays, dumps, conversions and rescues.
fn about_rescues() -> Vec<Case> {
    vec![
        look("property get", "{image}:/home", "{image}:/no/such/path"),
        Case {
            answer: SILENT,
            ..write(
                "property set",
                "{image}:/home-monday ro false",
                "{image}:/no/such/path ro true",
            )
        },
        look("property list", "{image}:/home", "{image}:/no/such/path"),
        write("overlay commit", "{overlay} {image}", ""),
        Case {
            source: Source::Overlay,
            ..write("overlay discard", "{overlay}", "")
        },
        Case {
            makes_files: true,
            is_job: true,
            ..look("image", "{image} {out}/dump", "")
        },
        Case {
            source: Source::Ext,
            is_job: true,
            ..write("convert", "{ext}", "")
        },
        Case {
            is_job: true,
            ..write("rescue chunk-recover", "-y {image}", "")
        },
        write("rescue clear-ino-cache", "{image}", ""),
        write("rescue clear-space-cache", "v1 {image}", ""),
        Case {
            answer: SILENT,
            ..write("rescue clear-uuid-tree", "{image}", "")
        },
        Case {
            is_job: true,
            ..write("rescue fix-data-checksum", "-m 1 {image}", "")
        },
        write("rescue fix-device-size", "{image}", ""),
        Case {
            makes_files: true,
            is_job: true,
            ..look("rescue scan", "--index {out}/index {image}", "")
        },
        write("rescue super-recover", "{image}", ""),
        write("rescue zero-log", "{image}", ""),
    ]
}

fn about_quotas() -> Vec<Case> {
    vec![
        Case {
            answer: SILENT,
            is_job: true,
            ..write("quota enable", "{image}", "")
        },
        Case {
            answer: SILENT,
            ..write("quota disable", "{quotas}", "")
        },
        Case {
            is_job: true,
            ..write("quota rescan", "{quotas}", "")
        },
        look("quota status", "{image}", ""),
        Case {
            answer: SILENT,
            ..write("qgroup create", "1/7 {quotas}", "")
        },
        Case {
            answer: SILENT,
            ..write("qgroup destroy", "1/2 {quotas}", "")
        },
        Case {
            answer: SILENT,
            ..write("qgroup assign", "0/5 1/2 {quotas}", "")
        },
        Case {
            answer: SILENT,
            ..write("qgroup remove", "0/5 1/1 {quotas}", "")
        },
        Case {
            answer: SILENT,
            ..write("qgroup limit", "1G {quotas}:/home", "1G {quotas}:/no/such/path")
        },
        look("qgroup show", "-pcre {quotas}:/home", "{quotas}:/no/such/path"),
        Case {
            answer: SILENT,
            ..write("qgroup clear-stale", "{quotas}", "")
        },
    ]
}

fn about_structures() -> Vec<Case> {
    vec![
        look("inspect-internal dump-super", "{image}", ""),
        look("inspect-internal dump-tree", "{image}", ""),
        look("inspect-internal tree-stats", "{image}", ""),
        look("inspect-internal list-chunks", "{image}", ""),
        Case {
            is_job: true,
            ..look("inspect-internal find-root", "-a {image}", "")
        },
        look("inspect-internal map-logical", "-l {data} {image}", ""),
        write("inspect-internal select-super", "-s 1 {image}", ""),
        look("inspect-internal logical-resolve", "{data} {image}", ""),
        look(
            "inspect-internal inode-resolve",
            "256 {image}:/home",
            "256 {image}:/no/such/path",
        ),
        look(
            "inspect-internal rootid",
            "{image}:/home",
            "{image}:/no/such/path",
        ),
        look("inspect-internal subvolid-resolve", "5 {image}", ""),
        look("inspect-internal min-dev-size", "{image}", ""),
    ]
}

fn sessions() -> Vec<Case> {
    vec![
        Case {
            json: Json::Words,
            ..look("shell", "-c ls {image}", "-c ls {image}:/no/such/path")
        },
        Case {
            source: Source::Host,
            makes_files: true,
            ..look("tour", "{host}", "")
        },
        Case {
            source: Source::Nothing,
            json: Json::Refused,
            ..look("help", "ls", "")
        },
        Case {
            source: Source::Nothing,
            ..look("version", "", "")
        },
        Case {
            source: Source::Nothing,
            json: Json::Refused,
            ..look("completions", "bash", "")
        },
        Case {
            source: Source::Nothing,
            answer: SILENT,
            makes_files: true,
            ..look("man", "{out}/man", "")
        },
        Case {
            source: Source::Nothing,
            json: Json::Refused,
            ..look("reference", "", "")
        },
    ]
}
