//! Functions of one domain: a real hub, real sockets and memory, every function a thread with its own event loop.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::time::Duration;

use crate::domain_fixture::{TestDomain, near};
use bytes::Bytes;
use nearpath::blocking::ThreadEndpoint;
use nearpath::{CallOptions, Environment, Error, ErrorKind, Path, Request, Response};
use nearpath_testkit::eventually;
use tokio::sync::watch;

#[test]
fn a_chain_goes_through_memory_on_every_hop() {
    let mut domain = TestDomain::new(&[("caller", "front"), ("front", "back")]);
    domain.serve(1, "back", || {
        async |request: Request| {
            assert_eq!(
                (request.arrival_path(), request.caller()),
                (Path::Shm, Some("front.openfaas-fn"))
            );
            request.body().to_ascii_uppercase()
        }
    });
    domain.serve(2, "front", || {
        async |request: Request| {
            let answer = near("back", request.into_body()).await;
            let by = format!("back {} {:?}", answer.path().unwrap(), answer.instance());
            Response::new(answer.into_body())
                .with_status(201)
                .with_header("x-by", by)
        }
    });
    domain.calls(3, "caller", async || {
        let answer = near("front", "near").await;
        assert_eq!(
            (answer.status(), answer.body().as_ref()),
            (201, &b"NEAR"[..])
        );
        assert_eq!(
            (answer.header("x-by"), answer.instance()),
            (Some("back shm Some(1)"), Some(2))
        );
    });
    domain.stop();
}

#[test]
fn large_bodies_and_empty_ones() {
    let mut domain = TestDomain::new(&[("caller", "echo")]);
    domain.serve(1, "echo", || async |request: Request| request.into_body());
    domain.calls(2, "caller", async || {
        for bytes in [0, 1, 100, 70_000, 1 << 20, 5 << 20] {
            let body = vec![7; bytes];
            assert_eq!(
                near("echo", body.clone()).await.body(),
                &body,
                "{bytes} bytes"
            );
        }
    });
    domain.stop();
}

#[test]
fn calls_at_once_are_answered_each_with_its_own() {
    let mut domain = TestDomain::new(&[("caller", "echo")]);
    domain.serve(1, "echo", || async |request: Request| request.into_body());
    domain.calls(2, "caller", async || {
        near("echo", "first").await;
        let (a, b, c) = tokio::join!(
            nearpath::call("echo", "a"),
            nearpath::call("echo", "b"),
            nearpath::call("echo", "c")
        );
        let told = [a, b, c].map(|answer| answer.unwrap().into_body());
        assert_eq!(told, ["a", "b", "c"].map(Bytes::from));
    });
    domain.stop();
}

/// Tells a test when it is dropped.
struct DropSignal(tokio::sync::mpsc::UnboundedSender<()>);

impl Drop for DropSignal {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

#[test]
fn a_deadline_is_handed_on_and_ends_the_handler() {
    let mut domain = TestDomain::new(&[("caller", "front"), ("front", "slow")]);
    let (told, mut dropped) = tokio::sync::mpsc::unbounded_channel();
    domain.serve(1, "slow", move || {
        move |request: Request| {
            let guard = DropSignal(told.clone());
            async move {
                if !request.body().is_empty() {
                    assert!(
                        request.time_left().is_some(),
                        "the front's caller has a deadline"
                    );
                    std::future::pending::<()>().await;
                }
                drop(guard);
            }
        }
    });
    domain.serve(2, "front", || {
        async |request: Request| match request.body().is_empty() {
            true => near("slow", "").await,
            false => {
                let late = nearpath::call("slow", request.into_body()).await;
                assert!(matches!(late.unwrap_err().kind(), ErrorKind::Timeout));
                std::future::pending().await // the caller's own deadline is the same one
            }
        }
    });
    domain.calls(3, "caller", async || {
        near("front", "").await;
        dropped.recv().await.unwrap();
        let ask = CallOptions::default().deadline(Duration::from_millis(50));
        let error = nearpath::call_with("front", "wait", ask).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Timeout), "{error}");
        assert_eq!((error.function(), error.path()), ("front", Some(Path::Shm)));
        dropped.recv().await.unwrap();
    });
    domain.stop();
}

