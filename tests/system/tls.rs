//! Calls over TLS with `nearpath.io/transport: tls13` or `tls12`, recognised by their responses,
//! and requests over TLS of functions with QUIC.

use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use nearpath_kernel::namespace;
use nearpath_testkit::{eventually, need_root, within};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::load::open_loop;
use crate::quic::{MIRROR_BODY, full_body, instances_namespace, path_of, send_traced};
use crate::test_server::{TestServer, http_function};

const TLS_PATH: &str = "tls; obstacle=no_domain";

fn with_transport(mut function: Value, transport: &str) -> Value {
    function["annotations"] = json!({ "nearpath.io/transport": transport });
    function
}

fn path_over(transport: &str, folder: &Path, name: &str, body: &str) -> Value {
    with_transport(http_function(folder, name, body), transport)
}

#[tokio::test]
async fn calls_of_all_sizes_go_over_both_versions() {
    need_root!();
    let server = TestServer::start().await;
    for transport in ["tls13", "tls12"] {
        server
            .deploy_ready(&path_over(
                transport,
                &server.data_dir,
                transport,
                MIRROR_BODY,
            ))
            .await;
        let target = format!("/function/{transport}");
        let answer = send_traced(&server, Method::GET, &format!("{target}/a?b=c"), "").await;
        assert_eq!(
            (answer.status(), answer.body().as_ref()),
            (StatusCode::OK, b"GET /a?b=c ".as_ref()),
            "{}",
            server.log()
        );
        assert_eq!(path_of(&answer), TLS_PATH, "{}", server.log());
        for size in [10, 64 * 1024, 1 << 20] {
            let answer = send_traced(
                &server,
                Method::POST,
                &format!("{target}/"),
                Bytes::from(vec![b'b'; size]),
            )
            .await;
            assert_eq!(
                (answer.body().len(), path_of(&answer)),
                (size + 7, TLS_PATH)
            );
            let answer =
                send_traced(&server, Method::GET, &format!("{target}/size/{size}"), "").await;
            assert_eq!((answer.body().len(), path_of(&answer)), (size, TLS_PATH));
        }
    }
}

/// Response of the instance's port to a GET without TLS from inside.
async fn send_in_clear(server: &TestServer, name: &str, target: &str) -> String {
    let namespace = instances_namespace(server, name).await;
    let ask = format!("GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let exchange = move || -> std::io::Result<String> {
        let mut stream = std::net::TcpStream::connect("127.0.0.1:8080")?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        stream.write_all(ask.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map(|_| answer)
    };
    tokio::task::spawn_blocking(move || namespace::run_in_netns(&namespace, exchange))
        .await
        .unwrap()
        .unwrap()
}

#[tokio::test]
async fn a_function_that_asks_for_encryption_is_not_called_without_it() {
    need_root!();
    let server = TestServer::start().await;
    for transport in ["quic", "tls13", "tls12"] {
        server
            .deploy_ready(&path_over(
                transport,
                &server.data_dir,
                transport,
                MIRROR_BODY,
            ))
            .await;
        let refused = send_in_clear(&server, transport, "/").await;
        assert!(
            refused.starts_with("HTTP/1.1 403") && refused.contains(transport),
            "{refused}"
        );
        assert!(
            send_in_clear(&server, transport, "/_/health")
                .await
                .starts_with("HTTP/1.1 200")
        );
    }
    server
        .deploy_ready(&http_function(&server.data_dir, "auto", MIRROR_BODY))
        .await;
    assert!(
        send_in_clear(&server, "auto", "/")
            .await
            .starts_with("HTTP/1.1 200"),
        "the control: others are"
    );
}

/// Accepts any upgrade and echoes the data.
const UPGRADE_BODY: &str = r#"self.send_response(101)
self.send_header("Connection", "upgrade")
self.send_header("Upgrade", "echo")
self.end_headers()
self.close_connection = True
while data := self.rfile.read1(65536):
    self.wfile.write(data)
    self.wfile.flush()"#;

#[tokio::test]
async fn an_upgraded_connection_goes_over_tls_also_where_the_function_asks_for_quic() {
    need_root!();
    let server = TestServer::start().await;
    for (transport, wanted) in [
        ("tls13", TLS_PATH),
        ("tls12", TLS_PATH),
        ("quic", "tls; obstacle=upgrade"),
    ] {
        server
            .deploy_ready(&path_over(
                transport,
                &server.data_dir,
                transport,
                UPGRADE_BODY,
            ))
            .await;
        let stream = tokio::net::TcpStream::connect(server.addr).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection.with_upgrades());
        let request = Request::get(format!("/function/{transport}"))
            .header("host", "x")
            .header("x-nearpath-path", "");
        let request = request
            .header("connection", "upgrade")
            .header("upgrade", "echo")
            .body(full_body(""))
            .unwrap();
        let answer = within(sender.send_request(request)).await.unwrap();
        assert_eq!(
            answer.status(),
            StatusCode::SWITCHING_PROTOCOLS,
            "{}",
            server.log()
        );
        assert_eq!(answer.headers()["x-nearpath-path"], wanted, "{transport}");
        let mut io = TokioIo::new(within(hyper::upgrade::on(answer)).await.unwrap());
        for word in [b"ping", b"pong"] {
            let mut echo = [0; 4];
            io.write_all(word).await.unwrap();
            within(io.read_exact(&mut echo)).await.unwrap();
            assert_eq!(&echo, word);
        }
    }
}

#[tokio::test]
async fn certificates_are_renewed_under_load_without_a_lost_call() {
    need_root!();
    let folder = tempfile::tempdir().unwrap();
    // Certificates are renewed after two thirds of their lifetime. The issuer has a low priority:
    // on a busy machine it needs seconds.
    let server = TestServer::start_in(folder.path(), &["--certificate-lifetime", "12s"]).await;
    for transport in ["tls13", "tls12"] {
        server
            .deploy_ready(&path_over(
                transport,
                folder.path(),
                transport,
                "self.answer(200, b'done')",
            ))
            .await;
        let outcome = open_loop(
            server.addr,
            &format!("/function/{transport}"),
            30,
            Duration::from_secs(13),
        )
        .await;
        assert!(
            outcome.failures.is_empty(),
            "{:?}\n{}",
            outcome.failures,
            server.log()
        );
        let answer = send_traced(&server, Method::GET, &format!("/function/{transport}"), "").await;
        assert_eq!(path_of(&answer), TLS_PATH, "{}", server.log());
    }
}

/// The transport belongs to an instance, not to the newest deployment: old instances are called as
/// before until they end.
#[tokio::test]
async fn another_transport_takes_over_without_a_lost_call() {
    need_root!();
    let server = TestServer::start().await;
    let answering = |word: &str, transport| {
        path_over(
            transport,
            &server.data_dir,
            "fn",
            &format!("self.answer(200, b'{word}')"),
        )
    };
    server.deploy_ready(&answering("tls13", "tls13")).await;
    let load = open_loop(server.addr, "/function/fn", 50, Duration::from_secs(10));
    let updates = async {
        for transport in ["tcp", "tls12", "quic", "auto", "tls13"] {
            let answer = server
                .send_request(
                    Method::PUT,
                    "/system/functions",
                    answering(transport, transport).to_string(),
                )
                .await;
            assert!(answer.status().is_success());
            eventually(transport, async || {
                server.call_function("fn", "").await.body() == transport
            })
            .await;
        }
    };
    let (outcome, ()) = tokio::join!(load, updates);
    assert_eq!(outcome.failures, Vec::<String>::new(), "{}", server.log());
}
