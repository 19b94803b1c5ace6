//! Images from a source tree, against mkfs.btrfs and other tools on the same tree, and reads of
//! these images under the kernel's mount.
//!
//! The source tree of this benchmark is in memory. Each side writes an image, or an archive, to the
//! same disk, and syncs only if the tool itself does. Options give equal results: `--rootdir
//! --shrink`, with one profile and one node size. Tools of other file systems have separate rows,
//! if their packages are installed, because their images differ.

use crate::Scale;
use crate::cache::{self, Cache};
use crate::images;
use crate::measure::{Run, run};
use crate::read::{Theirs, command};
use crate::report::Pairs;
use anyhow::{Context, Result, bail, ensure};
use buttress_oracle::loop_device::Mount;
use buttress_oracle::tools::{newest, run as run_to_end};
use std::path::{Path, PathBuf};
use std::process::Command;

type Job = fn(&Bench) -> Result<()>;

/// Returns our command for an output.
type Ours<'a> = &'a dyn Fn(&Path) -> Result<Command>;

/// The input of all jobs, and the folder of their outputs.
struct Bench {
    scale: Scale,
    tree: tempfile::TempDir,
    outputs: tempfile::TempDir,
}

/// Runs the named jobs, or all.
pub(crate) fn run_all(scale: Scale, wanted: &[&str]) -> Result<()> {
    let all: [(&str, Job); 6] = [
        ("plain", plain),
        ("zstd", zstd),
        ("tar", tar),
        ("others", others),
        ("reading", reading),
        ("many", many),
    ];
    if let Some(unknown) = wanted
        .iter()
        .find(|word| !all.iter().any(|(name, _)| name == *word))
    {
        bail!("no job {unknown}; there are plain, zstd, tar, others, reading, many");
    }
    let bench = Bench {
        scale,
        tree: buttress_oracle::volumes::scratch()?,
        outputs: tempfile::tempdir_in(images::folder()?)?,
    };
    images::fill_source_tree(scale, &bench.tree())?;
    println!("{}", Pairs::head());
    for (name, job) in all {
        if wanted.is_empty() || wanted.contains(&name) {
            job(&bench)?;
        }
    }
    Ok(())
}

impl Bench {
    fn tree(&self) -> PathBuf {
        self.tree.path().join("source")
    }

    fn output(&self, name: &str) -> PathBuf {
        self.outputs.path().join(name)
    }

    /// Returns our command that makes `output` from the tree.
    fn ours(&self, words: &[&str], output: &Path) -> Result<Command> {
        let mut command = command(&["mkfs", "-q", "-f", "--shrink", "--rootdir"])?;
        command.arg(self.tree()).args(words).arg(output);
        Ok(command)
    }

    /// Returns the command of btrfs-progs. mkfs.btrfs needs an existing file, or makes a file of
    /// its own size.
    fn theirs(&self, words: &[&str], output: &Path) -> Command {
        let mut command = Command::new(newest("mkfs.btrfs"));
        command
            .args(["-q", "-f", "--shrink", "--rootdir"])
            .arg(self.tree())
            .args(words)
            .arg(output);
        command
    }

