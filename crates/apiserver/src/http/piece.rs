//! Buffers that join the lines of a watch into larger writes, and a pool that reuses the buffers.
//!
//! A busy watch sends hundreds of megabytes in pieces that live for a millisecond. Allocating each piece anew would take pages from the
//! system again and again, and the system zeroes every one of them; the pool avoids that.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

/// The size in bytes from which a piece is sent before more is added to it.
const PIECE: usize = 32 * 1024;
/// The capacity of a buffer in bytes: a nearly full piece and one more line of a common size.
const BUFFER: usize = PIECE + 16 * 1024;
/// Pieces shorter than this many bytes are copied out of their buffer when they are sent, so that a slow reader holds only its own bytes
/// and not a whole buffer.
const SHORT: usize = 8 * 1024;
/// The most buffers that the pool keeps.
const MOST_SPARE: usize = 64;

static SPARE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// Joins lines into pieces of about [`PIECE`] bytes.
#[derive(Default)]
pub(super) struct PieceBuilder {
    /// Sends each line as a piece of its own.
    alone: bool,
    /// The first line, which is not copied unless a second one follows.
    first: Bytes,
    all: Vec<u8>,
}

impl PieceBuilder {
    /// Creates an empty piece; with `alone`, every line is sent by itself.
    pub(super) fn new(alone: bool) -> Self {
        PieceBuilder {
            alone,
            ..PieceBuilder::default()
        }
    }

    /// Adds a line, and returns the earlier lines if they already fill a piece.
    pub(super) fn add(&mut self, line: Bytes) -> Option<Bytes> {
        if self.alone {
            return Some(line);
        }
        let full = (self.len() >= PIECE).then(|| self.take()).flatten();
        if self.len() == 0 {
            self.first = line;
            return full;
        }
        if self.all.is_empty() {
            let first = std::mem::take(&mut self.first);
            self.all = spare();
            self.all.extend_from_slice(&first);
        }
        self.all.extend_from_slice(&line);
        full
    }

    fn len(&self) -> usize {
        self.first.len() + self.all.len()
    }

    /// Takes out the collected lines, or `None` if there are none.
    pub(super) fn take(&mut self) -> Option<Bytes> {
        let piece = if self.all.is_empty() {
            std::mem::take(&mut self.first)
        } else {
            let buffer = PooledBuffer(std::mem::take(&mut self.all));
            if buffer.0.len() < SHORT {
                Bytes::copy_from_slice(&buffer.0)
            } else {
                Bytes::from_owner(buffer)
            }
        };
        (!piece.is_empty()).then_some(piece)
    }
}

/// A buffer from the pool that returns to the pool when the last reader drops it.
struct PooledBuffer(Vec<u8>);

impl AsRef<[u8]> for PooledBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        let mut buffer = std::mem::take(&mut self.0);
        // A buffer that grew for a long line is freed, so that the pool stays small.
        if buffer.capacity() > BUFFER {
            return;
        }
        buffer.clear();
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < MOST_SPARE {
            spare.push(buffer);
        }
    }
}

fn spare() -> Vec<u8> {
    let buffer = SPARE.lock().unwrap_or_else(PoisonError::into_inner).pop();
    buffer.unwrap_or_else(|| Vec::with_capacity(BUFFER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_out_together_until_they_are_enough() {
        let mut piece = PieceBuilder::default();
        assert_eq!(piece.take(), None);
        assert_eq!(piece.add("a\n".into()), None);
        assert_eq!(piece.take().as_deref(), Some(b"a\n".as_slice()));
        assert_eq!(piece.add("a\n".into()), None);
        assert_eq!(piece.add("b\n".into()), None);
        assert_eq!(piece.add(vec![b'c'; PIECE].into()), None);
        let full = piece.add("d\n".into()).expect("it was full");
        assert_eq!((&full[..5], full.len()), (b"a\nb\nc".as_slice(), PIECE + 4));
        assert_eq!(piece.take().as_deref(), Some(b"d\n".as_slice()));
    }

    #[test]
    fn a_lone_line_is_not_copied() {
        let line = Bytes::from_static(b"{}");
        let mut piece = PieceBuilder::default();
        assert!(piece.add(line.clone()).is_none());
        let sent = piece.take().expect("a line");
        assert_eq!(sent.as_ptr(), line.as_ptr());
    }
}
