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

async fn load(addr: SocketAddr, callers: usize, reuse: Reuse) -> Tally {
    let window = Window::after(Duration::ZERO, WINDOW);
    let loaded = run(&Template::get(addr, "/").unwrap(), callers, reuse, window).await.unwrap();
    assert!(loaded.own > Duration::ZERO && loaded.own_us() > 0.0);
    loaded.tally
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
    let tally = load(addr, 3, Reuse::KeepAlive).await;
    assert!(tally.answered() > 3 && tally.failed() == 0, "{tally:?}");
    assert_eq!(opened.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn or_open_one_for_each_request() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let addr = server(move |_, mut stream| {
        assert!(request(&mut stream));
        count.fetch_add(1, Ordering::Relaxed);
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
        stream.write_all(answer).unwrap();
    });
    let tally = load(addr, 2, Reuse::Fresh).await;
    assert!(tally.answered() > 2 && tally.failed() == 0, "{tally:?}");
    assert!(asked.load(Ordering::Relaxed) as u64 >= tally.answered());
}

#[tokio::test]
async fn an_answer_in_pieces_is_one() {
    let addr = server(|_, mut stream| {
        stream.set_nodelay(true).unwrap();
        while request(&mut stream) {
            let body = vec![b'x'; 200_000];
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-").unwrap();
            std::thread::yield_now();
            stream.write_all(format!("Length: {}\r\n\r\n", body.len()).as_bytes()).unwrap();
            stream.write_all(&body).unwrap();
        }
    });
    let tally = load(addr, 2, Reuse::KeepAlive).await;
    assert!(tally.answered() > 0 && tally.failed() == 0, "{tally:?}");
}

/// Asks with a body that no socket's buffer takes as a whole.
struct Large(Vec<u8>);

impl Caller for Large {
    fn request(&mut self) -> &[u8] {
        &self.0
    }

    fn heard(&mut self, outcome: Result<&[u8], Failure>) -> Result<(), Failure> {
        outcome.and_then(|body| if body == b"hello" { Ok(()) } else { Err(Failure::Body) })
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
    let window = Window::after(Duration::ZERO, Duration::from_secs(2));
    let loaded = run_each(addr, vec![Large(bytes)], window).await.unwrap();
    assert!(loaded.tally.answered() > 0 && loaded.tally.failed() == 0, "{:?}", loaded.tally);
}

#[tokio::test]
async fn what_goes_wrong_is_told_by_kind() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = load(closed, 1, Reuse::KeepAlive).await;
    assert!(refused.answered() == 0 && refused.failures()["no connection"] > 0, "{refused:?}");
    let addr = server(|_, mut stream| assert!(request(&mut stream)));
    let broken = load(addr, 1, Reuse::KeepAlive).await;
    assert!(broken.answered() == 0 && broken.failures()["connection broken"] > 0, "{broken:?}");
    let addr = server(|_, mut stream| {
        while request(&mut stream) {
            stream.write_all(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n").unwrap();
        }
    });
    let status = load(addr, 1, Reuse::KeepAlive).await;
    assert!(status.failures()["status 503"] > 0, "{status:?}");
}
