//! Cached responses, with nginx and with a server that counts its requests.

use std::cell::Cell;
use std::rc::Rc;

use nearpath_types::egress::{CacheLimit, EgressProtocol, EgressSpec};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{AdapterFixture, default_egress, run_local};
use crate::redis::need;
use crate::scripted_server::ScriptedServer;
use crate::server;

async fn open_fixture(at: std::net::SocketAddr) -> AdapterFixture {
    AdapterFixture::open(
        EgressSpec {
            cache: Some(CacheLimit::Bytes(1 << 20)),
            ..default_egress(EgressProtocol::Http, at)
        },
        &[],
    )
    .await
}

async fn exchange(at: std::net::SocketAddr, what: &str, more: &str) -> String {
    let mut client = TcpStream::connect(at).await.unwrap();
    client
        .write_all(
            format!("{what} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{more}\r\n").as_bytes(),
        )
        .await
        .unwrap();
    let mut received = String::new();
    client.read_to_string(&mut received).await.unwrap();
    received
}

/// A server that sends `headers` and the number of the request, and answers conditions with 304.
async fn counting_server(headers: &'static str) -> (ScriptedServer, Rc<Cell<u32>>) {
    let count = Rc::new(Cell::new(0));
    let counted = count.clone();
    let scripted = ScriptedServer::start(move |mut connection| {
        let counted = counted.clone();
        async move {
            loop {
                let head = connection.read_head().await?.to_lowercase();
                counted.set(counted.get() + 1);
                let (number, body) = (counted.get(), format!("answer {}", counted.get()));
                if head.contains("if-none-match") {
                    connection
                        .send(&format!(
                            "HTTP/1.1 304 Same\r\nETag: \"1\"\r\nX-Checked: {number}\r\n\r\n"
                        ))
                        .await?;
                } else {
                    let length = body.len();
                    connection
                        .send(&format!(
                            "HTTP/1.1 200 OK\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
                        ))
                        .await?;
                }
            }
        }
    })
    .await;
    (scripted, count)
}

#[test]
fn a_cacheable_response_is_fetched_once() {
    run_local(async {
        let (scripted, count) = counting_server("Cache-Control: max-age=600\r\n").await;
        let fixture = open_fixture(scripted.at).await;
        for _ in 0..3 {
            assert!(
                exchange(fixture.at, "GET /a", "")
                    .await
                    .ends_with("answer 1")
            );
        }
        let head = exchange(fixture.at, "HEAD /a", "").await.to_lowercase();
        assert!(
            head.contains("content-length: 8")
                && head.contains("age: ")
                && head.ends_with("\r\n\r\n"),
            "{head}"
        );
        assert_eq!((count.get(), fixture.ledger.cache_hits.get()), (1, 3));
        assert!(
            exchange(fixture.at, "GET /b", "")
                .await
                .ends_with("answer 2"),
            "another path"
        );
        assert!(
            exchange(fixture.at, "GET /a", "Authorization: Bearer x\r\n")
                .await
                .ends_with("answer 3")
        );
        assert!(
            exchange(fixture.at, "GET /a", "Cookie: a=b\r\n")
                .await
                .ends_with("answer 4")
        );
        assert!(
            exchange(fixture.at, "GET /a", "Cache-Control: no-cache\r\n")
                .await
                .ends_with("answer 5")
        );
        assert!(
            exchange(fixture.at, "GET /a", "")
                .await
                .ends_with("answer 5"),
            "what is new takes the place of what is old"
        );
        assert!(
            exchange(fixture.at, "POST /a", "Content-Length: 0\r\n")
                .await
                .ends_with("answer 6")
        );
        assert!(
            exchange(fixture.at, "GET /a", "")
                .await
                .ends_with("answer 7"),
            "a write ends what was kept"
        );
    });
}

#[test]
fn without_the_setting_every_request_reaches_the_server() {
    run_local(async {
        let (scripted, count) = counting_server("Cache-Control: max-age=600\r\n").await;
        let fixture =
            AdapterFixture::open(default_egress(EgressProtocol::Http, scripted.at), &[]).await;
        for _ in 0..3 {
            exchange(fixture.at, "GET /a", "").await;
        }
        assert_eq!(count.get(), 3);
    });
}

