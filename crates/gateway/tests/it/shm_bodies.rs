//! Bodies through shared memory: long ones, streamed ones, and cancelled ones.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use nearpath_domain::endpoint::polled::{AsyncEndpoint, ReceivedCall};
use nearpath_domain::node_side::{DomainHandle, DomainSettings, EndpointSocket};
use nearpath_domain::{CallResponse, endpoint, packet};
use nearpath_testkit::{eventually, within};
use nearpath_types::{FunctionPolicy, InstanceId, Reason};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

use crate::fixture::{
    TestBody, TestGateway, collect_response, connect_http2, full_body, send_request, start_instance,
};
use crate::streams::{FrameSender, body_channel, trailer_frame};

/// A gateway and a function `f` that only shared memory reaches.
struct ShmChain {
    fixture: TestGateway,
    domain: DomainHandle,
    function: Option<JoinHandle<()>>,
}

/// Address without a listener; it only names the instance.
const UNUSED_ADDR: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

impl ShmChain {
    async fn start<F: Future<Output = ()>>(
        handler: impl Fn(ReceivedCall) -> F + Send + 'static,
    ) -> Self {
        Self::start_with_settings(DomainSettings::named("shop.openfaas-fn"), handler).await
    }

    async fn start_with_settings<F: Future<Output = ()>>(
        settings: DomainSettings,
        handler: impl Fn(ReceivedCall) -> F + Send + 'static,
    ) -> Self {
        Self::start_beside(UNUSED_ADDR, settings, handler).await
    }

    /// Starts an instance that HTTP reaches, too.
    async fn start_beside<F: Future<Output = ()>>(
        addr: SocketAddr,
        settings: DomainSettings,
        handler: impl Fn(ReceivedCall) -> F + Send + 'static,
    ) -> Self {
        let (domain, _faults) = DomainHandle::start(settings).unwrap();
        let (ours, theirs) = packet::socket_pair().unwrap();
        // This process is the watchdog: only that can refuse calls for the platform.
        domain.admit_with_watchdog(
            InstanceId(u64::from(addr.port())), // as the fixture numbers instances
            "f".parse().unwrap(),
            std::process::id(),
            EndpointSocket::Connected(ours),
        );
        let function = std::thread::spawn(|| serve_calls(theirs, handler));
        let fixture = TestGateway::with_domain(domain.clone());
        fixture.publish_functions(&[(
            "f",
            FunctionPolicy {
                chain: Some("shop".into()),
                ..FunctionPolicy::default()
            },
            &[addr],
        )]);
        let chain = Self {
            fixture,
            domain,
            function: Some(function),
        };
        // Each of the gateway's threads has to meet the instance.
        eventually("the function is reached", async || {
            let asked = futures_util::future::join_all(
                (0..16).map(|_| chain.send_post("/ping", full_body(""))),
            );
            asked.await.iter().all(|response| response.status() == 204)
        })
        .await;
        chain
    }

    async fn send_post(&self, path: &str, body: TestBody) -> Response<Incoming> {
        let request = Request::post(format!("/function/f{path}"))
            .body(body)
            .unwrap();
        within(send_request(self.fixture.public, request))
            .await
            .unwrap()
    }

    async fn wait_for_slots(&self) {
        eventually("all slots are back", async || {
            self.domain.read_usage().await.slots == 0
        })
        .await;
    }
}

impl Drop for ShmChain {
    fn drop(&mut self) {
        let domain = self.domain.clone();
        tokio::spawn(async move { domain.stop().await });
        drop(self.function.take()); // it ends when the node hangs up
    }
}

