//! A decoder of LZO1X, the byte stream inside btrfs's LZO segments.
//!
//! A stream is a sequence of instructions. An instruction copies a match and up to three literals
//! after it, or a run of literals. A match is a range of earlier output, given by distance and
//! length. The first byte of an instruction, in binary, selects its kind. In the table, `S` is the
//! number of literals after a match, `H` the byte after the first byte, and `W` the 16-bit
//! little-endian number after it:
//!
//! | first byte | after | length | distance |
//! |---|---|---|---|
//! | `0000 LLLL` | no literals | run of `L + 3` literals; `L` = 0: `18 +` extension | |
//! | `0000 DDSS` | 1 to 3 literals | 2 | `H * 4 + D + 1` |
//! | `0000 DDSS` | a run of literals | 3 | `H * 4 + D + 2049` |
//! | `0001 DLLL` | any | `L + 2`; `L` = 0: `9 +` extension | `D * 16384 + W / 4 + 16384`, `S` = `W % 4`; 16384 in all: end of the stream |
//! | `001L LLLL` | any | `L + 2`; `L` = 0: `33 +` extension | `W / 4 + 1`, `S` = `W % 4` |
//! | `01LD DDSS` | any | `L + 3` | `H * 8 + D + 1` |
//! | `1LLD DDSS` | any | `L + 5` | `H * 8 + D + 1` |
//!
//! An extension is a sequence of zero bytes, which count 255 each, and a final byte that is not
//! zero. If the first byte of a stream exceeds 17, it begins a run of that byte minus 17 literals.
//! A run of 1 to 3 counts as literals after a match.
//!
//! btrfs does not use the format's run-length extension: streams that begin with 17 and a version.
//! The LZO decoder refuses such a stream, because its first match begins before the content.
//!
//! Every copy is checked against both buffers. For speed, short copies move 16 bytes at once if the
//! buffers have space. Such copies may overwrite bytes of `out` beyond the returned length.
//!
//! Source: "LZO stream format as understood by Linux' LZO decompressor", the kernel's
//! documentation.

mod encode;

pub(super) use encode::Encoder;

/// The error of an LZO1X stream. Offsets count from the beginning of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lzo1xError {
    /// The stream ends inside an instruction or without an end mark.
    #[error("the stream ends at byte {offset} without an end mark")]
    InputCut {
        /// The length of the stream in bytes.
        offset: usize,
    },
    /// A copy instruction exceeds the buffer.
    #[error(
        "an instruction before byte {offset} copies {copy_bytes} bytes to {content_bytes}, past the limit of {limit_bytes}"
    )]
    OutputFull {
        /// The position in the stream after the instruction.
        offset: usize,
        /// The length of the copy in bytes.
        copy_bytes: usize,
        /// The length of the content decoded before the copy.
        content_bytes: usize,
        /// The size of the buffer in bytes.
        limit_bytes: usize,
    },
    /// The match of an LZO instruction begins before the first byte of content.
    #[error(
        "an instruction before byte {offset} copies from {distance} bytes back, but only {content_bytes} bytes are decoded"
    )]
    DistanceTooFar {
        /// The position in the stream after the instruction.
        offset: usize,
        /// The distance of the match.
        distance: usize,
        /// The length of the content decoded before the match.
        content_bytes: usize,
    },
    /// The length in the end mark differs from the length that encoders write.
    #[error("the end mark before byte {offset} has length {length}, expected 3")]
    EndMarkInvalid {
        /// The position in the stream after the end mark.
        offset: usize,
        /// The length in the end mark's instruction.
        length: usize,
    },
    /// Bytes follow the end mark.
    #[error("{rest_bytes} bytes follow the end mark at byte {offset}")]
    InputAfterEnd {
        /// The position after the end mark.
        offset: usize,
        /// The number of bytes that follow the end mark of the LZO stream.
        rest_bytes: usize,
    },
}

/// Decodes a whole stream into the beginning of `out`; returns the length of the content.
pub(super) fn decompress(input: &[u8], out: &mut [u8]) -> Result<usize, Lzo1xError> {
    let mut decoder = Decoder {
        input,
        position: 0,
        out,
        content_bytes: 0,
    };
    decoder.run()?;
    if decoder.position != input.len() {
        return Err(Lzo1xError::InputAfterEnd {
            offset: decoder.position,
            rest_bytes: input.len().saturating_sub(decoder.position),
        });
    }
    Ok(decoder.content_bytes)
}

/// The kind of the previous instruction, which the meaning of an instruction can depend on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// A match without literals.
    Match,
    /// The instruction holds up to three literals that follow a match.
    FewLiterals,
    /// A run of literals.
    Run,
}

struct Match {
    length: usize,
    distance: usize,
    /// The number of literals that follow.
    literals: usize,
}

struct Decoder<'a> {
    input: &'a [u8],
    /// The position of the next byte of input.
    position: usize,
    out: &'a mut [u8],
    content_bytes: usize,
}

/// The distance of the end mark. This distance is also the minimum distance of the end mark's
/// instruction.
const END_DISTANCE: usize = 16_384;
/// The maximum length of a copy that is one load and one store of fixed size.
const CHUNK_BYTES: usize = 16;

