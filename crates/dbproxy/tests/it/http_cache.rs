//! Responses that are kept, with nginx and with a server that counts.

use std::cell::Cell;
use std::rc::Rc;

use nearpath_dbproxy::http::{prefetch_reads, serve};
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
        serve,
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
    let mut said = String::new();
    client.read_to_string(&mut said).await.unwrap();
    said
}

/// A server that says `headers`, the number of the request, and answers conditions with 304.
async fn counting_server(headers: &'static str) -> (ScriptedServer, Rc<Cell<u32>>) {
    let count = Rc::new(Cell::new(0));
    let counted = count.clone();
    let odd = ScriptedServer::start(move |mut talk| {
        let counted = counted.clone();
        async move {
            loop {
                let head = talk.read_head().await?.to_lowercase();
                counted.set(counted.get() + 1);
                let (number, body) = (counted.get(), format!("answer {}", counted.get()));
                if head.contains("if-none-match") {
                    talk.send(&format!(
                        "HTTP/1.1 304 Same\r\nETag: \"1\"\r\nX-Checked: {number}\r\n\r\n"
                    ))
                    .await?;
                } else {
                    let length = body.len();
                    talk.send(&format!(
                        "HTTP/1.1 200 OK\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
                    ))
                    .await?;
                }
            }
        }
    })
    .await;
    (odd, count)
}

#[test]
fn a_cacheable_response_is_fetched_once() {
    run_local(async {
        let (odd, count) = counting_server("Cache-Control: max-age=600\r\n").await;
        let stage = open_fixture(odd.at).await;
        for _ in 0..3 {
            assert!(exchange(stage.at, "GET /a", "").await.ends_with("answer 1"));
        }
        let head = exchange(stage.at, "HEAD /a", "").await.to_lowercase();
        assert!(
            head.contains("content-length: 8")
                && head.contains("age: ")
                && head.ends_with("\r\n\r\n"),
            "{head}"
        );
        assert_eq!((count.get(), stage.ledger.cache_hits.get()), (1, 3));
        assert!(
            exchange(stage.at, "GET /b", "").await.ends_with("answer 2"),
            "another path"
        );
        assert!(
            exchange(stage.at, "GET /a", "Authorization: Bearer x\r\n")
                .await
                .ends_with("answer 3")
        );
        assert!(
            exchange(stage.at, "GET /a", "Cookie: a=b\r\n")
                .await
                .ends_with("answer 4")
        );
        assert!(
            exchange(stage.at, "GET /a", "Cache-Control: no-cache\r\n")
                .await
                .ends_with("answer 5")
        );
        assert!(
            exchange(stage.at, "GET /a", "").await.ends_with("answer 5"),
            "what is new takes the place of what is old"
        );
        assert!(
            exchange(stage.at, "POST /a", "Content-Length: 0\r\n")
                .await
                .ends_with("answer 6")
        );
        assert!(
            exchange(stage.at, "GET /a", "").await.ends_with("answer 7"),
            "a write ends what was kept"
        );
    });
}

#[test]
fn without_the_setting_every_request_reaches_the_server() {
    run_local(async {
        let (odd, count) = counting_server("Cache-Control: max-age=600\r\n").await;
        let stage =
            AdapterFixture::open(default_egress(EgressProtocol::Http, odd.at), &[], serve).await;
        for _ in 0..3 {
            exchange(stage.at, "GET /a", "").await;
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
            let (odd, count) = counting_server(headers).await;
            let stage = open_fixture(odd.at).await;
            for _ in 0..2 {
                exchange(stage.at, "GET /a", "").await;
            }
            assert_eq!(
                (count.get(), stage.ledger.cache_hits.get()),
                (2, 0),
                "{headers}"
            );
        });
    }
}

#[test]
fn a_stale_response_is_confirmed_without_its_body() {
    run_local(async {
        let (odd, count) = counting_server("Cache-Control: no-cache\r\nETag: \"1\"\r\n").await;
        let stage = open_fixture(odd.at).await;
        assert!(exchange(stage.at, "GET /a", "").await.ends_with("answer 1"));
        let said = exchange(stage.at, "GET /a", "").await;
        assert!(
            said.starts_with("HTTP/1.1 200")
                && said.ends_with("answer 1")
                && said.to_lowercase().contains("x-checked: 2"),
            "{said}"
        );
        assert_eq!((count.get(), stage.ledger.revalidated.get()), (2, 1));
        assert_eq!(
            odd.connections.get(),
            1,
            "the connection serves on after a 304"
        );
        let own = exchange(stage.at, "GET /a", "If-None-Match: \"1\"\r\n").await;
        assert!(
            own.starts_with("HTTP/1.1 304"),
            "a client's own condition is answered by the server: {own}"
        );
    });
}

