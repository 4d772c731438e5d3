//! A recorded first flight that is sent again must not run a second time.

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use nearpath_wire::quic::frame::{self, CallOpening, RequestOpening};

use crate::quic::fixture::{QuicFixture, RunningWorker, TestCaller, TestWorkerSpec, counting, run};

/// Datagrams of a first flight with a POST that was not sent yet: what an observer would record.
fn first_flight(caller: &TestCaller, name: &str, to: SocketAddr) -> Vec<Vec<u8>> {
    let now = Instant::now();
    let mut endpoint = quinn_proto::Endpoint::new(Default::default(), None, false, None);
    let (_, mut connection) = endpoint
        .connect(now, caller.config.clone(), to, name)
        .unwrap();
    assert!(connection.has_0rtt(), "the attack needs a session");
    let stream = connection.streams().open(quinn_proto::Dir::Bi).unwrap();
    let (mut bytes, head) = (
        bytes::BytesMut::new(),
        encode_head(&[(":method", "POST"), (":path", "/pay")]),
    );
    RequestOpening {
        is_event: false,
        body_length: 3,
        timeout_nanos: 0,
        trace_id: [0; 16],
        span_id: [0; 8],
    }
    .write_to(head.len() as u32, &mut bytes);
    let whole = [&bytes[..], &head, &frame::data_frame_header(3), b"pay"].concat();
    connection.send_stream(stream).write(&whole).unwrap();
    connection.send_stream(stream).finish().unwrap();
    std::iter::from_fn(|| {
        let mut datagram = Vec::new();
        connection
            .poll_transmit(now, 1, &mut datagram)
            .map(|_| datagram)
    })
    .collect()
}

fn encode_head(fields: &[(&str, &str)]) -> Vec<u8> {
    let field = |(name, value): &(&str, &str)| {
        [
            &[name.len() as u8, 0, value.len() as u8, 0],
            name.as_bytes(),
            value.as_bytes(),
        ]
        .concat()
    };
    fields.iter().flat_map(field).collect()
}

/// Idle timeout of the worker in these tests.
const TEST_IDLE_TIMEOUT: Duration = Duration::from_millis(200);

/// Sends the datagrams from a new socket. The worker responds to every handshake, but not to
/// packets of an existing connection.
async fn send_flight(flight: &[Vec<u8>], worker: &RunningWorker) {
    let socket = tokio::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .unwrap();
    for datagram in flight {
        socket.send_to(datagram, worker.addr).await.unwrap();
    }
    socket.recv(&mut [0; 2048]).await.unwrap();
    wait_closed(worker).await;
}

/// Waits until the worker has no connection: all calls on one have run by then.
async fn wait_closed(worker: &RunningWorker) {
    while worker.endpoint.open_connections() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn prepared_worker() -> (QuicFixture, TestCaller, TestWorkerSpec) {
    let fixture = QuicFixture::new();
    let (caller, mut worker) = (
        fixture.caller(),
        TestWorkerSpec {
            idle_timeout: TEST_IDLE_TIMEOUT,
            ..fixture.worker(1)
        },
    );
    worker.mint_session(&caller);
    (fixture, caller, worker)
}

#[test]
fn the_same_worker_does_not_run_it_twice() {
    run(async {
        let (_site, caller, worker) = prepared_worker();
        let runs = Rc::new(Cell::new(0));
        let worker = worker.start(counting(&runs));
        let flight = first_flight(&caller, &worker.name, worker.addr);
        send_flight(&flight, &worker).await;
        assert_eq!(
            runs.get(),
            1,
            "the first time it runs: else this test shows nothing"
        );
        for _ in 0..3 {
            send_flight(&flight, &worker).await;
        }
        assert_eq!(runs.get(), 1);
        assert_eq!(worker.sessions.use_counts().0, 1);
    });
}

#[test]
fn another_worker_does_not_run_it() {
    run(async {
        let (fixture, caller, worker) = prepared_worker();
        let (runs, others) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let (worker, other) = (
            worker.start(counting(&runs)),
            TestWorkerSpec {
                idle_timeout: TEST_IDLE_TIMEOUT,
                ..fixture.worker(2)
            }
            .start(counting(&others)),
        );
        let flight = first_flight(&caller, &worker.name, worker.addr);
        send_flight(&flight, &other).await;
        send_flight(&flight, &worker).await;
        assert_eq!((runs.get(), others.get()), (1, 0));
    });
}

#[test]
fn a_worker_that_was_started_anew_does_not_run_it() {
    run(async {
        let (fixture, caller, worker) = prepared_worker();
        let runs = Rc::new(Cell::new(0));
        let first = worker.start(counting(&runs));
        let flight = first_flight(&caller, &first.name, first.addr);
        send_flight(&flight, &first).await;
        first.endpoint.close(0u32.into(), b"");
        let mut again = TestWorkerSpec {
            idle_timeout: TEST_IDLE_TIMEOUT,
            ..fixture.worker(1)
        }; // the next incarnation has its own credentials and sessions
        again.mint_session(&caller);
        let again = again.start(counting(&runs));
        send_flight(&flight, &again).await;
        assert_eq!(runs.get(), 1);
    });
}

/// Control: sessions that are also given to a second incarnation do run the flight. So the tests
/// above can fail, and sessions must never be shared.
#[test]
fn control_sessions_given_twice_run_a_flight_twice() {
    run(async {
        let (_site, caller, worker) = prepared_worker();
        let runs = Rc::new(Cell::new(0));
        let first = worker.start(counting(&runs));
        let flight = first_flight(&caller, &first.name, first.addr);
        send_flight(&flight, &first).await;
        let wrong = worker.start(counting(&runs));
        send_flight(&flight, &wrong).await;
        assert_eq!(runs.get(), 2);
    });
}