#[test]
fn private_and_no_store_responses_are_not_kept() {
    for headers in [
        "Cache-Control: no-store\r\n",
        "Cache-Control: private, max-age=60\r\n",
        "",
        "Cache-Control: max-age=60\r\nSet-Cookie: a=b\r\n",
    ] {
        run_local(async move {
            let (scripted, count) = counting_server(headers).await;
            let fixture = open_fixture(scripted.at).await;
            for _ in 0..2 {
                exchange(fixture.at, "GET /a", "").await;
            }
            assert_eq!(
                (count.get(), fixture.ledger.cache_hits.get()),
                (2, 0),
                "{headers}"
            );
        });
    }
}

#[test]
fn a_stale_response_is_confirmed_without_its_body() {
    run_local(async {
        let (scripted, count) = counting_server("Cache-Control: no-cache\r\nETag: \"1\"\r\n").await;
        let fixture = open_fixture(scripted.at).await;
        assert!(
            exchange(fixture.at, "GET /a", "")
                .await
                .ends_with("answer 1")
        );
        let received = exchange(fixture.at, "GET /a", "").await;
        assert!(
            received.starts_with("HTTP/1.1 200")
                && received.ends_with("answer 1")
                && received.to_lowercase().contains("x-checked: 2"),
            "{received}"
        );
        assert_eq!((count.get(), fixture.ledger.revalidated.get()), (2, 1));
        assert_eq!(
            scripted.connections.get(),
            1,
            "the connection serves on after a 304"
        );
        let own = exchange(fixture.at, "GET /a", "If-None-Match: \"1\"\r\n").await;
        assert!(
            own.starts_with("HTTP/1.1 304"),
            "a client's own condition is answered by the server: {own}"
        );
    });
}

