//! No request becomes two, and no response answers another request: malicious and broken clients
//! and servers.

use std::time::Duration;

use nearpath_dbproxy::Adapter;
use nearpath_dbproxy::http::HttpAdapter;
use nearpath_types::egress::{EgressProtocol, EgressSpec};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::fixture::{AdapterFixture, default_egress, run_local};
use crate::scripted_server::{ScriptedConnection, ScriptedServer};

/// A request that follows another one on its connection, or is hidden in it.
const HIDDEN_REQUEST: &str = "GET /hidden HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";

/// Sends `text` and returns all replies until the server closes or pauses.
async fn exchange(at: std::net::SocketAddr, text: &str) -> String {
    let mut client = TcpStream::connect(at).await.unwrap();
    client.write_all(text.as_bytes()).await.unwrap();
    let mut received = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(1), client.read_to_end(&mut received)).await;
    String::from_utf8_lossy(&received).into_owned()
}

/// Sends a request and returns the beginning of its response.
async fn begin_exchange(at: std::net::SocketAddr, text: &str) -> (TcpStream, String) {
    let mut client = TcpStream::connect(at).await.unwrap();
    client.write_all(text.as_bytes()).await.unwrap();
    let mut received = [0; 12];
    client.read_exact(&mut received).await.unwrap();
    (client, String::from_utf8_lossy(&received).into_owned())
}

fn get_request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
}

/// Returns the value of a header that a head may have once.
fn header_value(head: &str, name: &str) -> Option<String> {
    let lines = head.lines().filter_map(|line| line.split_once(':'));
    let mut values = lines
        .filter(|(other, _)| other.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim());
    let value = values.next()?;
    assert_eq!(values.next(), None, "twice: {head}");
    Some(value.to_owned())
}

/// Reads requests strictly by the RFC and answers each.
async fn serve_strictly(mut connection: ScriptedConnection) -> Option<()> {
    loop {
        let head = connection.read_head().await?;
        match (
            header_value(&head, "content-length"),
            header_value(&head, "transfer-encoding"),
        ) {
            (Some(_), Some(_)) => panic!("two lengths: {head}"),
            (Some(length), None) => drop(connection.read_body(length.parse().unwrap()).await?),
            (None, Some(coding)) => {
                assert!(coding.ends_with("chunked"), "{head}");
                while read_chunk(&mut connection).await? > 0 {}
            }
            (None, None) => {}
        }
        connection
            .send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            .await?;
    }
}

async fn read_chunk(connection: &mut ScriptedConnection) -> Option<usize> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.extend(connection.read_body(1).await?);
    }
    let length = usize::from_str_radix(std::str::from_utf8(&line).unwrap().trim(), 16).unwrap();
    connection.read_body(length + 2).await?;
    Some(length)
}

/// Requests whose length can be read in two ways.
fn ambiguous_requests() -> Vec<String> {
    let codings = [
        "xchunked",
        "chunked, identity",
        "identity",
        "\x0bchunked",
        "chunked, chunked",
    ];
    let lengths = ["+5", "5, 6", "0x5", "5 5", "-1", "", "99999999999999999999"];
    let others = [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Content-Length: 5\r\nContent-Length: 0",
        "Content-Length: 0\r\nContent-Length: 39",
        "Content-Length : 0",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding:\r\n chunked",
        "X: a\rTransfer-Encoding: chunked",
        "X: a\nContent-Length: 5",
        "Connection: Content-Length\r\nContent-Length: 5",
        "Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked",
        "Connection: upgrade\r\nUpgrade: x",
        "X: y",
    ];
    let mut heads = others.map(str::to_owned).to_vec();
    heads.extend(codings.map(|coding| format!("Transfer-Encoding: {coding}")));
    heads.extend(codings.map(|coding| format!("Content-Length: 5\r\nTransfer-Encoding: {coding}")));
    heads.extend(lengths.map(|length| format!("Content-Length: {length}")));
    let bodies = [
        "0\r\n\r\n",
        "",
        "1;x\n\r\nz\r\n0\r\n\r\n",
        "-1\r\n",
        "FFFFFFFFFFFFFFFFFF\r\n",
        "0\r\nX: y\r\n\r\n",
    ];
    let all = heads
        .iter()
        .flat_map(|head| bodies.map(|body| format!("{head}\r\n\r\n{body}{HIDDEN_REQUEST}")));
    all.flat_map(|rest| {
        ["POST", "GET"].map(|method| format!("{method} /first HTTP/1.1\r\nHost: h\r\n{rest}"))
    })
    .collect()
}

#[test]
fn an_ambiguous_request_is_read_in_one_way() {
    run_local(async {
        for text in ambiguous_requests() {
            let scripted = ScriptedServer::start(serve_strictly).await;
            let fixture =
                AdapterFixture::open(default_egress(EgressProtocol::Http, scripted.at), &[]).await;
            let received = exchange(fixture.at, &text).await;
            let answers = received.matches("HTTP/1.1 200").count();
            let seen = scripted.heads.borrow().len();
            assert!(
                answers == seen,
                "the server saw {seen} requests, the client {answers} answers: {text:?}: {received}"
            );
            let next = exchange(fixture.at, &get_request("/next")).await;
            assert!(next.ends_with("ok"), "{text:?}: {next}");
            assert!(
                scripted
                    .heads
                    .borrow()
                    .last()
                    .unwrap()
                    .starts_with("GET /next "),
                "{text:?}"
            );
        }
    });
}

