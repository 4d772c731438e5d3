//! Bodies that go and come bit by bit, and events for topics: through memory, and over HTTP.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::domain_fixture::{DomainFactory, StandaloneServer, TestDomain, near};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use nearpath::{
    CallOptions, Environment, Error, ErrorKind, HandlerResponse, Path, PublishReport, Request,
    Response, StreamingResponse,
};
use nearpath_testkit::{eventually, free_addr, within};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

in_each_kind! {
    parts_go_and_come_as_they_are_there,
    a_slow_reader_stops_its_writer_and_one_that_leaves_ends_it,
    what_is_broken_off_is_an_error_and_never_an_end,
    a_deadline_holds_for_the_whole_exchange,
    large_bodies_are_whole_for_a_handler_that_does_not_stream_and_in_parts_for_one_that_does,
    an_event_goes_to_who_subscribes_and_bears_its_topic,
}

fn channel<T: 'static>(receiver: UnboundedReceiver<T>) -> impl futures_util::Stream<Item = T> {
    stream::unfold(receiver, async |mut receiver| {
        receiver.recv().await.map(|item| (item, receiver))
    })
}

/// Answers each part in capitals, as it comes.
async fn shouts(request: Request) -> HandlerResponse {
    match request.path() {
        "/ready" => Response::new("").into(),
        _ => StreamingResponse::new(
            request
                .into_stream()
                .map(|part| part.map(|part| part.to_ascii_uppercase())),
        )
        .into(),
    }
}

async fn until_ready(name: &str) {
    let ask = || CallOptions::default().shm_only().path("/ready");
    eventually("it is near", async || {
        nearpath::call_with(name, "", ask()).await.is_ok()
    })
    .await;
}

/// Each part is answered before the next one is there.
async fn conversation(name: &str, path: Path) {
    let (sender, parts) = unbounded_channel::<Result<&'static str, Error>>();
    sender.send(Ok("one")).unwrap();
    let mut answer = nearpath::call_stream(name, channel(parts)).await.unwrap();
    assert_eq!((answer.status(), answer.path()), (200, Some(path)));
    for (said, next) in [("ONE", "two"), ("TWO", "three")] {
        assert_eq!(answer.body().next().await.unwrap().unwrap(), said);
        sender.send(Ok(next)).unwrap();
    }
    drop(sender);
    assert_eq!(answer.into_body().collect_all().await.unwrap(), "THREE");
}

fn parts_go_and_come_as_they_are_there(new_domain: DomainFactory) {
    let mut domain = new_domain(&[("caller", "shouts")]);
    domain.streams(1, "shouts", || shouts);
    domain.calls(2, "caller", async || {
        until_ready("shouts").await;
        conversation("shouts", Path::Shm).await;
    });
    domain.stop();
}

#[test]
fn over_http_too() {
    let alone = StandaloneServer::streaming(|| shouts);
    let inside = async {
        eventually("it listens", async || {
            nearpath::call("any", "").await.is_ok()
        })
        .await;
        conversation("any", Path::Http).await;
        let (sender, parts) = unbounded_channel();
        sender.send(Ok("one")).unwrap();
        let mut answer = nearpath::call_stream("any", channel(parts)).await.unwrap();
        sender.send(Err("it broke")).unwrap();
        let mut last = answer.body().next().await.unwrap();
        while last.is_ok() {
            last = answer.body().next().await.expect("an error, never an end");
        }
        assert_eq!(last.unwrap_err().kind().code_name(), "truncated");
    };
    nearpath::run_in(alone.surroundings.clone(), within(inside)).unwrap();
    alone.stop();
}

#[test]
fn without_an_event_loop_of_nearpath_a_stream_goes_along_with_its_answer() {
    // In this thread calls go where the process's surroundings say: nowhere.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let error = runtime.block_on(within(nearpath::call_stream(
        "nobody",
        stream::pending::<Result<Bytes, Error>>(),
    )));
    assert_eq!(error.unwrap_err().path(), Some(Path::Http));
}

/// Tells a test when it is dropped.
struct DropSignal(tokio::sync::mpsc::UnboundedSender<()>);

