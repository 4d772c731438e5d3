//! Calls on an open connection.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use nearpath_wire::BoxError;
use nearpath_wire::quic::{CallerConnection, EarlyData, QuicCallError, ServedCall};
use tokio::sync::{mpsc, oneshot};

use crate::quic::fixture::{LIMIT, QuicFixture, echo, post, run};

async fn connect_to<F: Future<Output = Response<Full<Bytes>>> + 'static>(
    handler: impl Fn(ServedCall) -> F + 'static,
) -> CallerConnection {
    let fixture = QuicFixture::new();
    let worker = fixture.worker(1).start(handler);
    fixture.caller().dial_running(&worker).await
}

/// A body that is produced while it is sent.
fn growing_bodies() -> (
    mpsc::UnboundedSender<Result<Frame<Bytes>, BoxError>>,
    impl http_body::Body<Data = Bytes, Error = BoxError>,
) {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let stream = futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx));
    (sender, StreamBody::new(stream))
}

#[test]
fn bodies_of_all_sizes_arrive() {
    run(async {
        let connection = connect_to(echo).await;
        for size in [
            0,
            1,
            1000,
            1024,
            1025,
            65_535,
            65_536,
            65_537,
            1 << 20,
            9 << 20,
        ] {
            let body = Bytes::from(vec![b'b'; size]);
            let answer = connection
                .call(
                    post("").map(|_| Full::new(body.clone())),
                    EarlyData::Allowed,
                )
                .await
                .unwrap();
            assert_eq!(answer.status(), StatusCode::OK);
            assert!(
                answer.into_body().collect().await.unwrap().to_bytes() == body,
                "{size}"
            );
        }
        assert_eq!(connection.open_calls(), 0);
    });
}

#[test]
fn one_probe_finds_the_longest_datagram() {
    run(async {
        let connection = connect_to(echo).await;
        let path = || connection.connection().stats().path;
        while path().current_mtu == 1200 {
            connection
                .call_buffered(post("a call"), EarlyData::Allowed)
                .await
                .unwrap();
        }
        assert_eq!((path().current_mtu, path().sent_plpmtud_probes), (1452, 1));
    });
}

#[test]
fn a_connection_begins_with_a_window_of_32_datagrams() {
    run(async {
        let connection = connect_to(echo).await;
        assert!(connection.connection().stats().path.cwnd >= 32 * 1200);
    });
}

#[test]
fn an_idle_connection_is_closed_and_one_with_a_call_is_not() {
    run(async {
        let (began, mut beginning) = mpsc::unbounded_channel();
        let held = move |_: ServedCall| {
            let (go, wait) = oneshot::channel::<()>();
            began.send(go).unwrap();
            async move {
                let _ = wait.await;
                Response::new(Full::default())
            }
        };
        let (fixture, rest) = (QuicFixture::new(), Duration::from_millis(50));
        let worker = fixture.worker(1).start(held);
        let dialer = fixture.caller().dialer().with_idle_timeout(rest);
        let connection = dialer
            .dial_worker(worker.addr, &worker.name, LIMIT)
            .await
            .unwrap();
        let calling = connection.clone();
        let call = tokio::task::spawn_local(async move {
            calling.call_buffered(post(""), EarlyData::Allowed).await
        });
        let go = beginning.recv().await.unwrap();
        tokio::time::sleep(5 * rest).await; // longer than the idle timeout
        assert!(!connection.is_closed(), "a call is under way");
        go.send(()).unwrap();
        assert!(call.await.unwrap().unwrap().status().is_success());
        let closed = connection.connection().closed().await;
        assert_eq!(closed, quinn::ConnectionError::LocallyClosed);
    });
}

#[test]
fn many_calls_run_at_once() {
    run(async {
        let connection = connect_to(echo).await;
        let calls = (0..3000u32).map(|k| {
            let connection = connection.clone();
            async move {
                let answer = connection
                    .call_buffered(post(k.to_string()), EarlyData::Allowed)
                    .await
                    .unwrap();
                assert_eq!(
                    answer.into_body().collect().await.unwrap().to_bytes(),
                    k.to_string()
                );
            }
        });
        futures_util::future::join_all(calls).await;
        assert_eq!(connection.open_calls(), 0);
    });
}

