//! The total amount to copy, computed concurrently with the copying if the progress is displayed.
//!
//! A thread walks the sources, without reading content, and reports the sum of the sizes. Until
//! this walk ends, the progress shows no total. The thread ignores unreadable files, because the
//! copying reports them.

use std::collections::HashSet;
use std::path::Path;
use std::thread::JoinHandle;

use buttress::{ByteCount, FileKind, Location, Progress, Volume, WalkItem, WalkOptions, kind_of_mode};

use crate::context::Context;
use crate::host::HostFile;
use crate::progress::Watch;

/// A source of the copying.
pub(super) enum Source {
    /// A file or directory of a volume.
    Volume(Volume, Location),
    /// A file or directory of the host.
    Host(HostFile),
}

impl Source {
    /// Opens the file at a path of the host; `None` if it is unreachable.
    pub(super) fn host(path: &Path) -> Option<Self> {
        let name = path.file_name();
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let file = match name {
            Some(name) => HostFile::named(directory.unwrap_or(Path::new(".")), name),
            None => HostFile::directory(path),
        };
        file.ok().map(Self::Host)
    }
}

/// The counting thread, which stops when this value is dropped.
#[derive(Debug)]
pub(super) struct Counting {
    progress: Progress,
    thread: Option<JoinHandle<()>>,
}

impl Counting {
    /// Starts to count for `job`, if its progress is displayed.
    pub(super) fn start(
        context: &Context,
        job: &Progress,
        one_file_system: bool,
        sources: impl FnOnce() -> Vec<Source>,
    ) -> Self {
        let progress = Progress::new();
        let thread = Watch::is_wanted(context).then(|| {
            let (sources, job, progress) = (sources(), job.clone(), progress.clone());
            std::thread::spawn(move || {
                let mut total = 0u64;
                for source in sources {
                    total = total.saturating_add(match source {
                        Source::Volume(filesystem, start) => {
                            of_volume(&filesystem, start, one_file_system, &progress)
                        }
                        Source::Host(file) => of_host(file, one_file_system, &progress),
                    });
                }
                if !progress.is_cancelled() {
                    job.expect(ByteCount::new(total));
                }
            })
        });
        Self { progress, thread }
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.progress.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn of_volume(filesystem: &Volume, start: Location, one_file_system: bool, progress: &Progress) -> u64 {
    let options = WalkOptions {
        one_file_system,
        progress: progress.clone(),
        ..WalkOptions::without_content()
    };
    let sizes = filesystem.walk(start, options).filter_map(|item| match item {
        WalkItem::Entry(entry) if entry.metadata().kind == FileKind::Regular && entry.hard_link.is_none() => {
            Some(entry.metadata().size.get())
        }
        _ => None,
    });
    sizes.fold(0, u64::saturating_add)
}

/// Holes that the system reports do not count, because they are not read.
fn of_host(start: HostFile, one_file_system: bool, progress: &Progress) -> u64 {
    let device = start.stat().ok().map(|stat| stat.st_dev);
    let mut waiting = vec![start];
    let mut seen = HashSet::new();
    let mut total = 0u64;
    while let Some(file) = waiting.pop() {
        if progress.is_cancelled() {
            break;
        }
        let Ok(stat) = file.stat() else { continue };
        match kind_of_mode(stat.st_mode) {
            FileKind::Directory if !one_file_system || device == Some(stat.st_dev) => {
                waiting.extend(file.entries().into_iter().flatten());
            }
            FileKind::Regular if stat.st_nlink < 2 || seen.insert((stat.st_dev, stat.st_ino)) => {
                let size = u64::try_from(stat.st_size).unwrap_or(0);
                let stored = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
                total = total.saturating_add(size.min(stored));
            }
            _ => {}
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hard_links_of_the_host_are_counted_once() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("inner")).unwrap();
        std::fs::write(folder.path().join("inner/a"), vec![1; 10_000]).unwrap();
        std::fs::hard_link(folder.path().join("inner/a"), folder.path().join("b")).unwrap();
        std::fs::write(folder.path().join("c"), vec![1; 5000]).unwrap();
        let Some(Source::Host(file)) = Source::host(folder.path()) else {
            panic!("a directory of the host");
        };
        assert_eq!(of_host(file, false, &Progress::new()), 15_000);
        assert!(Source::host(Path::new("/")).is_some());
    }
}
