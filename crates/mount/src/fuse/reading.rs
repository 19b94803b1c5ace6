//! Requests that are read from the device and answered by writing to it: all of them, or what does not come by rings.
//!
//! Several threads read from one descriptor, answer one at a time, and hold nothing between two.

use super::REQUEST_BYTES_MAX;
use super::dispatch::{Server, Turn, When};
use super::notify::{Later, Then};
use super::wire::{Header, IN_HEADER, Input, Output};
use rustix::fd::OwnedFd;
use rustix::io::Errno as Os;
use std::io::{self, IoSlice};

/// Reads a request; `None` once it was unmounted.
pub(super) fn receive(device: &OwnedFd, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match rustix::io::read(device, &mut *buffer) {
            Ok(bytes) => return Ok(Some(bytes)),
            // The request was taken back, or a signal came.
            Err(Os::NOENT | Os::INTR | Os::AGAIN) => {}
            Err(Os::NODEV) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Answers requests until it was unmounted.
pub(super) fn answer_all(server: &Server, device: &OwnedFd) -> io::Result<()> {
    let mut buffer = vec![0; REQUEST_BYTES_MAX];
    let mut out = Output::default();
    while let Some(bytes) = receive(device, &mut buffer)? {
        let mut input = Input::of(buffer.get(..bytes).unwrap_or_default());
        let Ok(header) = Header::parse(&mut input) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("a request of {bytes} bytes, which has no space for its head of {IN_HEADER}"),
            ));
        };
        match server.respond(header, input, Turn::First, &mut out) {
            When::Never => {}
            When::Now => {
                if !answer(device, &out)? {
                    break;
                }
            }
            When::Before(kept) => {
                let request = buffer.get(..bytes).unwrap_or_default().to_vec();
                server.forget_first(Later::before(kept, Then::Respond(request)));
            }
            When::After(stale) => {
                let then = Then::Answer(core::mem::take(&mut out));
                server.forget_first(Later::after(stale, then));
            }
        }
    }
    Ok(())
}

/// Gives one answer. False when it was unmounted meanwhile.
fn answer(device: &OwnedFd, out: &Output<'_>) -> io::Result<bool> {
    let parts = [IoSlice::new(&out.body), IoSlice::new(out.content.bytes())];
    match rustix::io::writev(device, &parts) {
        // Nobody waits for it any more.
        Ok(_) | Err(Os::NOENT) => Ok(true),
        Err(Os::NODEV) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
