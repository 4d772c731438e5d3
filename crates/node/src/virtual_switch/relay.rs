//! Forwards the bytes of two connections to each other.

use std::io;
use std::pin::pin;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, split};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Time that a caller has for its last bytes after the callee has closed.
const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(60);

/// Forwards bytes until both ends have closed. The end of one direction is passed on.
///
/// # Errors
/// When one end breaks, or the caller does not end within 60 s after the callee. The other end must then be
/// reset: it could take an orderly end for the whole content.
pub(super) async fn relay(
    caller: &mut (impl AsyncRead + AsyncWrite + Unpin),
    callee: &mut (impl AsyncRead + AsyncWrite + Unpin),
) -> io::Result<()> {
    let (mut from_caller, mut to_caller) = split(caller);
    let (mut from_callee, mut to_callee) = split(callee);
    // Both in this task: a task for each direction would cost more than it copies.
    let mut requests = pin!(copy_to_end(&mut from_caller, &mut to_callee));
    let mut answers = pin!(copy_to_end(&mut from_callee, &mut to_caller));
    tokio::select! {
        copied = &mut requests => match copied {
            Ok(()) => answers.await,
            broken => broken,
        },
        copied = &mut answers => match copied {
            // Callers may keep the sockets of ended instances, as connection pools do.
            Ok(()) => timeout(HALF_CLOSED_TIMEOUT, requests).await?,
            broken => broken,
        },
    }
}

/// Copies until the end, and passes it on.
async fn copy_to_end(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    tokio::io::copy(from, to).await?;
    to.shutdown().await
}

/// Makes the close of a connection a reset, which its peer cannot take for an orderly end.
pub(super) fn reset(connection: &TcpStream) {
    let _ = sockopt::set_socket_linger(connection, Some(Duration::ZERO)); // else it is an orderly end
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};

    async fn read_all(stream: &mut DuplexStream) -> Vec<u8> {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        bytes
    }

    #[tokio::test]
    async fn each_direction_ends_by_itself() {
        let ((mut client, mut caller), (mut callee, mut server)) = (duplex(8), duplex(8));
        let relayed = async { relay(&mut caller, &mut callee).await };
        let asked = async {
            client.write_all(b"question").await.unwrap();
            client.shutdown().await.unwrap();
            read_all(&mut client).await
        };
        let answered = async {
            let question = read_all(&mut server).await;
            server.write_all(&question).await.unwrap();
            server.write_all(b" and answer").await.unwrap();
            server.shutdown().await.unwrap();
        };
        let (relayed, text, ()) = tokio::join!(relayed, asked, answered);
        relayed.unwrap();
        assert_eq!(text, b"question and answer");
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_stays_after_the_callee_is_an_error() {
        let ((mut client, mut caller), (mut callee, server)) = (duplex(8), duplex(8));
        drop(server);
        let relayed = relay(&mut caller, &mut callee).await;
        assert_eq!(relayed.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(
            read_all(&mut client).await.is_empty(),
            "its end was passed on"
        );
    }

    #[tokio::test]
    async fn an_end_that_breaks_is_an_error_at_once() {
        let broken = failing_stream(io::ErrorKind::UnexpectedEof);
        let (_client, mut caller) = duplex(8);
        let relayed = relay(&mut caller, &mut { broken }).await;
        assert_eq!(relayed.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    /// Stream whose reads fail.
    fn failing_stream(kind: io::ErrorKind) -> impl AsyncRead + AsyncWrite + Unpin {
        tokio::io::join(FailingReader(kind), tokio::io::sink())
    }

    struct FailingReader(io::ErrorKind);

    impl AsyncRead for FailingReader {
        fn poll_read(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
            _: &mut tokio::io::ReadBuf<'_>,
        ) -> std::task::Poll<io::Result<()>> {
            std::task::Poll::Ready(Err(self.0.into()))
        }
    }
}
