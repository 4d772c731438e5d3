//! Limits, queues, sleeping functions.

use http::Request;
use nearpath_testkit::{eventually, within};
use nearpath_types::{Policy, Snapshot};

use crate::house::{self, House, full, held, mirror, ms};

fn request(house: &House) -> tokio::task::JoinHandle<house::Answer> {
    let at = house.public;
    tokio::spawn(async move { house::ask(at, Request::get("/function/echo").body(full("")).unwrap()).await })
}

async fn gauge(house: &House, name: &str, value: u32) {
    let line = format!("{name}{{function_name=\"echo.openfaas-fn\"}} {value}\n");
    eventually(&line, async || house.metrics().contains(&line)).await;
}

#[tokio::test]
async fn above_the_limit_they_wait_and_above_the_queue_they_are_refused() {
    let house = House::open();
    let (at, go) = held().await;
    house.publish(&[("echo", Policy { max_inflight: Some(1), queue: 1, ..Policy::default() }, &[at])]);
    let first = request(&house);
    gauge(&house, "nearpath_inflight", 1).await;
    let second = request(&house);
    gauge(&house, "nearpath_queued", 1).await;
    let third = within(request(&house)).await.unwrap();
    assert_eq!((third.status, third.reason(), third.header("retry-after")), (429, "overload", "1"));
    assert!(third.body.contains("nearpath.io/queue"), "{}", third.body);
    go.add_permits(2);
    assert_eq!(within(first).await.unwrap().status, 200);
    assert_eq!(within(second).await.unwrap().status, 200);
}

#[tokio::test]
async fn waiting_ends() {
    let house = House::open();
    let (at, go) = held().await;
    let policy = Policy { max_inflight: Some(1), queue_timeout: ms(50), ..Policy::default() };
    house.publish(&[("echo", policy, &[at])]);
    let first = request(&house);
    gauge(&house, "nearpath_inflight", 1).await;
    let second = within(request(&house)).await.unwrap();
    assert_eq!((second.status, second.reason(), second.header("retry-after")), (503, "queue_timeout", "1"));
    assert!(second.body.contains("nearpath.io/queue-timeout"), "{}", second.body);
    go.add_permits(1);
    assert_eq!(within(first).await.unwrap().status, 200);
}

#[tokio::test]
async fn one_who_leaves_the_queue_frees_its_place() {
    let house = House::open();
    let (at, go) = held().await;
    house.publish(&[("echo", Policy { max_inflight: Some(1), queue: 1, ..Policy::default() }, &[at])]);
    let first = request(&house);
    gauge(&house, "nearpath_inflight", 1).await;
    let mut leaver = tokio::net::TcpStream::connect(house.public).await.unwrap();
    let text = b"GET /function/echo HTTP/1.1\r\nhost: a\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut leaver, text).await.unwrap();
    gauge(&house, "nearpath_queued", 1).await;
    drop(leaver);
    gauge(&house, "nearpath_queued", 0).await;
    let third = request(&house);
    gauge(&house, "nearpath_queued", 1).await;
    go.add_permits(2);
    assert_eq!(within(first).await.unwrap().status, 200);
    assert_eq!(within(third).await.unwrap().status, 200);
    eventually("the leaver is recorded", async || house.log.all().iter().any(|line| line["status"] == 499)).await;
}

#[tokio::test]
async fn a_sleeping_function_is_woken_once_and_its_callers_are_answered() {
    let mut house = House::open();
    house.publish(&[("echo", Policy::default(), &[])]);
    let waiting: Vec<_> = (0..10).map(|_| request(&house)).collect();
    assert_eq!(within(house.rings.recv()).await.unwrap().to_string(), "echo.openfaas-fn");
    gauge(&house, "nearpath_queued", 10).await;
    house.echo(mirror().await);
    for one in waiting {
        assert_eq!(within(one).await.unwrap().status, 200);
    }
    let again = std::iter::from_fn(|| house.rings.try_recv().ok()).count();
    assert!(again <= 1, "{again} more rings for ten requests in a moment");
}

#[tokio::test]
async fn the_bell_is_rung_again_while_they_wait() {
    let mut house = House::open();
    house.publish(&[("echo", Policy::default(), &[])]);
    let waiting = request(&house);
    for _ in 0..2 {
        within(house.rings.recv()).await.unwrap();
    }
    house.echo(mirror().await);
    assert_eq!(within(waiting).await.unwrap().status, 200);
}

#[tokio::test]
async fn a_function_that_does_not_wake_says_why() {
    let house = House::open();
    let mut entry = house::route("echo", Policy { cold_timeout: ms(50), ..Policy::default() }, &[]);
    entry.trouble = Some("the handler ended with status 3".into());
    house.gateway.publish(&Snapshot { version: 1, functions: vec![entry] });
    let answer = house.get("/function/echo").await;
    assert_eq!((answer.status, answer.reason(), answer.header("retry-after")), (503, "cold_timeout", "1"));
    assert!(answer.body.contains("status 3") && answer.body.contains("nearpath.io/cold-timeout"), "{}", answer.body);
}

#[tokio::test]
async fn the_callers_own_deadline_ends_the_wait() {
    let house = House::open();
    house.publish(&[("echo", Policy::default(), &[])]);
    let request = Request::get("/function/echo").header("x-timeout", "50ms").body(full("")).unwrap();
    let answer = house::ask(house.public, request).await;
    assert_eq!(answer.reason(), "cold_timeout");
    assert!(answer.body.contains("X-Timeout"), "{}", answer.body);
}

#[tokio::test]
async fn a_function_that_is_removed_lets_its_callers_go() {
    let house = House::open();
    house.publish(&[("echo", Policy::default(), &[])]);
    let waiting = request(&house);
    gauge(&house, "nearpath_queued", 1).await;
    house.publish(&[]);
    let answer = within(waiting).await.unwrap();
    assert_eq!((answer.status, answer.reason()), (404, "no_function"));
}

#[tokio::test]
async fn a_withdrawn_instance_does_not_hold_back_the_others() {
    let house = House::open();
    let policy = Policy { max_inflight: Some(1), ..Policy::default() };
    let (busy, go) = held().await;
    house.publish(&[("echo", policy.clone(), &[busy])]);
    let first = request(&house);
    gauge(&house, "nearpath_inflight", 1).await;
    house.publish(&[("echo", policy, &[mirror().await])]);
    assert_eq!(within(request(&house)).await.unwrap().status, 200, "the request at the old one no longer counts");
    go.add_permits(1);
    assert_eq!(within(first).await.unwrap().status, 200, "what is in flight is finished");
}
