//! The orderly end.

use http::{Request, Response};
use nearpath_gateway::Settings;
use nearpath_testkit::{eventually, within};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::house::{self, House, full, held, ms, serving};

#[tokio::test]
async fn what_is_in_flight_is_answered_and_nothing_new_is_accepted() {
    let (at, go) = held().await;
    let mut house = House::with(Settings { drain_timeout: std::time::Duration::from_secs(600), ..Settings::default() });
    house.echo(at);
    let public = house.public;
    let mut idle = Vec::new();
    for _ in 0..32 {
        idle.push(TcpStream::connect(public).await.unwrap()); // the kernel spreads them over the threads
    }
    let request = || Request::get("/function/echo").body(full("")).unwrap();
    let h1 = tokio::spawn(house::ask(public, request()));
    let mut client = house::h2(public).await;
    let h2 = Request::get("http://a/function/echo").body(full("")).unwrap();
    let h2 = tokio::spawn(async move { client.send_request(h2).await.unwrap().status() });
    let inflight = r#"nearpath_inflight{function_name="echo.openfaas-fn"} 2"#;
    eventually(inflight, async || house.metrics().contains(inflight)).await;

    let drained = tokio::spawn(house.drain());
    eventually("nothing new is accepted", async || TcpStream::connect(public).await.is_err()).await;
    for mut stream in idle {
        let _ = within(stream.read(&mut [0])).await; // by its end its thread has told all its connections
    }
    assert!(!drained.is_finished());
    go.add_permits(2);
    let answer = within(h1).await.unwrap();
    assert_eq!((answer.status, answer.header("connection")), (200, "close"));
    assert_eq!(within(h2).await.unwrap(), 200);
    within(drained).await.unwrap();
}

#[tokio::test]
async fn what_takes_too_long_is_cut_and_recorded() {
    let mut house = House::with(Settings { drain_timeout: ms(100), ..Settings::default() });
    house.echo(serving(async |_| std::future::pending::<Response<_>>().await).await);
    let mut stream = TcpStream::connect(house.public).await.unwrap();
    let request = b"GET /function/echo HTTP/1.1\r\nhost: a\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut stream, request).await.unwrap();
    let inflight = r#"nearpath_inflight{function_name="echo.openfaas-fn"} 1"#;
    eventually(inflight, async || house.metrics().contains(inflight)).await;
    within(house.drain()).await;
    eventually("it is recorded", async || house.log.all().len() == 1).await;
    assert_eq!(house.log.all()[0]["reason"], "draining");
}
