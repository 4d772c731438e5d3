//! Connections that were made ahead and have been idle, and what they begin with: the kernel's window, or one that their path has borne.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use nearpath_kernel::bpf::Fence;
use nearpath_kernel::sockets::{flow, open_window};
use nearpath_pool::destination::Key;
use nearpath_pool::window::{Way, Windows};
use rustix::net::sockopt;

/// Longer than a retransmission timeout: after that a kernel takes a window back that was not used.
const IDLE: Duration = Duration::from_millis(350);
/// What is sent at a time.
const PIECE: usize = 65_536;

/// How a connection begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begin {
    /// With its handshake.
    Fresh,
    /// It is there, as the kernel made it.
    Warm,
    /// It is there, and its window is opened.
    Open,
}

/// What is sent and what comes back, in octets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) up: u32,
    pub(crate) down: u32,
}

/// Who makes connections to one server. On one thread, which is fenced as the pool's is.
pub(crate) struct Ahead {
    to: SocketAddr,
    algorithm: String,
    windows: Windows,
    key: Key,
    _fence: Fence,
}

/// What came of some connections: how long each took, how many began with an opened window, and the segments that were sent again, from here.
#[derive(Debug, Default)]
pub(crate) struct Came {
    pub(crate) times: Vec<Duration>,
    pub(crate) opened: usize,
    pub(crate) resent: u64,
}

impl Ahead {
    /// # Errors
    /// Where windows cannot be opened.
    pub(crate) fn new(to: SocketAddr, algorithm: &str) -> io::Result<Self> {
        let fence = Fence::around_this_thread()?;
        fence.opens_windows()?;
        let key = Key { owner: "bench".into(), to: to.to_string(), identity: String::new(), epoch: 1 };
        let algorithm = algorithm.to_owned();
        Ok(Self { to, algorithm, windows: Windows::default(), key, _fence: fence })
    }

    /// Uses some connections, one after another.
    pub(crate) fn several(&mut self, begin: Begin, load: Load, count: usize) -> io::Result<Came> {
        let made = if begin == Begin::Fresh { 0 } else { count };
        let made: io::Result<Vec<_>> = (0..made).map(|_| self.connect()).collect();
        thread::sleep(IDLE);
        let (mut made, mut came) = (made?, Came::default());
        for _ in 0..count {
            let begun = Instant::now();
            let stream = made.pop().map_or_else(|| self.connect(), Ok)?;
            self.one(&stream, begin, load, &mut came)?;
            came.times.push(begun.elapsed());
        }
        Ok(came)
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(self.to)?;
        sockopt::set_tcp_congestion(&stream, &self.algorithm)?;
        Ok(stream)
    }

    fn one(&mut self, stream: &TcpStream, begin: Begin, load: Load, came: &mut Came) -> io::Result<()> {
        if begin != Begin::Open {
            exchange(stream, load)?;
            came.resent += u64::from(flow(stream)?.lost);
            return Ok(());
        }
        let way = Way::new(&self.key, self.to.ip());
        let mut one = self.windows.begin(Instant::now(), way, &flow(stream)?);
        if let Some(window) = one.window {
            open_window(stream, &window)?;
            came.opened += 1;
        }
        exchange(stream, load)?;
        let seen = flow(stream)?;
        self.windows.learn(Instant::now(), &mut one, &seen);
        self.windows.end(&one);
        came.resent += u64::from(seen.lost);
        Ok(())
    }
}

fn exchange(mut stream: &TcpStream, load: Load) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    stream.set_nodelay(true)?;
    stream.write_all(&[load.up.to_le_bytes(), load.down.to_le_bytes()].concat())?;
    let mut left = load.up as usize;
    while left > 0 {
        let next = left.min(PIECE);
        stream.write_all(&piece[..next])?;
        left -= next;
    }
    take(stream, load.down, &mut piece)
}

/// Serves one connection after another, each in a thread of its own, until accepting fails.
pub(crate) fn serve(listener: &TcpListener) -> io::Result<()> {
    for stream in listener.incoming() {
        let stream = stream?;
        thread::spawn(move || answer(&stream));
    }
    Ok(())
}

fn answer(mut stream: &TcpStream) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    let mut head = [0; 8];
    stream.read_exact(&mut head)?;
    let [a, b, c, d, e, f, g, h] = head;
    take(stream, u32::from_le_bytes([a, b, c, d]), &mut piece)?;
    let mut left = u32::from_le_bytes([e, f, g, h]) as usize;
    while left > 0 {
        let next = left.min(PIECE);
        stream.write_all(&piece[..next])?;
        left -= next;
    }
    Ok(())
}

fn take(mut stream: &TcpStream, octets: u32, piece: &mut [u8]) -> io::Result<()> {
    let mut left = octets as usize;
    while left > 0 {
        let most = left.min(piece.len());
        match stream.read(&mut piece[..most])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => left -= read,
        }
    }
    Ok(())
}
