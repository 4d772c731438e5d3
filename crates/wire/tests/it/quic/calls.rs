//! Calls on a connection that is there.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use nearpath_wire::BoxError;
use nearpath_wire::quic::{Call, CallError, Early, Line};
use tokio::sync::{mpsc, oneshot};

use crate::quic::site::{LIMIT, Site, echo, post, run};

async fn line<F: Future<Output = Response<Full<Bytes>>> + 'static>(handler: impl Fn(Call) -> F + 'static) -> Line {
    let site = Site::new();
    let worker = site.worker(1).start(handler);
    site.caller().dial(&worker).await
}

/// A body whose pieces are sent while it is on its way.
fn growing()
-> (mpsc::UnboundedSender<Result<Frame<Bytes>, BoxError>>, impl http_body::Body<Data = Bytes, Error = BoxError>) {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let stream = futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx));
    (sender, StreamBody::new(stream))
}

#[test]
fn bodies_of_all_sizes() {
    run(async {
        let line = line(echo).await;
        for size in [0, 1, 1000, 1024, 1025, 65_535, 65_536, 65_537, 1 << 20, 9 << 20] {
            let body = Bytes::from(vec![b'b'; size]);
            let answer = line.call(post("").map(|_| Full::new(body.clone())), Early::Allowed).await.unwrap();
            assert_eq!(answer.status(), StatusCode::OK);
            assert!(answer.into_body().collect().await.unwrap().to_bytes() == body, "{size}");
        }
        assert_eq!(line.open(), 0);
    });
}

#[test]
fn one_probe_finds_the_longest_datagram() {
    run(async {
        let line = line(echo).await;
        let path = || line.connection().stats().path;
        while path().current_mtu == 1200 {
            line.call_whole(post("a call"), Early::Allowed).await.unwrap();
        }
        assert_eq!((path().current_mtu, path().sent_plpmtud_probes), (1452, 1));
    });
}

#[test]
fn a_connection_begins_with_a_window_of_32_datagrams() {
    run(async {
        let line = line(echo).await;
        assert!(line.connection().stats().path.cwnd >= 32 * 1200);
    });
}

#[test]
fn a_line_that_nobody_calls_on_is_closed_and_one_with_a_call_is_not() {
    run(async {
        let (began, mut beginning) = mpsc::unbounded_channel();
        let held = move |_: Call| {
            let (go, wait) = oneshot::channel::<()>();
            began.send(go).unwrap();
            async move {
                let _ = wait.await;
                Response::new(Full::default())
            }
        };
        let (site, rest) = (Site::new(), Duration::from_millis(50));
        let worker = site.worker(1).start(held);
        let dialer = site.caller().dialer().resting(rest);
        let line = dialer.dial(worker.addr, &worker.name, LIMIT).await.unwrap();
        let calling = line.clone();
        let call = tokio::task::spawn_local(async move { calling.call_whole(post(""), Early::Allowed).await });
        let go = beginning.recv().await.unwrap();
        tokio::time::sleep(5 * rest).await;
        assert!(!line.is_closed(), "a call is under way");
        go.send(()).unwrap();
        assert!(call.await.unwrap().unwrap().status().is_success());
        let closed = line.connection().closed().await;
        assert_eq!(closed, quinn::ConnectionError::LocallyClosed);
    });
}

#[test]
fn many_at_once() {
    run(async {
        let line = line(echo).await;
        let calls = (0..3000u32).map(|k| {
            let line = line.clone();
            async move {
                let answer = line.call_whole(post(k.to_string()), Early::Allowed).await.unwrap();
                assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), k.to_string());
            }
        });
        futures_util::future::join_all(calls).await;
        assert_eq!(line.open(), 0);
    });
}