#[test]
#[expect(
    clippy::too_many_lines,
    reason = "a table of cases, or one conversation from begin to end"
)]
fn an_unsolicited_response_answers_no_request() {
    let poison = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison";
    let answers = [
        (
            "GET",
            format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok{poison}"),
        ),
        ("GET", format!("HTTP/1.1 204 No\r\n\r\n{poison}")),
        (
            "GET",
            "HTTP/1.1 204 No\r\nContent-Length: 6\r\n\r\npoison".to_owned(),
        ),
        (
            "GET",
            "HTTP/1.1 304 No\r\nContent-Length: 6\r\n\r\npoison".to_owned(),
        ),
        (
            "HEAD",
            "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison".to_owned(),
        ),
        (
            "HEAD",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\npoison\r\n0\r\n\r\n"
                .to_owned(),
        ),
        (
            "GET",
            format!(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n0\r\n\r\n{poison}"
            ),
        ),
        (
            "GET",
            format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{poison}"),
        ),
        ("GET", format!("HTTP/1.0 200 OK\r\n\r\nok{poison}")),
        (
            "GET",
            format!(
                "HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok{poison}"
            ),
        ),
        (
            "GET",
            format!("HTTP/1.1 101 Unasked\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n{poison}"),
        ),
    ];
    run_local(async {
        for (method, answer) in answers {
            let scripted = ScriptedServer::start(move |mut connection| {
                let answer = answer.clone();
                async move {
                    connection.read_head().await?;
                    let plain = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nmine";
                    let (first, rest) = if connection.number == 0 {
                        (answer.as_str(), plain)
                    } else {
                        (plain, plain)
                    };
                    connection.send(first).await?;
                    while connection.read_head().await.is_some() {
                        connection.send(rest).await?;
                    }
                    Some(())
                }
            })
            .await;
            let fixture =
                AdapterFixture::open(default_egress(EgressProtocol::Http, scripted.at), &[]).await;
            let first = exchange(fixture.at, &get_request("/").replace("GET", method)).await;
            fixture.wait_served(1).await;
            let next = exchange(fixture.at, &get_request("/next")).await;
            assert!(next.ends_with("mine"), "{method}: {first:?}, then {next:?}");
        }
    });
}

/// The runtime has not seen the unsolicited bytes of the server yet; the client's request arrived
/// earlier.
#[test]
fn an_idle_connection_is_checked_when_it_is_taken() {
    run_local(async {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let fixture = AdapterFixture::open(
            default_egress(EgressProtocol::Http, server.local_addr().unwrap()),
            &[],
        )
        .await;
        let mut client = TcpStream::connect(fixture.at).await.unwrap();
        client.write_all(get_request("/").as_bytes()).await.unwrap();
        let (mut held, _) = server.accept().await.unwrap();
        let mut request = vec![0; 4096];
        assert!(held.read(&mut request).await.unwrap() > 0);
        held.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            .await
            .unwrap();
        let mut received = String::new();
        client.read_to_string(&mut received).await.unwrap();
        fixture.wait_served(1).await;
        // The adapter already holds the next client's request.
        let door = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut next = TcpStream::connect(door.local_addr().unwrap())
            .await
            .unwrap();
        let (theirs, _) = door.accept().await.unwrap();
        next.write_all(get_request("/next").as_bytes())
            .await
            .unwrap();
        theirs.readable().await.unwrap();
        held.try_write(
            b"HTTP/1.1 408 Too late\r\nContent-Length: 6\r\nConnection: close\r\n\r\npoison",
        )
        .unwrap();
        let context = fixture.context.borrow().clone().unwrap();
        tokio::task::spawn_local(HttpAdapter.serve(theirs, context));
        let (mut fresh, _) = server.accept().await.unwrap();
        assert!(fresh.read(&mut request).await.unwrap() > 0);
        fresh
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nmine")
            .await
            .unwrap();
        let mut received = String::new();
        next.read_to_string(&mut received).await.unwrap();
        assert!(received.ends_with("mine"), "{received}");
    });
}

#[test]
fn an_upgraded_connection_still_counts_toward_max() {
    run_local(async {
        let scripted = ScriptedServer::start(async |mut connection| {
            connection.read_head().await?;
            connection.send(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n",
            )
            .await?;
            connection.read_body(4).await.map(drop)
        })
        .await;
        let limits = EgressSpec {
            max: 1,
            wait: Duration::from_millis(200),
            ..default_egress(EgressProtocol::Http, scripted.at)
        };
        let fixture = AdapterFixture::open(limits, &[]).await;
        let leave = "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";
        let first = begin_exchange(fixture.at, leave).await;
        assert_eq!(first.1, "HTTP/1.1 101");
        assert_eq!(begin_exchange(fixture.at, leave).await.1, "HTTP/1.1 503");
        assert_eq!(scripted.connections.get(), 1);
        drop(first);
        fixture.wait_served(2).await;
        assert_eq!(
            begin_exchange(fixture.at, leave).await.1,
            "HTTP/1.1 101",
            "its place is free"
        );
    });
}
