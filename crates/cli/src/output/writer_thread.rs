//! A writer with a separate thread, so that generating and writing output overlap.
//!
//! Bytes are collected in large buffers, of which a few are in flight. Memory is therefore bounded,
//! and a slow reader slows the producer down. The next write or [`WriterThread::finish`] returns an
//! error of the thread. The caller must call `finish`: dropping the writer drops bytes that are not
//! written yet.

use std::io::{self, Write};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};

/// Size of one buffer in bytes.
const BUFFER_BYTES: usize = 1 << 20;

/// Number of buffers.
const BUFFERS: usize = 6;

/// A writer that passes its buffers to a separate thread.
#[derive(Debug)]
pub struct WriterThread<W> {
    buffer: Vec<u8>,
    full: Option<Sender<Vec<u8>>>,
    empty: Receiver<Vec<u8>>,
    thread: Option<JoinHandle<io::Result<W>>>,
}

impl<W: Write + Send + 'static> WriterThread<W> {
    /// Starts a thread that writes to `out`.
    pub fn new(mut out: W) -> Self {
        let (full, from_maker) = bounded::<Vec<u8>>(BUFFERS);
        let (to_maker, empty) = bounded(BUFFERS);
        for _ in 1..BUFFERS {
            let _ = to_maker.send(Vec::new());
        }
        let thread = std::thread::spawn(move || {
            for mut buffer in from_maker {
                out.write_all(&buffer)?;
                buffer.clear();
                // The thread that produces the bytes may have ended already.
                let _ = to_maker.send(buffer);
            }
            out.flush()?;
            Ok(out)
        });
        Self {
            buffer: Vec::with_capacity(BUFFER_BYTES),
            full: Some(full),
            empty,
            thread: Some(thread),
        }
    }

    /// Waits until everything is written, and returns the output.
    pub fn finish(mut self) -> io::Result<W> {
        if !self.buffer.is_empty() {
            self.pass_on()?;
        }
        self.join()
    }

    /// Passes the buffer to the thread and takes an empty one.
    fn pass_on(&mut self) -> io::Result<()> {
        let buffer = std::mem::take(&mut self.buffer);
        let sent = self.full.as_ref().is_some_and(|full| full.send(buffer).is_ok());
        match self.empty.recv() {
            Ok(buffer) if sent => {
                self.buffer = buffer;
                self.buffer.reserve(BUFFER_BYTES);
                Ok(())
            }
            // The writing thread ends early only after an error.
            _ => Err(self
                .join()
                .err()
                .unwrap_or_else(|| io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn join(&mut self) -> io::Result<W> {
        self.full = None;
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::other("the writing thread died")),
            // An earlier call has already returned the thread's error.
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl<W: Write + Send + 'static> Write for WriterThread<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = BUFFER_BYTES.saturating_sub(self.buffer.len());
        let taken = bytes.get(..room.min(bytes.len())).unwrap_or_default();
        self.buffer.extend_from_slice(taken);
        if self.buffer.len() >= BUFFER_BYTES {
            self.pass_on()?;
        }
        Ok(taken.len())
    }

    /// A flush leaves bytes in the buffer: only [`WriterThread::finish`] waits for the thread.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::sync::Arc;

    #[derive(Clone, Default)]
    struct Sink {
        bytes: Arc<Mutex<Vec<u8>>>,
        limit: usize,
    }

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut all = self.bytes.lock();
            if all.len() >= self.limit {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            all.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn everything_arrives_in_order() {
        let sink = Sink {
            limit: usize::MAX,
            ..Sink::default()
        };
        let mut writer = WriterThread::new(sink.clone());
        let mut expected = Vec::new();
        for round in 0..3000usize {
            let piece = vec![u8::try_from(round % 251).unwrap(); (round * 7) % 5000];
            expected.extend_from_slice(&piece);
            writer.write_all(&piece).unwrap();
        }
        writer.finish().unwrap();
        assert!(*sink.bytes.lock() == expected);
    }

    #[test]
    fn an_error_of_the_thread_comes_back() {
        let mut writer = WriterThread::new(Sink::default());
        let piece = vec![0; BUFFER_BYTES];
        let error = (0..100).find_map(|_| writer.write_all(&piece).err()).unwrap();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        let mut writer = WriterThread::new(Sink::default());
        writer.write_all(b"x").unwrap();
        assert_eq!(
            writer.finish().map(drop).unwrap_err().kind(),
            io::ErrorKind::BrokenPipe
        );
    }
}