#[test]
fn both_directions_flow_at_once_and_trailers_come_last() {
    run(async {
        let site = Site::new();
        let worker = site.worker(1);
        let running = worker.start(|call| async move {
            let whole = call.request.into_body().collect().await.unwrap();
            let last = whole.trailers().map(|trailers| trailers["last"].clone());
            Response::builder().header("told", last.unwrap()).body(Full::new(whole.to_bytes())).unwrap()
        });
        let line = site.caller().dial(&running).await;
        let (pieces, body) = growing();
        for piece in ["one ", "two ", "three"] {
            pieces.send(Ok(Frame::data(piece.into()))).unwrap();
        }
        let trailers = HeaderMap::from_iter([("last".parse().unwrap(), "yes".parse().unwrap())]);
        pieces.send(Ok(Frame::trailers(trailers))).unwrap();
        drop(pieces);
        let answer = line.call(Request::post("/").body(body).unwrap(), Early::Allowed).await.unwrap();
        assert_eq!(answer.headers()["told"], "yes");
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "one two three");
    });
}

#[test]
fn a_body_that_breaks_off_is_never_taken_for_the_whole() {
    run(async {
        let (came, mut coming) = mpsc::unbounded_channel();
        let line = line(move |call| {
            let came = came.clone();
            async move {
                let mut body = call.request.into_body();
                came.send(body.frame().await.is_some_and(|first| first.is_ok())).unwrap();
                came.send(body.frame().await.is_some_and(|next| next.is_err())).unwrap();
                Response::new(Full::default())
            }
        })
        .await;
        let (pieces, body) = growing();
        let call = tokio::task::spawn_local(async move {
            let answer = line.call(Request::post("/").body(body).unwrap(), Early::Allowed).await;
            (line, answer.map(drop))
        });
        pieces.send(Ok(Frame::data("half".into()))).unwrap();
        assert!(coming.recv().await.unwrap(), "the first half comes");
        pieces.send(Err("the caller's caller hung up".into())).unwrap();
        assert!(coming.recv().await.unwrap(), "the end is an error");
        call.await.unwrap().1.unwrap();
    });
}

/// Tells when it is dropped.
struct Dropped(Option<oneshot::Sender<()>>);

impl Drop for Dropped {
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
        let line = line(move |_| {
            let (began, guard) = (began.clone(), Dropped(ended.take()));
            async move {
                let _guard = guard;
                began.send(()).unwrap();
                std::future::pending::<Response<Full<Bytes>>>().await
            }
        })
        .await;
        let calling = line.clone();
        let call =
            tokio::task::spawn_local(async move { calling.call_whole(post(""), Early::Allowed).await.map(drop) });
        beginning.recv().await.unwrap();
        call.abort();
        end.await.unwrap();
        assert_eq!(line.open(), 0);
        assert!(!line.is_closed());
    });
}

#[test]
fn a_worker_that_dies_breaks_its_calls() {
    run(async {
        let site = Site::new();
        let (began, mut beginning) = mpsc::unbounded_channel();
        let worker = site.worker(1).start(move |_| {
            began.send(()).unwrap();
            std::future::pending::<Response<Full<Bytes>>>()
        });
        let line = site.caller().dial(&worker).await;
        let calling = line.clone();
        let call =
            tokio::task::spawn_local(async move { calling.call_whole(post(""), Early::Allowed).await.map(drop) });
        beginning.recv().await.unwrap();
        worker.endpoint.close(0u32.into(), b"");
        assert!(matches!(call.await.unwrap(), Err(CallError::Broken(_))));
        assert!(matches!(line.call_whole(post(""), Early::Allowed).await, Err(CallError::Unseen(_))));
    });
}

#[test]
fn a_head_that_is_too_large_is_refused_before_anything_is_sent() {
    run(async {
        let line = line(echo).await;
        let request = Request::get("/").header("a", vec![b'v'; 65_535]).body(Bytes::new()).unwrap();
        assert!(matches!(line.call_whole(request, Early::Allowed).await, Err(CallError::Head(_))));
        let answer = line.call_whole(post("next"), Early::Allowed).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
    });
}
