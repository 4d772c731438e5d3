//! Initial windows over a link: bytes that leave before the first acknowledgement can arrive.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nearpath_kernel::bpf::SocketCgroupGuard;
use nearpath_kernel::sockets::{InitialWindow, TcpFlowInfo, set_initial_window, tcp_flow_info};
use nearpath_testkit::lab::{LabLink, LinkConditions, LinkDirection, NetworkLab};
use nearpath_testkit::{need_root, skip};
use rustix::net::sockopt;

/// More than the kernel sends by itself (ten segments and loss probes), and less than the
/// receiver's window.
const WINDOW_SEGMENTS: u32 = 40;
/// Longer than a retransmission timeout on the test's link: by then the kernel resets an unused
/// window.
const IDLE_TIME: Duration = Duration::from_millis(900);
const LINK_DELAY: Duration = Duration::from_millis(20);

/// Connects, idles, and sends while nothing comes back. Returns the bytes that arrive until
/// `enough` have, or time is up.
fn measure_first_flight(
    algorithm: &str,
    window: bool,
    enough: usize,
    timeout: Duration,
) -> Result<(usize, TcpFlowInfo), String> {
    let mut lab = NetworkLab::new().map_err(|error| error.to_string())?;
    let (sender_node, receiver_node) =
        (lab.add_node("near").unwrap(), lab.add_node("far").unwrap());
    let link = lab
        .connect_nodes(
            &sender_node,
            &receiver_node,
            &LinkConditions {
                delay: LINK_DELAY,
                ..LinkConditions::default()
            },
        )
        .unwrap();
    let listener = receiver_node
        .enter(|| TcpListener::bind((link.second_end().v4, 0)))
        .unwrap();
    let address = listener.local_addr().unwrap();
    let arrived = count_arrivals(listener, enough, timeout);
    let flow = sender_node.enter(|| send_one_way(address, algorithm, window, &link))?;
    Ok((arrived.recv().unwrap(), flow))
}

/// Counts the bytes that arrive at a server.
fn count_arrivals(
    listener: TcpListener,
    enough: usize,
    timeout: Duration,
) -> mpsc::Receiver<usize> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        let (mut piece, mut arrived) = ([0; 65_536], peer.read(&mut [0]).unwrap());
        let deadline = Instant::now() + timeout;
        while arrived < enough && Instant::now() < deadline {
            let left = deadline
                .saturating_duration_since(Instant::now())
                .max(Duration::from_millis(1));
            peer.set_read_timeout(Some(left)).unwrap();
            match peer.read(&mut piece) {
                Ok(0) => break,
                Ok(read) => arrived += read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
        }
        let _ = sender.send(arrived);
    });
    receiver
}

fn send_one_way(
    to: SocketAddr,
    algorithm: &str,
    window: bool,
    link: &LabLink,
) -> Result<TcpFlowInfo, String> {
    let guard = SocketCgroupGuard::enter_current_thread().map_err(|why| why.to_string())?;
    guard
        .check_window_programs()
        .map_err(|why| why.to_string())?;
    let stream = TcpStream::connect(to).unwrap();
    sockopt::set_tcp_congestion(&stream, algorithm).map_err(|why| format!("{algorithm}: {why}"))?;
    stream.set_nonblocking(true).unwrap();
    thread::sleep(IDLE_TIME); // an unused window must survive it
    let segment = tcp_flow_info(&stream).unwrap().mss_bytes;
    let octets = u64::from(WINDOW_SEGMENTS) * u64::from(segment);
    let initial_window = InitialWindow {
        segments: WINDOW_SEGMENTS,
        bytes: octets,
        pacing_rate: 100_000_000,
    };
    window.then(|| set_initial_window(&stream, &initial_window).unwrap());
    link.set_one_direction(
        LinkDirection::Backward,
        &LinkConditions {
            delay: LINK_DELAY,
            loss: 1.0,
            ..LinkConditions::default()
        },
    )
    .unwrap();
    let mut left = octets as usize + 100_000;
    while let Ok(written @ 1..) = (&stream).write(&vec![0; left]) {
        left -= written;
    }
    let flow = tcp_flow_info(&stream).unwrap();
    thread::sleep(Duration::from_secs(2)); // a FIN that comes early would be counted
    Ok(flow)
}

fn check_first_flight(algorithm: &str) -> Result<(), String> {
    let enough = (WINDOW_SEGMENTS as usize - 1) * 1_400;
    let (arrived, flow) = measure_first_flight(algorithm, true, enough, Duration::from_secs(20))?;
    assert!(arrived >= enough, "{arrived}, {flow:?}");
    // The control: the same without the window.
    let (arrived, flow) = measure_first_flight(algorithm, false, enough, Duration::from_secs(1))?;
    assert!(arrived < 20 * 1_500, "{arrived}, {flow:?}");
    Ok(())
}

#[test]
fn an_opened_window_leaves_at_once_after_a_pause_with_cubic() {
    need_root!();
    check_first_flight("cubic").unwrap_or_else(|why| skip!("no windows here: {why}"));
}

#[test]
fn an_opened_window_leaves_at_once_after_a_pause_with_bbr() {
    need_root!();
    check_first_flight("bbr").unwrap_or_else(|why| skip!("no windows here: {why}"));
}

/// The pace of the first flight does not outlast it.
#[test]
fn the_pace_holds_for_the_first_flight_alone() {
    need_root!();
    let mut lab = NetworkLab::new().unwrap();
    let (sender_node, receiver_node) =
        (lab.add_node("near").unwrap(), lab.add_node("far").unwrap());
    let link = lab
        .connect_nodes(&sender_node, &receiver_node, &LinkConditions::default())
        .unwrap();
    let listener = receiver_node
        .enter(|| TcpListener::bind((IpAddr::from(link.second_end().v4), 0)))
        .unwrap();
    let address = listener.local_addr().unwrap();
    let done = sender_node.enter(|| {
        let guard = SocketCgroupGuard::enter_current_thread().map_err(|why| why.to_string())?;
        guard
            .check_window_programs()
            .map_err(|why| why.to_string())?;
        let stream = TcpStream::connect(address).unwrap();
        set_initial_window(
            &stream,
            &InitialWindow {
                segments: 20,
                bytes: 20 * 1_448,
                pacing_rate: 1_000_000,
            },
        )
        .unwrap();
        let limit = tcp_flow_info(&stream).unwrap();
        assert_eq!(limit.cwnd_segments, 20);
        assert_eq!(limit.max_pacing_rate, u64::MAX, "of its pace");
        Ok::<_, String>(())
    });
    done.unwrap_or_else(|why| skip!("no windows here: {why}"));
}
