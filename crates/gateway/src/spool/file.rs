//! File with the frames of one transfer, written at its end and read from its beginning.
//!
//! Reads and writes run on the runtime's blocking threads: the page cache makes a writer wait for
//! the disk once it has too many dirty pages (kernel: `balance_dirty_pages`, up to 200 ms), and a
//! serving thread would let all its callers wait. Inline, they would save 20 µs per 64 KiB.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, spawn_blocking};

use super::directory::{SpoolDirectory, free_beginning};
use super::small_frames::push_merged;
use super::store::SpoolShare;

/// Maximum bytes of a read, and of frames that wait for the write before.
const MAX_CHUNK_BYTES: usize = 64 * 1024;

/// File of a write that succeeded, or the cause and the frames of one that failed.
type WriteResult = Result<Arc<File>, (io::Error, VecDeque<Bytes>)>;
/// Bytes that were read, and whether their space is free.
type ReadResult = io::Result<(Bytes, bool)>;

/// File with the frames of one transfer.
pub(super) struct SpoolFile {
    share: SpoolShare,
    /// Created by the first write.
    file: Option<Arc<File>>,
    /// Offset of the next read.
    read: u64,
    /// Offset of the next write.
    written: u64,
    /// Bytes that were read, and whose space is not free yet.
    unfreed: u64,
    /// Frames that follow those in the file.
    unwritten: VecDeque<Bytes>,
    unwritten_bytes: usize,
    /// Write in progress, and its bytes.
    writing: Option<(JoinHandle<WriteResult>, usize)>,
    reading: Option<JoinHandle<ReadResult>>,
    /// A write failed: the file gets no more.
    is_full: bool,
    /// Frames were lost with the thread that wrote them.
    is_broken: bool,
    /// Wakes the task that reads, at the end of a write.
    reader: Option<Waker>,
}

impl SpoolFile {
    /// Begins a file, which is created when there is something to write.
    pub(super) fn new(share: SpoolShare) -> Self {
        Self {
            share,
            file: None,
            read: 0,
            written: 0,
            unfreed: 0,
            unwritten: VecDeque::new(),
            unwritten_bytes: 0,
            writing: None,
            reading: None,
            is_full: false,
            is_broken: false,
            reader: None,
        }
    }

    /// Returns the bytes that were not read.
    pub(super) fn unread_bytes(&self) -> u64 {
        let in_flight = self.writing.as_ref().map_or(0, |(_, bytes)| *bytes);
        self.written - self.read + (self.unwritten_bytes + in_flight) as u64
    }

    /// Returns whether everything was read.
    pub(super) fn is_empty(&self) -> bool {
        self.unread_bytes() == 0 && !self.is_broken
    }

    /// Returns whether the file may get another frame now.
    pub(super) fn has_room(&self) -> bool {
        !self.is_full && self.unwritten_bytes < MAX_CHUNK_BYTES && self.share.has_room()
    }

    /// Returns whether a reader waits for the disk.
    pub(super) fn is_busy(&self) -> bool {
        self.reading.is_some() || (self.writing.is_some() && self.read == self.written)
    }

    /// Adds a frame at the end. Call [`Self::poll_write`] after it.
    pub(super) fn push_data(&mut self, data: Bytes) {
        self.share.add_bytes(data.len() as u64);
        self.unwritten_bytes += data.len();
        push_merged(&mut self.unwritten, data);
    }

