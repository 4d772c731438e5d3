//! Timed transfers through a stream between two machines.

use std::io;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::tally::RequestTally;

/// Bytes of a megabyte, as in network rates.
pub(crate) const MEGABYTE: usize = 1_000_000;
/// Bytes written or read at a time.
const CHUNK_BYTES: usize = 256 << 10;
/// Byte that starts a measurement in both directions: it shows that the other side is ready.
const READY_BYTE: u8 = b'r';

/// Figures of an end of a stream.
pub(crate) struct TransferStats {
    /// Time from the first byte to the last one.
    pub(crate) took: Duration,
    /// CPU time of the thread, which stands for its machine. The kernel processes sent packets
    /// through routers and the peer's sockets in the sender's context.
    pub(crate) cpu: Duration,
    /// Time of each megabyte; only the receiver has it.
    pub(crate) megabytes: RequestTally,
}

/// Sends or receives `megabytes` after one byte in each direction; both sides end with the last
/// byte.
pub(crate) async fn transfer_bytes(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    sends: bool,
    megabytes: usize,
) -> io::Result<TransferStats> {
    // Both sides write before they read, so neither waits for the other to begin.
    stream.write_all(&[READY_BYTE]).await?;
    stream.flush().await?;
    stream.read_exact(&mut [0]).await?;
    // After the exchange: connection setup is measured elsewhere.
    let (begun, before) = (Instant::now(), thread_cpu());
    let tally = if sends {
        send_bytes(stream, megabytes).await?
    } else {
        receive_bytes(stream, megabytes).await?
    };
    Ok(TransferStats {
        took: begun.elapsed(),
        cpu: thread_cpu() - before,
        megabytes: tally,
    })
}

fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        time.tv_nsec.unsigned_abs() as u32,
    )
}

async fn send_bytes(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    megabytes: usize,
) -> io::Result<RequestTally> {
    let (piece, mut left) = (vec![7; CHUNK_BYTES], megabytes * MEGABYTE);
    while left > 0 {
        let n = left.min(CHUNK_BYTES);
        stream.write_all(&piece[..n]).await?;
        left -= n;
    }
    stream.flush().await?;
    // Without this byte, the sender's time would end when its buffers have the data.
    stream.read_exact(&mut [0]).await?; // the receiver has it all
    Ok(RequestTally::default())
}

async fn receive_bytes(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    megabytes: usize,
) -> io::Result<RequestTally> {
    let (mut piece, mut tally, mut before) = (
        vec![0; CHUNK_BYTES],
        RequestTally::default(),
        Instant::now(),
    );
    // A latency for each megabyte: the table's percentiles show stalls within a transfer.
    for _ in 0..megabytes {
        let mut left = MEGABYTE;
        while left > 0 {
            let most = left.min(CHUNK_BYTES);
            match stream.read(&mut piece[..most]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => left -= n,
            }
        }
        let now = Instant::now();
        tally.record_outcome(Ok(now - before));
        before = now;
    }
    stream.write_all(&[READY_BYTE]).await?;
    stream.flush().await?;
    Ok(tally)
}
