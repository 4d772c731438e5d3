//! The traffic that measures a link. Both nodes have the machine's clock, so one way can be timed alone.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nearpath_testkit::lab::{Cable, Direction, Node};

const PORT: u16 = 7000;
/// How long a packet is waited for before it counts as lost.
const PATIENCE: Duration = Duration::from_millis(200);
/// Pings do not follow at once, so that each finds the link's thread asleep, as a lone request does.
const PAUSE: Duration = Duration::from_micros(300);

/// One-way and round-trip times of those that came back, sorted.
pub(crate) struct Pings {
    pub(crate) one_way: Vec<Duration>,
    pub(crate) round_trip: Vec<Duration>,
    pub(crate) sent: u32,
}

/// What a bulk transfer over TCP took.
pub(crate) struct Bulk {
    pub(crate) octets: usize,
    pub(crate) took: Duration,
    /// CPU time of the link's thread.
    pub(crate) cpu: Duration,
    /// Packets that the link carried, acknowledgements included; segments that stayed together count as one.
    pub(crate) packets: u64,
}

/// Sends one datagram at a time and waits for it to come back. The receivers poll, so that their own waking up is not counted.
pub(crate) fn pings(near: &Node, far: &Node, to: IpAddr, count: u32) -> io::Result<Pings> {
    let began = Instant::now();
    let done = AtomicBool::new(false);
    let far = far.enter(|| socket(to, PORT))?;
    let near = near.enter(|| socket(unspecified(to), 0))?;
    near.connect((to, PORT))?;
    thread::scope(|scope| {
        scope.spawn(|| echo(&far, began, &done));
        let pings = collect(&near, began, count);
        done.store(true, Ordering::Release);
        pings
    })
}

/// Sends `octets` over one TCP connection.
pub(crate) fn bulk(near: &Node, far: &Node, to: IpAddr, octets: usize, cable: &Cable) -> io::Result<Bulk> {
    let listener = far.enter(|| TcpListener::bind((to, PORT)))?;
    let before = (cable.cpu_time()?, packets(cable));
    let began = Instant::now();
    thread::scope(|scope| {
        let sink = scope.spawn(|| drain(&listener));
        let mut stream = near.enter(|| TcpStream::connect((to, PORT)))?;
        let block = vec![0; 256 * 1024];
        for start in (0..octets).step_by(block.len()) {
            stream.write_all(&block[..block.len().min(octets - start)])?;
        }
        drop(stream);
        sink.join().map_err(|_| io::Error::other("the receiver panicked"))?
    })?;
    let took = began.elapsed();
    Ok(Bulk { octets, took, cpu: cable.cpu_time()? - before.0, packets: packets(cable) - before.1 })
}

fn socket(address: IpAddr, port: u16) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(SocketAddr::new(address, port))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn unspecified(like: IpAddr) -> IpAddr {
    if like.is_ipv4() { std::net::Ipv4Addr::UNSPECIFIED.into() } else { std::net::Ipv6Addr::UNSPECIFIED.into() }
}

/// Answers each datagram with itself and the time at which it came.
fn echo(socket: &UdpSocket, began: Instant, done: &AtomicBool) {
    let mut packet = [0; 24];
    while !done.load(Ordering::Acquire) {
        let Ok((16, from)) = socket.recv_from(&mut packet) else {
            thread::yield_now();
            continue;
        };
        packet[16..].copy_from_slice(&nanoseconds(began).to_le_bytes());
        let _ = socket.send_to(&packet, from);
    }
}

fn collect(socket: &UdpSocket, began: Instant, count: u32) -> io::Result<Pings> {
    let mut pings = Pings { one_way: Vec::new(), round_trip: Vec::new(), sent: count };
    for number in 0..u64::from(count) {
        thread::sleep(PAUSE);
        let sent = nanoseconds(began);
        let mut packet = number.to_le_bytes().to_vec();
        packet.extend(sent.to_le_bytes());
        socket.send(&packet)?;
        if let Some((arrived, back)) = answer(socket, began, number) {
            pings.one_way.push(Duration::from_nanos(arrived - sent));
            pings.round_trip.push(Duration::from_nanos(back - sent));
        }
    }
    pings.one_way.sort_unstable();
    pings.round_trip.sort_unstable();
    Ok(pings)
}

/// When that datagram arrived, and when its answer did.
fn answer(socket: &UdpSocket, began: Instant, number: u64) -> Option<(u64, u64)> {
    let (mut packet, start) = ([0; 24], Instant::now());
    while start.elapsed() < PATIENCE {
        match socket.recv(&mut packet) {
            Ok(24) if packet[..8] == number.to_le_bytes() => {
                let arrived = u64::from_le_bytes(packet[16..].try_into().ok()?);
                return Some((arrived, nanoseconds(began)));
            }
            _ => thread::yield_now(),
        }
    }
    None
}

fn drain(listener: &TcpListener) -> io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    let mut buffer = vec![0; 256 * 1024];
    while stream.read(&mut buffer)? > 0 {}
    Ok(())
}

fn packets(cable: &Cable) -> u64 {
    [Direction::There, Direction::Back].map(|direction| cable.counts(direction).offered).iter().sum()
}

fn nanoseconds(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_nanos()).expect("a run is shorter than five hundred years")
}
