//! Instances that die, refuse, stall or talk nonsense.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http::{Request, Response};
use nearpath_testkit::{eventually, free_addr, within};
use nearpath_types::Policy;
use nearpath_wire::unseen::NOT_RUN;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc::unbounded_channel;

use crate::house::{self, House, ask, full, mirror, ms, read_head, scripted, serving};

#[tokio::test]
async fn an_instance_that_dies_is_a_502_and_nothing_is_repeated() {
    let house = House::open();
    let (at, mut connections) = scripted(async |mut stream| {
        read_head(&mut stream).await;
    })
    .await;
    house.publish(&[("echo", Policy::default(), &[at, at])]);
    let answer = house.get("/function/echo").await;
    assert_eq!((answer.status, answer.reason()), (502, "instance_died"));
    assert!(answer.headers.get("retry-after").is_none());
    connections.recv().await.unwrap();
    assert!(connections.try_recv().is_err(), "the request may have run: it is not sent again");
}

#[tokio::test]
async fn what_was_never_sent_goes_to_another_instance() {
    let house = House::open();
    house.publish(&[("echo", Policy::default(), &[free_addr(), mirror().await])]);
    for _ in 0..20 {
        let request = Request::post("/function/echo").body(full("body")).unwrap();
        let answer = ask(house.public, request).await;
        assert_eq!(answer.status, 200);
        assert!(answer.body.ends_with("\n\nbody"));
    }
}

#[tokio::test]
async fn when_no_instance_can_be_reached_the_next_snapshot_helps() {
    let house = House::open();
    house.echo(free_addr());
    let at = house.public;
    let request = Request::get("/function/echo").body(full("")).unwrap();
    let waiting = tokio::spawn(async move { ask(at, request).await });
    let inflight = r#"nearpath_inflight{function_name="echo.openfaas-fn"} 1"#;
    eventually(inflight, async || house.metrics().contains(inflight)).await;
    house.echo(mirror().await);
    assert_eq!(within(waiting).await.unwrap().status, 200);
}

#[tokio::test]
async fn unreachable_for_too_long() {
    let house = House::open();
    house.publish(&[("echo", Policy { cold_timeout: ms(60), ..Policy::default() }, &[free_addr()])]);
    let answer = house.get("/function/echo").await;
    assert_eq!((answer.status, answer.reason()), (502, "connect_failed"));
}

