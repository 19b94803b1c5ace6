//! Power cuts under common programs: they run on a mount that this process serves from a device of
//! the crash laboratory. After a cut at any write the volume opens, is sound, and has the content
//! synced before the cut.
//!
//! Each program of `buttress_oracle::field` runs to its end, and then everything is synced: later
//! cuts must preserve all of it. If programs report their own syncs (a database, a repository, a
//! mail spool), each cut is checked against these reports.
//!
//! `BUTTRESS_POWER_CUTS` sets the number of cuts for each program, `BUTTRESS_POWER_SEED` their
//! seed. `cargo xtask soak --mount-cuts N`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

use crate::mounting;

use buttress::unstable::device::MemoryBackend;
use buttress::{
    Backend, CheckOptions, Device, DeviceEngine as Engine, Environment, FileKind, Progress, Subvolume,
    Timestamp, Uuid, Volume,
};
use buttress_lab::crash::{CrashLab, History, Outcome};
use buttress_mount::fuse::{self, MountOptions, Session};
use buttress_mount::volume::{Access, MountedVolume, Showing};
use buttress_oracle::content::Random;
use buttress_oracle::field::PROGRAMS;
use buttress_oracle::ioctls;
use buttress_oracle::needs::{any_missing, missing};
use buttress_oracle::skip::skips;
use mounting::{no_fuse, text};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const VOLUME_BYTES: usize = 512 << 20;
const CUTS: u64 = 6;

/// The system's environment with frequent commits, so that many cuts are during commits.
#[derive(Debug)]
struct Hurried;

impl Environment for Hurried {
    fn now(&self) -> Timestamp {
        buttress::SystemEnvironment.now()
    }

    fn new_uuid(&self) -> Uuid {
        buttress::SystemEnvironment.new_uuid()
    }

    fn commit_interval(&self) -> Option<Duration> {
        Some(Duration::from_millis(100))
    }
}

fn number_of(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |text| text.parse().unwrap())
}

fn device(backend: Arc<dyn Backend>) -> Device {
    Device::with_backend(backend, Engine::Inline)
}

/// Runs `run` on a mount of a volume whose device records its writes. `run` gets the directory, and
/// marks its syncs.
fn recorded(run: impl FnOnce(&Path, &dyn Fn(u64))) -> History {
    let lab = CrashLab::new();
    let new = Arc::new(MemoryBackend::new("disk", vec![0; VOLUME_BYTES]));
    let made = Volume::create()
        .on_devices(vec![device(Arc::clone(&new) as _)])
        .unwrap();
    made.sync().unwrap();
    drop(made);
    let opening = Volume::options().environment(Arc::new(Hurried));
    let volume = opening
        .open_writable_devices(vec![device(lab.device(new))])
        .unwrap();
    let writer = buttress::unstable::writer_of(&volume).clone();
    let root = buttress::Location::root_of(writer.view().default_subvolume().unwrap());
    let served = Arc::new(MountedVolume::new(
        Access::Writing(writer),
        root,
        Showing::default(),
        Arc::new(|said: &str| panic!("the server says: {said}")),
    ));
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("at");
    fs::create_dir(&at).unwrap();
    let options = MountOptions {
        source: "laboratory".into(),
        suid: true,
        dev: true,
        ..MountOptions::default()
    };
    let session = Session::mount(Arc::clone(&served) as _, &at, &options, None).unwrap();
    served.is_mounted_on(&at).unwrap();
    let serving = std::thread::spawn(move || session.serve());
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let inside = at.join("inside");
        fs::create_dir(&inside).unwrap();
        sync_all(&at);
        run(&inside, &|label| lab.mark(label));
    }));
    // The mount must not outlast a failed test; a program that another test starts may have files
    // open for a moment.
    fuse::unmount(&at, true).unwrap();
    serving.join().unwrap().unwrap();
    if let Err(panicked) = ran {
        std::panic::resume_unwind(panicked);
    }
    served.leave().unwrap();
    let history = lab.history();
    // The end of the history is also a cut.
    assert!(
        history.last_mark(history.len()).is_some(),
        "nothing was ever synced"
    );
    history
}

/// Commits everything. (`syncfs` reaches only servers of block devices.)
fn sync_all(directory: &Path) {
    const SYNC: u32 = 0x9408;
    ioctls::numbered(&fs::File::open(directory).unwrap(), SYNC, &mut [0; 4096]).unwrap();
}