    /// Writes frames until none is left. Frames of a failed write stay in memory.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some((handle, bytes)) = &mut self.writing {
                let (ended, bytes) = (ready!(Pin::new(handle).poll(cx)), *bytes);
                self.writing = None;
                match ended {
                    Ok(Ok(file)) => {
                        self.file = Some(file);
                        self.written += bytes as u64;
                    }
                    Ok(Err((error, frames))) => self.keep_in_memory(&error, frames, bytes),
                    Err(_) => (self.is_full, self.is_broken) = (true, true),
                }
                if let Some(reader) = self.reader.take() {
                    reader.wake();
                }
            }
            if self.is_full || self.unwritten.is_empty() {
                return Poll::Ready(());
            }
            self.start_write();
        }
    }

    fn start_write(&mut self) {
        let frames = std::mem::take(&mut self.unwritten);
        let bytes = std::mem::take(&mut self.unwritten_bytes);
        let (file, offset) = (self.file.clone(), self.written);
        let directory = self.share.directory.clone();
        let write = spawn_blocking(move || write_frames(&directory, file, offset, frames));
        self.writing = Some((write, bytes));
    }

    fn keep_in_memory(&mut self, error: &io::Error, mut frames: VecDeque<Bytes>, bytes: usize) {
        self.is_full = true;
        self.share.pause_store(error);
        frames.append(&mut self.unwritten);
        (self.unwritten, self.unwritten_bytes) = (frames, self.unwritten_bytes + bytes);
    }

    /// Reads the next bytes; `None` if there are none.
    ///
    /// # Errors
    /// If they cannot be read: the transfer is not complete.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        loop {
            if let Some(handle) = &mut self.reading {
                let ended = ready!(Pin::new(handle).poll(cx));
                self.reading = None;
                let read = ended.map_err(io::Error::other).flatten();
                return Poll::Ready(Some(read.map(|(data, is_freed)| {
                    self.note_read(data.len() as u64, is_freed);
                    data
                })));
            }
            if self.read == self.written {
                return self.poll_unwritten(cx);
            }
            self.start_read();
        }
    }

    fn start_read(&mut self) {
        let file = self.file.clone().expect("the first write made the file");
        let (offset, end) = (self.read, self.written);
        self.reading = Some(spawn_blocking(move || read_chunk(&file, offset, end)));
    }

    fn note_read(&mut self, bytes: u64, is_freed: bool) {
        self.read += bytes;
        self.unfreed += bytes;
        if is_freed {
            self.share.remove_bytes(std::mem::take(&mut self.unfreed));
        }
    }

    /// Takes a frame that no write has begun with.
    fn poll_unwritten(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.writing.is_some() {
            self.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        if self.is_broken {
            return Poll::Ready(Some(Err(io::Error::other("a write to it did not end"))));
        }
        let Some(data) = self.unwritten.pop_front() else {
            return Poll::Ready(None);
        };
        self.unwritten_bytes -= data.len();
        self.share.remove_bytes(data.len() as u64);
        Poll::Ready(Some(Ok(data)))
    }
}

impl Drop for SpoolFile {
    fn drop(&mut self) {
        // A write in progress goes on, at most one, while its bytes are given back already.
        // The kernel frees the pages of a file when it is closed: 16 000 for 64 MiB.
        if let (Some(file), Ok(runtime)) = (self.file.take(), Handle::try_current()) {
            runtime.spawn_blocking(move || drop(file));
        }
    }
}

/// Writes frames at `offset`. Creates the file for the first of them.
fn write_frames(
    directory: &SpoolDirectory,
    file: Option<Arc<File>>,
    mut offset: u64,
    frames: VecDeque<Bytes>,
) -> WriteResult {
    let write = || {
        directory.check_free_space()?;
        let file = match file {
            Some(file) => file,
            None => Arc::new(directory.create_file()?),
        };
        for frame in &frames {
            file.write_all_at(frame, offset)?;
            offset += frame.len() as u64;
        }
        Ok(file)
    };
    write().map_err(|error| (error, frames))
}

/// Reads bytes at `offset`, of a file that ends at `end`, and frees their space.
fn read_chunk(file: &File, offset: u64, end: u64) -> ReadResult {
    let bytes = (end - offset).min(MAX_CHUNK_BYTES as u64);
    let mut data = BytesMut::zeroed(bytes as usize);
    file.read_exact_at(&mut data, offset)?;
    // A full disk may refuse it; the space is free after a later read then.
    let is_freed = free_beginning(file, offset + bytes).is_ok();
    Ok((data.freeze(), is_freed))
}
