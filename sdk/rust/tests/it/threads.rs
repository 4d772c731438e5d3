//! Endpoints that are threads which wait: several calls at once, bodies piece by piece, bursts.

use std::num::NonZeroUsize;
use std::sync::mpsc;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use crate::domain_fixture::{DomainFactory, StandaloneServer, TestDomain, near};
use bytes::Bytes;
use futures_util::StreamExt;
use nearpath::blocking::{BegunCall, BodyUnwanted, StreamEvent, StreamingCall, ThreadEndpoint};
use nearpath::{
    CallOptions, Environment, Error, HandlerResponse, Path, PublishReport, Request, Response,
    StreamingResponse,
};

in_each_kind! {
    a_burst_waits_for_credit_and_none_of_it_goes_another_way,
    the_first_of_several_answers,
    one_thread_writes_and_reads_at_once,
    a_cancelled_call_is_reported,
    what_is_broken_off_is_no_end,
    several_threads_answer_at_once_from_memory_and_from_http,
}

/// Has a thread do something, within the deadline of a test.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, done) = mpsc::channel();
    let thread = std::thread::spawn(move || sender.send(work()).unwrap());
    match done.recv_timeout(Duration::from_secs(60)) {
        Ok(done) => done,
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.join().unwrap_err())
        }
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
    }
}

fn shm_only() -> CallOptions {
    CallOptions::default()
        .shm_only()
        .deadline(Duration::from_secs(30))
}

fn until_near(party: &mut ThreadEndpoint, name: &str) {
    while party.call(name, "", &shm_only().path("/ready")).is_err() {
        std::thread::yield_now(); // it is still in flight into the domain
    }
}

/// Every other one from a draft: what waits for credit keeps it.
fn begin(party: &mut ThreadEndpoint, number: usize) -> BegunCall {
    let text = number.to_string();
    if number.is_multiple_of(2) {
        return party.begin_call("echo", text, &shm_only()).unwrap();
    }
    let mut draft = party.draft_body(text.len());
    draft.copy_from_slice(text.as_bytes());
    party.begin_call("echo", draft, &shm_only()).unwrap()
}

fn a_burst_waits_for_credit_and_none_of_it_goes_another_way(new_domain: DomainFactory) {
    const CALLS: usize = 1000; // a channel has credit for 256
    let mut domain = new_domain(&[("caller", "echo")]);
    domain.serve(1, "echo", || async |request: Request| request.into_body());
    let environment = domain.environment(2, "caller");
    in_time(move || {
        let mut party = ThreadEndpoint::new(environment);
        until_near(&mut party, "echo");
        let calls: Vec<_> = (0..CALLS).map(|k| begin(&mut party, k)).collect();
        for (k, pending) in calls.into_iter().enumerate() {
            let answer = party.wait_response(pending).unwrap();
            assert_eq!(
                (answer.body().as_ref(), answer.path()),
                (k.to_string().as_bytes(), Some(Path::Shm))
            );
        }
    });
    domain.stop();
}

fn the_first_of_several_answers(new_domain: DomainFactory) {
    let mut domain = new_domain(&[("caller", "waits")]);
    domain.serve(1, "waits", || {
        async |request: Request| match request.body().as_ref() {
            b"never" => std::future::pending().await,
            _ => request.into_body(),
        }
    });
    let environment = domain.environment(2, "caller");
    in_time(move || {
        let mut party = ThreadEndpoint::new(environment);
        until_near(&mut party, "waits");
        let mut begin =
            |body: &'static str| Some(party.begin_call("waits", body, &shm_only()).unwrap());
        let mut calls = [begin("never"), begin("b"), None, begin("c")];
        let mut seen = Vec::new();
        for _ in 0..2 {
            let (at, answer) = party.wait_any(&mut calls).unwrap();
            assert!(calls[at].is_none());
            seen.push((at, Bytes::from(answer.unwrap().into_body())));
        }
        seen.sort();
        assert_eq!(seen, [(1, Bytes::from("b")), (3, Bytes::from("c"))]);
        party.cancel_call(calls[0].take().unwrap());
        assert!(party.wait_any(&mut calls).is_none());
        // A call over HTTP to a closed port ends, and so does one in memory.
        let mut calls = [
            party.begin_call("waits", "never", &shm_only()).ok(),
            party.begin_call("far", "", &CallOptions::default()).ok(),
        ];
        let (at, answer) = party.wait_any(&mut calls).unwrap();
        assert_eq!((at, answer.unwrap_err().path()), (1, Some(Path::Http)));
    });
    domain.stop();
}

