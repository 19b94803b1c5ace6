//! The longest hold of each lock under a mixed load, which bounds the wait of any thread.
//!
//! The cache has 256 MiB. Six threads run at once:
//!
//! - a thread offers dirty data in calls of 64 KiB over 64 files;
//! - a thread makes, renames and removes names;
//! - a thread commits five times a second;
//! - a thread drops a subvolume of very many files;
//! - two threads read: `stat` and 4 KiB of content.
//!
//! The benchmark takes the time of each call and the locks' hold times. There are more threads than
//! processors, and a thread without a processor keeps its locks. The longest times are therefore
//! also given without the thread's run delay.

use super::{FILE_BYTES, ROOT, open_with};
use crate::Scale;
use anyhow::{Result, anyhow};
use buttress::unstable::writer::WriteOptions;
use buttress::{ByteCount, FileOffset, Location, NewInode, Progress, RenameMode};
use buttress_locks::{Stopwatch, Taken, figures as locks};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const CACHE: ByteCount = ByteCount::new(256 << 20);
const WRITTEN_AT_ONCE: usize = 64 << 10;
const WRITTEN_FILES: usize = 64;
const READ_FILES: usize = 1000;
const COMMIT_EVERY: Duration = Duration::from_millis(200);

/// The times of a kind of call.
#[derive(Default)]
struct Times(Vec<Taken>);

impl Times {
    fn take<T>(&mut self, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let stopwatch = Stopwatch::start();
        let done = call();
        self.0.push(stopwatch.taken());
        done
    }

    fn print(mut self, name: &str) {
        self.0.sort_unstable_by_key(|taken| taken.time);
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let on_processor = self.0.iter().map(|taken| taken.without_run_delay()).max();
        let at = |part: f64| {
            let place = ((self.0.len() as f64 - 1.0) * part) as usize;
            millis(self.0.get(place).copied().unwrap_or_default().time)
        };
        println!(
            "| {name} | {} | {:.3} | {:.3} | {:.3} | {:.2} | {:.2} |",
            self.0.len(),
            at(0.5),
            at(0.99),
            at(0.999),
            at(1.0),
            millis(on_processor.unwrap_or_default())
        );
    }
}