#[test]
fn a_panic_is_an_answer_and_the_function_goes_on() {
    let mut domain = TestDomain::new(&[("caller", "shaky")]);
    domain.serve(1, "shaky", || {
        let calls = Rc::new(Cell::new(0));
        move |_: Request| {
            let calls = Rc::clone(&calls);
            async move {
                calls.set(calls.get() + 1);
                assert_ne!(calls.get(), 2, "the second call fails");
                "fine"
            }
        }
    });
    domain.calls(2, "caller", async || {
        near("shaky", "").await;
        assert_eq!(nearpath::call("shaky", "").await.unwrap().status(), 500);
        assert_eq!(nearpath::call("shaky", "").await.unwrap().body(), "fine");
    });
    domain.stop();
}

#[test]
fn an_event_comes_and_is_told_from_a_call() {
    let mut domain = TestDomain::new(&[("caller", "mail")]);
    let (told, mut events) = tokio::sync::mpsc::unbounded_channel();
    domain.serve(1, "mail", move || {
        move |request: Request| {
            let _ = told.send((request.is_event(), request.body().to_vec()));
            std::future::ready(())
        }
    });
    domain.calls(2, "caller", async || {
        near("mail", "call").await;
        nearpath::notify("mail", "event").await.unwrap();
        assert_eq!(events.recv().await, Some((false, b"call".to_vec())));
        assert_eq!(events.recv().await, Some((true, b"event".to_vec())));
    });
    domain.stop();
}

#[test]
fn the_handler_of_an_event_may_wait() {
    let mut domain = TestDomain::new(&[("caller", "mail")]);
    let (told, mut events) = tokio::sync::mpsc::unbounded_channel();
    domain.serve(1, "mail", move || {
        move |request: Request| {
            let told = told.clone();
            async move {
                tokio::task::yield_now().await; // it goes on, although no caller waits for it
                let _ = told.send(request.is_event());
            }
        }
    });
    domain.calls(2, "caller", async || {
        near("mail", "call").await;
        nearpath::notify("mail", "event").await.unwrap();
        assert_eq!(
            (events.recv().await, events.recv().await),
            (Some(false), Some(true))
        );
    });
    domain.stop();
}

#[test]
fn what_memory_does_not_reach_goes_over_http() {
    let domain = TestDomain::new(&[]);
    domain.calls(1, "caller", async || {
        let error = nearpath::call("stranger", "").await.unwrap_err();
        assert_eq!(error.path(), Some(Path::Http), "{error}");
        let error = nearpath::call_with("stranger", "", CallOptions::default().shm_only())
            .await
            .unwrap_err();
        assert_eq!((error.path(), error.kind().code_name()), (None, "unsent"));
    });
    domain.stop();
}

async fn stop(name: &str) {
    nearpath::call_with(name, "", CallOptions::default().path("/stop"))
        .await
        .unwrap();
}

#[test]
fn a_thread_that_waits_calls_and_is_called() {
    let mut domain = TestDomain::new(&[("caller", "front"), ("front", "back")]);
    domain.serve(1, "back", || {
        async |request: Request| request.body().to_ascii_uppercase()
    });
    domain.waits(2, "front", |party, request| {
        let near = CallOptions::default().shm_only();
        while party.call("back", "", &near).is_err() {
            std::thread::yield_now(); // it is still in flight into the domain
        }
        let pending = [
            party.begin_call("back", "a", &CallOptions::default()),
            party.begin_call("back", "b", &CallOptions::default()),
        ];
        let [a, b] = pending.map(|pending| party.wait_response(pending.unwrap()).unwrap());
        assert_eq!(
            (a.body().as_ref(), b.body().as_ref()),
            (&b"A"[..], &b"B"[..])
        );
        let answer = party
            .call("back", request.into_body(), &CallOptions::default())
            .unwrap();
        let path = answer.path().unwrap().name();
        Response::new(answer.into_body())
            .with_header("x-path", path)
            .unwrap()
    });
    domain.calls(3, "caller", async || {
        let answer = near("front", "near").await;
        assert_eq!(
            (answer.body().as_ref(), answer.header("x-path")),
            (&b"NEAR"[..], Some("shm"))
        );
        stop("front").await;
    });
    domain.stop();
}

