//! A worker of a test: it connects, writes and reads until the path is decided, and a good deal
//! more after that.

use std::hash::Hasher;
use std::io;
use std::time::Duration;

use nearpath_p2p::driver::{DriverSettings, LocalPorts, PeerIntroduction, SearchOutcome};
use nearpath_p2p::link::{LinkStatus, P2pLink, connect_link};
use nearpath_p2p::migrate::{RelayConnection, StreamPath, StreamPaths};
use nearpath_p2p::punch::Transport;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, split};

use super::introduction::side_of;

/// Time after which an exchange fails.
pub const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes of a link in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteSummary {
    count: usize,
    hash: u64,
}

/// Result of an exchange.
#[derive(Debug)]
pub struct ExchangeResult {
    pub verdict: SearchOutcome,
    pub migration_points: StreamPaths,
    pub sent: ByteSummary,
    pub received: ByteSummary,
}

pub fn migration_settings() -> DriverSettings {
    let mut settings = DriverSettings::default();
    settings.agent.search_timeout = Duration::from_secs(3); // round trips in the lab are short
    settings
}

pub async fn run_exchange(
    introduction: PeerIntroduction,
    relay: Option<Box<dyn RelayConnection>>,
    transports: &[Transport],
    rest: usize,
    settings: DriverSettings,
) -> io::Result<ExchangeResult> {
    let side = side_of(&introduction);
    let link = connect_link(
        LocalPorts::bind(transports)?,
        introduction,
        side,
        relay,
        settings,
    );
    let seed = std::process::id().into();
    tokio::time::timeout(EXCHANGE_TIMEOUT, async {
        exchange_bytes(link.await?, rest, seed).await
    })
    .await?
}

pub async fn exchange_bytes(link: P2pLink, rest: usize, seed: u64) -> io::Result<ExchangeResult> {
    let known = link.status().clone();
    let (read, write) = split(link);
    let ((came, read), (sent, places, write)) =
        tokio::try_join!(read_all(read), write_all(write, known.clone(), rest, seed))?;
    read.unsplit(write).close().await?;
    Ok(ExchangeResult {
        verdict: *known.outcome.borrow(),
        migration_points: places,
        sent,
        received: came,
    })
}

async fn read_all(mut read: ReadHalf<P2pLink>) -> io::Result<(ByteSummary, ReadHalf<P2pLink>)> {
    let (mut bytes, mut piece) = (RunningHash::default(), vec![0; 64 << 10]);
    loop {
        match read.read(&mut piece).await? {
            0 => return Ok((bytes.summary(), read)),
            n => bytes.add_bytes(&piece[..n]),
        }
    }
}

/// Writes small pieces while the path is undecided, so that the stream migrates between them, then
/// as many bytes more.
async fn write_all(
    mut write: WriteHalf<P2pLink>,
    known: LinkStatus,
    rest: usize,
    seed: u64,
) -> io::Result<(ByteSummary, StreamPaths, WriteHalf<P2pLink>)> {
    let (mut bytes, mut random) = (RunningHash::default(), fastrand::Rng::with_seed(seed));
    while !is_decided(&known) {
        write_chunk(&mut write, &mut bytes, &mut random, 3000).await?;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let places = *known.paths.borrow();
    let enough = bytes.count + rest;
    while bytes.count < enough {
        write_chunk(&mut write, &mut bytes, &mut random, 100_000).await?;
    }
    write.shutdown().await?;
    Ok((bytes.summary(), places, write))
}

async fn write_chunk(
    write: &mut WriteHalf<P2pLink>,
    bytes: &mut RunningHash,
    random: &mut fastrand::Rng,
    max: usize,
) -> io::Result<()> {
    let mut piece = vec![0; random.usize(1..max)];
    random.fill(&mut piece);
    bytes.add_bytes(&piece);
    write.write_all(&piece).await?;
    write.flush().await
}

fn is_decided(known: &LinkStatus) -> bool {
    let places = *known.paths.borrow();
    match *known.outcome.borrow() {
        SearchOutcome::NotNeeded | SearchOutcome::Searching => false,
        SearchOutcome::Direct { .. } => {
            places
                == StreamPaths {
                    outgoing: StreamPath::Direct,
                    incoming: StreamPath::Direct,
                }
        }
        SearchOutcome::Relayed(_) | SearchOutcome::Failed(_) => true,
    }
}

/// Counts and hashes bytes, however they are split.
#[derive(Default)]
struct RunningHash {
    hash: std::hash::DefaultHasher,
    count: usize,
}

impl RunningHash {
    fn add_bytes(&mut self, bytes: &[u8]) {
        // Byte by byte: this hasher's result depends on how the input is split.
        bytes.iter().for_each(|byte| self.hash.write_u8(*byte));
        self.count += bytes.len();
    }

    fn summary(&self) -> ByteSummary {
        ByteSummary {
            count: self.count,
            hash: self.hash.finish(),
        }
    }
}
