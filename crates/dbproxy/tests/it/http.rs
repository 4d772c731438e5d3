//! HTTP/1.1: its clients and its edge cases.

use std::time::Duration;

use nearpath_types::egress::{EgressProtocol, EgressSpec};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::clients::{python, run_program, run_script};
use crate::fixture::{AdapterFixture, default_egress, run_local};
use crate::redis::need;
use crate::scripted_server::ScriptedServer;
use crate::server;

async fn open_fixture(at: std::net::SocketAddr) -> AdapterFixture {
    AdapterFixture::open(default_egress(EgressProtocol::Http, at), &[]).await
}

/// Sends `text` and returns all replies until the server closes.
async fn exchange(at: std::net::SocketAddr, text: &str) -> String {
    let mut client = TcpStream::connect(at).await.unwrap();
    client.write_all(text.as_bytes()).await.unwrap();
    let mut received = Vec::new();
    // A response that ends early may end in a reset.
    let _ = client.read_to_end(&mut received).await;
    String::from_utf8(received).unwrap()
}

fn get_request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: who.ever:81\r\nConnection: close\r\n\r\n")
}

const PYTHON_SCRIPT: &str = r#"
import sys, requests, http.client
base = f"http://{sys.argv[1]}:{sys.argv[2]}"
s = requests.Session()
for ask in (s, requests):
    for i in range(5):
        r = ask.get(f"{base}/say/{i}", headers={"X-Mine": f"v{i}", "Host": "api.example"})
        assert r.status_code == 200 and r.text.startswith(f"GET /say/{i} api.example") and f"v{i}" in r.text, r.text
    assert len(ask.get(base + "/big").content) == 1_000_000
    r = ask.head(base + "/big"); assert r.headers["Content-Length"] == "1000000" and r.content == b""
    assert ask.get(base + "/none").status_code == 204 and ask.get(base + "/same").status_code == 304
    assert ask.get(base + "/nowhere").status_code == 404
    assert ask.put(base + "/put/a", data=b"y" * 300_000).status_code in (201, 204)
    assert ask.put(base + "/put/b", data=(b"z" * 1000 for _ in range(50))).status_code in (201, 204)
    assert ask.get(base + "/put/b").text == "z" * 50_000
    r = ask.get(base + "/big", stream=True); r.raw.read(10); r.close()
c = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]))
c.request("GET", "/say/c"); assert c.getresponse().read().startswith(b"GET /say/c")
print("good")
"#;

const NODE_SCRIPT: &str = r#"
const http = require('http');
const [host, port] = process.argv.slice(2);
const ask = (agent, path) => new Promise((good, bad) => http.get({host, port, path, agent}, r => {
  let all = ''; r.on('data', d => all += d); r.on('end', () => good(all)); r.on('error', bad) }).on('error', bad));
(async () => {
  for (const agent of [new http.Agent({keepAlive: true}), new http.Agent()]) {
    const all = await Promise.all([...Array(20).keys()].map(i => ask(agent, '/say/' + i)));
    all.forEach((text, i) => { if (!text.startsWith('GET /say/' + i + ' ')) throw text });
    if ((await ask(agent, '/big')).length != 1000000) throw 'short';
    agent.destroy();
  }
  console.log('good');
})();
"#;

#[test]
fn programs_run_unmodified_and_twice() {
    run_local(async {
        let server = need!(server::start_nginx(75).await, "nginx");
        let python = need!(python().await, "Python with requests");
        let fixture = open_fixture(server.at).await;
        let (host, port) = (fixture.at.ip().to_string(), fixture.at.port().to_string());
        for _ in 0..2 {
            assert_eq!(
                run_script(python, PYTHON_SCRIPT, fixture.at).await,
                "good\n"
            );
            let base = format!("http://{}/", fixture.at);
            let upload = server.folder.path().join("big");
            for arguments in [
                vec!["-sf".into(), format!("{base}say/curl")],
                vec![
                    "-sf".into(),
                    "-T".into(),
                    upload.display().to_string(),
                    format!("{base}put/c"),
                ],
                vec!["-sfI".into(), format!("{base}big")],
            ] {
                run_program(Command::new("curl").args(arguments), "").await;
            }
            if Command::new("node").arg("-v").output().await.is_ok() {
                let received =
                    run_program(Command::new("node").args(["-", &host, &port]), NODE_SCRIPT).await;
                assert_eq!(received, "good\n");
            }
        }
        assert!(fixture.backends.max_open() <= 20);
    });
}