#[test]
fn http_comes_in_beside_memory_on_the_same_thread() {
    let mut domain = TestDomain::new(&[("caller", "both")]);
    let thread = Cell::new(None);
    let address = domain.waits(1, "both", move |_, request| {
        let here = std::thread::current().id();
        assert_eq!(
            thread.replace(Some(here)).unwrap_or(here),
            here,
            "one thread for both"
        );
        Response::new(request.arrival_path().name())
    });
    domain.calls(2, "caller", async || {
        assert_eq!(near("both", "").await.body(), "shm");
        for _ in 0..20 {
            let mut stream = TcpStream::connect(address).unwrap();
            stream
                .write_all(b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                .unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.ends_with("http"), "{answer}");
            assert_eq!(nearpath::call("both", "").await.unwrap().body(), "shm");
        }
        stop("both").await;
    });
    domain.stop();
}

#[test]
fn more_calls_than_there_is_credit_for_wait_for_it() {
    const CALLS: usize = 600; // a channel has credit for 256
    let mut domain = TestDomain::new(&[("caller", "crowded")]);
    domain.serve(1, "crowded", || {
        let arrived = Rc::new(watch::Sender::new(0));
        move |request: Request| {
            let arrived = Rc::clone(&arrived);
            async move {
                if !request.body().is_empty() {
                    arrived.send_modify(|count| *count += 1);
                    let _ = arrived.subscribe().wait_for(|count| *count >= 200).await; // it sends to itself
                }
            }
        }
    });
    domain.calls(2, "caller", async || {
        near("crowded", "").await;
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..CALLS {
            let ask = CallOptions::default()
                .shm_only()
                .deadline(Duration::from_secs(20));
            calls.spawn_local(nearpath::call_with("crowded", "one", ask));
        }
        let answers = calls.join_all().await;
        assert_eq!(answers.len(), CALLS);
        answers
            .into_iter()
            .for_each(|answer| assert_eq!(answer.unwrap().path(), Some(Path::Shm)));
    });
    domain.stop();
}

/// A gateway that answers every call.
fn gateway() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let read = stream.read(&mut [0; 4096]).unwrap();
            assert!(read > 0, "a request comes in one piece here");
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 3\r\n\r\nfar")
                .unwrap();
        }
    });
    format!("http://{address}")
}

#[test]
fn what_did_not_run_goes_over_http_if_its_body_is_there() {
    let mut domain = TestDomain::new(&[("caller", "busy")]);
    domain.busy(1, "busy");
    let environment = Environment {
        gateway: gateway(),
        ..domain.environment(2, "caller")
    };
    let full = |error: Error| {
        assert!(
            matches!(error.kind(), ErrorKind::Platform { status: 429, .. }),
            "{error}"
        )
    };
    let near = || CallOptions::default().shm_only();
    nearpath::run_in(environment.clone(), async {
        let known = async || {
            !matches!(
                nearpath::call_with("busy", "", near())
                    .await
                    .unwrap_err()
                    .kind(),
                ErrorKind::Unsent(_)
            )
        };
        eventually("it is near", known).await;
        let answer = nearpath::call("busy", "body").await.unwrap();
        assert_eq!(
            (&answer.body()[..], answer.path(), answer.obstacle()),
            (&b"far"[..], Some(Path::Http), Some("no_room"))
        );
        full(
            nearpath::call_with("busy", "body", near())
                .await
                .unwrap_err(),
        );
        let draft = nearpath::draft(100);
        assert!(draft.is_in_slot(), "the control: it is handed over");
        full(nearpath::call("busy", draft).await.unwrap_err());
    })
    .unwrap();
    let mut party = ThreadEndpoint::new(Environment {
        dispatch_socket: domain.environment(3, "caller").dispatch_socket,
        ..environment
    });
    let answer = party.call("busy", "body", &CallOptions::default()).unwrap();
    assert_eq!(
        (&answer.body()[..], answer.path()),
        (&b"far"[..], Some(Path::Http))
    );
    let draft = party.draft_body(100);
    full(
        party
            .call("busy", draft, &CallOptions::default())
            .unwrap_err(),
    );
    drop(party);
    domain.stop();
}

#[test]
fn a_handler_that_panics_ends_its_own_call_alone() {
    let mut domain = TestDomain::new(&[("caller", "shaky")]);
    domain.serve(1, "shaky", || {
        async |request: Request| {
            if request.body() == "late" {
                tokio::task::yield_now().await;
            }
            assert!(request.body() == "fine", "a test wants this panic");
            "fine"
        }
    });
    domain.calls(2, "caller", async || {
        assert_eq!(near("shaky", "fine").await.status(), 200);
        for bad in ["at once", "late"] {
            assert_eq!(near("shaky", bad).await.status(), 500);
        }
        assert_eq!(near("shaky", "fine").await.body(), "fine");
    });
    domain.stop();
}
