//! The table: a row for each kind of damage, with the share that each program brings back.
//!
//! Each row must have at least the share of btrfs-progs in each column, except for [`BELOW`]. No file
//! that was readable before a repair may be unreadable after it, and no verified file may have content
//! that no commit held.

use crate::base::{self, Base};
use crate::judging::{Share, whole};
use crate::runs::{Damaged, Side};
use anyhow::{Context, Result, ensure};
use buttress_hostile::damage::{Damage, Family, Kind, Part, Subject};
use buttress_hostile::plants;
use buttress_oracle::content::Random;
use buttress_oracle::needs::{REFERENCE_PROGS, missing};
use buttress_oracle::seeds::{budget, seed};
use buttress_oracle::tools::kernel_missing;
use buttress_proof::harness::{Case, Outcome};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// The variable with the number of seeds of each row.
const DAMAGES: &str = "BUTTRESS_DAMAGES";

/// The seed of the large base.
const BASE_SEED: u64 = 38;

/// Kinds with their seeds in the ordinary suite.
const NAMED: [(Row, u64); 6] = [
    (Row::One(Kind::Plant), 3),
    (Row::One(Kind::PrimarySuperblock), 1),
    (Row::One(Kind::PowerCut), 2),
    (Row::One(Kind::Megabyte), 5),
    (Row::One(Kind::Misdirected), 4),
    (Row::Several(2, 5), 1),
];

/// Rows and columns in which this version brings back less than btrfs-progs. No repair of file trees
/// exists yet, and `btrfs check --repair` removes damaged blocks from them.
const BELOW: [(Row, &str); 3] = [
    (Row::One(Kind::Lost(Family::TopLevel, Part::Leaf)), "repair"),
    (Row::One(Kind::Lost(Family::Subvolume, Part::Leaf)), "repair"),
    (Row::One(Kind::Misdirected), "repair"),
];

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Row {
    /// A damage of one kind.
    One(Kind),
    /// This number of damages of any kind at once.
    Several(u64, u64),
}

impl Row {
    fn all() -> Vec<Self> {
        let mut rows: Vec<Self> = Kind::all().into_iter().map(Self::One).collect();
        rows.extend([Self::Several(2, 5), Self::Several(6, 50)]);
        rows
    }

    fn name(self) -> String {
        match self {
            Self::One(kind) => kind.to_string(),
            Self::Several(least, most) => format!("{least} to {most} damages at once"),
        }
    }

    /// Draws the damages of a seed.
    fn draw(self, subject: &Subject<'_>, random: &mut Random) -> Vec<Damage> {
        let mut below = |end| random.below(end);
        match self {
            Self::One(kind) => subject.draw(kind, &mut below).into_iter().collect(),
            Self::Several(least, most) => {
                let count = least + below(most - least + 1);
                // After these, other damage shows nothing.
                let is_partial = |kind: &Kind| !matches!(kind, Kind::SecondFormat | Kind::AllSuperblocks);
                let kinds: Vec<Kind> = Kind::all().into_iter().filter(is_partial).collect();
                let mut drawn = Vec::new();
                for _ in 0..count {
                    let kind = kinds[usize::try_from(below(kinds.len() as u64)).unwrap_or(0)];
                    drawn.extend(subject.draw(kind, &mut below));
                }
                drawn
            }
        }
    }
}

/// The shares that the programs brought back from one damaged volume.
#[derive(Clone, Copy, Debug, Default)]
struct Recovered {
    volumes: u64,
    whole: Share,
    unrepaired: Share,
    restore: [Share; 3],
    /// Files from `restore` with content that no commit held; of ours, those that are verified.
    wrong: [u64; 3],
    repair: [Share; 3],
    rescue: [Share; 3],
    /// The number of volumes that are clean after our repair, and took work through Linux.
    clean: u64,
}

impl Recovered {
    fn add(&mut self, other: &Self) {
        self.volumes += other.volumes;
        self.whole += other.whole;
        self.unrepaired += other.unrepaired;
        self.clean += other.clean;
        for (sum, more) in self.wrong.iter_mut().zip(other.wrong) {
            *sum += more;
        }
        let columns = [
            (&mut self.restore, &other.restore),
            (&mut self.repair, &other.repair),
            (&mut self.rescue, &other.rescue),
        ];
        for (sums, more) in columns {
            for (sum, more) in sums.iter_mut().zip(more) {
                *sum += *more;
            }
        }
    }

    /// Returns the columns in which ours is unexpectedly below another.
    fn below(&self, row: Row) -> Vec<&'static str> {
        let columns = [
            ("restore", self.restore),
            ("repair", self.repair),
            ("rescue", self.rescue),
        ];
        let is_below = |shares: &[Share; 3]| {
            shares
                .iter()
                .skip(1)
                .any(|other| shares[0].files < other.files || shares[0].bytes < other.bytes)
        };
        let below = columns.iter().filter(|(_, shares)| is_below(shares));
        let below = below.filter(|(name, _)| !BELOW.contains(&(row, *name)));
        below.map(|(name, _)| *name).collect()
    }
}