/// Reads and writes at once: what is written comes back.
fn echoes(
    party: &mut ThreadEndpoint,
    exchange: &mut StreamingCall,
    pieces: usize,
    bytes: usize,
) -> usize {
    let (mut left, mut read) = (pieces, 0);
    loop {
        match party.next_event(exchange, left > 0).unwrap() {
            StreamEvent::Writable => {
                party.write_chunk(exchange, vec![7; bytes]).unwrap();
                left -= 1;
                if left == 0 {
                    party.finish_body(exchange);
                }
            }
            StreamEvent::Begun(answer) => assert_eq!(answer.status(), 200),
            StreamEvent::Part(part) => read += part.len(),
            StreamEvent::End => return read,
        }
    }
}

/// A handler that sends back what comes, as it comes.
fn echo(party: &mut ThreadEndpoint, mut request: Request) -> Response {
    if request.path() == "/ready" {
        return Response::new("");
    }
    party.begin_response(Response::new("")).unwrap();
    while let Some(part) = party.next_part(&mut request) {
        let Ok(part) = part else {
            return Response::new("");
        };
        if party.write_response(part).is_err() {
            return Response::new("");
        }
    }
    party.finish_response();
    Response::new("")
}

fn one_thread_writes_and_reads_at_once(new_domain: DomainFactory) {
    let mut domain = new_domain(&[("caller", "async"), ("caller", "waits")]);
    domain.streams(1, "async", || {
        async |request: Request| match request.path() {
            "/ready" => HandlerResponse::from(Response::new("")),
            _ => StreamingResponse::new(request.into_stream()).into(),
        }
    });
    domain.waits_streaming(2, "waits", echo);
    let environment = domain.environment(3, "caller");
    in_time(move || {
        let mut party = ThreadEndpoint::new(environment);
        for name in ["async", "waits"] {
            until_near(&mut party, name);
            let mut exchange = party.open_call(name, &shm_only()).unwrap();
            // Far more than either side may have unread: who only wrote would wait for ever.
            assert_eq!(
                echoes(&mut party, &mut exchange, 100, 100_000),
                10_000_000,
                "{name}"
            );
            assert_eq!((exchange.path(), exchange.is_open()), (Path::Shm, false));
            let mut exchange = party.open_call(name, &shm_only()).unwrap();
            party.finish_body(&mut exchange);
            assert_eq!(echoes(&mut party, &mut exchange, 0, 0), 0, "{name}");
        }
        party.call("waits", "", &shm_only().path("/stop")).unwrap();
    });
    domain.stop();
}

fn a_cancelled_call_is_reported(new_domain: DomainFactory) {
    let mut domain = new_domain(&[("caller", "waits"), ("caller", "endless")]);
    let (told, heard) = mpsc::channel();
    domain.waits_streaming(1, "waits", move |party, mut request| {
        if request.path() != "/ready" {
            let error = loop {
                match party.next_part(&mut request) {
                    Some(Ok(_)) => told.send(None).unwrap(),
                    other => break other,
                }
            };
            told.send(error.map(|error| error.unwrap_err().kind().code_name()))
                .unwrap();
        }
        Response::new("")
    });
    let (told, ended) = mpsc::channel();
    domain.waits(2, "endless", move |party, request| {
        if request.path() != "/ready" {
            party.begin_response(Response::new("")).unwrap();
            while party.write_response(vec![1; 50_000]) != Err(BodyUnwanted) {}
            told.send(()).unwrap();
        }
        Response::new("")
    });
    let environment = domain.environment(4, "caller");
    in_time(move || {
        let mut party = ThreadEndpoint::new(environment);
        for name in ["waits", "endless"] {
            until_near(&mut party, name);
        }
        let mut exchange = party.open_call("waits", &shm_only()).unwrap();
        party.write_chunk(&mut exchange, "some").unwrap();
        assert_eq!(
            heard.recv_timeout(Duration::from_secs(30)).unwrap(),
            None,
            "it is being read"
        );
        party.close_call(exchange);
        assert_eq!(
            heard.recv_timeout(Duration::from_secs(30)).unwrap(),
            Some("truncated")
        );

        let mut exchange = party.open_call("endless", &shm_only()).unwrap();
        party.finish_body(&mut exchange);
        while !matches!(
            party.next_event(&mut exchange, false).unwrap(),
            StreamEvent::Part(_)
        ) {}
        drop(exchange);
        until_near(&mut party, "waits"); // tells of what was dropped
        ended.recv_timeout(Duration::from_secs(30)).unwrap();
        for name in ["waits", "endless"] {
            party.call(name, "", &shm_only().path("/stop")).unwrap();
        }
    });
    domain.stop();
}

