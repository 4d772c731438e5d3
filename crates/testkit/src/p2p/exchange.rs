//! What one worker does: it connects, writes and reads until it is known how, and a good deal more after that.

use std::hash::Hasher;
use std::io;
use std::time::Duration;

use nearpath_p2p::driver::{Introduction, Ports, Settings, Verdict};
use nearpath_p2p::link::{Known, Link, connect};
use nearpath_p2p::migrate::{Place, Places, Relay};
use nearpath_p2p::punch::Transport;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, split};

use super::introduction::side_of;

/// Nobody hangs.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// What went through a link in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes {
    count: usize,
    hash: u64,
}

/// How it went.
#[derive(Debug)]
pub struct Went {
    pub verdict: Verdict,
    pub places: Places,
    pub sent: Bytes,
    pub came: Bytes,
}

pub fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.agent.patience = Duration::from_secs(3); // nothing in the lab is far away
    settings
}

pub async fn run(
    introduction: Introduction,
    relay: Option<Box<dyn Relay>>,
    transports: &[Transport],
    rest: usize,
    settings: Settings,
) -> io::Result<Went> {
    let side = side_of(&introduction);
    let link = connect(Ports::bind(transports)?, introduction, side, relay, settings);
    let seed = std::process::id().into();
    tokio::time::timeout(DEADLINE, async { exchange(link.await?, rest, seed).await }).await?
}

pub async fn exchange(link: Link, rest: usize, seed: u64) -> io::Result<Went> {
    let known = link.known().clone();
    let (read, write) = split(link);
    let ((came, read), (sent, places, write)) =
        tokio::try_join!(read_all(read), write_all(write, known.clone(), rest, seed))?;
    read.unsplit(write).close().await?;
    Ok(Went { verdict: *known.verdict.borrow(), places, sent, came })
}

async fn read_all(mut read: ReadHalf<Link>) -> io::Result<(Bytes, ReadHalf<Link>)> {
    let (mut bytes, mut piece) = (Sum::default(), vec![0; 64 << 10]);
    loop {
        match read.read(&mut piece).await? {
            0 => return Ok((bytes.bytes(), read)),
            n => bytes.add(&piece[..n]),
        }
    }
}

/// Small pieces while nobody knows how, so that the way moves between them; so many bytes more after that.
async fn write_all(
    mut write: WriteHalf<Link>,
    known: Known,
    rest: usize,
    seed: u64,
) -> io::Result<(Bytes, Places, WriteHalf<Link>)> {
    let (mut bytes, mut random) = (Sum::default(), fastrand::Rng::with_seed(seed));
    while !is_decided(&known) {
        write_piece(&mut write, &mut bytes, &mut random, 3000).await?;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let places = *known.places.borrow();
    let enough = bytes.count + rest;
    while bytes.count < enough {
        write_piece(&mut write, &mut bytes, &mut random, 100_000).await?;
    }
    write.shutdown().await?;
    Ok((bytes.bytes(), places, write))
}

async fn write_piece(
    write: &mut WriteHalf<Link>,
    bytes: &mut Sum,
    random: &mut fastrand::Rng,
    most: usize,
) -> io::Result<()> {
    let mut piece = vec![0; random.usize(1..most)];
    random.fill(&mut piece);
    bytes.add(&piece);
    write.write_all(&piece).await?;
    write.flush().await
}

fn is_decided(known: &Known) -> bool {
    let places = *known.places.borrow();
    match *known.verdict.borrow() {
        Verdict::Unneeded | Verdict::Looking => false,
        Verdict::Direct { .. } => places == Places { out: Place::Direct, inward: Place::Direct },
        Verdict::Relayed(_) | Verdict::Ended(_) => true,
    }
}

/// Counts and hashes bytes, however they are cut.
#[derive(Default)]
struct Sum {
    hash: std::hash::DefaultHasher,
    count: usize,
}

impl Sum {
    fn add(&mut self, bytes: &[u8]) {
        // One by one: this hasher takes the cuts into account.
        bytes.iter().for_each(|byte| self.hash.write_u8(*byte));
        self.count += bytes.len();
    }

    fn bytes(&self) -> Bytes {
        Bytes { count: self.count, hash: self.hash.finish() }
    }
}
