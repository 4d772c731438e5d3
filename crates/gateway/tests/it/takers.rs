//! Callers that take their answers slowly or not at all: the function's places are not theirs to keep.

use http::{Request, Response};
use nearpath_gateway::Settings;
use nearpath_testkit::{eventually, within};
use nearpath_types::Policy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::house::{House, full, h2_with_window, ms, serving};

async fn big() -> std::net::SocketAddr {
    serving(async |_| Response::new(full(vec![b'x'; 32 << 20]))).await
}

fn one_at_a_time(total: u64) -> Policy {
    Policy { max_inflight: Some(1), total_timeout: ms(total), queue_timeout: ms(20_000), ..Policy::default() }
}

fn ask() -> Request<crate::house::TestBody> {
    Request::get("http://a/function/echo").body(full("")).unwrap()
}

/// Waits until somebody else's request gets the one place that there is.
async fn place_is_free(house: &House) {
    eventually("the place is free", async || {
        let mut other = TcpStream::connect(house.public).await.unwrap();
        other.write_all(b"GET /function/echo HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        let mut status = [0; 12];
        within(other.read_exact(&mut status)).await.unwrap();
        &status == b"HTTP/1.1 200"
    })
    .await;
}

#[tokio::test]
async fn a_closed_window_keeps_no_place_beyond_the_total_timeout() {
    let house = House::open();
    house.publish(&[("echo", one_at_a_time(1_000), &[big().await])]);
    let mut greedy = h2_with_window(house.public, 0).await;
    let answer = within(greedy.send_request(ask())).await.unwrap();
    place_is_free(&house).await;
    drop((answer, greedy));
    eventually("both are recorded", async || {
        house.log.all().iter().any(|line| line["reason"] == "total_timeout" && line["protocol"] == "HTTP/2")
    })
    .await;
}

#[tokio::test]
async fn a_closed_window_is_cut_after_the_write_timeout() {
    let house = House::with(Settings { write_timeout: ms(500), ..Settings::default() });
    house.publish(&[("echo", one_at_a_time(60_000), &[big().await])]);
    let mut greedy = h2_with_window(house.public, 0).await;
    let _answer = within(greedy.send_request(ask())).await.unwrap();
    place_is_free(&house).await;
    eventually("its connection is cut", async || greedy.is_closed()).await;
}

#[tokio::test]
async fn a_slow_reader_is_bounded_by_the_total_timeout() {
    let house = House::open();
    house.publish(&[("echo", one_at_a_time(1_000), &[big().await])]);
    let mut slow = TcpStream::connect(house.public).await.unwrap();
    slow.write_all(b"GET /function/echo HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let reading = async {
        while slow.read_u8().await.is_ok() {
            tokio::time::sleep(ms(20)).await;
        }
    };
    tokio::select! {
        () = reading => panic!("it read 32 MB, a byte at a time"),
        () = place_is_free(&house) => {}
    }
}

/// Tells when it is dropped.
struct Bell(tokio::sync::mpsc::UnboundedSender<()>);

impl Drop for Bell {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

#[tokio::test]
async fn a_caller_that_leaves_cancels_the_work() {
    let (send, mut events) = tokio::sync::mpsc::unbounded_channel();
    let house = House::open();
    let at = serving(move |_| {
        let bell = Bell(send.clone());
        async move {
            let _ = bell.0.send(()); // it works
            std::future::pending::<()>().await;
            drop(bell);
            Response::new(full(""))
        }
    });
    house.echo(at.await);
    let mut caller = TcpStream::connect(house.public).await.unwrap();
    caller.write_all(b"GET /function/echo HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    within(events.recv()).await.unwrap();
    drop(caller);
    within(events.recv()).await.unwrap();
    eventually("it is recorded", async || house.log.all().len() == 1).await;
    assert_eq!(house.log.all()[0]["status"], 499);
}
