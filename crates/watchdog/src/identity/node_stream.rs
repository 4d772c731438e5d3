//! Stream to the node: whole frames in both directions.

use std::io;

use nearpath_types::frames::{FrameBuffer, MAX_NODE_FRAME_BYTES};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes read at a time.
const READ_BUFFER_BYTES: usize = 16 << 10;

/// Stream of frames from and to the node.
#[derive(Debug)]
pub(crate) struct NodeStream<S> {
    stream: S,
    frames: FrameBuffer,
}

impl<S: AsyncRead + AsyncWrite + Unpin> NodeStream<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self {
            stream,
            frames: FrameBuffer::with_limit(MAX_NODE_FRAME_BYTES),
        }
    }

    /// Returns the next frame without its length; `None` when the node has closed. Cancel-safe:
    /// partial input stays in the buffer.
    pub(crate) async fn next_frame(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            // Before reading, because one read may bring several frames.
            if let Some(frame) = self.frames.next_frame()? {
                return Ok(Some(frame));
            }
            match self
                .stream
                .read_buf(self.frames.reserve(READ_BUFFER_BYTES))
                .await?
            {
                // A clean end lies between two frames; a part of a frame means that the node has
                // died.
                0 if self.frames.is_empty() => return Ok(None),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => {}
            }
        }
    }

    /// Writes a whole frame. Frames of this side are few and small, so they fit in the node's
    /// socket buffer.
    pub(crate) async fn write_frame(&mut self, frame: &[u8]) -> io::Result<()> {
        self.stream.write_all(frame).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_come_whole_however_they_were_cut() {
        let (mut node, stream) = tokio::io::duplex(3);
        let mut node_stream = NodeStream::new(stream);
        let frames = [&b"\x02\0\0\0ab"[..], b"\0\0\0\0", b"\x03\0\0\0cde"].concat();
        let writing = tokio::spawn(async move {
            node.write_all(&frames).await.unwrap();
            node.write_all(b"\x09\0").await.unwrap(); // and it dies
        });
        for wanted in [&b"ab"[..], b"", b"cde"] {
            assert_eq!(node_stream.next_frame().await.unwrap().unwrap(), wanted);
        }
        writing.await.unwrap();
        assert_eq!(
            node_stream.next_frame().await.unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
    }

    #[tokio::test]
    async fn a_frame_has_a_bound() {
        let (mut node, stream) = tokio::io::duplex(16);
        node.write_all(&u32::MAX.to_le_bytes()).await.unwrap();
        assert_eq!(
            NodeStream::new(stream)
                .next_frame()
                .await
                .unwrap_err()
                .kind(),
            io::ErrorKind::InvalidData
        );
    }
}
