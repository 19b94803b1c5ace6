//! Inspection of upcoming commands before the decoder reaches them. The results are hints.
//!
//! The inspection covers bytes that were already read and, for an input with readahead, the next
//! piece. Peeking at later commands never blocks.

use super::{Decoder, ReadAhead, State, payload};
use crate::command::Command;
use crate::error::Place;
use buttress_exact::Exact as _;
use buttress_format::send::{COMMAND_HEADER_BYTES, CommandKind, Version};
use core::ops::ControlFlow;
use std::io::Read;

impl<R: Read> Decoder<R> {
    /// Passes upcoming commands to `look` until it breaks. The inspection begins at `from`, an
    /// offset that an earlier call returned, and covers only whole commands that were already read.
    /// The inspection does not verify checksums, and stops silently at any error. Returns the
    /// offset at which the inspection stopped.
    pub fn look_ahead(&mut self, from: u64, mut look: impl FnMut(&Command<'_>) -> ControlFlow<()>) -> u64 {
        let place = self.place;
        let mut offset = from.max(place.offset);
        let State::Commands(version) = self.state else {
            return offset;
        };
        let behind = |start: u64, offset: u64| offset.saturating_sub(start).narrow::<usize>();
        let unread_end = place.offset.saturating_add(self.unread.len() as u64);
        let mut goes_on = true;
        if let Some(unread) = self.unread_bytes().get(behind(place.offset, offset)..) {
            let seen_bytes;
            (seen_bytes, goes_on) = look_at(place, version, unread, &mut look);
            offset = offset.saturating_add(seen_bytes as u64);
        }
        if goes_on
            && offset >= unread_end
            && let Some(next) = self.ahead.as_mut().and_then(ReadAhead::peek)
            && let Some(next) = next.get(behind(unread_end, offset)..)
        {
            let (seen_bytes, _) = look_at(place, version, next, &mut look);
            offset = offset.saturating_add(seen_bytes as u64);
        }
        offset
    }
}

/// Passes whole commands from the beginning of `bytes` to `look`. Returns their total length, and
/// whether more commands may follow after `bytes`.
fn look_at(
    place: Place,
    version: Version,
    bytes: &[u8],
    look: &mut impl FnMut(&Command<'_>) -> ControlFlow<()>,
) -> (usize, bool) {
    let mut rest = bytes;
    let seen = |rest: &[u8]| bytes.len().saturating_sub(rest.len());
    while let Some([l0, l1, l2, l3, k0, k1, ..]) = rest.first_chunk::<COMMAND_HEADER_BYTES>() {
        let length = (u32::from_le_bytes([*l0, *l1, *l2, *l3])).narrow::<usize>();
        let whole_bytes = COMMAND_HEADER_BYTES.saturating_add(length);
        let (Some(kind), Some(payload), Some(later)) = (
            CommandKind::from_raw(u16::from_le_bytes([*k0, *k1])),
            rest.get(COMMAND_HEADER_BYTES..whole_bytes),
            rest.get(whole_bytes..),
        ) else {
            return (seen(rest), false);
        };
        let Ok((command, _)) = payload::parse(place, version, kind, payload) else {
            return (seen(rest), false);
        };
        rest = later;
        if look(&command).is_break() || kind == CommandKind::End {
            return (seen(rest), false);
        }
    }
    (seen(rest), rest.is_empty())
}