/// Runs the load and prints the tables.
pub(crate) fn run(scale: Scale) -> Result<()> {
    let is_tiny = scale.name == crate::TINY.name;
    let (dropped, offered_bytes, volume_bytes) = if is_tiny {
        (2000, 8_usize << 20, 1_usize << 30)
    } else {
        (500_000, 2 << 30, 6 << 30)
    };
    let filesystem = open_with(volume_bytes, CACHE, WriteOptions::default())?;
    let new = NewInode::of_root(0o644);
    let directory = filesystem.make_directory(ROOT, b"names", &NewInode::of_root(0o755))?;
    let files = |prefix: &str, count: usize, bytes: usize| -> Result<Vec<Location>> {
        (0..count)
            .map(|number| {
                let file = filesystem.create(ROOT, format!("{prefix}-{number}").as_bytes(), &new)?;
                filesystem.write_at(file, FileOffset::MIN, &vec![b'x'; bytes])?;
                Ok(file)
            })
            .collect()
    };
    let read = files("read", READ_FILES, FILE_BYTES)?;
    let written = files("written", WRITTEN_FILES, 1)?;
    let doomed = filesystem.subvolumes().create(ROOT, b"doomed")?;
    for number in 0..dropped {
        filesystem.create(Location::root_of(doomed), format!("{number}").as_bytes(), &new)?;
    }
    filesystem.commit()?;
    filesystem.subvolumes().delete(doomed)?;
    filesystem.commit()?;
    println!("{dropped} files are dropped, {} MiB written", offered_bytes >> 20);

    locks::measure_run_delay(true);
    locks::measure(true);
    locks::reset();
    let is_done = AtomicBool::new(false);
    let goes_on = || !is_done.load(Ordering::Relaxed);
    let (fs, new) = (&filesystem, &new);
    let all = std::thread::scope(|scope| -> Result<Vec<(&str, Times)>> {
        let names = scope.spawn(|| -> Result<Times> {
            let mut times = Times::default();
            let mut number = 0_u64;
            while goes_on() {
                number += 1;
                let (one, two) = (format!("n-{number}"), format!("m-{number}"));
                times.take(|| Ok(fs.create(directory, one.as_bytes(), new)?))?;
                times.take(|| {
                    Ok(fs.rename(
                        directory,
                        one.as_bytes(),
                        directory,
                        two.as_bytes(),
                        RenameMode::Replace,
                    )?)
                })?;
                times.take(|| Ok(fs.unlink(directory, two.as_bytes())?))?;
            }
            Ok(times)
        });
        let commits = scope.spawn(|| -> Result<Times> {
            let mut times = Times::default();
            while goes_on() {
                std::thread::sleep(COMMIT_EVERY);
                times.take(|| Ok(fs.commit()?))?;
            }
            Ok(times)
        });
        let stats = scope.spawn(|| -> Result<Times> {
            let mut times = Times::default();
            for number in 0_usize.. {
                if !goes_on() {
                    break;
                }
                times.take(|| Ok(fs.live().metadata(read[number * 7 % read.len()])?))?;
                std::thread::sleep(Duration::from_micros(50));
            }
            Ok(times)
        });
        let reads = scope.spawn(|| -> Result<Times> {
            let mut times = Times::default();
            let mut buffer = [0; FILE_BYTES];
            for number in 0_usize.. {
                if !goes_on() {
                    break;
                }
                let file = read[number * 11 % read.len()];
                times.take(|| Ok(fs.live().read_at(file, FileOffset::MIN, &mut buffer)?))?;
                std::thread::sleep(Duration::from_micros(50));
            }
            Ok(times)
        });
        let dropping = scope.spawn(|| -> Result<()> { Ok(fs.subvolumes().drop_deleted(&Progress::new())?) });
        let writes = (|| -> Result<Times> {
            let mut times = Times::default();
            let piece = vec![b'w'; WRITTEN_AT_ONCE];
            for number in 0..offered_bytes / WRITTEN_AT_ONCE {
                let file = written[number % WRITTEN_FILES];
                let at = FileOffset::new((number / WRITTEN_FILES * WRITTEN_AT_ONCE) as u64);
                times.take(|| Ok(fs.write_at(file, at, &piece)?))?;
            }
            Ok(times)
        })();
        let panicked = |_| anyhow!("a thread panicked");
        let dropped = dropping.join().map_err(panicked)?;
        is_done.store(true, Ordering::Relaxed);
        let all = vec![
            ("create, rename, unlink", names.join().map_err(panicked)??),
            ("writing 64 KiB", writes?),
            ("stat", stats.join().map_err(panicked)??),
            ("4 KiB of a clean file", reads.join().map_err(panicked)??),
            ("commit", commits.join().map_err(panicked)??),
        ];
        dropped?;
        Ok(all)
    })?;
    let figures = locks::read();
    locks::measure(false);
    locks::measure_run_delay(false);
    println!(
        "\nmilliseconds\n\n| call | calls | median | 99 % | 99.9 % | longest | without run delay |\n|---|---|---|---|---|---|---|"
    );
    for (name, times) in all {
        times.print(name);
    }
    println!(
        "\nholds, milliseconds\n\n| lock | longest exclusive | without run delay | longest shared | without | longest wait | without | exclusive holds |\n|---|---|---|---|---|---|---|---|"
    );
    for lock in figures {
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        println!(
            "| `{}` of {} | {:.3} | {:.3} | {:.3} | {:.3} | {:.3} | {:.3} | {} |",
            lock.class.name,
            lock.class.file.rsplit("crates/").next().unwrap_or_default(),
            millis(lock.exclusive.longest),
            millis(lock.exclusive.longest_without_run_delay),
            millis(lock.shared.longest),
            millis(lock.shared.longest_without_run_delay),
            millis(lock.waits.longest),
            millis(lock.waits.longest_without_run_delay),
            lock.exclusive.count
        );
    }
    let _ = filesystem.abandon();
    Ok(())
}