    /// Runs pairs. No output exists before a run, so neither side spends time on removing one.
    fn pairs(
        &self,
        job: &str,
        goal: f64,
        (ours, our_output): (Ours<'_>, &Path),
        (theirs, their_output): (Theirs<'_>, &Path),
    ) -> Result<()> {
        let mut pairs = Pairs {
            job: job.to_owned(),
            cache: "warm",
            ours: Vec::new(),
            theirs: Vec::new(),
            goal,
        };
        for _ in 0..self.scale.rounds {
            pairs.ours.push(fresh(our_output, &mut ours(our_output)?)?);
            pairs.theirs.push(fresh(their_output, &mut theirs(their_output))?);
        }
        println!("{}", pairs.row());
        let peak = pairs.theirs.iter().map(|run| run.peak_kib).max().unwrap_or(0) / 1024;
        println!(
            "    {job}: {} MiB ours, {} MiB theirs; their peak memory {peak} MiB",
            mib(our_output)?,
            mib(their_output)?
        );
        Ok(())
    }
}

/// Runs a command without an earlier output, after the disk has written all pages of the previous
/// run.
fn fresh(output: &Path, command: &mut Command) -> Result<Run> {
    match std::fs::remove_file(output) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    cache::settle(output.parent().unwrap_or(output))?;
    run(command)
}

fn mib(path: &Path) -> Result<u64> {
    Ok(std::fs::metadata(path)?.len() >> 20)
}

fn plain(bench: &Bench) -> Result<()> {
    bench.pairs(
        "mkfs --rootdir --shrink of a source tree",
        0.25,
        (&|output| bench.ours(&[], output), &bench.output("ours.img")),
        (&|output| bench.theirs(&[], output), &bench.output("theirs.img")),
    )
}

fn zstd(bench: &Bench) -> Result<()> {
    let help = Command::new(newest("mkfs.btrfs")).arg("--help").output()?;
    let help = [help.stdout, help.stderr].concat();
    if !String::from_utf8_lossy(&help).contains("--compress") {
        println!("    this mkfs.btrfs compresses nothing: no row with zstd");
        return Ok(());
    }
    bench.pairs(
        "compressed, --compress zstd",
        0.25,
        (
            &|output| bench.ours(&["--compress", "zstd"], output),
            &bench.output("ours-zstd.img"),
        ),
        (
            &|output| bench.theirs(&["--compress", "zstd"], output),
            &bench.output("theirs-zstd.img"),
        ),
    )
}

fn tar(bench: &Bench) -> Result<()> {
    let archive = |output: &Path| {
        let mut command = Command::new("tar");
        command
            .arg("-cf")
            .arg(output)
            .arg("-C")
            .arg(bench.tree())
            .arg(".");
        command
    };
    bench.pairs(
        "mkfs --rootdir --shrink, against tar c",
        1.1,
        (&|output| bench.ours(&[], output), &bench.output("ours.img")),
        (&archive, &bench.output("tree.tar")),
    )
}

/// Prints the times of other file systems' tools for the tree.
fn others(bench: &Bench) -> Result<()> {
    let tree = bench.tree();
    let output = bench.output("other.img");
    let bytes = bench.scale.source_files as u64 * (32 << 10);
    let mut ext4 = Command::new("mke2fs");
    ext4.args(["-q", "-F", "-t", "ext4", "-d"])
        .arg(&tree)
        .arg(&output)
        .arg(format!("{}k", (bytes >> 10).max(64 << 10)));
    let mut erofs = Command::new("mkfs.erofs");
    erofs.arg("--quiet").arg(&output).arg(&tree);
    let mut squashfs = Command::new("mksquashfs");
    squashfs
        .arg(&tree)
        .arg(&output)
        .args(["-quiet", "-no-progress", "-comp", "zstd"]);
    for (name, mut command) in [
        ("mke2fs -d", ext4),
        ("mkfs.erofs", erofs),
        ("mksquashfs -comp zstd", squashfs),
    ] {
        let is_there = std::env::var_os("PATH").is_some_and(|path| {
            std::env::split_paths(&path).any(|folder| folder.join(command.get_program()).exists())
        });
        if !is_there {
            println!("    {name}: not installed");
            continue;
        }
        let done = fresh(&output, &mut command)?;
        println!(
            "    {name}: {:.3} s, {} MiB, peak memory {} MiB",
            done.seconds,
            mib(&output)?,
            done.peak_kib / 1024
        );
    }
    Ok(())
}

/// The number of files in the tree of [`many`] for each file of the other jobs' tree.
const MANY: usize = 38;

/// Measures the memory for an image of very many small files, which must not grow with their
/// number.
fn many(bench: &Bench) -> Result<()> {
    let tree = bench.outputs.path().join("many");
    let files = bench.scale.source_files.saturating_mul(MANY);
    for directory in 0..files.div_ceil(100) {
        let path = tree.join(format!("{}/{}/{directory}", directory % 50, directory % 997));
        std::fs::create_dir_all(&path)?;
        for number in 0..100 {
            let content = if number % 4 == 0 { "some content" } else { "" };
            std::fs::write(path.join(format!("file_{directory}_{number}")), content)?;
        }
    }
    let output = bench.output("many.img");
    let mut ours = command(&["mkfs", "-q", "-f", "--shrink", "--rootdir"])?;
    let done = fresh(&output, ours.arg(&tree).arg(&output))?;
    println!(
        "    mkfs --rootdir of {files} files: {:.3} s, {} MiB, peak memory {} MiB",
        done.seconds,
        mib(&output)?,
        done.peak_kib / 1024
    );
    Ok(())
}

/// The kernel's reads from a mount's device.
#[derive(Clone, Copy)]
struct Requests {
    reads: u64,
    mib: u64,
}

impl Requests {
    fn of(mount: &Mount) -> Result<Self> {
        let device = mount.devices().first().context("a mount has a device")?;
        let name = device.path().file_name().context("a device has a name")?;
        let path = Path::new("/sys/block").join(name).join("stat");
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let fields: Vec<u64> = text.split_whitespace().flat_map(str::parse).collect();
        match fields.as_slice() {
            [reads, _, sectors, ..] => Ok(Self {
                reads: *reads,
                mib: sectors >> 11,
            }),
            _ => bail!("{}: {text:?}", path.display()),
        }
    }

    const fn since(self, before: &Self) -> Self {
        Self {
            reads: self.reads.saturating_sub(before.reads),
            mib: self.mib.saturating_sub(before.mib),
        }
    }
}

impl std::fmt::Display for Requests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} reads of {} MiB in all", self.reads, self.mib)
    }
}