#[test]
fn clients_one_after_the_other_share_a_connection() {
    run_local(async {
        let server = need!(server::start_nginx(75).await, "nginx");
        let fixture = open_fixture(server.at).await;
        for turn in 1..=10 {
            let received = exchange(fixture.at, &get_request("/count")).await;
            assert!(received.ends_with(&format!(" {turn}\n")), "{received}");
            fixture.wait_served(turn).await;
        }
        assert_eq!(fixture.backends.opened(), 1);
        let received = exchange(fixture.at, &get_request("/say/x")).await;
        assert!(
            received.ends_with("\r\nGET /say/x who.ever:81  \n"),
            "the host stays and `Connection` does not: {received}"
        );
    });
}

#[test]
fn a_server_that_hangs_up_or_restarts_costs_no_error() {
    run_local(async {
        let mut server = need!(server::start_nginx(1).await, "nginx");
        let fixture = open_fixture(server.at).await;
        assert!(
            exchange(fixture.at, &get_request("/count"))
                .await
                .contains(" 200 ")
        );
        server.stop().await;
        let received = exchange(fixture.at, &get_request("/count")).await;
        assert!(
            received.starts_with("HTTP/1.1 502") && received.contains("refused"),
            "{received}"
        );
        server.restart().await;
        assert!(
            exchange(fixture.at, &get_request("/count"))
                .await
                .contains(" 200 ")
        );
    });
}

#[test]
fn a_stale_connection_is_replaced_only_for_idempotent_requests() {
    for (method, expected) in [("GET", "200"), ("DELETE", "200"), ("POST", "502")] {
        run_local(async move {
            // The server answers once and closes after it has read the second request.
            let scripted = ScriptedServer::start(async |mut connection| {
                connection.read_head().await?;
                connection
                    .send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                    .await?;
                connection.read_head().await.map(drop)
            })
            .await;
            let fixture = open_fixture(scripted.at).await;
            exchange(fixture.at, &get_request("/")).await;
            fixture.wait_served(1).await;
            let received = exchange(
                fixture.at,
                &format!("{method} / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"),
            )
            .await;
            assert!(
                received.starts_with(&format!("HTTP/1.1 {expected}")),
                "{method}: {received}"
            );
            let again = scripted
                .heads
                .borrow()
                .iter()
                .filter(|head| head.starts_with(method))
                .count();
            assert_eq!(
                again,
                match method {
                    "GET" => 3,
                    "DELETE" => 2,
                    _ => 1,
                },
                "{method}"
            );
        });
    }
}

#[test]
fn a_new_connection_that_breaks_is_not_tried_again() {
    run_local(async {
        let scripted =
            ScriptedServer::start(async |mut connection| connection.read_head().await.map(drop))
                .await;
        let fixture = open_fixture(scripted.at).await;
        assert!(
            exchange(fixture.at, &get_request("/"))
                .await
                .starts_with("HTTP/1.1 502")
        );
        assert_eq!(scripted.connections.get(), 1);
    });
}

#[test]
fn a_response_that_breaks_off_breaks_off_for_the_client() {
    run_local(async {
        let scripted = ScriptedServer::start(async |mut connection| {
            connection.read_head().await?;
            connection
                .send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this")
                .await
        })
        .await;
        let fixture = open_fixture(scripted.at).await;
        let received = exchange(fixture.at, &get_request("/")).await;
        assert!(received.ends_with("only this"), "{received}");
        exchange(fixture.at, &get_request("/")).await;
        assert_eq!(
            scripted.connections.get(),
            2,
            "the broken one is not used again"
        );
    });
}