/// Serves each call in its own task until one asks for `/die`.
fn serve_calls<F: Future<Output = ()>>(
    socket: std::os::fd::OwnedFd,
    handler: impl Fn(ReceivedCall) -> F + 'static,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let shutdown_handle = socket.try_clone().unwrap();
    let (handler, local) = (std::rc::Rc::new(handler), tokio::task::LocalSet::new());
    local.block_on(&runtime, async move {
        let settings = endpoint::EndpointSettings {
            stream_bodies: true,
            ..endpoint::EndpointSettings::default()
        };
        let (endpoint, driver) = AsyncEndpoint::join(socket, settings).await.unwrap();
        tokio::task::spawn_local(driver);
        endpoint.announce_ready().unwrap();
        while let Some(received) = endpoint.next_incoming().await {
            match received.head_fields().get(":path") {
                Some(b"/ping") => received.send_response(CallResponse {
                    status: 204,
                    ..CallResponse::default()
                }),
                Some(b"/die") => {
                    // As the kernel does for a killed process: the node notices the close, and no
                    // message follows.
                    let _ = rustix::net::shutdown(&shutdown_handle, rustix::net::Shutdown::Both);
                    loop {
                        std::thread::park();
                    }
                }
                _ => {
                    let handler = handler.clone();
                    tokio::task::spawn_local(async move { handler(received).await });
                }
            }
        }
    });
}

async fn echo_body(mut received: ReceivedCall) {
    let rest = received.take_reader();
    let kind = received
        .head_fields()
        .get("content-type")
        .map(Bytes::copy_from_slice);
    let fields = kind
        .into_iter()
        .map(|kind| ("content-type".into(), kind))
        .collect();
    let first = received.body.clone();
    let mut writer = received.begin_response(
        CallResponse {
            fields,
            ..CallResponse::ok(first)
        },
        None,
    );
    while let Some(rest) = &rest
        && let Some(part) = rest.next_part().await
    {
        let Ok(part) = part else { return };
        if writer
            .write_chunk(Bytes::copy_from_slice(&part))
            .await
            .is_err()
        {
            return;
        }
    }
    writer.finish_body();
}

fn data_frame(bytes: impl Into<Bytes>) -> Frame<Bytes> {
    Frame::data(bytes.into())
}