fn ended(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Tests cuts of a history. `holds` receives a directory with the content of the tested program's
/// directory, and the last mark before the cut.
fn cut(history: &History, holds: impl Fn(&Path, u64)) {
    let seed = buttress_oracle::seeds::seed("mount_power_cuts", "BUTTRESS_POWER_SEED", 1);
    let mut random = Random::new(seed);
    for number in 0..number_of("BUTTRESS_POWER_CUTS", CUTS) {
        let cut = match number {
            // The cut is directly after the last sync.
            0 => history.len(),
            _ => usize::try_from(random.below(history.len() as u64 + 1)).unwrap(),
        };
        let outcome = match random.below(6) {
            0 => Outcome::AllKept,
            1 | 2 => Outcome::NoneKept,
            _ => Outcome::Drawn {
                seed: random.number(),
            },
        };
        println!(
            "seed {seed}, cut {number} at event {cut} of {}, {outcome:?}",
            history.len()
        );
        let promised = history.last_mark(cut);
        let mut images = history.images_at(cut, outcome);
        let image = images.remove(0);
        // Opening the volume for writing replays its log, and the commit makes the result the
        // volume's state.
        let writable = Volume::options();
        let volume = writable
            .open_writable_devices(vec![device(Arc::clone(&image))])
            .unwrap();
        volume.set_label("after the cut").unwrap();
        volume.sync().unwrap();
        let folder = tempfile::tempdir().unwrap();
        if let Some(promised) = promised {
            let taken = folder.path().join("taken");
            take_out(&volume.root(), b"inside", &taken);
            holds(&taken, promised);
        }
        drop(volume);
        let volume = Volume::options().open_devices(vec![device(image)]).unwrap();
        let report = volume.check(&CheckOptions::default(), &Progress::new()).unwrap();
        assert!(report.findings.is_empty(), "{:?}", report.findings);
    }
}

/// Extracts files, directories and symbolic links of a subvolume.
fn take_out(subvolume: &Subvolume, from: &[u8], to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in subvolume.read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (path, place) = ([from, b"/", entry.name_bytes()].concat(), to.join(entry.name()));
        match entry.kind() {
            FileKind::Directory => take_out(subvolume, &path, &place),
            FileKind::Regular => fs::write(&place, subvolume.read(&path).unwrap()).unwrap(),
            FileKind::Symlink => {
                let target = subvolume.read_link(&path).unwrap();
                symlink(std::ffi::OsStr::from_bytes(&target), &place).unwrap();
            }
            _ => {}
        }
    }
}

/// Lists every name below a directory with its content's checksum, or its target.
fn listing(directory: &Path) -> String {
    let script = "find . -type f -exec sha256sum {} + | sort; find . -type l -printf '%p %l\\n' | sort; find . -type d | sort";
    ended(
        Command::new("sh")
            .args(["-e", "-c", script])
            .current_dir(directory),
    )
}

/// Runs a program to its end, then syncs everything.
fn synced_at_the_end(name: &str) {
    const SECONDS: u64 = 1;
    const MIB: u64 = 3;
    let program = PROGRAMS.iter().find(|program| program.name == name).unwrap();
    if skips(no_fuse()) || skips(any_missing(program.needs)) {
        return;
    }
    let mut left = String::new();
    let history = recorded(|inside, mark| {
        mark(0);
        ended(&mut program.command(inside, SECONDS, MIB));
        sync_all(inside);
        left = listing(inside);
        mark(1);
    });
    cut(&history, |taken, promised| {
        if promised == 1 {
            let found = listing(taken);
            let lost: Vec<&str> = left
                .lines()
                .filter(|line| !found.contains(line))
                .take(9)
                .collect();
            assert!(
                lost.is_empty(),
                "of what was there when all was synced: {lost:#?}"
            );
            assert_eq!(found.len(), left.len(), "what nobody made");
        }
    });
}

#[test]
fn fio_buffered() {
    synced_at_the_end("fio-buffered");
}

#[test]
fn fio_direct() {
    synced_at_the_end("fio-direct");
}

#[test]
fn fio_mmap() {
    synced_at_the_end("fio-mmap");
}

#[test]
fn stress_ng() {
    synced_at_the_end("stress-ng");
}

#[test]
fn dbench() {
    synced_at_the_end("dbench");
}

#[test]
fn fs_mark() {
    synced_at_the_end("fs_mark");
}

#[test]
fn postmark() {
    synced_at_the_end("postmark");
}

#[test]
fn unpacking() {
    synced_at_the_end("unpacking");
}

#[test]
fn packages() {
    synced_at_the_end("dpkg-deb");
}