impl Drop for DropSignal {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

fn a_slow_reader_stops_its_writer_and_one_that_leaves_ends_it(new_domain: DomainFactory) {
    const PIECE: usize = 60_000;
    let mut domain = new_domain(&[("caller", "endless")]);
    let (told, mut ended) = unbounded_channel();
    domain.serve(1, "endless", move || {
        let made = Rc::new(Cell::new(0usize));
        move |request: Request| {
            let (made, guard) = (Rc::clone(&made), DropSignal(told.clone()));
            std::future::ready(match request.path() {
                "/made" => HandlerResponse::from(Response::new(made.get().to_string())),
                _ => StreamingResponse::new(stream::repeat_with(move || {
                    let _ = &guard;
                    made.set(made.get() + 1);
                    Ok::<_, Error>(vec![7; PIECE])
                }))
                .into(),
            })
        }
    });
    domain.calls(2, "caller", async || {
        let made = async || {
            let answer = nearpath::call_with("endless", "", CallOptions::default().path("/made"))
                .await
                .unwrap();
            std::str::from_utf8(answer.body())
                .unwrap()
                .parse::<usize>()
                .unwrap()
        };
        eventually("it is near", async || {
            nearpath::call_with(
                "endless",
                "",
                CallOptions::default().shm_only().path("/made"),
            )
            .await
            .is_ok()
        })
        .await;
        while ended.try_recv().is_ok() {} // of the calls that ask how many
        let mut answer = nearpath::call_stream("endless", stream::empty::<Result<Bytes, Error>>())
            .await
            .unwrap();
        let first = answer.body().next().await.unwrap().unwrap();
        for _ in 0..200 {
            assert!(
                made().await <= 12,
                "eight parts are unread, no more are made than that and what is about to go"
            );
        }
        drop(first);
        while ended.try_recv().is_ok() {}
        drop(answer);
        ended.recv().await.unwrap();
    });
    domain.stop();
}

fn what_is_broken_off_is_an_error_and_never_an_end(new_domain: DomainFactory) {
    let mut domain = new_domain(&[("caller", "breaks"), ("caller", "reads")]);
    domain.serve(1, "breaks", || {
        async |request: Request| match request.path() {
            "/ready" => HandlerResponse::from(Response::new("")),
            _ => StreamingResponse::new(stream::iter([Ok("some"), Err("it broke")])).into(),
        }
    });
    let (told, mut read) = unbounded_channel();
    domain.streams(2, "reads", move || {
        move |request: Request| {
            let told = told.clone();
            async move {
                if request.path() != "/ready" {
                    let mut body = request.into_stream();
                    while let Some(part) = body.next().await {
                        told.send(part).unwrap();
                    }
                }
            }
        }
    });
    domain.calls(3, "caller", async || {
        until_ready("breaks").await;
        until_ready("reads").await;
        let answer = nearpath::call_stream("breaks", stream::empty::<Result<Bytes, Error>>())
            .await
            .unwrap();
        let error = answer.into_body().collect_all().await.unwrap_err();
        assert_eq!(
            (error.kind().code_name(), error.function(), error.path()),
            ("truncated", "breaks", Some(Path::Shm))
        );
        let error = nearpath::call_with("breaks", "", CallOptions::default().shm_only())
            .await
            .unwrap_err();
        assert_eq!(error.kind().code_name(), "truncated", "{error}");

        let (sender, parts) = unbounded_channel();
        sender.send(Ok("some")).unwrap();
        let breaking = async {
            assert_eq!(read.recv().await.unwrap().unwrap(), "some"); // what breaks before that is no call at all
            sender.send(Err("it broke")).unwrap();
        };
        let (error, ()) = tokio::join!(nearpath::call_stream("reads", channel(parts)), breaking);
        let error = error.unwrap_err();
        assert_eq!(
            (error.kind().code_name(), error.path()),
            ("truncated", Some(Path::Shm))
        );
        assert!(error.to_string().contains("it broke"), "{error}");
        assert_eq!(
            read.recv().await.unwrap().unwrap_err().kind().code_name(),
            "truncated"
        );
    });
    domain.stop();
}

fn a_deadline_holds_for_the_whole_exchange(new_domain: DomainFactory) {
    let mut domain = new_domain(&[("caller", "stalls")]);
    domain.serve(1, "stalls", || {
        async |request: Request| match request.path() {
            "/ready" => HandlerResponse::from(Response::new("")),
            _ => StreamingResponse::new(
                stream::iter([Ok::<_, Error>("some")]).chain(stream::pending()),
            )
            .into(),
        }
    });
    domain.calls(2, "caller", async || {
        until_ready("stalls").await;
        let ask = CallOptions::default()
            .shm_only()
            .deadline(Duration::from_millis(100));
        let none = stream::empty::<Result<Bytes, Error>>();
        let mut answer = nearpath::call_stream_with("stalls", none, ask)
            .await
            .unwrap();
        assert_eq!(answer.body().next().await.unwrap().unwrap(), "some");
        let error = answer.body().next().await.unwrap().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Timeout), "{error}");
        assert!(answer.body().next().await.is_none());
    });
    domain.stop();
}