/// Writes 64 KiB chunks, each of one byte value, at most as far ahead of the reader as `ahead`
/// permits.
async fn write_chunks(write: FrameSender, count: usize, ahead: Arc<Semaphore>) {
    for n in 0..count {
        ahead.acquire_many(65_536).await.unwrap().forget();
        let _ = write.send(data_frame(vec![n as u8; 65_536]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_megabytes_are_echoed_in_few_slots() {
    let chain = ShmChain::start(echo_body).await;
    let (write, body) = body_channel();
    let ahead = Arc::new(Semaphore::new(64 * 65_536));
    let writing = tokio::spawn(write_chunks(write, 1600, Arc::clone(&ahead)));
    let mut answer = chain.send_post("/", body).await.into_body();
    let (mut read, mut max_slots, mut frames) = (0, 0, 0u32);
    while let Some(frame) = within(answer.frame()).await {
        let bytes = frame.unwrap().into_data().unwrap();
        assert!(
            bytes
                .iter()
                .zip(read..)
                .all(|(byte, at)| *byte == (at / 65_536) as u8)
        );
        read += bytes.len();
        ahead.add_permits(bytes.len());
        frames += 1;
        if frames.is_multiple_of(50) {
            max_slots = max_slots.max(chain.domain.read_usage().await.slots);
        }
    }
    assert_eq!(read, 1600 * 65_536);
    assert!(
        max_slots <= 40,
        "{max_slots} slots for two windows of eight parts, and what is being written"
    );
    writing.await.unwrap();
    chain.wait_for_slots().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_arrive_through_memory_one_by_one() {
    let chain = ShmChain::start(echo_body).await;
    let (write, body) = body_channel();
    let request = Request::post("/function/f").header("content-type", "text/event-stream");
    let request = request
        .header("accept", "text/event-stream")
        .header("x-nearpath-path", "?")
        .body(body)
        .unwrap();
    let response = within(send_request(chain.fixture.public, request))
        .await
        .unwrap();
    assert_eq!(response.headers()["x-nearpath-path"], "shm");
    let mut answer = response.into_body();
    for n in 0..50 {
        let event = format!("data: {n}\n\n");
        write.send(data_frame(event.clone())).unwrap();
        let frame = within(answer.frame()).await.unwrap().unwrap();
        assert_eq!(
            frame.into_data().unwrap(),
            event,
            "it comes before the next one is sent"
        );
    }
    drop(write);
    assert!(within(answer.frame()).await.is_none());
    chain.wait_for_slots().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_leaves_ends_the_handlers_writing_and_reading() {
    let (sender, mut events) = unbounded_channel();
    let chain = ShmChain::start(move |mut received: ReceivedCall| {
        let sender = sender.clone();
        async move {
            if let Some(rest) = received.take_reader() {
                sender.send("reads").unwrap();
                while let Some(Ok(_)) = rest.next_part().await {}
                sender
                    .send(if rest.is_complete() {
                        "complete"
                    } else {
                        "broken off"
                    })
                    .unwrap();
                return;
            }
            let mut writer = received.begin_response(CallResponse::ok("begun"), None);
            while writer
                .write_chunk(Bytes::from_static(&[7; 9000]))
                .await
                .is_ok()
            {}
            sender.send("not wanted").unwrap();
        }
    })
    .await;
    let mut answer = chain.send_post("/", full_body("")).await.into_body();
    within(answer.frame()).await.unwrap().unwrap();
    drop(answer);
    assert_eq!(within(events.recv()).await, Some("not wanted"));
    let mut stream = TcpStream::connect(chain.fixture.public).await.unwrap();
    let head = "POST /function/f HTTP/1.1\r\nhost: shop.example\r\ncontent-length: 1000000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&[1; 9000]).await.unwrap();
    assert_eq!(within(events.recv()).await, Some("reads"));
    drop(stream);
    assert_eq!(within(events.recv()).await, Some("broken off"));
    chain.wait_for_slots().await;
}

/// Counts the chunks written until none follows for a while, which is all that moves without a
/// reader.
async fn count_until_quiet(written: &mut UnboundedReceiver<()>) -> usize {
    within(written.recv()).await.expect("a piece is written");
    let mut count = 1;
    while let Ok(Some(())) = timeout(Duration::from_millis(300), written.recv()).await {
        count += 1;
    }
    count
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_holds_one_window_of_slots() {
    let (sender, mut written) = unbounded_channel();
    let chain = ShmChain::start(move |received: ReceivedCall| {
        let sender = sender.clone();
        async move {
            let mut writer = received.begin_response(CallResponse::ok(""), None);
            for n in 0..400 {
                if writer
                    .write_chunk(vec![n as u8; 100_000].into())
                    .await
                    .is_err()
                {
                    return;
                }
                let _ = sender.send(());
            }
            writer.finish_body();
        }
    })
    .await;
    let mut answer = chain.send_post("/", full_body("")).await.into_body();
    let seen = count_until_quiet(&mut written).await;
    assert!(
        seen < 300,
        "{seen} of 400 pieces were taken for a reader that reads nothing"
    );
    let slots = chain.domain.read_usage().await.slots;
    assert!(slots <= 10, "{slots} slots are held");
    let mut read = 0;
    while let Some(frame) = within(answer.frame()).await {
        read += frame.unwrap().into_data().unwrap().len();
    }
    assert_eq!(read, 400 * 100_000);
    chain.wait_for_slots().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_whose_instance_dies_is_broken_off() {
    for known in [None, Some(1_000_000)] {
        let chain = ShmChain::start(move |received: ReceivedCall| async move {
            let mut writer = received.begin_response(CallResponse::ok("begun"), known);
            writer
                .write_chunk(Bytes::from_static(b", and"))
                .await
                .unwrap();
            std::future::pending().await
        })
        .await;
        let response = chain.send_post("/", full_body("")).await;
        assert_eq!(response.status(), 200);
        let mut answer = response.into_body();
        let mut got = Vec::new();
        while got.len() < 10 {
            got.extend_from_slice(
                &within(answer.frame())
                    .await
                    .unwrap()
                    .unwrap()
                    .into_data()
                    .unwrap(),
            );
        }
        assert_eq!(got, b"begun, and");
        let dying = Request::post("/function/f/die")
            .body(full_body(""))
            .unwrap();
        drop(within(send_request(chain.fixture.public, dying)).await);
        let end = within(answer.frame()).await;
        assert!(
            matches!(end, Some(Err(_))),
            "it must not look complete: {end:?}"
        );
    }
}

/// Answers with the request head, one field per line, and with one valid and one invalid field.
async fn answer_with_head(received: ReceivedCall) {
    let lines = received
        .head_fields()
        .flatten()
        .map(|field| format!("{}={}\n", field.name, String::from_utf8_lossy(field.value)));
    let text: String = lines.collect();
    let fields = vec![
        ("x-own".into(), "1".into()),
        ("x(own)".into(), "2".into()),
        ("x-served-by".into(), "me".into()),
    ];
    received.send_response(CallResponse {
        status: 201,
        fields,
        ..CallResponse::ok(text)
    });
}

/// Returns the sorted lines of a head without those that differ between requests.
fn stable_lines(head: &str) -> Vec<&str> {
    const VARYING: [&str; 5] = [
        "x-call-id",
        "x-start-time",
        "x-duration-seconds",
        "date",
        "x-nearpath-path",
    ];
    let mut lines: Vec<_> = head
        .lines()
        .filter(|line| !VARYING.iter().any(|own| line.starts_with(own)))
        .collect();
    lines.sort_unstable();
    lines
}

/// A request that asks for its path takes the pipeline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fast_path_answers_as_the_pipeline_does() {
    let chain = ShmChain::start(answer_with_head).await;
    for (target, body) in [("/a/b?c=d%20e", "hello"), ("", ""), ("/", "x"), ("?q", "")] {
        let ask = async |more: &str| {
            let length = body.len();
            let head = format!(
                "POST /function/f{target} HTTP/1.1\r\nHost: a.b\r\nX-Own: Ä\r\ncontent-length: {length}\r\n"
            );
            let request = format!("{head}{more}connection: close\r\n\r\n{body}");
            let answer = crate::fixture::send_raw(chain.fixture.public, request.as_bytes()).await;
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            (head.to_owned(), body.to_owned())
        };
        let (short, long) = (ask("").await, ask("x-nearpath-path: ?\r\n").await);
        assert!(
            long.0.contains("\r\nx-nearpath-path: shm") && !short.0.contains("x-nearpath-path")
        );
        assert!(
            short.0.starts_with("HTTP/1.1 201 Created\r\n") && !short.0.contains("x(own)"),
            "{}",
            short.0
        );
        let length = |head: &str| {
            head.lines()
                .filter(|line| !line.starts_with("content-length"))
                .map(str::to_owned)
                .collect::<Vec<_>>()
                .join("\n")
        };
        assert_eq!(
            stable_lines(&length(&short.0)),
            stable_lines(&length(&long.0)),
            "what the caller is told"
        );
        assert_eq!(
            stable_lines(&short.1),
            stable_lines(&long.1),
            "what the function is told"
        );
    }
    chain.wait_for_slots().await;
}

/// In a strict chain, the gateway reads responses from the function's own pool, like every
/// endpoint.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_strict_chain_is_called_through_memory() {
    let chain = ShmChain::start_with_settings(
        DomainSettings::named("shop.openfaas-fn").into_strict(),
        echo_body,
    )
    .await;
    for bytes in [0, 5, 3000, 2 << 20] {
        let body: Vec<u8> = (0..bytes).map(|n| n as u8).collect();
        let answer = chain.send_post("/", full_body(body.clone())).await;
        assert_eq!(answer.status(), 200);
        let answered = within(answer.into_body().collect())
            .await
            .unwrap()
            .to_bytes();
        assert!(
            answered == body,
            "{bytes} bytes came back as {}",
            answered.len()
        );
    }
}

/// A watchdog refuses like this when its instance is full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_an_instance_refused_is_sent_again() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let refusing = move |received: ReceivedCall| {
        let first = count.fetch_add(1, Ordering::Relaxed) == 0;
        async move {
            let body = received.body.clone();
            let reason = nearpath_types::Reason::Overload as u16;
            received.send_response(match first {
                true => CallResponse {
                    reason,
                    ..CallResponse::platform_error(Reason::Overload, "full\n")
                },
                false => CallResponse::ok(body),
            });
        }
    };
    let chain = ShmChain::start(refusing).await;
    let answer =
        crate::fixture::collect_response(chain.send_post("/", full_body("hello")).await).await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "hello"));
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    let records = || {
        chain
            .fixture
            .log
            .parse_lines()
            .into_iter()
            .filter(|line| line["bytes_in"] == 5)
            .collect::<Vec<_>>()
    };
    eventually("one record", async || {
        records().len() == 1 && records()[0]["status"] == 200
    })
    .await;
}

/// Answers when it has the whole body.
async fn count_body(mut received: ReceivedCall) {
    let mut bytes = received.body.len();
    if let Some(rest) = received.take_reader() {
        while let Some(part) = rest.next_part().await {
            let Ok(part) = part else { return };
            bytes += part.len();
        }
    }
    received.send_response(CallResponse::ok(format!("{bytes} bytes")));
}

/// A request over HTTP/2 that ends in trailers which no header announced.
async fn send_with_trailers(chain: &ShmChain, length: Option<&str>) -> (u16, String) {
    let (write, body) = body_channel();
    write.send(data_frame("hello")).unwrap();
    write.send(trailer_frame("x-sum", "9")).unwrap();
    drop(write);
    let mut request = Request::post("http://h/function/f/");
    if let Some(length) = length {
        request = request.header("content-length", length);
    }
    let mut client = connect_http2(chain.fixture.public).await;
    let sent = client.send_request(request.body(body).unwrap());
    let answer = collect_response(within(sent).await.unwrap()).await;
    (answer.status, answer.body)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unannounced_trailers_are_not_lost_in_silence() {
    let addr = start_instance(async |request: Request<Incoming>| {
        let body = request.into_body().collect().await.unwrap();
        let sum = body.trailers().map(|trailers| trailers["x-sum"].clone());
        Response::new(full_body(format!("over http: {sum:?}")))
    });
    let settings = DomainSettings::named("shop.openfaas-fn");
    let chain = ShmChain::start_beside(addr.await, settings, count_body).await;
    let (status, said) = send_with_trailers(&chain, Some("5")).await;
    assert_eq!(
        (status, &*said),
        (200, "over http: Some(\"9\")"),
        "a whole body takes another path"
    );
    // A body that has begun cannot: its function must not take it for whole.
    let (status, said) = send_with_trailers(&chain, None).await;
    assert_eq!(status, 501, "{said}");
    assert!(said.contains("`Trailer`"), "{said}");
}

/// An endpoint of the tenant's may set the mark of the platform in its envelope.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_answers_as_the_platform_names_one_origin() {
    let forging = async |received: ReceivedCall| {
        let origin = |value: &'static str| ("x-openfaas-internal".into(), value.into());
        received.send_response(CallResponse {
            fields: vec![origin("gateway"), origin("of-watchdog")],
            ..CallResponse::platform_error(Reason::FunctionFailed, "mine\n")
        });
    };
    let chain = ShmChain::start(forging).await;
    let answer = crate::fixture::collect_response(chain.send_post("/", full_body("x")).await).await;
    let origins: Vec<_> = answer
        .headers
        .get_all("x-openfaas-internal")
        .iter()
        .collect();
    assert_eq!(origins, ["gateway"], "{answer:?}");
}