/// Reads both images under the kernel's mount, cold.
fn reading(bench: &Bench) -> Result<()> {
    let (ours, theirs) = (bench.output("ours.img"), bench.output("theirs.img"));
    fresh(&ours, &mut bench.ours(&[], &ours)?)?;
    fresh(&theirs, &mut bench.theirs(&[], &theirs))?;
    let list = |top: &Path| {
        let mut command = Command::new("ls");
        command.args(["-l", "-n", "-R"]).arg(top);
        command
    };
    let content = |top: &Path| {
        let mut command = Command::new("tar");
        // The output is a pipe, because tar reads no content for /dev/null.
        command.args(["-cf", "-", "-C"]).arg(top).arg(".");
        command
    };
    let jobs: [(&str, Theirs<'_>); 2] = [
        ("ls -lR of our image and theirs", &list),
        ("all content of our image and theirs", &content),
    ];
    for (job, read) in jobs {
        let mut pairs = Pairs {
            job: job.to_owned(),
            cache: Cache::Cold.name(),
            ours: Vec::new(),
            theirs: Vec::new(),
            goal: 0.6,
        };
        let mut asked = Vec::new();
        for _ in 0..bench.scale.rounds {
            asked.clear();
            for (image, runs) in [(&ours, &mut pairs.ours), (&theirs, &mut pairs.theirs)] {
                let mount = Mount::new(std::slice::from_ref(image), "ro")?;
                Cache::Cold.prepare(image)?;
                let before = Requests::of(&mount)?;
                runs.push(run(&mut read(mount.path()))?);
                asked.push(Requests::of(&mount)?.since(&before));
                mount.close()?;
            }
        }
        println!("{}", pairs.row());
        if let [ours, theirs] = asked.as_slice() {
            println!("    {job}: the kernel asked ours for {ours}, theirs for {theirs}");
        }
        let bytes = |runs: &[Run]| runs.last().map_or(0, |run| run.output_bytes);
        let (one, other) = (bytes(&pairs.ours), bytes(&pairs.theirs));
        // Only the order of names and the sizes of directories may differ between the images.
        ensure!(
            one.abs_diff(other) <= one / 50,
            "{job}: {one} and {other} bytes came out"
        );
    }
    for image in [&ours, &theirs] {
        run_to_end(Command::new(newest("btrfs")).arg("check").arg(image))?;
    }
    Ok(())
}