#[test]
fn a_client_that_leaves_mid_response_closes_its_connection() {
    run_local(async {
        let scripted = ScriptedServer::start(async |mut connection| {
            connection.read_head().await?;
            connection
                .send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
                .await?;
            if connection.number == 0 {
                // Wait for the client's end first: the rest would be the next client's.
                return connection.read_head().await.map(drop);
            }
            connection.send(" again").await?;
            connection.read_head().await.map(drop)
        })
        .await;
        let fixture = open_fixture(scripted.at).await;
        let mut client = TcpStream::connect(fixture.at).await.unwrap();
        client.write_all(get_request("/").as_bytes()).await.unwrap();
        let mut received = Vec::new();
        while !received.ends_with(b"half") {
            client.read_buf(&mut received).await.unwrap();
        }
        drop(client);
        assert!(
            exchange(fixture.at, &get_request("/"))
                .await
                .ends_with("half again")
        );
        assert_eq!(scripted.connections.get(), 2);
    });
}

#[test]
fn the_body_waits_until_the_destination_asks_for_it() {
    run_local(async {
        let scripted = ScriptedServer::start(async |mut connection| {
            loop {
                let head = connection.read_head().await?;
                if head.starts_with("PUT /refused") {
                    connection
                        .send("HTTP/1.1 417 No\r\nContent-Length: 2\r\n\r\nno")
                        .await?;
                } else {
                    connection.send("HTTP/1.1 100 Continue\r\n\r\n").await?;
                    let body = connection.read_body(5).await?;
                    connection
                        .send(&format!(
                            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{}",
                            String::from_utf8_lossy(&body)
                        ))
                        .await?;
                }
            }
        })
        .await;
        let fixture = open_fixture(scripted.at).await;
        let head = |path| {
            format!(
                "PUT {path} HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
            )
        };
        let refused = exchange(fixture.at, &head("/refused")).await;
        assert!(
            refused.starts_with("HTTP/1.1 417") && refused.ends_with("no"),
            "{refused}"
        );
        let mut client = TcpStream::connect(fixture.at).await.unwrap();
        client.write_all(head("/taken").as_bytes()).await.unwrap();
        let mut received = [0; 25];
        client.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"HTTP/1.1 100 Continue\r\n\r\n");
        client.write_all(b"hello").await.unwrap();
        let mut rest = String::new();
        client.read_to_string(&mut rest).await.unwrap();
        assert!(
            rest.starts_with("HTTP/1.1 200") && rest.ends_with("hello"),
            "{rest}"
        );
        assert_eq!(
            scripted.connections.get(),
            2,
            "a connection whose body never came does not serve again"
        );
    });
}

#[test]
fn an_upgraded_connection_belongs_to_its_client() {
    run_local(async {
        let scripted = ScriptedServer::start(async |mut connection| {
            connection.read_head().await?;
            connection.send(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n",
            )
            .await?;
            let received = connection.read_body(4).await?;
            connection.send(&String::from_utf8_lossy(&received)).await
        })
        .await;
        let fixture = open_fixture(scripted.at).await;
        for turn in 1..=2 {
            let received = exchange(
                fixture.at,
                "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nping",
            )
            .await;
            assert!(
                received.starts_with("HTTP/1.1 101") && received.ends_with("ping"),
                "{received}"
            );
            assert_eq!(scripted.connections.get(), turn);
        }
        assert_eq!(fixture.pin_reasons(), ["Upgrade"]);
        assert!(
            scripted.heads.borrow()[0]
                .to_lowercase()
                .contains("upgrade: echo")
        );
    });
}

