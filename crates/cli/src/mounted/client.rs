//! Client side of commands that the server of a mount executes.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anstyle::AnsiColor;
use anyhow::{Context as _, Result, anyhow};
use buttress_stdio::Stream;
use clap::ArgMatches;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::passed::{DESCRIPTORS_MAX, Passed};
use super::places::{self, Below};
use super::protocol::{Answer, Request};
use crate::commands::mount::registry::Known;
use crate::exit::Advice;
use crate::output::terminal;
use crate::writing::umask;

/// Returns all values in a command line, which include the paths.
fn values(matches: &ArgMatches) -> Vec<OsString> {
    let ids = matches.ids().map(clap::Id::as_str);
    let raw = ids.filter_map(|id| matches.try_get_raw(id).ok().flatten());
    raw.flatten().map(std::ffi::OsStr::to_owned).collect()
}

/// Asks the server of a mount to execute a command with passed files; returns its exit code.
///
/// # Errors
/// The server is unreachable, or ended during the command.
pub fn ask(mount: &Below, arguments: &[OsString], matches: &ArgMatches, passed: &[Passed]) -> Result<u8> {
    let words = values(matches).into_iter();
    let paths = words.filter_map(|word| {
        let below = places::find(Path::new(&word)).filter(|below| below.device == mount.device)?;
        Some((word, below.path))
    });
    let request = Request {
        arguments: arguments.to_vec(),
        paths: paths.collect(),
        passed: passed.iter().map(|passed| passed.name.clone()).collect(),
        // Clamp: a client whose directory was removed has no relative names.
        directory: std::env::current_dir().unwrap_or_default(),
        umask: umask(),
        has_output: !buttress_stdio::was_closed(Stream::Output),
        is_terminal: terminal::stdout_is_terminal(),
    };
    let socket = connect(mount)?;
    send(&socket, &request, passed).context("sending a request to the mount's server")?;
    for line in BufReader::new(socket).lines() {
        match Answer::parse(&line.context("receiving from the mount's server")?) {
            Some(Answer::Message(label, text)) => say(&label, &text),
            Some(Answer::Line(text)) => terminal::line(&text),
            Some(Answer::End(code)) => return Ok(code),
            None => {}
        }
    }
    Err(anyhow!("the server of the mount ended before the command did"))
}

/// Prints a message of the command like this process's own messages.
fn say(label: &str, text: &str) {
    use crate::output::events;
    if events::are_wanted() {
        events::tell(label, serde_json::json!({ "message": text }));
        return;
    }
    let colour = match label {
        "error" => AnsiColor::Red,
        "warning" => AnsiColor::Yellow,
        _ => AnsiColor::Cyan,
    };
    terminal::message(label, colour, &text);
}

fn connect(mount: &Below) -> Result<UnixStream> {
    let mounts = places::all();
    let of_mount = mounts.iter().find(|other| other.device == mount.device);
    let server = of_mount.map(Known::of).transpose()?.flatten();
    let server = server
        .context("the mount's server belongs to another user")
        .map_err(|error| {
            error.context(Advice::new(
                "only root and the user who mounted can run this command; other users have system calls and btrfs's ioctls",
            ))
        })?;
    UnixStream::connect(server.socket()).context("connecting to the mount's server")
}

fn send(mut socket: &UnixStream, request: &Request, passed: &[Passed]) -> Result<()> {
    let body = request.to_bytes();
    let length = u64::try_from(body.len())?.to_le_bytes();
    let output = rustix::stdio::stdout();
    let output = request.has_output.then(|| output.as_fd());
    let passed = passed.iter().flat_map(Passed::descriptors);
    let descriptors: Vec<BorrowedFd<'_>> = output.into_iter().chain(passed).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(anyhow!("no space for descriptors"));
    }
    rustix::net::sendmsg(
        socket,
        &[IoSlice::new(&length)],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )?;
    socket.write_all(&body)?;
    Ok(())
}
