//! A server in a background process: starting it, and waiting for its mount.

use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

use crate::exit::Outcome;

/// Environment variable that marks this process as a server.
const VARIABLE: &str = "BUTTRESS_SERVES_MOUNT";

/// Returns whether this process was started as a server.
pub(super) fn is_server() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Starts the same command line as a server, and waits until it has mounted or failed.
pub(super) fn start() -> Result<Outcome> {
    let program = std::env::current_exe().context("finding this program")?;
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    let mut child = Command::new(program)
        .arg0(name)
        .args(arguments)
        .env(VARIABLE, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting the server")?;
    let mut word = [0];
    let is_ready = match &mut child.stdout {
        Some(output) => matches!(output.read(&mut word), Ok(1)),
        None => false,
    };
    if is_ready {
        return Ok(Outcome::Done);
    }
    // The server has already printed the reason.
    let status = child.wait()?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(Outcome::Code(code.filter(|code| *code != 0).unwrap_or(1)))
}

/// Detaches this process from the terminal and its signals.
pub(super) fn leave_session() {
    // If the process already leads its group, no shell started it, so this error is ignored.
    let _ = rustix::process::setsid();
}

/// Reports to the waiting process that the mount exists, and closes its streams.
pub(super) fn say_ready() -> Result<()> {
    rustix::io::write(rustix::stdio::stdout(), b"r")?;
    let null = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    // A server must not keep its working directory's file system busy.
    std::env::set_current_dir("/")?;
    Ok(())
}