#[test]
fn a_body_that_breaks_off_is_not_kept() {
    run_local(async {
        let odd = ScriptedServer::start(async |mut talk| {
            talk.read_head().await?;
            talk.send("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 100\r\n\r\nonly this").await
        })
        .await;
        let stage = open_fixture(odd.at).await;
        for turn in 1..=2 {
            let mut client = TcpStream::connect(stage.at).await.unwrap();
            client
                .write_all(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
                .await
                .unwrap();
            let _ = client.read_to_end(&mut Vec::new()).await;
            nearpath_testkit::eventually("it was asked", async || odd.connections.get() == turn)
                .await;
        }
    });
}

#[test]
fn a_real_servers_files_are_confirmed_by_their_tags() {
    run_local(async {
        let server = need!(server::start_nginx(75).await, "nginx");
        let stage = open_fixture(server.at).await;
        std::fs::create_dir_all(server.folder.path().join("put")).unwrap();
        std::fs::write(server.folder.path().join("put/a"), "first").unwrap();
        for _ in 0..3 {
            assert!(
                exchange(stage.at, "GET /put/a", "")
                    .await
                    .ends_with("first")
            );
        }
        assert_eq!(stage.ledger.revalidated.get(), 2);
        assert!(
            exchange(stage.at, "GET /big", "").await.len() > 1_000_000,
            "too long to be kept, and whole"
        );
        let put = exchange(stage.at, "PUT /put/a", "Content-Length: 0\r\n").await;
        assert!(put.starts_with("HTTP/1.1 204"), "{put}");
        assert!(
            exchange(stage.at, "GET /put/a", "")
                .await
                .ends_with("\r\n\r\n"),
            "it is empty now"
        );
    });
}

/// With reads ahead.
async fn open_prefetching(at: std::net::SocketAddr, reads: &[&str]) -> AdapterFixture {
    let prefetch = reads.iter().map(|read| (*read).to_owned()).collect();
    AdapterFixture::open(
        EgressSpec {
            prefetch,
            ..default_egress(EgressProtocol::Http, at)
        },
        &[],
        serve,
    )
    .await
}

#[test]
fn a_learned_read_is_issued_with_the_call_and_used_once() {
    run_local(async {
        let (odd, count) = counting_server("").await;
        let stage = open_prefetching(odd.at, &["/rates"]).await;
        stage.call_function(prefetch_reads);
        assert!(
            exchange(stage.at, "GET /rates", "X-Own: 1\r\n")
                .await
                .ends_with("answer 1"),
            "nothing was known yet"
        );
        stage.call_function(prefetch_reads);
        nearpath_testkit::eventually("it is asked ahead", async || count.get() == 2).await;
        assert!(
            exchange(stage.at, "GET /rates", "X-Own: 1\r\nTraceparent: new\r\n")
                .await
                .ends_with("answer 2")
        );
        assert_eq!((count.get(), stage.ledger.prefetch_used.get()), (2, 1));
        assert!(
            exchange(stage.at, "GET /rates", "X-Own: 1\r\n")
                .await
                .ends_with("answer 3"),
            "once a call"
        );
        assert!(
            exchange(stage.at, "GET /other", "X-Own: 1\r\n")
                .await
                .ends_with("answer 4")
        );
    });
}

#[test]
fn another_request_does_not_get_the_answer_and_a_write_discards_it() {
    run_local(async {
        let (odd, count) = counting_server("").await;
        let stage = open_prefetching(odd.at, &["/rates"]).await;
        exchange(stage.at, "GET /rates", "X-Own: 1\r\n").await;
        stage.call_function(prefetch_reads);
        nearpath_testkit::eventually("it is asked ahead", async || count.get() == 2).await;
        assert!(
            exchange(stage.at, "GET /rates", "X-Own: 2\r\n")
                .await
                .ends_with("answer 3"),
            "it says something else"
        );
        stage.call_function(prefetch_reads); // as it was asked last
        nearpath_testkit::eventually("it is asked ahead", async || count.get() == 4).await;
        exchange(stage.at, "POST /other", "Content-Length: 0\r\n").await;
        assert!(
            exchange(stage.at, "GET /rates", "X-Own: 2\r\n")
                .await
                .ends_with("answer 6"),
            "it may be another one now"
        );
        assert_eq!(
            (
                stage.ledger.prefetch_used.get(),
                stage.ledger.prefetch_unused.get()
            ),
            (0, 2)
        );
    });
}

#[test]
fn an_authorized_request_is_repeated_only_if_it_is_always_the_same() {
    run_local(async {
        let (odd, count) = counting_server("").await;
        let stage = open_prefetching(odd.at, &["/rates"]).await;
        for (turn, name) in ["a", "b", "b"].into_iter().enumerate() {
            let said = exchange(
                stage.at,
                "GET /rates",
                &format!("Authorization: Bearer {name}\r\n"),
            )
            .await;
            assert!(said.ends_with(&format!("answer {}", turn + 1)));
            if turn < 2 {
                stage.call_function(prefetch_reads);
            }
        }
        assert_eq!(count.get(), 3);
        stage.call_function(prefetch_reads);
        nearpath_testkit::eventually("it is asked ahead", async || count.get() == 4).await;
        assert!(
            exchange(stage.at, "GET /rates", "Authorization: Bearer c\r\n")
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
        let odd = ScriptedServer::start(move |mut talk| {
            let (slow, seen) = (slow.clone(), seen.clone());
            async move {
                loop {
                    talk.read_head().await?;
                    seen.set(seen.get() + 1);
                    if seen.get() == 2 {
                        slow.notified().await;
                    }
                    talk.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                        .await?;
                }
            }
        })
        .await;
        let stage = open_prefetching(odd.at, &["/rates"]).await;
        exchange(stage.at, "GET /rates", "").await;
        stage.call_function(prefetch_reads);
        nearpath_testkit::eventually("it is asked ahead", async || heads.get() == 2).await;
        let at = stage.at;
        let asking = tokio::task::spawn_local(async move { exchange(at, "GET /rates", "").await });
        tokio::task::yield_now().await;
        released.notify_one();
        assert!(asking.await.unwrap().ends_with("ok"));
        assert_eq!(
            (heads.get(), stage.ledger.prefetch_used.get()),
            (2, 1),
            "the server was asked once"
        );
    });
}
