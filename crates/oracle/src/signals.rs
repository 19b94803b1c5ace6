//! Signals to tested programs.

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::process::Child;

/// Sends a signal to a program, and returns once one of its threads has received it. From then on
/// the program behaves as the signal requires. On a busy machine, the delivery of a signal can take
/// longer than any pause.
///
/// # Errors
/// Fails if the signal cannot be sent, or the system does not report on the program.
pub fn deliver(child: &Child, signal: Signal) -> Result<()> {
    kill_process(Pid::from_child(child), signal)?;
    while is_pending(child.id(), signal)? {
        std::thread::yield_now();
    }
    Ok(())
}

fn is_pending(process: u32, signal: Signal) -> Result<bool> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    // A signal that ended a process stays pending in the remaining zombie.
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    if state.is_some_and(|state| state.trim_start().starts_with(['Z', 'X'])) {
        return Ok(false);
    }
    let bit = 1_u64 << (signal.as_raw() - 1);
    // The two fields are the pending signals of the process and of its first thread.
    for name in ["ShdPnd:", "SigPnd:"] {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let mask = line.with_context(|| format!("{name} in the status of a process"))?;
        if u64::from_str_radix(mask.trim(), 16)? & bit != 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    #[test]
    fn delivered_signal_has_ended_the_program() -> Result<()> {
        let mut child = Command::new("sleep").arg("1000").spawn()?;
        deliver(&child, Signal::TERM)?;
        assert_eq!(child.wait()?.signal(), Some(Signal::TERM.as_raw()));
        Ok(())
    }
}