fn what_is_broken_off_is_no_end(new_domain: DomainFactory) {
    let mut domain = new_domain(&[("caller", "breaks")]);
    domain.waits(1, "breaks", |party, request| {
        if request.path() != "/ready" {
            party.begin_response(Response::new("")).unwrap();
            party.write_response("some").unwrap();
        }
        Response::new("not sent")
    });
    let environment = domain.environment(2, "caller");
    in_time(move || {
        let mut party = ThreadEndpoint::new(environment);
        until_near(&mut party, "breaks");
        let mut exchange = party.open_call("breaks", &shm_only()).unwrap();
        party.finish_body(&mut exchange);
        let error = loop {
            match party.next_event(&mut exchange, false) {
                Ok(StreamEvent::End) => panic!("it was broken off"),
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(
            (error.kind().code_name(), error.path()),
            ("truncated", Some(Path::Shm))
        );
        party.call("breaks", "", &shm_only().path("/stop")).unwrap();
    });
    domain.stop();
}

#[test]
fn over_http_too() {
    let alone = StandaloneServer::streaming(|| {
        async |request: Request| StreamingResponse::new(request.into_stream().map(|part| part))
    });
    let surroundings = alone.surroundings.clone();
    in_time(move || {
        let mut party = ThreadEndpoint::new(surroundings);
        while party.call("any", "", &CallOptions::default()).is_err() {
            std::thread::yield_now(); // it listens soon
        }
        let mut exchange = party.open_call("any", &CallOptions::default()).unwrap();
        assert_eq!(echoes(&mut party, &mut exchange, 100, 100_000), 10_000_000);
        assert_eq!(exchange.path(), Path::Http);
        assert_eq!(
            party
                .publish_event("orders", "", &CallOptions::default())
                .unwrap(),
            PublishReport::default()
        );
        assert_eq!(
            party
                .publish_event("#", "", &CallOptions::default())
                .unwrap_err()
                .kind()
                .code_name(),
            "name"
        );
    });
    alone.stop();
}

#[expect(
    clippy::too_many_lines,
    reason = "a table of cases, or one conversation from begin to end"
)]
fn several_threads_answer_at_once_from_memory_and_from_http(new_domain: DomainFactory) {
    const THREADS: usize = 4;
    let mut domain = new_domain(&[("caller", "crew"), ("crew", "back")]);
    domain.serve(1, "back", || async |request: Request| request.into_body());
    let environment = domain.environment(2, "crew");
    let address = environment.listen;
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let together = Arc::new(Barrier::new(THREADS));
    let crew = std::thread::spawn(move || {
        let handler = move |party: &mut ThreadEndpoint, request: Request| {
            if request.path().ends_with("/together") {
                together.wait(); // no thread goes on before all are here
            }
            if request.path() == "/pieces" {
                return echo(party, request);
            }
            if request.path() == "/draft" {
                let mut draft = party.draft_body(70_000);
                draft.fill(9);
                return Response::new(draft);
            }
            party
                .call("back", request.into_body(), &CallOptions::default())
                .map_or_else(failed, |answer| {
                    let path = answer.path().unwrap().name();
                    Response::new(answer.into_body())
                        .with_header("x-path", path)
                        .unwrap()
                })
        };
        let end = async { drop(ended.await) };
        ThreadEndpoint::new(environment).streaming().serve_on_until(
            NonZeroUsize::new(THREADS).unwrap(),
            handler,
            end,
        )
    });
    domain.calls(3, "caller", async || {
        near("crew", "").await;
        let together = || {
            nearpath::call_with(
                "crew",
                "x",
                CallOptions::default().shm_only().path("/together"),
            )
        };
        let far = async {
            let client = Environment {
                dispatch_socket: None,
                gateway: format!("http://{address}"),
                listen: address,
            };
            let call = move || {
                let ask = CallOptions::default().path("/together");
                ThreadEndpoint::new(client)
                    .call("crew", "x", &ask)
                    .unwrap()
                    .status()
            };
            tokio::task::spawn_blocking(call).await.unwrap()
        };
        let (a, b, c, _) = tokio::join!(together(), together(), together(), far);
        for answer in [a, b, c] {
            let answer = answer.unwrap();
            assert_eq!(
                (answer.body().as_ref(), answer.header("x-path")),
                (&b"x"[..], Some("shm"))
            );
        }
        let answer =
            nearpath::call_with("crew", "", CallOptions::default().shm_only().path("/draft"))
                .await
                .unwrap();
        assert!(answer.body().len() == 70_000 && answer.body().iter().all(|byte| *byte == 9));
        let pieces = futures_util::stream::iter((0..100).map(|_| Ok::<_, Error>(vec![1; 100_000])));
        let ask = CallOptions::default().shm_only().path("/pieces");
        let answer = nearpath::call_stream_with("crew", pieces, ask)
            .await
            .unwrap()
            .collect_body()
            .await
            .unwrap();
        assert_eq!(answer.body().len(), 10_000_000);
    });
    end.send(()).unwrap();
    crew.join().unwrap().unwrap();
    domain.stop();
}

fn failed(error: Error) -> Response {
    Response::new(error.to_string()).with_status(502)
}