/// A program that answers each input line with one line.
struct Answering {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Answering {
    fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, answers }
    }

    fn asked(&mut self, line: &str) -> String {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer.trim().to_owned()
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// After each cut, every transaction that had returned must be present, and the database must be
/// intact.
fn database(mode: &str) {
    const TRANSACTIONS: u64 = 60;
    if skips(no_fuse()) || skips(missing("sqlite3")) {
        return;
    }
    let history = recorded(|inside, mark| {
        let mut sqlite = Answering::start(
            Command::new("stdbuf")
                .args(["-oL", "sqlite3", "-batch"])
                .arg(inside.join("base.db")),
        );
        assert_eq!(sqlite.asked(&format!("pragma journal_mode={mode};")), mode);
        // With the level `full`, a journal may reappear after a power cut and roll back the last
        // transaction.
        sqlite.asked(
            "pragma synchronous=extra; create table t (a integer primary key, b text); select 'made';",
        );
        // Sync the directory here, because sqlite does not sync it for a new database in each mode.
        ended(Command::new("sync").arg(inside));
        mark(0);
        for number in 1..=TRANSACTIONS {
            let made = sqlite.asked(&format!(
                "begin; insert into t values ({number}, hex(randomblob(2000))); \
                 update t set b = hex(randomblob(1500)) where a = {number} - 7; commit; select {number};"
            ));
            assert_eq!(made, number.to_string());
            mark(number);
        }
        sqlite.end();
    });
    cut(&history, |taken, promised| {
        let base = taken.join("base.db");
        let asked = |question: &str| ended(Command::new("sqlite3").arg(&base).arg(question));
        let before: Vec<_> = fs::read_dir(taken)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(asked("pragma integrity_check").trim(), "ok");
        let found: u64 = asked("select count(*) from t").trim().parse().unwrap();
        assert!(
            found >= promised,
            "{found} of {promised} transactions; found {before:?}"
        );
        assert_eq!(
            asked("select coalesce(max(a), 0) from t").trim(),
            found.to_string(),
            "in their order"
        );
    });
}

#[test]
fn databases_with_a_journal() {
    database("delete");
}

#[test]
fn databases_with_a_write_ahead_log() {
    database("wal");
}

/// After a power cut, every commit synced with its directories must be present, and the repository
/// must be intact.
#[test]
fn repositories() {
    const COMMITS: u64 = 8;
    if skips(no_fuse()) || skips(missing("git")) {
        return;
    }
    let git = |at: &Path, script: &str, number: u64| {
        let mut command = Command::new("sh");
        command
            .args(["-e", "-c", script])
            .current_dir(at)
            .env("N", number.to_string());
        for variable in ["GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"] {
            command.env(variable, "/dev/null");
        }
        ended(&mut command)
    };
    let history = recorded(|inside, mark| {
        git(
            inside,
            "git init -q -b main .; git config user.name a; git config user.email a@localhost; git config gc.auto 0\n\
             git config core.fsync all; git config core.fsyncMethod fsync",
            0,
        );
        sync_all(inside);
        mark(0);
        for number in 1..=COMMITS {
            git(
                inside,
                "mkdir -p d$((N % 3)); seq $N $((N + 500)) > d$((N % 3))/f$N; git add -A; git commit -q -m $N\n\
                 find .git -type d -exec sync {} +",
                number,
            );
            mark(number);
        }
    });
    cut(&history, |taken, promised| {
        git(taken, "git fsck --full --strict", 0);
        let found = git(taken, "git rev-list --count --all", 0);
        let found: u64 = found.trim().parse().unwrap();
        assert!(found >= promised, "{found} of {promised} commits");
    });
}

/// Every delivered letter must be present, complete, and under one name.
#[test]
fn mail_spools() {
    const LETTERS: u64 = 40;
    if skips(no_fuse()) {
        return;
    }
    let history = recorded(|inside, mark| {
        let script = "mkdir tmp new; echo 0\n\
                      while read -r n; do head -c $((n * 311)) /dev/zero | tr '\\0' x > tmp/$n; sync tmp/$n\n\
                      mv tmp/$n new/$n; sync new; echo $n; done";
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", script]).current_dir(inside);
        let mut spool = Answering::start(&mut shell);
        let mut first = String::new();
        spool.answers.read_line(&mut first).unwrap();
        sync_all(inside);
        for number in 1..=LETTERS {
            assert_eq!(spool.asked(&number.to_string()), number.to_string());
            mark(number);
        }
        spool.end();
    });
    cut(&history, |taken, promised| {
        for number in 1..=promised {
            let letter = fs::read(taken.join("new").join(number.to_string())).unwrap();
            assert_eq!(
                letter,
                vec![b'x'; usize::try_from(number * 311).unwrap()],
                "letter {number}"
            );
            assert!(
                !taken.join("tmp").join(number.to_string()).exists(),
                "letter {number} twice"
            );
        }
    });
}