#[test]
fn both_directions_flow_at_once_and_trailers_come_last() {
    run(async {
        let fixture = QuicFixture::new();
        let worker = fixture.worker(1);
        let running = worker.start(|call| async move {
            let whole = call.request.into_body().collect().await.unwrap();
            let last = whole.trailers().map(|trailers| trailers["last"].clone());
            Response::builder()
                .header("told", last.unwrap())
                .body(Full::new(whole.to_bytes()))
                .unwrap()
        });
        let connection = fixture.caller().dial_running(&running).await;
        let (pieces, body) = growing_bodies();
        for piece in ["one ", "two ", "three"] {
            pieces.send(Ok(Frame::data(piece.into()))).unwrap();
        }
        let trailers = HeaderMap::from_iter([("last".parse().unwrap(), "yes".parse().unwrap())]);
        pieces.send(Ok(Frame::trailers(trailers))).unwrap();
        drop(pieces);
        let answer = connection
            .call(Request::post("/").body(body).unwrap(), EarlyData::Allowed)
            .await
            .unwrap();
        assert_eq!(answer.headers()["told"], "yes");
        assert_eq!(
            answer.into_body().collect().await.unwrap().to_bytes(),
            "one two three"
        );
    });
}

#[test]
fn a_body_that_breaks_off_is_never_taken_for_the_whole() {
    run(async {
        let (came, mut coming) = mpsc::unbounded_channel();
        let connection = connect_to(move |call| {
            let came = came.clone();
            async move {
                let mut body = call.request.into_body();
                came.send(body.frame().await.is_some_and(|first| first.is_ok()))
                    .unwrap();
                came.send(body.frame().await.is_some_and(|next| next.is_err()))
                    .unwrap();
                Response::new(Full::default())
            }
        })
        .await;
        let (pieces, body) = growing_bodies();
        let call = tokio::task::spawn_local(async move {
            let answer = connection
                .call(Request::post("/").body(body).unwrap(), EarlyData::Allowed)
                .await;
            (connection, answer.map(drop))
        });
        pieces.send(Ok(Frame::data("half".into()))).unwrap();
        assert!(coming.recv().await.unwrap(), "the first half comes");
        pieces
            .send(Err("the caller's caller hung up".into()))
            .unwrap();
        assert!(coming.recv().await.unwrap(), "the end is an error");
        call.await.unwrap().1.unwrap();
    });
}

/// Sends a message when it is dropped.
struct DropNotifier(Option<oneshot::Sender<()>>);

impl Drop for DropNotifier {
    fn drop(&mut self) {
        self.0.take().map(|tell| tell.send(()));
    }
}

#[test]
fn a_caller_who_goes_away_ends_the_handlers_work() {
    run(async {
        let (began, mut beginning) = mpsc::unbounded_channel();
        let (ended, end) = oneshot::channel();
        let ended = Rc::new(Cell::new(Some(ended)));
        let connection = connect_to(move |_| {
            let (began, guard) = (began.clone(), DropNotifier(ended.take()));
            async move {
                let _guard = guard;
                began.send(()).unwrap();
                std::future::pending::<Response<Full<Bytes>>>().await
            }
        })
        .await;
        let calling = connection.clone();
        let call = tokio::task::spawn_local(async move {
            calling
                .call_buffered(post(""), EarlyData::Allowed)
                .await
                .map(drop)
        });
        beginning.recv().await.unwrap();
        call.abort();
        end.await.unwrap();
        assert_eq!(connection.open_calls(), 0);
        assert!(!connection.is_closed());
    });
}

#[test]
fn a_worker_that_dies_breaks_its_calls() {
    run(async {
        let fixture = QuicFixture::new();
        let (began, mut beginning) = mpsc::unbounded_channel();
        let worker = fixture.worker(1).start(move |_| {
            began.send(()).unwrap();
            std::future::pending::<Response<Full<Bytes>>>()
        });
        let connection = fixture.caller().dial_running(&worker).await;
        let calling = connection.clone();
        let call = tokio::task::spawn_local(async move {
            calling
                .call_buffered(post(""), EarlyData::Allowed)
                .await
                .map(drop)
        });
        beginning.recv().await.unwrap();
        worker.endpoint.close(0u32.into(), b"");
        assert!(matches!(
            call.await.unwrap(),
            Err(QuicCallError::Interrupted(_))
        ));
        assert!(matches!(
            connection.call_buffered(post(""), EarlyData::Allowed).await,
            Err(QuicCallError::NotRun(_))
        ));
    });
}

#[test]
fn a_head_that_is_too_large_is_refused_before_anything_is_sent() {
    run(async {
        let connection = connect_to(echo).await;
        let request = Request::get("/")
            .header("a", vec![b'v'; 65_535])
            .body(Bytes::new())
            .unwrap();
        assert!(matches!(
            connection.call_buffered(request, EarlyData::Allowed).await,
            Err(QuicCallError::InvalidHead(_))
        ));
        let answer = connection
            .call_buffered(post("next"), EarlyData::Allowed)
            .await
            .unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
    });
}
