//! Requests on the device: all of them, or those that do not arrive by rings.
//!
//! Several threads read from one descriptor. Each reading thread answers one request at a time and
//! keeps no state between two requests.

use super::REQUEST_BYTES_MAX;
use super::dispatch::{Server, Turn, When};
use super::notify::{Later, Then};
use super::wire::{Header, IN_HEADER, Input, Output};
use rustix::fd::OwnedFd;
use rustix::io::Errno as Os;
use std::io::{self, IoSlice};

/// Reads a request; returns `None` after the unmount.
pub(super) fn receive(device: &OwnedFd, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match rustix::io::read(device, &mut *buffer) {
            Ok(bytes) => return Ok(Some(bytes)),
            // The kernel withdrew the request, or a signal interrupted the read.
            Err(Os::NOENT | Os::INTR | Os::AGAIN) => {}
            Err(Os::NODEV) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Answers requests until the unmount.
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

/// Sends an answer to the kernel. Returns false if the file system was unmounted.
fn answer(device: &OwnedFd, out: &Output<'_>) -> io::Result<bool> {
    let parts = [IoSlice::new(&out.body), IoSlice::new(out.content.bytes())];
    match rustix::io::writev(device, &parts) {
        // An answer also succeeds if the kernel no longer waits for it.
        Ok(_) | Err(Os::NOENT) => Ok(true),
        Err(Os::NODEV) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
