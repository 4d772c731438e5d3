//! Frames of one transfer that wait: the first ones in memory, later ones in a file.
//!
//! Once a frame went to the file, all later ones follow it there until it has been read empty.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use nearpath_types::SourceNetwork;
use nearpath_wire::BoxError;

use super::file::SpoolFile;
use super::small_frames::push_merged;
use super::store::SpoolStore;

/// Frame of a body, or the cause for which no more follows.
pub(crate) type NextFrame = Result<Frame<Bytes>, BoxError>;

/// Frames of one transfer, first in first out.
pub(crate) struct FrameQueue {
    store: Rc<SpoolStore>,
    /// Source whose share of the files the transfer uses.
    source: SourceNetwork,
    memory: VecDeque<Bytes>,
    memory_bytes: usize,
    /// File with the frames that follow those in memory.
    file: Option<SpoolFile>,
    /// Trailers or an error, which follow all data.
    last: Option<NextFrame>,
}

impl FrameQueue {
    /// Creates an empty queue.
    pub(crate) fn new(store: &Rc<SpoolStore>, source: SourceNetwork) -> Self {
        Self {
            store: store.clone(),
            source,
            memory: VecDeque::new(),
            memory_bytes: 0,
            file: None,
            last: None,
        }
    }

    /// Returns whether no frame waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.memory.is_empty() && self.file.is_none() && self.last.is_none()
    }

    /// Returns whether [`Self::poll_take`] has to be called. It may have to read the file first.
    pub(crate) fn has_frame(&self) -> bool {
        !self.memory.is_empty()
            || self
                .file
                .as_ref()
                .map_or(self.last.is_some(), |f| !f.is_busy())
    }

    /// Returns the bytes of data that wait; `None` if trailers or an error follow them.
    pub(crate) fn data_bytes(&self) -> Option<u64> {
        let in_file = self.file.as_ref().map_or(0, SpoolFile::unread_bytes);
        self.last
            .is_none()
            .then_some(self.memory_bytes as u64 + in_file)
    }

    /// Returns the trailers that follow the data.
    pub(crate) fn trailers(&self) -> Option<&HeaderMap> {
        self.last.as_ref()?.as_ref().ok()?.trailers_ref()
    }

    /// Returns whether a frame may be added.
    pub(crate) fn has_room(&self) -> bool {
        match &self.file {
            Some(file) => file.has_room(),
            None => self.store.has_memory(self.memory_bytes) || self.store.can_begin(self.source),
        }
    }

    /// Adds a frame. Call [`Self::poll_write`] after it.
    pub(crate) fn push_frame(&mut self, frame: NextFrame) {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => self.push_data(data),
            Ok(Err(trailers)) => self.last = Some(Ok(trailers)),
            Err(error) => self.last = Some(Err(error)),
        }
    }

    fn push_data(&mut self, data: Bytes) {
        if data.is_empty() {
            return; // a read of the file could not return it
        }
        if self.file.is_none() && !self.store.has_memory(self.memory_bytes) {
            self.file = self.store.begin_share(self.source).map(SpoolFile::new);
        }
        match &mut self.file {
            Some(file) => file.push_data(data),
            None => {
                self.store.add_memory(data.len());
                self.memory_bytes += data.len();
                push_merged(&mut self.memory, data);
            }
        }
    }

    /// Writes frames to the file until none waits for it.
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.file
            .as_mut()
            .map_or(Poll::Ready(()), |file| file.poll_write(cx))
    }

    /// Takes the next frame; `None` if the queue is empty.
    ///
    /// # Errors
    /// If the file cannot be read. All frames are lost then.
    pub(crate) fn poll_take(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Option<NextFrame>>> {
        if let Some(data) = self.memory.pop_front() {
            self.store.remove_memory(data.len());
            self.memory_bytes -= data.len();
            return Poll::Ready(Ok(Some(Ok(Frame::data(data)))));
        }
        if let Some(file) = &mut self.file {
            let read = ready!(file.poll_read(cx)).transpose();
            if file.is_empty() || read.is_err() {
                self.file = None; // memory is used again
            }
            match read {
                Ok(None) => {}
                Ok(Some(data)) => return Poll::Ready(Ok(Some(Ok(Frame::data(data))))),
                Err(error) => {
                    tracing::error!(%error, "gateway: read of the spool failed, the body is cut");
                    self.clear();
                    return Poll::Ready(Err(error));
                }
            }
        }
        Poll::Ready(Ok(self.last.take()))
    }

    /// Drops all frames.
    pub(crate) fn clear(&mut self) {
        self.store
            .remove_memory(std::mem::take(&mut self.memory_bytes));
        self.memory.clear();
        (self.file, self.last) = (None, None);
    }
}

impl fmt::Debug for FrameQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameQueue")
            .field("source", &self.source)
            .field("data_bytes", &self.data_bytes())
            .finish_non_exhaustive()
    }
}

impl Drop for FrameQueue {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests;
