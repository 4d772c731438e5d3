//! Stream to the node whose frames may come with a descriptor (unix(7), `SCM_RIGHTS`).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;

/// Room for descriptors of one read. The node sends one at a time; the kernel closes excess ones (unix(7)).
const MAX_FDS: usize = 4;
/// Maximum descriptors that wait for their frame. Further ones are closed.
const MAX_WAITING_FDS: usize = 4;

/// Descriptors that came, in the order of their frames.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReceivedDescriptors(Rc<RefCell<VecDeque<OwnedFd>>>);

impl ReceivedDescriptors {
    /// Takes the descriptor of the next frame that has one.
    pub(super) fn take(&self) -> Option<OwnedFd> {
        self.0.borrow_mut().pop_front()
    }

    fn add(&self, fd: OwnedFd) {
        let mut waiting = self.0.borrow_mut();
        if waiting.len() < MAX_WAITING_FDS {
            waiting.push_back(fd);
        }
    }
}

/// Stream that keeps the descriptors that come with its bytes.
#[derive(Debug)]
pub(crate) struct DescriptorStream {
    stream: UnixStream,
    received: ReceivedDescriptors,
}

impl DescriptorStream {
    /// Wraps the identity socket.
    pub(crate) fn new(stream: UnixStream, received: ReceivedDescriptors) -> Self {
        Self { stream, received }
    }

    fn receive(&self, buf: &mut ReadBuf<'_>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        // A tenant's process must not inherit them.
        let flags = RecvFlags::CMSG_CLOEXEC;
        let mut bytes = [IoSliceMut::new(buf.initialize_unfilled())];
        let length = recvmsg(&self.stream, &mut bytes, &mut ancillary, flags)?.bytes;
        buf.advance(length);
        for part in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = part {
                fds.for_each(|fd| self.received.add(fd));
            }
        }
        Ok(())
    }
}

impl AsyncRead for DescriptorStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(cx))?;
            let received = self.stream.try_io(Interest::READABLE, || self.receive(buf));
            match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => return Poll::Ready(received),
            }
        }
    }
}

impl AsyncWrite for DescriptorStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::super::node_stream::NodeStream;
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::io::IoSlice;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[tokio::test]
    async fn a_descriptor_comes_with_its_frame() {
        let (node, watchdog) = std::os::unix::net::UnixStream::pair().unwrap();
        watchdog.set_nonblocking(true).unwrap();
        let received = ReceivedDescriptors::default();
        let stream = UnixStream::from_std(watchdog).unwrap();
        let mut stream = NodeStream::new(DescriptorStream::new(stream, received.clone()));
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let fds = [socket.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        let frame = nearpath_types::frames::socket_frame();
        sendmsg(
            &node,
            &[IoSlice::new(&frame)],
            &mut ancillary,
            SendFlags::empty(),
        )
        .unwrap();
        assert_eq!(stream.next_frame().await.unwrap().unwrap(), frame[4..]);
        let taken = UdpSocket::from(received.take().unwrap());
        assert_eq!(taken.local_addr().unwrap(), socket.local_addr().unwrap());
        assert!(received.take().is_none());
    }
}
