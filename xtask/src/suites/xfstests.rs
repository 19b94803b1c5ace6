//! xfstests on mounts.
//!
//! xfstests takes the mounts for the kernel's btrfs. In a separate mount namespace, `mount -t
//! btrfs` uses this program as the helper, and `df` and `findmnt` report the type btrfs. xfstests
//! therefore checks each volume with `btrfs check`. The chore runs one test at a time, and then
//! ends the servers that the test left. The chore finds these servers by the path of their program,
//! a copy for this run.

use super::Options;
use super::table::{self, Outcome, Table};
use crate::run::{self, target};
use anyhow::{Context, Result, bail, ensure};
use buttress_oracle::loop_device::LoopDevice;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const DEVICE_BYTES: u64 = 8 << 30;
const SECONDS_EACH: u64 = 240;

/// Users that tests act as.
const USERS: [&str; 3] = ["fsgqa", "123456-fsgqa", "fsgqa2"];

/// Files that only a built tree of xfstests has.
const BUILT: [&str; 4] = ["check", "src/lstat64", "ltp/fsstress", "ltp/fsx"];

fn has_user(name: &str) -> bool {
    let found = Command::new("getent")
        .args(["passwd", name])
        .stdout(Stdio::null())
        .status();
    found.is_ok_and(|status| status.success())
}

/// The created users. Dropping this value removes the created users.
struct Users(Vec<&'static str>);

impl Users {
    fn make(names: Vec<&'static str>) -> Result<Self> {
        let mut made = Self(Vec::new());
        for name in names {
            // A user name begins with digits, which useradd refuses by default.
            run::run(Command::new("useradd").args([
                "--badname",
                "--no-create-home",
                "--home-dir",
                "/",
                "--user-group",
                name,
            ]))?;
            made.0.push(name);
        }
        Ok(made)
    }
}

impl Drop for Users {
    fn drop(&mut self) {
        for name in &self.0 {
            let gone = Command::new("userdel").arg(name).status();
            if !gone.is_ok_and(|status| status.success()) {
                eprintln!("the user {name} is left over");
            }
        }
    }
}

/// Returns the missing requirements of a run.
fn missing(folder: &Path, options: &Options) -> Vec<String> {
    let mut missing: Vec<String> = BUILT
        .iter()
        .filter(|part| !folder.join(part).exists())
        .map(|part| {
            format!(
                "{} is not there: build the tree with make",
                folder.join(part).display()
            )
        })
        .collect();
    for program in [
        "bash",
        "unshare",
        "losetup",
        "mkfs.btrfs",
        "btrfs",
        "xfs_io",
        "getfattr",
        "setfacl",
        "perl",
        "bc",
    ] {
        if !super::programs::is_installed(program) {
            missing.push(format!("{program} is not installed"));
        }
    }
    if !rustix::process::geteuid().is_root() {
        missing.push("the rights of root".to_owned());
    }
    let users: Vec<_> = USERS.into_iter().filter(|name| !has_user(name)).collect();
    if !users.is_empty() && !options.add_users {
        missing.push(format!(
            "there are no users {}: --add-users makes them, and takes them away in the end",
            users.join(", ")
        ));
    }
    missing
}

fn write_program(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| path.display().to_string())?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}

/// Returns the path of a program of the system.
fn found(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|path| path.exists());
    found.with_context(|| format!("{name} is not installed"))
}

/// Prepares the files of the namespace: the program, its helper, the wrappers, and the names of
/// devices.
fn prepare(scratch: &Path, folder: &Path, program: &Path, devices: &[LoopDevice; 2]) -> Result<()> {
    for part in ["bin", "sbin", "work", "test", "scratch", "results"] {
        fs::create_dir_all(scratch.join(part))?;
    }
    let copy = scratch.join("bin/buttress");
    fs::copy(program, &copy).with_context(|| program.display().to_string())?;
    write_program(
        &scratch.join("sbin/mount.btrfs"),
        &format!("#!/bin/bash\nexec -a mount.buttress {} \"$@\"\n", copy.display()),
    )?;
    for name in ["df", "findmnt"] {
        // The wrappers replace the type btrfs by Buttress's type in queries, and replace it back in
        // the answers.
        let text = format!(
            "#!/bin/bash\nset -o pipefail\nwords=()\nfor word; do [ \"$word\" = btrfs ] && word=fuseblk.buttress,fuse.buttress\n\
             words+=(\"$word\"); done\n{} \"${{words[@]}}\" | sed -E 's/fuse(blk)?(\\.buttress)?\\b/btrfs/g'\n",
            found(name)?.display()
        );
        write_program(&scratch.join("bin").join(name), &text)?;
    }
    let [test, other] = devices;
    let config = format!(
        "export FSTYP=btrfs\nexport TEST_DEV={}\nexport TEST_DIR={}\nexport SCRATCH_DEV={}\nexport SCRATCH_MNT={}\n\
         export RESULT_BASE={}\n",
        test.path().display(),
        scratch.join("test").display(),
        other.path().display(),
        scratch.join("scratch").display(),
        scratch.join("results").display(),
    );
    fs::write(scratch.join("config"), config)?;
    let link = scratch.join("tree");
    if link.is_symlink() {
        fs::remove_file(&link)?;
    }
    Ok(symlink(folder.canonicalize()?, link)?)
}