fn large_bodies_are_whole_for_a_handler_that_does_not_stream_and_in_parts_for_one_that_does(
    new_domain: DomainFactory,
) {
    let mut domain = new_domain(&[("caller", "whole"), ("caller", "parts")]);
    domain.serve(1, "whole", || {
        async |request: Request| request.body().len().to_string()
    });
    domain.streams(2, "parts", || {
        async |request: Request| {
            let total: usize = request
                .into_stream()
                .map(|part| part.unwrap().len())
                .collect::<Vec<_>>()
                .await
                .iter()
                .sum();
            total.to_string()
        }
    });
    domain.calls(3, "caller", async || {
        near("whole", "").await;
        near("parts", "").await;
        for name in ["whole", "parts"] {
            let pieces = stream::iter((0..50).map(|_| Ok::<_, Error>(vec![1; 100_000])));
            let answer = nearpath::call_stream(name, pieces)
                .await
                .unwrap()
                .collect_body()
                .await
                .unwrap();
            assert_eq!(answer.body(), "5000000", "{name}");
            let answer =
                nearpath::call_with(name, vec![1; 3 << 20], CallOptions::default().shm_only())
                    .await
                    .unwrap();
            assert_eq!(answer.body(), "3145728", "{name}");
        }
    });
    domain.stop();
}

fn an_event_goes_to_who_subscribes_and_bears_its_topic(new_domain: DomainFactory) {
    let mut domain = new_domain(&[("caller", "listens-orders"), ("caller", "other")]);
    let (told, mut events) = unbounded_channel();
    domain.serve(1, "listens-orders", move || {
        move |request: Request| {
            let topic = request.topic().map(str::to_owned);
            let _ = told.send((request.is_event(), topic, request.into_body().to_vec()));
            std::future::ready(())
        }
    });
    domain.calls(2, "caller", async || {
        near("listens-orders", "call").await;
        assert_eq!(
            events.recv().await.unwrap(),
            (false, None, b"call".to_vec())
        );
        assert_eq!(
            nearpath::publish("orders", "event").await.unwrap(),
            PublishReport { sent: 1, missed: 0 }
        );
        assert_eq!(
            events.recv().await.unwrap(),
            (true, Some("orders".to_owned()), b"event".to_vec())
        );
        assert_eq!(
            nearpath::publish("others", "event").await.unwrap(),
            PublishReport::default()
        );
        nearpath::notify("listens-orders", "event").await.unwrap();
        assert_eq!(
            events.recv().await.unwrap(),
            (true, None, b"event".to_vec())
        );
        assert_eq!(
            nearpath::publish("orders/+", "")
                .await
                .unwrap_err()
                .kind()
                .code_name(),
            "name"
        );
    });
    domain.stop();
}

#[test]
fn outside_a_domain_nobody_subscribes() {
    let environment = Environment {
        dispatch_socket: None,
        gateway: "http://127.0.0.1:1".into(),
        listen: free_addr(),
    };
    let told = nearpath::run_in(environment, within(nearpath::publish("orders", "event"))).unwrap();
    assert_eq!(told.unwrap(), PublishReport::default());
}
