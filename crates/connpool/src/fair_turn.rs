//! Fair turns of the connections that share the pool's thread. A bulk transfer must not delay the
//! connects and first answers of other functions.

use std::task::{Context, Poll};

use tokio::task::coop::poll_proceed;

/// Bytes that a task reads and writes before other tasks get their turn.
pub const MAX_TURN_BYTES: usize = 128 << 10;
/// Operations after which tokio ends a task's turn (its `coop` module).
const OPERATIONS_PER_TURN: usize = 128;

/// Counts moved bytes towards the current task's turn. tokio counts operations alone, and 128 reads
/// of 64 KiB would take milliseconds. The next operation of the task waits once its turn is over.
pub fn count_bytes(cx: &mut Context<'_>, bytes: usize) {
    for _ in 0..bytes / (MAX_TURN_BYTES / OPERATIONS_PER_TURN) {
        match poll_proceed(cx) {
            Poll::Ready(operation) => operation.made_progress(),
            Poll::Pending => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::Write;
    use std::net::Ipv4Addr;
    use std::rc::Rc;

    use super::*;
    use crate::pool::{ConnectionLease, LeaseGuard};
    use crate::socket::UpstreamSocket;
    use nearpath_testkit::{eventually, within};
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpSocket;
    use tokio::task::{spawn_local, yield_now};

    const CHUNK_BYTES: usize = 16 << 10;

    /// Connects to a peer whose bytes already wait, more than a turn of them.
    async fn bulk_socket() -> UpstreamSocket {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4 << 20).unwrap();
        let connecting = socket.connect(listener.local_addr().unwrap());
        let stream = connecting.await.unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        std::thread::spawn(move || peer.write_all(&vec![0; 8 << 20]));
        eventually("bytes wait", async || {
            rustix::io::ioctl_fionread(&stream).unwrap() as usize > MAX_TURN_BYTES + 2 * CHUNK_BYTES
        })
        .await;
        let guard = LeaseGuard::on_drop(|| ());
        UpstreamSocket::from_lease(ConnectionLease { stream, guard })
    }

    #[tokio::test(flavor = "local")]
    async fn a_bulk_transfer_moves_at_most_a_turn_before_others_run() {
        let mut socket = within(bulk_socket()).await;
        let moved = Rc::new(Cell::new(0));
        let count = Rc::clone(&moved);
        let reader = spawn_local(async move {
            let mut buffer = vec![0; CHUNK_BYTES];
            while let Ok(read @ 1..) = socket.read(&mut buffer).await {
                count.set(count.get() + read);
            }
        });
        let (mut seen, mut largest) = (0, 0);
        while !reader.is_finished() {
            yield_now().await;
            largest = largest.max(moved.get() - seen);
            seen = moved.get();
        }
        assert_eq!(seen, 8 << 20);
        assert!(largest <= MAX_TURN_BYTES + CHUNK_BYTES, "{largest} bytes");
    }
}