#[test]
fn trailers_reach_clients_that_ask_for_them() {
    run_local(async {
        let scripted = ScriptedServer::start(async |mut connection| {
            while connection.read_head().await.is_some() {
                connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 7\r\n\r\n").await?;
            }
            Some(())
        })
        .await;
        let fixture = open_fixture(scripted.at).await;
        let received = exchange(
            fixture.at,
            "GET / HTTP/1.1\r\nHost: h\r\nTE: trailers\r\nConnection: TE, close\r\n\r\n",
        )
        .await;
        assert!(
            received.to_lowercase().contains("x-sum: 7\r\n"),
            "{received}"
        );
        assert!(exchange(fixture.at, &get_request("/")).await.contains("ok"));
        assert_eq!(scripted.connections.get(), 1);
    });
}

#[test]
fn a_connection_bound_login_keeps_its_connection() {
    run_local(async {
        let scripted = ScriptedServer::start(async |mut connection| {
            loop {
                let head = connection.read_head().await?;
                let number = connection.number;
                let challenge = if head.contains("NTLM") {
                    ""
                } else {
                    "WWW-Authenticate: NTLM\r\n"
                };
                connection
                    .send(&format!(
                        "HTTP/1.1 200 OK\r\n{challenge}Content-Length: 1\r\n\r\n{number}"
                    ))
                    .await?;
            }
        })
        .await;
        let fixture = open_fixture(scripted.at).await;
        let mut client = TcpStream::connect(fixture.at).await.unwrap();
        for text in [
            "GET / HTTP/1.1\r\nHost: h\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\nAuthorization: NTLM abc\r\n\r\n",
        ] {
            client.write_all(text.as_bytes()).await.unwrap();
            let mut received = Vec::new();
            while !received.ends_with(b"\r\n\r\n0") {
                client.read_buf(&mut received).await.unwrap();
            }
        }
        assert!(
            exchange(fixture.at, &get_request("/")).await.ends_with('1'),
            "another client gets another connection"
        );
        assert_eq!(fixture.pin_reasons(), ["a login to the connection"]);
    });
}

#[test]
fn a_client_that_waits_too_long_gets_the_setting_to_change() {
    run_local(async {
        let scripted = ScriptedServer::start(async |mut connection| {
            connection.read_head().await?;
            connection.read_head().await.map(drop)
        })
        .await;
        let limits = EgressSpec {
            max: 1,
            wait: Duration::from_millis(100),
            ..default_egress(EgressProtocol::Http, scripted.at)
        };
        let fixture = AdapterFixture::open(limits, &[]).await;
        let mut holder = TcpStream::connect(fixture.at).await.unwrap();
        holder.write_all(get_request("/").as_bytes()).await.unwrap();
        nearpath_testkit::eventually("the place is taken", async || {
            scripted.heads.borrow().len() == 1
        })
        .await;
        let received = exchange(fixture.at, &get_request("/")).await;
        assert!(
            received.starts_with("HTTP/1.1 503") && received.contains("max="),
            "{received}"
        );
        drop(holder);
        fixture.wait_served(2).await;
        nearpath_testkit::eventually("its place is free", async || {
            tokio::time::timeout(
                Duration::from_millis(50),
                exchange(fixture.at, &get_request("/")),
            )
            .await
            .is_err()
        })
        .await;
    });
}

#[test]
fn many_clients_share_few_connections() {
    run_local(async {
        let server = need!(server::start_nginx(75).await, "nginx");
        let fixture = AdapterFixture::open(
            EgressSpec {
                max: 4,
                ..default_egress(EgressProtocol::Http, server.at)
            },
            &[],
        )
        .await;
        let clients = (0..60).map(|at| {
            let to = fixture.at;
            tokio::task::spawn_local(async move {
                let received = exchange(to, &get_request(&format!("/say/{at}"))).await;
                assert!(
                    received.contains(&format!("GET /say/{at} who")),
                    "{received}"
                );
            })
        });
        for client in clients.collect::<Vec<_>>() {
            client.await.unwrap();
        }
        assert!(
            fixture.backends.max_open() <= 4 && fixture.backends.opened() <= 8,
            "{} opened",
            fixture.backends.opened()
        );
    });
}