/// Returns the bases of a seed of a row: all plants need their own seed volume.
fn base_of(row: Row, seed: u64, bases: &BTreeMap<String, Base>) -> Option<&Base> {
    if row != Row::One(Kind::Plant) {
        return bases.get("large");
    }
    let names: Vec<&String> = bases.keys().collect();
    bases.get(names[usize::try_from(seed).ok()? % names.len()].as_str())
}

/// Makes the large base, and the seed volumes of one device.
fn bases() -> Result<BTreeMap<String, Base>> {
    let mut bases = BTreeMap::new();
    bases.insert("large".to_owned(), base::large(BASE_SEED)?);
    for plant in plants::all() {
        let is_new = !bases.contains_key(plant.volume);
        if is_new && plants::seed(plant.volume).devices().len() == 1 {
            bases.insert(plant.volume.to_owned(), base::of_seed(plant.volume)?);
        }
    }
    Ok(bases)
}

/// Runs all programs on the damaged volume of a seed. `sides` are the programs to compare.
fn recover(row: Row, seed: u64, base: &Base, sides: &[Side]) -> Result<Option<Recovered>> {
    let mut random = Random::new(seed ^ 0xdaae_0000);
    let damages = row.draw(&base.subject(), &mut random);
    if damages.is_empty() {
        return Ok(None);
    }
    let editor = base.subject().damaged(&damages);
    let damaged = Damaged {
        base,
        editor: &editor,
        is_formatted: damages.iter().any(|damage| damage.kind == Kind::SecondFormat),
    };
    let is_forged = damages.iter().any(|damage| damage.kind == Kind::Plant);
    let what: Vec<&str> = damages.iter().map(|damage| damage.what.as_str()).collect();
    let run = || -> Result<Recovered> {
        let (unrepaired, before) = damaged.unrepaired()?;
        let mut recovered = Recovered {
            volumes: 1,
            whole: whole(base),
            unrepaired,
            ..Recovered::default()
        };
        for side in sides {
            let at = *side as usize;
            let (share, wrong) = damaged.restore(*side).context("restore")?;
            (recovered.restore[at], recovered.wrong[at]) = (share, wrong);
            let (share, is_clean) = damaged.repair(*side, &before, seed).context("repair")?;
            recovered.repair[at] = share;
            recovered.clean += u64::from(is_clean);
            recovered.rescue[at] = damaged.rescue(*side).context("rescue")?;
        }
        // A plant forges items behind valid checksums.
        ensure!(
            is_forged || recovered.wrong[0] == 0,
            "{} verified files are wrong",
            recovered.wrong[0]
        );
        Ok(recovered)
    };
    let recovered = run().with_context(|| format!("{}, seed {seed}: {what:?}", row.name()))?;
    if std::env::var_os("BUTTRESS_VERBOSE").is_some() {
        println!("{}, seed {seed}: {what:?}: {recovered:?}", row.name());
    }
    Ok(Some(recovered))
}

const HEAD: &str = "\
# Recovery beside btrfs-progs

The test `recovery` of `buttress-proof` makes this table with `BUTTRESS_DAMAGES=N BUTTRESS_BLESS=1`. N is the number of volumes of a row.

Each row is a kind of damage, on volumes of the kernel with 4 KiB tree blocks and one copy of metadata. A cell has the share of
files, and of bytes that are not zero, which come back as the last commit held them: with `buttress`, with btrfs-progs 6.2,
and with 6.14. Each program gets a fresh copy, answers `y` to every question, and has 60 seconds. A crash counts as nothing.

- `damaged`: Linux reads the damaged volume, mounted read-only.
- `restore`: `restore -s -S -x -m` into a directory. After another mkfs, ours gets the index of a scan with `--fsid`. This version
  refuses such an index.
- `wrong`: files from `restore` with content that no commit held. Of ours, files with the verdict `verified` count.
  Plants forge items behind valid checksums, so their files can be wrong.
- `repair`: `check --repair`, then Linux reads the volume. Ours runs with `--commit --yes-to all`.
- `rescue`: `rescue super-recover`, `rescue chunk-recover`, then Linux reads the volume.
- `clean`: volumes that both checks call clean after our repair. Linux then mounted each, and fsstress of xfstests wrote to it.
  Afterwards, both checks found nothing. Without `BUTTRESS_FSSTRESS`, a random tree takes the place of fsstress.

