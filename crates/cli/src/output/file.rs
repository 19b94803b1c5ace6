//! Files that commands write: completely or not at all, and never over a source.
//!
//! Every file that an option names (`tar -f`, `send -f`) is an [`OutputFile`]. Nothing else in this
//! program creates or truncates files of the host, except extraction (`extract`) and new volumes
//! (`mkfs`). A test searches the code for other places that create files.
//!
//! The content goes to an unnamed file in the target's directory (`O_TMPFILE`), which gets its name
//! when it is complete ([`OutputFile::finish`]). Until it is complete, the target name is free or
//! keeps its old file. A command that fails, or that any signal ends, leaves no output file. On a
//! file system without unnamed files, a temporary file `.buttress-…` replaces the unnamed one and
//! is removed again. If the output path is a symbolic link, it is followed, and its target is
//! replaced. The new file has the mode of the old one, and its owner if this is permitted. If the
//! file has further hard links, they keep the old content.
//!
//! Some output targets are written directly: pipes, terminals, devices, `/dev/stdout` and
//! `/dev/fd/N`, and files in a directory that does not allow new files. These targets are not
//! truncated before the first byte is written.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, anyhow};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::context::Context;
use crate::exit::Advice;
use crate::signals::{BeforeTheEnd, Cancelling, waiting};
use crate::sources::Sources;

/// Largest number of consecutive symbolic links, as in the kernel.
const LINKS_MAX: usize = 40;

/// Largest number of attempts for a temporary name.
const NAMES_MAX: u64 = 1000;

/// A file of the host that a command writes.
#[derive(Debug)]
pub struct OutputFile {
    file: File,
    /// Interruptible output that replaces `file`.
    waiting: Option<waiting::Output>,
    /// Name of the file as the user gave it.
    shown: PathBuf,
    form: Form,
    sources: Sources,
}

/// How a file gets its target name at the end.
#[derive(Debug)]
enum Form {
    /// The output file is the target itself. If `truncate` is set, the target file is truncated at
    /// the first byte.
    Direct { truncate: bool },
    /// The output file has no name yet.
    Unnamed { target: PathBuf },
    /// The output file still has a temporary name.
    Named { temporary: Temporary, target: PathBuf },
}

/// A temporary name, removed on drop unless it is kept.
#[derive(Debug)]
struct Temporary {
    path: PathBuf,
    keep: bool,
    on_signals: Option<BeforeTheEnd>,
}

impl Temporary {
    fn new(path: PathBuf, keep: bool) -> Self {
        Self {
            path,
            keep,
            on_signals: None,
        }
    }

