//! Windows over a link: what leaves before the first acknowledgement can have come.

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

/// More than a kernel lets go by itself (ten, and some that probe for loss), and less than the peer's window lets come.
const WINDOW_SEGMENTS: u32 = 40;
/// Longer than a retransmission timeout over the link of the test: by then a kernel takes a window back that was not used.
const IDLE_TIME: Duration = Duration::from_millis(900);
const LINK_DELAY: Duration = Duration::from_millis(20);

/// Connects, is idle, and sends while nothing comes back; how many octets arrive until `enough` have, or time is up.
fn measure_first_flight(
    algorithm: &str,
    window: bool,
    enough: usize,
    patience: Duration,
) -> Result<(usize, TcpFlowInfo), String> {
    let mut lab = NetworkLab::new().map_err(|error| error.to_string())?;
    let (near, far) = (lab.add_node("near").unwrap(), lab.add_node("far").unwrap());
    let cable = lab
        .connect_nodes(
            &near,
            &far,
            &LinkConditions {
                delay: LINK_DELAY,
                ..LinkConditions::default()
            },
        )
        .unwrap();
    let listener = far
        .enter(|| TcpListener::bind((cable.second_end().v4, 0)))
        .unwrap();
    let address = listener.local_addr().unwrap();
    let arrived = count_arrivals(listener, enough, patience);
    let flow = near.enter(|| send_one_way(address, algorithm, window, &cable))?;
    Ok((arrived.recv().unwrap(), flow))
}

/// How much arrives at a server.
fn count_arrivals(
    listener: TcpListener,
    enough: usize,
    patience: Duration,
) -> mpsc::Receiver<usize> {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        let (mut piece, mut arrived) = ([0; 65_536], peer.read(&mut [0]).unwrap());
        let deadline = Instant::now() + patience;
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
        let _ = tell.send(arrived);
    });
    told
}

fn send_one_way(
    to: SocketAddr,
    algorithm: &str,
    window: bool,
    cable: &LabLink,
) -> Result<TcpFlowInfo, String> {
    let fence = SocketCgroupGuard::enter_current_thread().map_err(|why| why.to_string())?;
    fence
        .check_window_programs()
        .map_err(|why| why.to_string())?;
    let stream = TcpStream::connect(to).unwrap();
    sockopt::set_tcp_congestion(&stream, algorithm).map_err(|why| format!("{algorithm}: {why}"))?;
    stream.set_nonblocking(true).unwrap();
    thread::sleep(IDLE_TIME);
    let segment = tcp_flow_info(&stream).unwrap().mss_bytes;
    let octets = u64::from(WINDOW_SEGMENTS) * u64::from(segment);
    let opened = InitialWindow {
        segments: WINDOW_SEGMENTS,
        bytes: octets,
        pacing_rate: 100_000_000,
    };
    window.then(|| set_initial_window(&stream, &opened).unwrap());
    cable
        .set_one_direction(
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
    thread::sleep(Duration::from_secs(2)); // an end that comes early would be news of its own
    Ok(flow)
}

fn check_first_flight(algorithm: &str) -> Result<(), String> {
    let enough = (WINDOW_SEGMENTS as usize - 1) * 1_400;
    let (arrived, flow) = measure_first_flight(algorithm, true, enough, Duration::from_secs(20))?;
    assert!(arrived >= enough, "{arrived}, {flow:?}");
    // The control: the same, as the kernel does it.
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

/// Nothing is left of the pace that was named for the first flight.
#[test]
fn the_pace_holds_for_the_first_flight_alone() {
    need_root!();
    let mut lab = NetworkLab::new().unwrap();
    let (near, far) = (lab.add_node("near").unwrap(), lab.add_node("far").unwrap());
    let cable = lab
        .connect_nodes(&near, &far, &LinkConditions::default())
        .unwrap();
    let listener = far
        .enter(|| TcpListener::bind((IpAddr::from(cable.second_end().v4), 0)))
        .unwrap();
    let address = listener.local_addr().unwrap();
    let done = near.enter(|| {
        let fence = SocketCgroupGuard::enter_current_thread().map_err(|why| why.to_string())?;
        fence
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