/// Returns the numbers of the generic group's quick tests.
fn quick(folder: &Path) -> Result<Vec<u32>> {
    let mut numbers = Vec::new();
    let tests = folder.join("tests/generic");
    for entry in fs::read_dir(&tests).with_context(|| tests.display().to_string())? {
        let path = entry?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let Some(number) = name.parse().ok().filter(|_| name.len() == 3) else {
            continue;
        };
        let text = fs::read(&path)?;
        let text = String::from_utf8_lossy(&text);
        let groups = text.lines().find(|line| line.starts_with("_begin_fstest"));
        if groups.is_some_and(|groups| groups.split(' ').any(|group| group == "quick")) {
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

pub(super) fn run(folder: &Path, tests: &[String], options: &Options, program: &Path) -> Result<()> {
    let missing = missing(folder, options);
    ensure!(
        missing.is_empty(),
        "xfstests cannot run:\n  {}",
        missing.join("\n  ")
    );
    let numbers = if tests.is_empty() {
        quick(folder)?
    } else {
        let number = |test: &String| {
            test.trim_start_matches("generic/")
                .parse()
                .with_context(|| test.clone())
        };
        tests.iter().map(number).collect::<Result<_>>()?
    };
    let _users = Users::make(USERS.into_iter().filter(|name| !has_user(name)).collect())?;
    let place = target()?.join("suites");
    fs::create_dir_all(&place)?;
    let scratch = tempfile::tempdir_in(&place)?;
    let device = |name: &str| -> Result<LoopDevice> {
        let image = scratch.path().join(name);
        File::create(&image)?.set_len(DEVICE_BYTES)?;
        LoopDevice::attach(&image)
    };
    let devices = [device("test.img")?, device("scratch.img")?];
    prepare(scratch.path(), folder, program, &devices)?;
    run::run(
        Command::new("mkfs.btrfs")
            .args(["-q", "-f"])
            .arg(devices[0].path()),
    )?;
    let mut inside = Command::new("unshare");
    inside
        .args(["--mount", "--propagation", "private"])
        .arg(std::env::current_exe()?)
        .args(["suites", "xfstests-inside"])
        .arg(scratch.path())
        .arg(options.seconds_each.unwrap_or(SECONDS_EACH).to_string())
        .args(numbers.iter().map(u32::to_string));
    run::run(&mut inside)?;
    let found = table::parse(&fs::read_to_string(scratch.path().join("found"))?)?;
    tell(found, options, tests.is_empty())
}

/// Prints the results, and the differences from the recorded table.
fn tell(found: Table, options: &Options, is_all: bool) -> Result<()> {
    print!("{}", table::text(&found));
    let kept = table::parse(table::KEPT)?;
    if options.write {
        ensure!(is_all, "only a run of all tests can be kept");
        fs::write(
            run::root()?.join("xtask/src/suites/xfstests.txt"),
            table::text(&table::with_reasons_of(found, &kept)),
        )?;
        return Ok(());
    }
    let differences = table::differences(&found, &kept);
    if differences.is_empty() {
        println!("{} tests, as the kept table has them", found.len());
        return Ok(());
    }
    bail!(
        "{} of {} tests differ from the kept table:\n{}",
        differences.len(),
        found.len(),
        differences.join("\n")
    )
}

/// Runs inside the namespace: installs the helper where mount(8) searches for it, then runs the
/// tests one by one.
pub(super) fn inside(scratch: &Path, words: &[String]) -> Result<()> {
    let (seconds, numbers) = words.split_first().context("how long one test may take")?;
    let limit = Duration::from_secs(seconds.parse()?);
    // Mounts of this namespace are visible only in it.
    let layers = format!(
        "lowerdir=/usr/sbin,upperdir={},workdir={}",
        scratch.join("sbin").display(),
        scratch.join("work").display()
    );
    run::run(Command::new("mount").args(["-t", "overlay", "overlay", "-o", &layers, "/usr/sbin"]))?;
    let mut table = Table::new();
    for (index, number) in numbers.iter().enumerate() {
        let number: u32 = number.parse()?;
        let begin = Instant::now();
        let (outcome, reason, said) = one(scratch, number, limit)?;
        println!(
            "{}/{} generic/{number:03}: {} ({}), {} s",
            index + 1,
            numbers.len(),
            outcome.name(),
            said.as_ref().unwrap_or(&reason),
            begin.elapsed().as_secs()
        );
        table.insert(number, (outcome, reason));
        fs::write(scratch.join("found"), table::text(&table))?;
    }
    Ok(())
}

/// Runs a test. Returns the outcome, the reason, and the test's own message if it did not run.
fn one(scratch: &Path, number: u32, limit: Duration) -> Result<(Outcome, String, Option<String>)> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = vec![scratch.join("bin")];
    folders.extend(std::env::split_paths(&path));
    let log = scratch.join("log");
    let output = File::create(&log)?;
    let mut child = Command::new("timeout")
        .args(["--kill-after=10", &limit.as_secs().to_string()])
        .args(["./check", &format!("generic/{number:03}")])
        .current_dir(scratch.join("tree"))
        .env("PATH", std::env::join_paths(folders)?)
        .env("HOST_OPTIONS", scratch.join("config"))
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()?;
    let status = child.wait()?;
    let said = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    let is_hung = matches!(status.code(), Some(124 | 137) | None);
    let found = judged(&said, is_hung);
    if matches!(found.0, Outcome::Failed | Outcome::Inconsistent | Outcome::Hung) {
        print!("{said}");
    }
    end_servers(scratch)?;
    Ok((found.0, found.1, not_run(&said).map(str::to_owned)))
}

/// Returns the test's own message for not running.
fn not_run(said: &str) -> Option<&str> {
    let (_, reason) = said.split_once("[not run]")?;
    Some(reason.lines().next().unwrap_or_default().trim())
}

/// Returns the outcome and the reason from the output of a test's run.
fn judged(said: &str, is_hung: bool) -> (Outcome, String) {
    if is_hung {
        return (Outcome::Hung, "-".to_owned());
    }
    if said.contains("is inconsistent") {
        return (Outcome::Inconsistent, "-".to_owned());
    }
    if let Some(reason) = not_run(said) {
        return (Outcome::NotRun, table::reason_of(reason).to_owned());
    }
    // xfstests reports that all tests passed even if it ran none.
    if said.contains("Passed all 1 tests") {
        return (Outcome::Passed, "-".to_owned());
    }
    (Outcome::Failed, "-".to_owned())
}

/// Ends the remaining servers, and unmounts the remaining mounts.
fn end_servers(scratch: &Path) -> Result<()> {
    for part in ["scratch", "test"] {
        let mut left = 0;
        while left < 8 {
            let mut umount = Command::new("umount");
            umount
                .arg(scratch.join(part))
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            if !umount.status()?.success() {
                break;
            }
            left += 1;
        }
    }
    let program = scratch.join("bin/buttress");
    for entry in fs::read_dir("/proc")? {
        let entry = entry?.path();
        let is_ours = fs::read_link(entry.join("exe")).is_ok_and(|path| path == program);
        let pid = entry.file_name().and_then(|name| name.to_str()?.parse().ok());
        if is_ours && let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
            // The server may have ended in the meantime.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_understood() {
        let not_run = "generic/110       [not run] Reflink not supported by test filesystem type: btrfs\nNot run: x\nPassed all 1 tests";
        assert_eq!(
            judged("Ran: generic/001\nPassed all 1 tests\n", false),
            (Outcome::Passed, "-".into())
        );
        assert_eq!(judged(not_run, false).0, Outcome::NotRun);
        let damaged =
            "_check_btrfs_filesystem: filesystem on /dev/loop1 is inconsistent\nFailed 1 of 1 tests";
        assert_eq!(judged(damaged, false).0, Outcome::Inconsistent);
        assert_eq!(judged("Failed 1 of 1 tests", false).0, Outcome::Failed);
        assert_eq!(
            judged("Interrupted!\nPassed all 0 tests\n", false).0,
            Outcome::Failed
        );
        assert_eq!(judged("", false).0, Outcome::Failed);
        assert_eq!(judged("Passed all 1 tests", true).0, Outcome::Hung);
    }
}