    /// Creates a file with a free name in a directory, which is also removed when a signal ends the
    /// process. The signal handler is registered before the file exists: a signal during the
    /// creation waits until the name is known.
    fn make(directory: &Path) -> io::Result<(File, Self)> {
        let made: Arc<Mutex<Option<PathBuf>>> = Arc::default();
        let mut place = made.lock();
        let on_signals = {
            let made = Arc::clone(&made);
            BeforeTheEnd::start(move || {
                if let Some(path) = made.lock().take() {
                    let _ = fs::remove_file(path);
                }
            })
            .map_err(io::Error::other)?
        };
        let named = with_free_name(directory, |path| {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            rustix::fs::openat(CWD, path, flags, Mode::from_raw_mode(0o666))
        });
        *place = named.as_ref().ok().map(|(_, path)| path.clone());
        drop(place);
        let (file, path) = named?;
        let mut temporary = Self::new(path, false);
        temporary.on_signals = Some(on_signals);
        Ok((file.into(), temporary))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.keep {
            // The removal's failure is ignored, because the directory may no longer exist.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Kind of an output path.
enum Place {
    /// A file that exists, or may be created, at this path, with links resolved.
    File(PathBuf),
    /// An open file of this process: `/dev/stdout`, `/dev/fd/N`.
    Open(PathBuf),
}

impl Context {
    /// Returns an error in the server of a mount, which writes no files.
    fn refuse_file_on_mount(&self, path: &Path) -> Result<()> {
        if !self.is_on_mount() {
            return Ok(());
        }
        Err(anyhow!(
            "{}: the server of a mount writes to standard output only",
            path.display()
        ))
        .context(Advice::new("redirect the output with `> FILE`"))
    }

    /// Begins to write the file that an option names. The command must have opened its sources
    /// earlier, so that a command with a missing source changes nothing.
    ///
    /// # Errors
    /// Fails if the file is a source of this command, or cannot be created or written.
    pub fn create_output(&self, path: &Path) -> Result<OutputFile> {
        self.refuse_file_on_mount(path)?;
        let create = || OutputFile::create(path, self.sources(), true);
        create().with_context(|| format!("opening {}", path.display()))
    }

    /// Begins to write a file for a job that keeps its partial output after a signal
    /// ([`OutputFile::keep_as`]).
    ///
    /// # Errors
    /// The errors of [`Context::create_output`].
    pub fn create_output_to_keep(&self, path: &Path) -> Result<OutputFile> {
        self.refuse_file_on_mount(path)?;
        let create = || -> Result<OutputFile> {
            let mut output = OutputFile::create(path, self.sources(), true)?;
            if let Form::Named { temporary, .. } = &mut output.form {
                temporary.on_signals = None;
            }
            Ok(output)
        };
        create().with_context(|| format!("opening {}", path.display()))
    }

    /// Continues a partial output that [`OutputFile::keep_as`] kept at `partial`, or else the
    /// target itself.
    ///
    /// # Errors
    /// The errors of [`Context::create_output`], or the file has fewer than `offset` bytes.
    pub fn continue_output(&self, path: &Path, partial: &Path, offset: u64) -> Result<OutputFile> {
        self.refuse_file_on_mount(path)?;
        let resume = || OutputFile::resume(path, partial, offset, self.sources());
        resume().with_context(|| format!("opening {}", path.display()))
    }
}

impl OutputFile {
    /// Begins to write a file. If `unnamed` is true, tries a file without a name.
    fn create(path: &Path, sources: &Sources, unnamed: bool) -> Result<Self> {
        sources.refuse_path(path)?;
        let make = |file, form| Self {
            file,
            shown: path.to_owned(),
            form,
            sources: sources.clone(),
            waiting: None,
        };
        let target = match place_of(path)? {
            Place::File(target) => target,
            Place::Open(path) => return Ok(make(open_again(&path)?, Form::Direct { truncate: true })),
        };
        let old = match fs::metadata(&target) {
            Ok(old) => {
                // If a file is write-protected, it stays unchanged, even if its directory is
                // writable.
                let opened = writing().open(&target)?;
                if !old.is_file() {
                    return Ok(make(opened, Form::Direct { truncate: false }));
                }
                Some((old, opened))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        let begun = begin(&target, unnamed);
        match (begun, old) {
            (Ok((file, form)), old) => {
                if let Some((old, _)) = &old {
                    look_like(&file, old).context("giving it the old one's mode")?;
                }
                Ok(make(file, form))
            }
            (Err(_), Some((_, opened))) => Ok(make(opened, Form::Direct { truncate: true })),
            (Err(error), None) => Err(error.into()),
        }
    }

    fn resume(path: &Path, partial: &Path, offset: u64, sources: &Sources) -> Result<Self> {
        sources.refuse_path(path)?;
        sources.refuse_path(partial)?;
        let target = match place_of(path)? {
            Place::File(target) if fs::metadata(&target).map_or(true, |old| old.is_file()) => target,
            // If the output is a pipe, bytes already written cannot be rewritten.
            _ => return Self::create(path, sources, true),
        };
        if fs::symlink_metadata(partial).is_err() {
            require_bytes(&writing().open(&target)?, offset)?;
            fs::rename(&target, partial).context("making it a partial file again")?;
        }
        let mut file = writing()
            .open(partial)
            .with_context(|| partial.display().to_string())?;
        require_bytes(&file, offset).with_context(|| partial.display().to_string())?;
        file.set_len(offset)?;
        io::Seek::seek(&mut file, io::SeekFrom::Start(offset))?;
        let temporary = Temporary::new(partial.to_owned(), true);
        Ok(Self {
            file,
            shown: path.to_owned(),
            form: Form::Named { temporary, target },
            sources: sources.clone(),
            waiting: None,
        })
    }

    /// Completes the file: it gets its name.
    ///
    /// # Errors
    /// The rename fails, or the file with the output's name has become a source.
    pub fn finish(mut self) -> Result<()> {
        let shown = self.shown.display().to_string();
        self.give_name().with_context(|| format!("writing {shown}"))
    }

    fn give_name(&mut self) -> Result<()> {
        self.start()?;
        match &mut self.form {
            Form::Direct { .. } => {}
            Form::Unnamed { target } => {
                self.sources.refuse_path(target)?;
                name_over(&self.file, target)?;
            }
            Form::Named { temporary, target } => {
                self.sources.refuse_path(target)?;
                fs::rename(&temporary.path, target)?;
                temporary.keep = true;
            }
        }
        Ok(())
    }

    /// Keeps the partial output under another name, so that a job can resume it. Returns whether
    /// the partial output can be kept; output to a pipe cannot be kept.
    ///
    /// # Errors
    /// The output file cannot get its name.
    pub fn keep_as(mut self, partial: &Path) -> Result<bool> {
        let shown = partial.display().to_string();
        self.keep_at(partial).with_context(|| format!("keeping {shown}"))
    }

    fn keep_at(&mut self, partial: &Path) -> Result<bool> {
        self.sources.refuse_path(partial)?;
        let longer = |length: u64| fs::metadata(partial).is_ok_and(|old| old.len() >= length);
        match &mut self.form {
            Form::Direct { .. } => return Ok(false),
            Form::Named { temporary, .. } if temporary.path == partial => {}
            // Partial files of one stream begin with the same bytes, so the longer one is kept.
            _ if longer(self.file.metadata()?.len()) => {}
            Form::Unnamed { .. } => name_over(&self.file, partial)?,
            Form::Named { temporary, .. } => {
                fs::rename(&temporary.path, partial)?;
                temporary.keep = true;
            }
        }
        Ok(true)
    }

    /// Truncates a directly written file, once.
    fn start(&mut self) -> io::Result<()> {
        if let Form::Direct { truncate } = &mut self.form
            && std::mem::take(truncate)
            && self.file.metadata()?.is_file()
        {
            self.file.set_len(0)?;
        }
        Ok(())
    }
}

impl OutputFile {
    /// Makes signals interrupt writes that wait for the reader of a pipe.
    ///
    /// # Errors
    /// The errors of [`Cancelling::output`].
    pub fn listen(&mut self, cancelling: &mut Cancelling) -> Result<()> {
        self.waiting = cancelling.output(&self.file)?;
        Ok(())
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.start()
            .and_then(|()| match &mut self.waiting {
                Some(waiting) => waiting.write(bytes),
                None => self.file.write(bytes),
            })
            .map_err(|error| {
                let shown = self.shown.display();
                io::Error::new(error.kind(), format!("writing {shown}: {error}"))
            })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns `path` with this suffix.
pub fn beside(path: &Path, ending: &str) -> PathBuf {
    // For a link, the command writes the link's target.
    let path = match place_of(path) {
        Ok(Place::File(target)) => target,
        _ => path.to_owned(),
    };
    let mut name = OsString::from(path);
    name.push(ending);
    name.into()
}

fn writing() -> fs::OpenOptions {
    let mut options = File::options();
    options.write(true);
    options
}

fn require_bytes(file: &File, offset: u64) -> Result<()> {
    let bytes = file.metadata()?.len();
    if bytes < offset {
        anyhow::bail!(
            "it is shorter than the token says (found {bytes} bytes, expected {offset}): put {bytes} at the end of the token"
        );
    }
    Ok(())
}

/// Follows symbolic links, until a path is no link or does not exist.
fn place_of(path: &Path) -> io::Result<Place> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let parent = directory_of(&path);
        if is_descriptors(parent) {
            return Ok(Place::Open(path));
        }
        match fs::read_link(&path) {
            Ok(target) => path = parent.join(target),
            Err(_) => return Ok(Place::File(path)),
        }
    }
    Err(Errno::LOOP.into())
}

/// Returns the directory of a path's last name.
fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Returns whether a directory contains a process's open files: `/proc/self/fd`, `/dev/fd`.
fn is_descriptors(directory: &Path) -> bool {
    let own = Path::new("/proc").join(std::process::id().to_string()).join("fd");
    fs::canonicalize(directory).is_ok_and(|directory| directory == own)
}

/// Opens an open file of this process by its path below `/proc/self/fd`. Standard output continues
/// at its current position. If a file is opened by its descriptor's path, the kernel creates a new
/// file description, which begins at the start.
#[expect(clippy::disallowed_methods, reason = "contents are given as they are")]
fn open_again(path: &Path) -> io::Result<File> {
    if path.file_name().is_some_and(|name| name == "1") {
        return Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?));
    }
    writing().open(path)
}

/// Creates a new file that later gets the name of `target`.
fn begin(target: &Path, unnamed: bool) -> io::Result<(File, Form)> {
    let directory = directory_of(target);
    if target.file_name().is_none() {
        return Err(Errno::ISDIR.into());
    }
    let mode = Mode::from_raw_mode(0o666);
    // An unnamed file gets its name through its link in /proc.
    if unnamed && Path::new("/proc/self/fd").exists() {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        if let Ok(file) = rustix::fs::openat(CWD, directory, flags, mode) {
            let target = target.to_owned();
            return Ok((file.into(), Form::Unnamed { target }));
        }
    }
    let (file, temporary) = Temporary::make(directory)?;
    let target = target.to_owned();
    Ok((file, Form::Named { temporary, target }))
}

/// Calls `make` with new names in a directory until one is free.
fn with_free_name<T>(
    directory: &Path,
    make: impl Fn(&Path) -> rustix::io::Result<T>,
) -> io::Result<(T, PathBuf)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    for _ in 0..NAMES_MAX {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = directory.join(format!(".buttress-{}-{number}", std::process::id()));
        match make(&path) {
            Ok(made) => return Ok((made, path)),
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::EXIST.into())
}

/// Gives an unnamed file this name, and replaces an existing file.
fn name_over(file: &File, target: &Path) -> io::Result<()> {
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    let link = |name: &Path| rustix::fs::linkat(CWD, own.as_str(), CWD, name, AtFlags::SYMLINK_FOLLOW);
    match link(target) {
        Ok(()) => return Ok(()),
        Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    // The system has no call that links a file over an existing name.
    let ((), path) = with_free_name(directory_of(target), link)?;
    let mut temporary = Temporary::new(path, false);
    fs::rename(&temporary.path, target)?;
    temporary.keep = true;
    Ok(())
}

/// Gives the new file the old one's mode and, if permitted, owner.
fn look_like(file: &File, old: &fs::Metadata) -> io::Result<()> {
    let new = file.metadata()?;
    let mut mode = old.permissions().mode() & 0o7777;
    if (new.uid(), new.gid()) != (old.uid(), old.gid())
        && std::os::unix::fs::fchown(file, Some(old.uid()), Some(old.gid())).is_err()
        && std::os::unix::fs::fchown(file, None, Some(old.gid())).is_err()
    {
        // Without the old owner and group, the file loses its special mode bits.
        mode &= 0o777;
    }
    file.set_permissions(fs::Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Identity;
    use crate::sources::Role;
    use std::os::unix::fs::FileTypeExt;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn create(path: &Path, unnamed: bool) -> OutputFile {
        OutputFile::create(path, &Sources::default(), unnamed).unwrap()
    }

    #[test]
    fn a_file_is_there_when_all_of_it_is() {
        for unnamed in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("out");
            let mut output = create(&path, unnamed);
            output.write_all(b"one").unwrap();
            assert!(!path.exists());
            assert_eq!(names(folder.path()).len(), usize::from(!unnamed));
            output.finish().unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"one");
            assert_eq!(names(folder.path()), ["out"]);

            fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
            let mut output = create(&path, unnamed);
            output.write_all(b"two").unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"one");
            drop(output);
            assert_eq!(fs::read(&path).unwrap(), b"one");
            assert_eq!(names(folder.path()), ["out"]);

            let mut output = create(&path, unnamed);
            output.write_all(b"two").unwrap();
            output.finish().unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"two");
            assert_eq!(names(folder.path()), ["out"]);
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
        }
    }

    #[test]
    fn links_are_followed_and_stay() {
        for unnamed in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let path = |name: &str| folder.path().join(name);
            fs::create_dir(path("other")).unwrap();
            fs::write(path("other/file"), b"old").unwrap();
            for (name, target) in [
                ("link", "other/file"),
                ("again", "link"),
                ("dangling", "other/new"),
            ] {
                std::os::unix::fs::symlink(target, path(name)).unwrap();
                let mut output = create(&path(name), unnamed);
                output.write_all(name.as_bytes()).unwrap();
                output.finish().unwrap();
                assert!(fs::symlink_metadata(path(name)).unwrap().is_symlink());
                assert_eq!(fs::read(path(name)).unwrap(), name.as_bytes());
            }
            assert_eq!(names(&path("other")), ["file", "new"]);
            std::os::unix::fs::symlink("loop", path("loop")).unwrap();
            OutputFile::create(&path("loop"), &Sources::default(), unnamed).unwrap_err();
        }
    }

