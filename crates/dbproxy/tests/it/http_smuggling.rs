//! No request becomes two, and no answer is another's: what clients and servers say in bad faith or badly.

use std::time::Duration;

use nearpath_dbproxy::http::serve;
use nearpath_types::egress::{EgressProtocol, EgressSpec};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::fixture::{AdapterFixture, default_egress, run_local};
use crate::scripted_server::{ScriptedConnection, ScriptedServer};

/// What follows a request on its connection, or is in it.
const HIDDEN_REQUEST: &str = "GET /hidden HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";

/// All that is answered to `text` until the server closes, or says nothing for a while.
async fn exchange(at: std::net::SocketAddr, text: &str) -> String {
    let mut client = TcpStream::connect(at).await.unwrap();
    client.write_all(text.as_bytes()).await.unwrap();
    let mut said = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(1), client.read_to_end(&mut said)).await;
    String::from_utf8_lossy(&said).into_owned()
}

/// Asks, and hears how the answer begins.
async fn begin_exchange(at: std::net::SocketAddr, text: &str) -> (TcpStream, String) {
    let mut client = TcpStream::connect(at).await.unwrap();
    client.write_all(text.as_bytes()).await.unwrap();
    let mut said = [0; 12];
    client.read_exact(&mut said).await.unwrap();
    (client, String::from_utf8_lossy(&said).into_owned())
}

fn get_request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
}

/// The value of a header, which a head may have once.
fn header_value(head: &str, name: &str) -> Option<String> {
    let lines = head.lines().filter_map(|line| line.split_once(':'));
    let mut values = lines
        .filter(|(other, _)| other.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim());
    let value = values.next()?;
    assert_eq!(values.next(), None, "twice: {head}");
    Some(value.to_owned())
}

/// Reads requests by the book and answers each.
async fn serve_strictly(mut talk: ScriptedConnection) -> Option<()> {
    loop {
        let head = talk.read_head().await?;
        match (
            header_value(&head, "content-length"),
            header_value(&head, "transfer-encoding"),
        ) {
            (Some(_), Some(_)) => panic!("two lengths: {head}"),
            (Some(length), None) => drop(talk.read_body(length.parse().unwrap()).await?),
            (None, Some(coding)) => {
                assert!(coding.ends_with("chunked"), "{head}");
                while read_chunk(&mut talk).await? > 0 {}
            }
            (None, None) => {}
        }
        talk.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            .await?;
    }
}

async fn read_chunk(talk: &mut ScriptedConnection) -> Option<usize> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.extend(talk.read_body(1).await?);
    }
    let length = usize::from_str_radix(std::str::from_utf8(&line).unwrap().trim(), 16).unwrap();
    talk.read_body(length + 2).await?;
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
            let odd = ScriptedServer::start(serve_strictly).await;
            let stage =
                AdapterFixture::open(default_egress(EgressProtocol::Http, odd.at), &[], serve)
                    .await;
            let said = exchange(stage.at, &text).await;
            let answers = said.matches("HTTP/1.1 200").count();
            let seen = odd.heads.borrow().len();
            assert!(
                answers == seen,
                "the server saw {seen} requests, the client {answers} answers: {text:?}: {said}"
            );
            let next = exchange(stage.at, &get_request("/next")).await;
            assert!(next.ends_with("ok"), "{text:?}: {next}");
            assert!(
                odd.heads.borrow().last().unwrap().starts_with("GET /next "),
                "{text:?}"
            );
        }
    });
}

#[test]
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
            let odd = ScriptedServer::start(move |mut talk| {
                let answer = answer.clone();
                async move {
                    talk.read_head().await?;
                    let plain = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nmine";
                    let (first, rest) = if talk.number == 0 {
                        (answer.as_str(), plain)
                    } else {
                        (plain, plain)
                    };
                    talk.send(first).await?;
                    while talk.read_head().await.is_some() {
                        talk.send(rest).await?;
                    }
                    Some(())
                }
            })
            .await;
            let stage =
                AdapterFixture::open(default_egress(EgressProtocol::Http, odd.at), &[], serve)
                    .await;
            let first = exchange(stage.at, &get_request("/").replace("GET", method)).await;
            stage.wait_served(1).await;
            let next = exchange(stage.at, &get_request("/next")).await;
            assert!(next.ends_with("mine"), "{method}: {first:?}, then {next:?}");
        }
    });
}

/// The runtime has not looked at the connection since the server said something unasked; the client's request was there before.
#[test]
fn an_idle_connection_is_checked_when_it_is_taken() {
    run_local(async {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stage = AdapterFixture::open(
            default_egress(EgressProtocol::Http, server.local_addr().unwrap()),
            &[],
            serve,
        )
        .await;
        let mut client = TcpStream::connect(stage.at).await.unwrap();
        client.write_all(get_request("/").as_bytes()).await.unwrap();
        let (mut held, _) = server.accept().await.unwrap();
        let mut request = vec![0; 4096];
        assert!(held.read(&mut request).await.unwrap() > 0);
        held.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            .await
            .unwrap();
        let mut said = String::new();
        client.read_to_string(&mut said).await.unwrap();
        stage.wait_served(1).await;
        // The next client's request is in the pool's hands already.
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
        let visit = stage.context.borrow().clone().unwrap();
        tokio::task::spawn_local(serve(theirs, visit));
        let (mut fresh, _) = server.accept().await.unwrap();
        assert!(fresh.read(&mut request).await.unwrap() > 0);
        fresh
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nmine")
            .await
            .unwrap();
        let mut said = String::new();
        next.read_to_string(&mut said).await.unwrap();
        assert!(said.ends_with("mine"), "{said}");
    });
}

#[test]
fn an_upgraded_connection_still_counts_toward_max() {
    run_local(async {
        let odd = ScriptedServer::start(async |mut talk| {
            talk.read_head().await?;
            talk.send(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n",
            )
            .await?;
            talk.read_body(4).await.map(drop)
        })
        .await;
        let limits = EgressSpec {
            max: 1,
            wait: Duration::from_millis(200),
            ..default_egress(EgressProtocol::Http, odd.at)
        };
        let stage = AdapterFixture::open(limits, &[], serve).await;
        let leave = "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";
        let first = begin_exchange(stage.at, leave).await;
        assert_eq!(first.1, "HTTP/1.1 101");
        assert_eq!(begin_exchange(stage.at, leave).await.1, "HTTP/1.1 503");
        assert_eq!(odd.connections.get(), 1);
        drop(first);
        stage.wait_served(2).await;
        assert_eq!(
            begin_exchange(stage.at, leave).await.1,
            "HTTP/1.1 101",
            "its place is free"
        );
    });
}