#[test]
fn a_body_that_breaks_off_is_not_kept() {
    run_local(async {
        let scripted = ScriptedServer::start(async |mut connection| {
            connection.read_head().await?;
            connection.send("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 100\r\n\r\nonly this").await
        })
        .await;
        let fixture = open_fixture(scripted.at).await;
        for turn in 1..=2 {
            let mut client = TcpStream::connect(fixture.at).await.unwrap();
            client
                .write_all(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
                .await
                .unwrap();
            let _ = client.read_to_end(&mut Vec::new()).await;
            nearpath_testkit::eventually("it was asked", async || {
                scripted.connections.get() == turn
            })
            .await;
        }
    });
}

#[test]
fn a_real_servers_files_are_confirmed_by_their_tags() {
    run_local(async {
        let server = need!(server::start_nginx(75).await, "nginx");
        let fixture = open_fixture(server.at).await;
        std::fs::create_dir_all(server.folder.path().join("put")).unwrap();
        std::fs::write(server.folder.path().join("put/a"), "first").unwrap();
        for _ in 0..3 {
            assert!(
                exchange(fixture.at, "GET /put/a", "")
                    .await
                    .ends_with("first")
            );
        }
        assert_eq!(fixture.ledger.revalidated.get(), 2);
        assert!(
            exchange(fixture.at, "GET /big", "").await.len() > 1_000_000,
            "too long to be kept, and whole"
        );
        let put = exchange(fixture.at, "PUT /put/a", "Content-Length: 0\r\n").await;
        assert!(put.starts_with("HTTP/1.1 204"), "{put}");
        assert!(
            exchange(fixture.at, "GET /put/a", "")
                .await
                .ends_with("\r\n\r\n"),
            "it is empty now"
        );
    });
}

/// Opens the adapter with prefetch for these reads.
async fn open_prefetching(at: std::net::SocketAddr, reads: &[&str]) -> AdapterFixture {
    let prefetch = reads.iter().map(|read| (*read).to_owned()).collect();
    AdapterFixture::open(
        EgressSpec {
            prefetch,
            ..default_egress(EgressProtocol::Http, at)
        },
        &[],
    )
    .await
}

#[test]
fn a_learned_read_is_issued_with_the_call_and_used_once() {
    run_local(async {
        let (scripted, count) = counting_server("").await;
        let fixture = open_prefetching(scripted.at, &["/rates"]).await;
        fixture.call_function();
        assert!(
            exchange(fixture.at, "GET /rates", "X-Own: 1\r\n")
                .await
                .ends_with("answer 1"),
            "nothing was known yet"
        );
        fixture.call_function();
        nearpath_testkit::eventually("it is asked ahead", async || count.get() == 2).await;
        assert!(
            exchange(fixture.at, "GET /rates", "X-Own: 1\r\nTraceparent: new\r\n")
                .await
                .ends_with("answer 2")
        );
        assert_eq!((count.get(), fixture.ledger.prefetch_used.get()), (2, 1));
        assert!(
            exchange(fixture.at, "GET /rates", "X-Own: 1\r\n")
                .await
                .ends_with("answer 3"),
            "once a call"
        );
        assert!(
            exchange(fixture.at, "GET /other", "X-Own: 1\r\n")
                .await
                .ends_with("answer 4")
        );
    });
}

#[test]
fn another_request_does_not_get_the_answer_and_a_write_discards_it() {
    run_local(async {
        let (scripted, count) = counting_server("").await;
        let fixture = open_prefetching(scripted.at, &["/rates"]).await;
        exchange(fixture.at, "GET /rates", "X-Own: 1\r\n").await;
        fixture.call_function();
        nearpath_testkit::eventually("it is asked ahead", async || count.get() == 2).await;
        assert!(
            exchange(fixture.at, "GET /rates", "X-Own: 2\r\n")
                .await
                .ends_with("answer 3"),
            "it says something else"
        );
        fixture.call_function(); // with the headers of the last request
        nearpath_testkit::eventually("it is asked ahead", async || count.get() == 4).await;
        exchange(fixture.at, "POST /other", "Content-Length: 0\r\n").await;
        assert!(
            exchange(fixture.at, "GET /rates", "X-Own: 2\r\n")
                .await
                .ends_with("answer 6"),
            "it may be another one now"
        );
        assert_eq!(
            (
                fixture.ledger.prefetch_used.get(),
                fixture.ledger.prefetch_unused.get()
            ),
            (0, 2)
        );
    });
}

#[test]
fn an_authorized_request_is_repeated_only_if_it_is_always_the_same() {
    run_local(async {
        let (scripted, count) = counting_server("").await;
        let fixture = open_prefetching(scripted.at, &["/rates"]).await;
        for (turn, name) in ["a", "b", "b"].into_iter().enumerate() {
            let received = exchange(
                fixture.at,
                "GET /rates",
                &format!("Authorization: Bearer {name}\r\n"),
            )
            .await;
            assert!(received.ends_with(&format!("answer {}", turn + 1)));
            if turn < 2 {
                fixture.call_function();
            }
        }
        assert_eq!(count.get(), 3);
        fixture.call_function();
        nearpath_testkit::eventually("it is asked ahead", async || count.get() == 4).await;
        assert!(
            exchange(fixture.at, "GET /rates", "Authorization: Bearer c\r\n")
                .await
                .ends_with("answer 5"),
            "not in another's"
        );
    });
}

#[test]
fn a_request_during_the_prefetch_waits_for_its_answer() {
    run_local(async {
        let slow = Rc::new(tokio::sync::Notify::new());
        let (released, heads) = (slow.clone(), Rc::new(Cell::new(0)));
        let seen = heads.clone();
        let scripted = ScriptedServer::start(move |mut connection| {
            let (slow, seen) = (slow.clone(), seen.clone());
            async move {
                loop {
                    connection.read_head().await?;
                    seen.set(seen.get() + 1);
                    if seen.get() == 2 {
                        slow.notified().await;
                    }
                    connection
                        .send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                        .await?;
                }
            }
        })
        .await;
        let fixture = open_prefetching(scripted.at, &["/rates"]).await;
        exchange(fixture.at, "GET /rates", "").await;
        fixture.call_function();
        nearpath_testkit::eventually("it is asked ahead", async || heads.get() == 2).await;
        let at = fixture.at;
        let asking = tokio::task::spawn_local(async move { exchange(at, "GET /rates", "").await });
        tokio::task::yield_now().await;
        released.notify_one();
        assert!(asking.await.unwrap().ends_with("ok"));
        assert_eq!(
            (heads.get(), fixture.ledger.prefetch_used.get()),
            (2, 1),
            "the server was asked once"
        );
    });
}