#[tokio::test]
async fn a_closed_pooled_connection_is_replaced() {
    let (told, mut closed) = unbounded_channel();
    let (at, _connections) = scripted(move |mut stream| {
        let told = told.clone();
        async move {
            read_head(&mut stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
            stream.shutdown().await.unwrap();
            let _ = stream.read(&mut [0]).await; // the gateway has seen the close when it closes, too
            told.send(()).unwrap();
        }
    })
    .await;
    let house = House::open();
    house.echo(at);
    for _ in 0..10 {
        assert_eq!(house.get("/function/echo").await.status, 200);
        within(closed.recv()).await.unwrap();
    }
}

#[tokio::test]
async fn nonsense_is_a_502() {
    let (at, _connections) = scripted(async |mut stream| {
        read_head(&mut stream).await;
        stream.write_all(b"220 smtp ready\r\n\r\n").await.unwrap();
    })
    .await;
    let house = House::open();
    house.echo(at);
    let answer = house.get("/function/echo").await;
    assert_eq!((answer.status, answer.reason()), (502, "instance_died"));
    assert!(answer.body.contains("invalid HTTP"), "{}", answer.body);
}

/// Reads the request and never answers.
async fn silent() -> std::net::SocketAddr {
    serving(async |_| std::future::pending::<Response<_>>().await).await
}

#[tokio::test]
async fn each_timeout_is_told_apart() {
    let default = Policy::default;
    for (policy, reason, setting) in [
        (Policy { first_byte_timeout: ms(50), ..default() }, "first_byte_timeout", "nearpath.io/first-byte-timeout"),
        (Policy { total_timeout: ms(50), ..default() }, "total_timeout", "nearpath.io/total-timeout"),
    ] {
        let house = House::open();
        house.publish(&[("echo", policy, &[silent().await])]);
        let answer = house.get("/function/echo").await;
        assert_eq!((answer.status, answer.reason()), (504, reason));
        assert!(answer.body.contains(setting), "{}", answer.body);
    }
}

#[tokio::test]
async fn the_callers_own_timeout() {
    let house = House::open();
    house.echo(silent().await);
    let request = Request::get("/function/echo").header("x-timeout", "50ms").body(full("")).unwrap();
    let answer = ask(house.public, request).await;
    assert_eq!((answer.status, answer.reason()), (504, "total_timeout"));
    assert!(answer.body.contains("X-Timeout"), "{}", answer.body);
}

#[tokio::test]
async fn a_response_that_falls_silent_or_breaks_off_is_cut() {
    for (closes, reason) in [(false, "idle_timeout"), (true, "response_cut")] {
        let (at, _connections) = scripted(move |mut stream| async move {
            read_head(&mut stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc").await.unwrap();
            if !closes {
                std::future::pending::<()>().await;
            }
        })
        .await;
        let house = House::open();
        house.publish(&[("echo", Policy { idle_timeout: ms(100), ..Policy::default() }, &[at])]);
        let answer = house::raw(house.public, b"GET /function/echo HTTP/1.1\r\nhost: a\r\n\r\n").await;
        assert!(closes || answer.ends_with("\r\n\r\nabc"), "{answer}");
        eventually("it is recorded", async || house.log.all().len() == 1).await;
        assert_eq!(house.log.all()[0]["reason"], reason);
    }
}

#[tokio::test]
async fn a_body_that_stops_arriving() {
    let house = House::with(nearpath_gateway::Settings { body_idle_timeout: ms(50), ..Default::default() });
    house.echo(mirror().await);
    let request = b"POST /function/echo HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nabc";
    let answer = house::raw(house.public, request).await;
    assert!(answer.starts_with("HTTP/1.1 408 ") && answer.contains("slow_request"), "{answer}");
}

#[tokio::test]
async fn a_dead_instance_beside_a_full_one_does_not_lose_the_request() {
    let go = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let gate = go.clone();
    let busy = serving(move |_| {
        let gate = gate.clone();
        async move {
            gate.acquire().await.unwrap().forget();
            Response::new(full("ok"))
        }
    })
    .await;
    let house = House::open();
    let policy = Policy { max_inflight: Some(1), ..Policy::default() };
    house.publish(&[("echo", policy, &[free_addr(), busy])]);
    let at = house.public;
    let request = || Request::get("/function/echo").body(full("")).unwrap();
    let both = [tokio::spawn(ask(at, request())), tokio::spawn(ask(at, request()))];
    let inflight = r#"nearpath_inflight{function_name="echo.openfaas-fn"} 2"#;
    eventually(inflight, async || house.metrics().contains(inflight)).await;
    go.add_permits(2);
    for one in both {
        assert_eq!(within(one).await.unwrap().status, 200);
    }
}

/// Answers as a watchdog does that could not hand the call to its tenant, once `sick` is set; `mark` says so where no tenant can.
async fn unwell(sick: Arc<AtomicBool>, mark: bool) -> (std::net::SocketAddr, Arc<AtomicUsize>) {
    let refused = Arc::new(AtomicUsize::new(0));
    let count = refused.clone();
    let at = serving(move |_| {
        let mut answer = Response::new(full("well"));
        if sick.load(Ordering::SeqCst) {
            count.fetch_add(1, Ordering::SeqCst);
            answer = Response::new(full("watchdog: connect_failed: the tenant's server cannot be reached\n"));
            *answer.status_mut() = http::StatusCode::BAD_GATEWAY;
            answer.headers_mut().insert("x-openfaas-internal", "of-watchdog".parse().unwrap());
            answer.headers_mut().insert("x-nearpath-reason", "connect_failed".parse().unwrap());
            if mark {
                answer.headers_mut().insert(NOT_RUN, "connect_failed".parse().unwrap());
            }
        }
        async move { answer }
    });
    (at.await, refused)
}

fn call(body: &'static str) -> Request<house::TestBody> {
    Request::post("/function/echo").body(full(body)).unwrap()
}

#[tokio::test]
async fn what_an_instance_has_not_run_goes_to_another_one() {
    let house = House::open();
    let (sick, refused) = unwell(Arc::new(AtomicBool::new(true)), true).await;
    house.publish(&[("echo", Policy::default(), &[sick, mirror().await])]);
    for _ in 0..20 {
        let answer = ask(house.public, Request::get("/function/echo").body(full("")).unwrap()).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    for _ in 0..20 {
        let answer = ask(house.public, call("body")).await;
        assert!(answer.status == 200 && answer.body.ends_with("\n\nbody"), "{answer:?}");
    }
    assert!(refused.load(Ordering::SeqCst) > 1, "the control: it was asked");
}

/// A copy of each request would cost all of them: so one is passed on, at the most, of those that a connection brings that has served before.
#[tokio::test]
async fn an_instance_that_falls_ill_loses_one_call_at_the_most() {
    let house = House::with(nearpath_gateway::Settings::default());
    let sick = Arc::new(AtomicBool::new(false));
    let (at, _) = unwell(sick.clone(), true).await;
    house.publish(&[("echo", Policy::default(), &[at, mirror().await])]);
    let mut sender = house::h2(house.public).await;
    let ask = async |sender: &mut hyper::client::conn::http2::SendRequest<house::TestBody>| {
        let request = Request::post("http://shop.example/function/echo").body(full("body")).unwrap();
        house::finish(within(sender.send_request(request)).await.unwrap()).await
    };
    for _ in 0..20 {
        assert_eq!(ask(&mut sender).await.status, 200);
    }
    sick.store(true, Ordering::SeqCst);
    let mut passed_on = 0;
    for _ in 0..20 {
        let answer = ask(&mut sender).await;
        assert!(answer.headers.get(NOT_RUN).is_none(), "callers do not see the mark");
        passed_on += usize::from(answer.status != 200);
        assert!(answer.status == 200 || answer.reason() == "connect_failed", "{answer:?}");
    }
    assert!(passed_on <= 1, "{passed_on}");
}

#[tokio::test]
async fn an_instance_that_never_runs_anything_is_told_with_its_own_words() {
    let house = House::open();
    let (sick, _) = unwell(Arc::new(AtomicBool::new(true)), true).await;
    house.publish(&[("echo", Policy { cold_timeout: ms(60), ..Policy::default() }, &[sick])]);
    let answer = house.get("/function/echo").await;
    assert_eq!((answer.status, answer.reason()), (502, "connect_failed"));
    assert!(answer.body.contains("no instance of echo") && answer.body.contains("the tenant's server"), "{answer:?}");
}

/// A function may pass on what it was told itself: that says nothing of its own call.
#[tokio::test]
async fn a_refusal_that_a_tenant_passes_on_is_its_answer() {
    let house = House::open();
    let (tenant, asked) = unwell(Arc::new(AtomicBool::new(true)), false).await;
    house.publish(&[("echo", Policy::default(), &[tenant, mirror().await])]);
    let mut seen = 0;
    for _ in 0..20 {
        seen += usize::from(house.get("/function/echo").await.status == 502);
    }
    assert_eq!(seen, asked.load(Ordering::SeqCst), "each call is answered by whom it reached first");
    assert!(seen > 0);
}
