//! Traffic that measures a link. Both nodes share the machine's clock, so one way can be timed
//! alone.

use std::io::{self, IoSliceMut, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nearpath_kernel::cores::prefer_this_thread;
use nearpath_testkit::lab::{LabLink, LabNode, LinkDirection};
use nix::sys::socket::sockopt::ReceiveTimestampns;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt};
use nix::sys::time::TimeSpec;

const TRAFFIC_PORT: u16 = 7000;
/// Time after which a packet counts as lost.
const RECEIVE_TIMEOUT: Duration = Duration::from_millis(200);
/// Pause between pings, so that each finds the link's thread asleep, as a single request does.
const PING_INTERVAL: Duration = Duration::from_micros(300);

/// One-way and round-trip times of the returned pings, sorted.
pub(crate) struct PingTimes {
    pub(crate) one_way: Vec<Duration>,
    pub(crate) round_trip: Vec<Duration>,
    pub(crate) sent: u32,
}

/// Measurements of a bulk transfer over TCP.
pub(crate) struct BulkTransfer {
    pub(crate) octets: usize,
    pub(crate) took: Duration,
    /// CPU time of the link's thread.
    pub(crate) cpu: Duration,
    /// Packets that the link carried, acknowledgements included. Segments that stayed together
    /// count as one.
    pub(crate) packets: u64,
    /// Packets that the link's thread fetched too late. With any of them the measurement is
    /// invalid.
    pub(crate) overrun: u64,
}

/// Sends one datagram at a time and waits for its return.
pub(crate) fn measure_pings(
    near: &LabNode,
    far: &LabNode,
    to: IpAddr,
    count: u32,
) -> io::Result<PingTimes> {
    let far = far.enter(|| UdpSocket::bind((to, TRAFFIC_PORT)))?;
    let near = near.enter(|| UdpSocket::bind((unspecified(to), 0)))?;
    near.connect((to, TRAFFIC_PORT))?;
    far.connect(near.local_addr()?)?;
    near.set_read_timeout(Some(RECEIVE_TIMEOUT))?;
    far.set_read_timeout(Some(RECEIVE_TIMEOUT))?;
    setsockopt(&far, ReceiveTimestampns, &true)?;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| run_echo(&far, &done));
        let pings = scope.spawn(|| collect_pings(&near, count)).join();
        done.store(true, Ordering::Release);
        pings.map_err(|_| io::Error::other("the sender panicked"))?
    })
}

/// Sends `octets` over one TCP connection.
pub(crate) fn measure_bulk(
    near: &LabNode,
    far: &LabNode,
    to: IpAddr,
    octets: usize,
    lab_link: &LabLink,
) -> io::Result<BulkTransfer> {
    let listener = far.enter(|| TcpListener::bind((to, TRAFFIC_PORT)))?;
    let before = (lab_link.cpu_time()?, interface_packets(lab_link));
    let began = Instant::now();
    thread::scope(|scope| {
        let sink = scope.spawn(|| drain_socket(&listener));
        let mut stream = near.enter(|| TcpStream::connect((to, TRAFFIC_PORT)))?;
        let block = vec![0; 256 * 1024];
        for start in (0..octets).step_by(block.len()) {
            stream.write_all(&block[..block.len().min(octets - start)])?;
        }
        drop(stream);
        sink.join()
            .map_err(|_| io::Error::other("the receiver panicked"))?
    })?;
    let took = began.elapsed();
    let (cpu, packets) = (
        lab_link.cpu_time()? - before.0,
        interface_packets(lab_link) - before.1,
    );
    Ok(BulkTransfer {
        octets,
        took,
        cpu,
        packets,
        overrun: lab_link.overrun_packets()?,
    })
}

fn unspecified(like: IpAddr) -> IpAddr {
    if like.is_ipv4() {
        std::net::Ipv4Addr::UNSPECIFIED.into()
    } else {
        std::net::Ipv6Addr::UNSPECIFIED.into()
    }
}

/// Returns each datagram with the time at which the kernel took it from the link. The receiver's
/// wakeup is not part of the link's delay.
fn run_echo(socket: &UdpSocket, done: &AtomicBool) {
    let _ = prefer_this_thread();
    while !done.load(Ordering::Acquire) {
        if let Some((mut packet, arrived)) = receive_bulk(socket) {
            packet.extend(arrived.to_le_bytes());
            let _ = socket.send(&packet);
        }
    }
}

/// Receives a datagram and the kernel's time of its arrival, in nanoseconds since 1970.
fn receive_bulk(socket: &UdpSocket) -> Option<(Vec<u8>, u64)> {
    let (mut packet, mut space) = ([0; 64], nix::cmsg_space!(TimeSpec));
    let mut buffers = [IoSliceMut::new(&mut packet)];
    let message = recvmsg::<()>(
        socket.as_raw_fd(),
        &mut buffers,
        Some(&mut space),
        MsgFlags::empty(),
    )
    .ok()?;
    let stamp = message.cmsgs().ok()?.find_map(|note| match note {
        ControlMessageOwned::ScmTimestampns(time) => Some(Duration::from(time)),
        _ => None,
    })?;
    let length = message.bytes;
    Some((packet[..length].to_vec(), nanoseconds(stamp)))
}

fn collect_pings(socket: &UdpSocket, count: u32) -> io::Result<PingTimes> {
    let _ = prefer_this_thread();
    let mut pings = PingTimes {
        one_way: Vec::new(),
        round_trip: Vec::new(),
        sent: count,
    };
    for number in 0..u64::from(count) {
        thread::sleep(PING_INTERVAL);
        let sent = monotonic_nanos();
        socket.send(&[number.to_le_bytes(), sent.to_le_bytes()].concat())?;
        if let Some(arrived) = answer_ping(socket, number) {
            pings
                .one_way
                .push(Duration::from_nanos(arrived.saturating_sub(sent)));
            pings
                .round_trip
                .push(Duration::from_nanos(monotonic_nanos() - sent));
        }
    }
    pings.one_way.sort_unstable();
    pings.round_trip.sort_unstable();
    Ok(pings)
}

/// Arrival time of the response to ping `number`. Late or duplicate responses to earlier pings are
/// skipped.
fn answer_ping(socket: &UdpSocket, number: u64) -> Option<u64> {
    let mut packet = [0; 24];
    while socket.recv(&mut packet).ok()? == 24 {
        if packet[..8] == number.to_le_bytes() {
            return Some(u64::from_le_bytes(packet[16..].try_into().ok()?));
        }
    }
    None
}

fn drain_socket(listener: &TcpListener) -> io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    let mut buffer = vec![0; 256 * 1024];
    while stream.read(&mut buffer)? > 0 {}
    Ok(())
}

fn interface_packets(lab_link: &LabLink) -> u64 {
    [LinkDirection::Forward, LinkDirection::Backward]
        .map(|direction| lab_link.packet_counts(direction).offered)
        .iter()
        .sum()
}

/// Current time of the clock that the kernel's timestamps use.
fn monotonic_nanos() -> u64 {
    nanoseconds(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("the clock is past 1970"),
    )
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("the year is before 2554")
}
