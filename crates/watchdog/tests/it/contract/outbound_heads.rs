//! Heads of the tenant's own calls mean the same on every path: host, framing, cookies.

use std::net::SocketAddr;

use http::{Request, Response, Version};
use hyper::body::Incoming;
use nearpath_testkit::{free_addr, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::contract::node::run_on_one_thread;
use crate::contract::support::{
    WatchdogProcess, full, send, start_hello_tenant, start_tenant, text,
};
use crate::contract::watchdog_pair::WatchdogPair;

/// Answers with the request's header lines, in order.
async fn mirror(request: Request<Incoming>) -> Response<http_body_util::Full<bytes::Bytes>> {
    let mut lines: Vec<_> = request
        .headers()
        .iter()
        .map(|(name, value)| format!("{name}: {}\n", value.to_str().unwrap()))
        .collect();
    lines.sort();
    Response::new(full(&lines.concat()))
}

fn split_cookies(function: &str) -> Request<http_body_util::Full<bytes::Bytes>> {
    Request::get(format!("http://shop.example/function/{function}"))
        .version(Version::HTTP_2)
        .header("host", "other.example")
        .header("cookie", "session=1")
        .header("cookie", "cart=2; theme=3")
        .body(full(""))
        .unwrap()
}

async fn send_raw(to: SocketAddr, head: &str) -> String {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    within(stream.read_to_string(&mut answer)).await.unwrap();
    answer
}

fn absolute(function: &str) -> String {
    format!(
        "GET http://shop.example/function/{function} HTTP/1.1\r\nhost: other.example\r\nconnection: close\r\n\r\n"
    )
}

/// A watchdog whose tenant's calls all go to a gateway that mirrors them.
async fn start_with_mirror() -> (WatchdogProcess, SocketAddr) {
    let (outbound, gateway) = (free_addr(), start_tenant(mirror).await.to_string());
    let outbound_text = outbound.to_string();
    let variables = [
        ("NEARPATH_PICKUP", &*outbound_text),
        ("NEARPATH_GATEWAY", &*gateway),
        ("NEARPATH_EIP", "127.0.0.1"),
    ];
    let watchdog = WatchdogProcess::in_http_mode(start_hello_tenant().await, &variables);
    (watchdog, outbound)
}

#[test]
fn a_direct_call_has_the_host_of_its_target_and_one_field_of_cookies() {
    run_on_one_thread(async {
        let mut pair = WatchdogPair::new(start_tenant(mirror).await, &["a"], &[]).await;
        pair.send_callee(pair.b.addr).await;
        pair.refuse_session().await;
        let answer = send(pair.outbound_addr, split_cookies("b")).await.unwrap();
        let (_, seen) = text(answer).await;
        assert!(
            seen.contains("cookie: session=1; cart=2; theme=3\n"),
            "{seen}"
        );
        let raw = send_raw(pair.outbound_addr, &absolute("b")).await;
        // Over HTTP/2 the fixture's authority is the address.
        let authority = pair.outbound_addr.to_string();
        for (seen, host) in [(&seen, &*authority), (&raw, "shop.example")] {
            for name in ["host", "x-forwarded-host"] {
                assert!(seen.contains(&format!("\n{name}: {host}\n")), "{seen}");
            }
            assert!(!seen.contains("other.example"), "{seen}");
        }
        assert!(
            pair.gateway_calls.try_recv().is_err(),
            "the calls went over QUIC"
        );
    });
}

#[test]
fn a_call_through_the_gateway_has_the_host_of_its_target_and_one_field_of_cookies() {
    run_on_one_thread(async {
        let (_watchdog, outbound) = start_with_mirror().await;
        let (_, seen) = text(send(outbound, split_cookies("c")).await.unwrap()).await;
        assert!(
            seen.contains("cookie: session=1; cart=2; theme=3\n"),
            "{seen}"
        );
        assert!(!seen.contains("other.example"), "{seen}");
        let raw = send_raw(outbound, &absolute("c")).await;
        assert!(raw.contains("host: shop.example\n"), "{raw}");
        assert!(!raw.contains("other.example"), "{raw}");
    });
}

#[test]
fn a_head_with_two_meanings_is_refused_before_any_path() {
    run_on_one_thread(async {
        let (_watchdog, outbound) = start_with_mirror().await;
        for fields in [
            "host: user@gateway",
            "host: a\r\nhost: b",
            "host: gateway\r\ntransfer-encoding: gzip, chunked",
        ] {
            let head = format!("POST /function/c HTTP/1.1\r\n{fields}\r\n\r\n0\r\n\r\n");
            // It is read to its end, so the connection was closed.
            let answer = send_raw(outbound, &head).await;
            assert!(answer.starts_with("HTTP/1.1 400"), "{fields}: {answer}");
            assert!(
                answer.contains("watchdog: bad_request"),
                "{fields}: {answer}"
            );
        }
        let good = "POST /function/c HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        assert!(send_raw(outbound, good).await.starts_with("HTTP/1.1 200"));
    });
}
