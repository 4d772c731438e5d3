use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const WINDOW: Duration = Duration::from_millis(60);

/// A server that calls `serve` for each connection, with its number.
fn server(serve: impl Fn(usize, std::net::TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (addr, serve) = (listener.local_addr().unwrap(), Arc::new(serve));
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let (serve, stream) = (serve.clone(), stream.unwrap());
            std::thread::spawn(move || serve(number, stream));
        }
    });
    addr
}

/// Reads one request without a body; false at the end.
fn request(stream: &mut std::net::TcpStream) -> bool {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        if !stream.read(&mut byte).is_ok_and(|read| read == 1) {
            return false;
        }
        head.push(byte[0]);
    }
    true
}

/// Runs the load until `enough` is counted, again if no request ends in the window of a busy
/// machine. Also returns the number of runs.
async fn load(
    addr: SocketAddr,
    callers: usize,
    reuse: ConnectionReuse,
    enough: impl Fn(&RequestTally) -> bool,
) -> (RequestTally, usize) {
    let (mut all, end) = (
        RequestTally::default(),
        std::time::Instant::now() + Duration::from_secs(60),
    );
    for times in 1.. {
        let window = MeasureWindow::starting_after(Duration::ZERO, WINDOW);
        let loaded = run(
            &RequestTemplate::for_get(addr, "/").unwrap(),
            callers,
            reuse,
            window,
        )
        .await
        .unwrap();
        assert!(loaded.own > Duration::ZERO);
        all.merge(&loaded.tally);
        if enough(&all) {
            return (all, times);
        }
        assert!(
            std::time::Instant::now() < end,
            "{} answered, {:?}",
            all.answered_count(),
            all.failures_by_kind()
        );
    }
    unreachable!("the loop has no end")
}

fn answered(tally: &RequestTally) -> bool {
    tally.answered_count() > 0
}

async fn fails(addr: SocketAddr, how: &str) {
    let (tally, _) = load(addr, 1, ConnectionReuse::KeepAlive, |tally| {
        tally.failed_count() > 0
    })
    .await;
    assert!(
        tally.answered_count() == 0 && tally.failures_by_kind().keys().eq([how]),
        "{:?}",
        tally.failures_by_kind()
    );
}

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

#[tokio::test]
async fn callers_keep_their_connections() {
    let opened = Arc::new(AtomicUsize::new(0));
    let count = opened.clone();
    let addr = server(move |_, mut stream| {
        count.fetch_add(1, Ordering::Relaxed);
        while request(&mut stream) {
            stream.write_all(ANSWER).unwrap();
        }
    });
    let (tally, times) = load(addr, 3, ConnectionReuse::KeepAlive, |tally| {
        tally.answered_count() > 6
    })
    .await;
    assert_eq!(
        (tally.failed_count(), opened.load(Ordering::Relaxed)),
        (0, 3 * times),
        "{:?}",
        tally.failures_by_kind()
    );
}

const LAST_ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";

#[tokio::test]
async fn callers_open_a_connection_for_each_request() {
    each_request_has_a_connection(LAST_ANSWER).await;
}

#[tokio::test]
async fn a_server_may_close_without_saying_so() {
    each_request_has_a_connection(ANSWER).await;
}

/// Checks a server that closes each connection after `answer`.
async fn each_request_has_a_connection(answer: &'static [u8]) {
    let request_count = Arc::new(AtomicUsize::new(0));
    let count = request_count.clone();
    let addr = server(move |_, mut stream| {
        assert!(request(&mut stream));
        count.fetch_add(1, Ordering::Relaxed);
        stream.write_all(answer).unwrap();
    });
    let (tally, _) = load(addr, 2, ConnectionReuse::Fresh, |tally| {
        tally.answered_count() > 4
    })
    .await;
    assert_eq!(tally.failed_count(), 0, "{:?}", tally.failures_by_kind());
    assert!(request_count.load(Ordering::Relaxed) as u64 >= tally.answered_count());
}

#[tokio::test]
async fn a_response_in_pieces_counts_once() {
    let addr = server(|_, mut stream| {
        stream.set_nodelay(true).unwrap();
        while request(&mut stream) {
            let body = vec![b'x'; 200_000];
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-").unwrap();
            std::thread::yield_now();
            stream
                .write_all(format!("Length: {}\r\n\r\n", body.len()).as_bytes())
                .unwrap();
            stream.write_all(&body).unwrap();
        }
    });
    let (tally, _) = load(addr, 2, ConnectionReuse::KeepAlive, answered).await;
    assert_eq!(tally.failed_count(), 0, "{:?}", tally.failures_by_kind());
}

/// Sends a body that exceeds every socket buffer.
struct LargeRequest(Vec<u8>);

impl LoadCaller for LargeRequest {
    fn next_request(&mut self) -> &[u8] {
        &self.0
    }

    fn handle_outcome(
        &mut self,
        outcome: Result<&[u8], RequestFailure>,
    ) -> Result<(), RequestFailure> {
        outcome.and_then(|body| {
            if body == b"hello" {
                Ok(())
            } else {
                Err(RequestFailure::Body)
            }
        })
    }
}

#[tokio::test]
async fn a_large_request_is_sent_to_its_end() {
    let bytes = vec![b'x'; 16 << 20];
    let length = bytes.len();
    let addr = server(move |_, mut stream| {
        let mut whole = vec![0; length];
        while stream.read_exact(&mut whole).is_ok() {
            stream.write_all(ANSWER).unwrap();
        }
    });
    for length in [1, 4, 16] {
        let window = MeasureWindow::starting_after(Duration::ZERO, Duration::from_secs(length));
        let loaded = run_each(addr, vec![LargeRequest(bytes.clone())], window)
            .await
            .unwrap();
        assert_eq!(
            loaded.tally.failed_count(),
            0,
            "{:?}",
            loaded.tally.failures_by_kind()
        );
        if loaded.tally.answered_count() > 0 {
            return;
        }
    }
    panic!("no answer");
}

#[tokio::test]
async fn failures_are_counted_by_kind() {
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    fails(closed, "no connection").await;
    let addr = server(|_, mut stream| assert!(request(&mut stream)));
    fails(addr, "connection broken").await;
    let addr = server(|_, mut stream| {
        while request(&mut stream) {
            stream
                .write_all(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n")
                .unwrap();
        }
    });
    fails(addr, "status 503").await;
}