In all runs, each file that Linux read before our repair was the same after it. Our repair does not change damaged file trees yet,
so `btrfs check --repair` brings more bytes back after a lost leaf of files.

| damage | volumes | damaged | restore | wrong | repair | rescue | clean |
|---|---|---|---|---|---|---|---|
";

fn percent(part: u64, whole: u64) -> String {
    match part == whole {
        true => "100".to_owned(),
        false => format!("{:.1}", part as f64 * 100.0 / whole.max(1) as f64),
    }
}

fn cell(shares: &[Share], whole: Share) -> String {
    let cells = shares.iter().map(|share| {
        let (files, bytes) = (
            percent(share.files, whole.files),
            percent(share.bytes, whole.bytes),
        );
        format!("{files}/{bytes}")
    });
    cells.collect::<Vec<_>>().join(" · ")
}

fn page(results: &BTreeMap<Row, Recovered>) -> Result<String> {
    let mut text = HEAD.to_owned();
    let mut sum = Recovered::default();
    let mut row = |name: &str, result: &Recovered| {
        let [damaged, restore, repair, rescue] = [
            &[result.unrepaired][..],
            &result.restore,
            &result.repair,
            &result.rescue,
        ]
        .map(|shares| cell(shares, result.whole));
        let wrong = result.wrong.map(|count| count.to_string()).join(" · ");
        writeln!(
            text,
            "| {name} | {} | {damaged} | {restore} | {wrong} | {repair} | {rescue} | {} |",
            result.volumes, result.clean
        )
    };
    for (kind, result) in results {
        row(&kind.name(), result)?;
        sum.add(result);
    }
    row("all", &sum)?;
    Ok(text)
}

/// The number of threads that run seeds.
const THREADS: usize = 2;

/// Runs seeds. Returns the rows and the failures.
fn run_all(
    jobs: &[(Row, u64)],
    bases: &BTreeMap<String, Base>,
    sides: &[Side],
) -> (BTreeMap<Row, Recovered>, Vec<String>) {
    let (rows, failures) = (Mutex::new(BTreeMap::new()), Mutex::new(Vec::new()));
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some((row, seed)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let Some(base) = base_of(*row, *seed, bases) else {
                continue;
            };
            match recover(*row, *seed, base, sides) {
                Ok(None) => {}
                Ok(Some(recovered)) => {
                    let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
                    let sums: &mut Recovered = rows.entry(*row).or_default();
                    sums.add(&recovered);
                }
                Err(error) => {
                    let mut failures = failures.lock().unwrap_or_else(PoisonError::into_inner);
                    failures.push(format!("{error:#}"));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(work);
        }
    });
    let rows = rows.into_inner().unwrap_or_else(PoisonError::into_inner);
    (
        rows,
        failures.into_inner().unwrap_or_else(PoisonError::into_inner),
    )
}

/// Runs the named seeds with our programs.
fn named() -> Result<Outcome> {
    if let Some(reason) = kernel_missing() {
        return Ok(Outcome::Skipped(reason));
    }
    let (results, failures) = run_all(&NAMED, &bases()?, &[Side::Ours]);
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    ensure!(results.len() == NAMED.len(), "{} rows", results.len());
    let clean: u64 = results.values().map(|result| result.clean).sum();
    ensure!(clean > 0, "no volume is clean after a repair");
    Ok(Outcome::Passed)
}

/// Runs all kinds with all programs, in a nightly run or if the environment asks for it.
fn table() -> Result<Outcome> {
    let count = budget(DAMAGES, 0, 4);
    if count == 0 {
        return Ok(Outcome::Passed);
    }
    if let Some(reason) = kernel_missing().or_else(|| missing(REFERENCE_PROGS)) {
        return Ok(Outcome::Skipped(reason));
    }
    let first = seed("recovery::table", "BUTTRESS_SEED", 0);
    let rows = Row::all().into_iter();
    let seeds = |row| (first..first + count).map(move |seed| (row, seed));
    let jobs: Vec<_> = rows.flat_map(seeds).collect();
    let (results, failures) = run_all(&jobs, &bases()?, &Side::ALL);
    let made = page(&results)?;
    println!("{made}");
    if std::env::var_os("BUTTRESS_BLESS").is_some() {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/recovery-comparison.md");
        std::fs::write(path, &made)?;
    }
    let mut below = Vec::new();
    for (row, recovered) in &results {
        let columns = recovered.below(*row);
        if !columns.is_empty() {
            below.push(format!("{}: ours is below in {columns:?}", row.name()));
        }
    }
    ensure!(
        failures.is_empty() && below.is_empty(),
        "{}\n{}",
        failures.join("\n"),
        below.join("\n")
    );
    Ok(Outcome::Passed)
}

pub fn cases() -> Vec<Case> {
    vec![Case::new("table::named", named), Case::new("table::all", table)]
}