    #[test]
    fn devices_and_open_files_are_written_directly() {
        create(Path::new("/dev/null"), true).finish().unwrap();
        assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("open");
        fs::write(&path, b"to be replaced").unwrap();
        let held = File::options().write(true).open(&path).unwrap();
        let mut output = create(&Path::new("/dev/fd").join(held.as_raw_fd().to_string()), true);
        assert_eq!(fs::read(&path).unwrap(), b"to be replaced");
        output.write_all(b"now").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"now");
        output.finish().unwrap();
        assert_eq!(held.metadata().unwrap().ino(), fs::metadata(&path).unwrap().ino());
        OutputFile::create(folder.path(), &Sources::default(), true).unwrap_err();
    }

    #[test]
    fn a_source_is_refused_at_the_beginning_and_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let (source, target) = (folder.path().join("source"), folder.path().join("target"));
        fs::write(&source, b"x").unwrap();
        let sources = Sources::default();
        sources.add(&source, Role::Volume).unwrap();
        OutputFile::create(&source, &sources, true).unwrap_err();
        let output = OutputFile::create(&target, &sources, true).unwrap();
        fs::hard_link(&source, &target).unwrap();
        output.finish().unwrap_err();
        assert_eq!(fs::read(&target).unwrap(), b"x");
    }

    #[test]
    fn a_partial_file_is_kept_and_gone_on_with() {
        for unnamed in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let (target, partial) = (folder.path().join("out"), folder.path().join("out.part"));
            let keep = |bytes: &[u8]| {
                let mut output = create(&target, unnamed);
                output.write_all(bytes).unwrap();
                assert!(output.keep_as(&partial).unwrap());
            };
            keep(b"abcdef");
            assert_eq!(names(folder.path()), ["out.part"]);
            // A partial file that is shorter than an existing one does not replace it.
            keep(b"abc");
            assert_eq!(fs::read(&partial).unwrap(), b"abcdef");
            let sources = Sources::default();
            OutputFile::resume(&target, &partial, 7, &sources).unwrap_err();
            let mut output = OutputFile::resume(&target, &partial, 4, &sources).unwrap();
            output.write_all(b"E").unwrap();
            assert!(output.keep_as(&partial).unwrap());
            assert_eq!(fs::read(&partial).unwrap(), b"abcdE");
            let mut output = OutputFile::resume(&target, &partial, 4, &sources).unwrap();
            output.write_all(b"efgh").unwrap();
            output.finish().unwrap();
            assert_eq!(fs::read(&target).unwrap(), b"abcdefgh");
            assert_eq!(names(folder.path()), ["out"]);
            // If no partial file exists, the output continues the target itself.
            let mut output = OutputFile::resume(&target, &partial, 2, &sources).unwrap();
            output.write_all(b"!").unwrap();
            output.finish().unwrap();
            assert_eq!(fs::read(&target).unwrap(), b"ab!");
            assert_eq!(names(folder.path()), ["out"]);
        }
    }

    #[test]
    fn identities_of_descriptors_and_paths_agree() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let file = File::create(&path).unwrap();
        assert_eq!(Identity::of_open(&file), Identity::of_path(&path));
        assert!(Identity::of_open(&file).is_some());
    }
}
