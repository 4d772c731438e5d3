//! What is sent through a stream between two machines, and how it is timed.

use std::io;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::tally::Tally;

/// A megabyte, as networks count.
pub(crate) const MEGABYTE: usize = 1_000_000;
/// What is written or read at a time.
const PIECE: usize = 256 << 10;
/// What opens a measurement, in both directions: whoever reads it knows that the other side is there.
const READY: u8 = b'r';

/// What one end of a stream saw.
pub(crate) struct Seen {
    /// From its first byte to its last one.
    pub(crate) took: Duration,
    /// What its thread, and with it its machine, spent on the processors meanwhile. Packets that it sends go through routers and into the
    /// peer's sockets on its account, as the kernel does it with what arrives at once.
    pub(crate) cpu: Duration,
    /// Of each megabyte, how long it took; the receiver alone knows.
    pub(crate) megabytes: Tally,
}

/// One side sends so many megabytes, after a word to and fro; both end with the last one.
pub(crate) async fn transfer(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    sends: bool,
    megabytes: usize,
) -> io::Result<Seen> {
    stream.write_all(&[READY]).await?;
    stream.flush().await?;
    stream.read_exact(&mut [0]).await?;
    let (begun, before) = (Instant::now(), thread_cpu());
    let tally = if sends {
        send(stream, megabytes).await?
    } else {
        receive(stream, megabytes).await?
    };
    Ok(Seen {
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

async fn send(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    megabytes: usize,
) -> io::Result<Tally> {
    let (piece, mut left) = (vec![7; PIECE], megabytes * MEGABYTE);
    while left > 0 {
        let n = left.min(PIECE);
        stream.write_all(&piece[..n]).await?;
        left -= n;
    }
    stream.flush().await?;
    stream.read_exact(&mut [0]).await?; // the receiver has it all
    Ok(Tally::default())
}

async fn receive(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    megabytes: usize,
) -> io::Result<Tally> {
    let (mut piece, mut tally, mut before) = (vec![0; PIECE], Tally::default(), Instant::now());
    for _ in 0..megabytes {
        let mut left = MEGABYTE;
        while left > 0 {
            let most = left.min(PIECE);
            match stream.read(&mut piece[..most]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => left -= n,
            }
        }
        let now = Instant::now();
        tally.add(Ok(now - before));
        before = now;
    }
    stream.write_all(&[READY]).await?;
    stream.flush().await?;
    Ok(tally)
}