impl Decoder<'_> {
    fn run(&mut self) -> Result<(), Lzo1xError> {
        let mut before = Before::Match;
        if let Some(&first @ 18..) = self.input.first() {
            self.position = 1;
            let length = usize::from(first).saturating_sub(17);
            self.copy_literals(length)?;
            before = if length < 4 {
                Before::FewLiterals
            } else {
                Before::Run
            };
        }
        loop {
            let code = usize::from(self.byte()?);
            if code < 16 && before == Before::Match {
                let length = if code == 0 {
                    self.extended(18)?
                } else {
                    code.saturating_add(3)
                };
                self.copy_literals(length)?;
                before = Before::Run;
                continue;
            }
            let found = self.match_of(code, before)?;
            if code & 0xf0 == 16 && found.distance == END_DISTANCE {
                return self.end(found.length);
            }
            self.copy_match(found.distance, found.length)?;
            before = Before::Match;
            if found.literals != 0 {
                self.copy_literals(found.literals)?;
                before = Before::FewLiterals;
            }
        }
    }

    fn match_of(&mut self, code: usize, before: Before) -> Result<Match, Lzo1xError> {
        if code >= 64 {
            let high = usize::from(self.byte()?);
            return Ok(Match {
                length: (code >> 5).saturating_add(1),
                distance: ((high << 3) | ((code >> 2) & 7)).saturating_add(1),
                literals: code & 3,
            });
        }
        if code < 16 {
            let distance = (usize::from(self.byte()?) << 2) | (code >> 2);
            let (length, base) = if before == Before::Run { (3, 2049) } else { (2, 1) };
            return Ok(Match {
                length,
                distance: distance.saturating_add(base),
                literals: code & 3,
            });
        }
        let (length_mask, base, far) = if code >= 32 {
            (31, 1, 0)
        } else {
            (7, END_DISTANCE, (code & 8) << 11)
        };
        let length = match code & length_mask {
            0 => self.extended(length_mask.saturating_add(2))?,
            length => length.saturating_add(2),
        };
        let word = self.word()?;
        Ok(Match {
            length,
            distance: (far | (word >> 2)).saturating_add(base),
            literals: word & 3,
        })
    }

    fn end(&self, length: usize) -> Result<(), Lzo1xError> {
        if length == 3 {
            Ok(())
        } else {
            Err(Lzo1xError::EndMarkInvalid {
                offset: self.position,
                length,
            })
        }
    }

    #[inline]
    fn byte(&mut self) -> Result<u8, Lzo1xError> {
        let byte = self.input.get(self.position).copied().ok_or_else(|| self.cut())?;
        self.position = self.position.saturating_add(1);
        Ok(byte)
    }

    #[inline]
    fn word(&mut self) -> Result<usize, Lzo1xError> {
        let rest = self.input.get(self.position..).unwrap_or_default();
        let word = rest.first_chunk::<2>().copied().ok_or_else(|| self.cut())?;
        self.position = self.position.saturating_add(2);
        Ok(usize::from(u16::from_le_bytes(word)))
    }

    /// Returns `base` plus the length extension that follows in the input. The sum saturates,
    /// because no buffer is that long.
    fn extended(&mut self, base: usize) -> Result<usize, Lzo1xError> {
        let mut length = base;
        loop {
            match self.byte()? {
                0 => length = length.saturating_add(255),
                last => return Ok(length.saturating_add(usize::from(last))),
            }
        }
    }

    #[inline]
    fn copy_literals(&mut self, length: usize) -> Result<(), Lzo1xError> {
        let from = self.input.get(self.position..).unwrap_or_default();
        let room = self.out.get_mut(self.content_bytes..).unwrap_or_default();
        if length <= CHUNK_BYTES
            && let (Some(from), Some(to)) = (
                from.first_chunk::<CHUNK_BYTES>(),
                room.first_chunk_mut::<CHUNK_BYTES>(),
            )
        {
            *to = *from;
        } else {
            let Some(from) = from.get(..length) else {
                return Err(self.cut());
            };
            let Some(to) = room.get_mut(..length) else {
                return Err(self.full(length));
            };
            to.copy_from_slice(from);
        }
        self.position = self.position.saturating_add(length);
        self.content_bytes = self.content_bytes.saturating_add(length);
        Ok(())
    }

    #[inline]
    fn copy_match(&mut self, distance: usize, length: usize) -> Result<(), Lzo1xError> {
        let Some(start) = self.content_bytes.checked_sub(distance) else {
            return Err(Lzo1xError::DistanceTooFar {
                offset: self.position,
                distance,
                content_bytes: self.content_bytes,
            });
        };
        let Some((history, room)) = self.out.split_at_mut_checked(self.content_bytes) else {
            return Err(self.full(length));
        };
        let source = history.get(start..).unwrap_or_default();
        if length <= CHUNK_BYTES
            && let (Some(from), Some(to)) = (
                source.first_chunk::<CHUNK_BYTES>(),
                room.first_chunk_mut::<CHUNK_BYTES>(),
            )
        {
            *to = *from;
        } else {
            let Some(to) = room.get_mut(..length) else {
                return Err(self.full(length));
            };
            repeat(source, to);
        }
        self.content_bytes = self.content_bytes.saturating_add(length);
        Ok(())
    }

    #[cold]
    fn cut(&self) -> Lzo1xError {
        Lzo1xError::InputCut {
            offset: self.input.len(),
        }
    }

    #[cold]
    fn full(&self, copy_bytes: usize) -> Lzo1xError {
        Lzo1xError::OutputFull {
            offset: self.position,
            copy_bytes,
            content_bytes: self.content_bytes,
            limit_bytes: self.out.len(),
        }
    }
}

/// Fills `to` with `source`, and repeats `source` if `to` is longer. A match that overlaps its own
/// output repeats in this way. `source` is not empty, because no match has the distance zero.
#[inline]
fn repeat(source: &[u8], to: &mut [u8]) {
    if let [byte] = source {
        to.fill(*byte);
    } else if let Some(from) = source.get(..to.len()) {
        to.copy_from_slice(from);
    } else {
        for part in to.chunks_mut(source.len().max(1)) {
            part.iter_mut().zip(source).for_each(|(to, from)| *to = *from);
        }
    }
}
