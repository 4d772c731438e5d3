//! CoAP end to end, with libcoap's client, and with hostile datagrams.

use std::net::SocketAddr;
use std::process::Stdio;

use nearpath_testkit::{eventually, free_addr, skip, within};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::UdpSocket;
use tokio::process::Command;

use crate::test_server::{TestServer, echo_function, http_function};

const COAP_CLIENT: &str = "coap-client-notls";

macro_rules! need_client {
    () => {
        nearpath_testkit::need_root!();
        if std::process::Command::new(COAP_CLIENT)
            .stderr(Stdio::null())
            .output()
            .is_err()
        {
            skip!("libcoap's client is missing: apt-get install libcoap3-bin");
        }
    };
}

struct CoapFixture {
    server: TestServer,
    coap: SocketAddr,
    folder: tempfile::TempDir,
}

impl CoapFixture {
    async fn start(functions: &[Value], options: &[&str]) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("nearpath-test-")
            .tempdir()
            .unwrap();
        let (coap, log) = (free_addr(), folder.path().join("access.log"));
        let listen = coap.to_string();
        let all = [
            &[
                "--coap-listen",
                &listen,
                "--access-log",
                log.to_str().unwrap(),
            ],
            options,
        ]
        .concat();
        let server = TestServer::start_in(&folder.path().join("data"), &all).await;
        for spec in functions {
            server.deploy_ready(spec).await;
        }
        Self {
            server,
            coap,
            folder,
        }
    }

    fn client_command(&self, path: &str, arguments: &[&str]) -> Command {
        let mut client = Command::new(COAP_CLIENT);
        client
            .args(arguments)
            .arg(format!("coap://{}{path}", self.coap))
            .current_dir(self.folder.path());
        client
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        client
    }

    /// Output and errors of the client.
    async fn send_request(&self, path: &str, arguments: &[&str]) -> (String, String) {
        let reply = within(
            self.client_command(path, &[&["-B", "20"], arguments].concat())
                .output(),
        )
        .await
        .unwrap();
        (
            String::from_utf8_lossy(&reply.stdout).into_owned(),
            String::from_utf8_lossy(&reply.stderr).into_owned(),
        )
    }

    /// Completion records of requests through the adapter.
    fn access_log(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.folder.path().join("access.log")).unwrap();
        let lines = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines
            .filter(|line| line["protocol"].as_str().unwrap().starts_with("CoAP"))
            .collect()
    }
}

#[tokio::test]
async fn a_request_is_a_call() {
    need_client!();
    let folder = tempfile::tempdir().unwrap();
    let show = "status = int(self.path[1:4]) if self.path[1:4].isdigit() else 200; kinds = (self.headers['Content-Type'], self.headers['X-Coap-Method'])
self.answer(status, ('%s %s %s %s ' % (self.command, self.path, *kinds)).encode() + body)";
    let fixture = CoapFixture::start(&[http_function(folder.path(), "show", show)], &[]).await;
    for (path, arguments, answer, complaint) in [
        (
            "/function/show/a%20b?x=1&y=%26",
            "-m get",
            "GET /a%20b?x=1&y=%26 None None ",
            "",
        ),
        (
            "/function/show",
            "-m post -e hi -t 50",
            "POST / application/json None hi",
            "",
        ),
        (
            "/function/show",
            "-N -m post -e hi",
            "POST / None None hi",
            "",
        ),
        (
            "/function/show",
            "-m fetch -e hi -t 0",
            "POST / text/plain; charset=utf-8 FETCH hi",
            "",
        ),
        ("/function/show/404", "-m get", "", "4.04"),
        ("/function/show/503", "-m get", "", "5.03"),
        ("/function/missing", "-m get", "", "4.04"),
        ("/elsewhere", "-m get", "", "4.04"),
        ("/function/show", "-m get -O 31,x", "", "4.02"),
        ("/function/show", "-m get -O 35,coap://other/", "", "5.05"),
        ("/function/show", "-m post -e hi -t 9999", "", "4.15"),
        (
            "/.well-known/core",
            "-m get",
            "</function/show.openfaas-fn>",
            "",
        ),
    ] {
        let (reply, wrong) = fixture
            .send_request(path, &arguments.split(' ').collect::<Vec<_>>())
            .await;
        let fits = if complaint.is_empty() {
            reply.trim_end_matches('\n') == answer
        } else {
            (reply + &wrong).contains(complaint)
        };
        assert!(
            fits,
            "{path} {arguments}: {wrong}\n{}",
            fixture.server.log()
        );
    }
    eventually("one record a call", async || {
        fixture.access_log().len() == 6
    })
    .await;
    assert!(
        fixture
            .access_log()
            .iter()
            .all(|line| line["protocol"] == json!("CoAP"))
    );
}

#[tokio::test]
async fn large_bodies_go_in_blocks() {
    need_client!();
    let folder = tempfile::tempdir().unwrap();
    let fixture = CoapFixture::start(&[echo_function(folder.path(), "echo")], &[]).await;
    let body: String = (0..3_000).map(|number| format!("{number},")).collect();
    std::fs::write(fixture.folder.path().join("body"), &body).unwrap();
    for arguments in [
        &["-m", "post", "-f", "body"][..],
        &["-m", "post", "-b", "64", "-f", "body"],
    ] {
        let (reply, wrong) = fixture
            .send_request("/function/echo", &[arguments, &["-o", "back"]].concat())
            .await;
        let back = std::fs::read_to_string(fixture.folder.path().join("back")).unwrap_or_default();
        assert!(
            back == body,
            "{} of {} bytes: {reply} {wrong}\n{}",
            back.len(),
            body.len(),
            fixture.server.log()
        );
        std::fs::remove_file(fixture.folder.path().join("back")).unwrap();
    }
    eventually("one record a call", async || {
        fixture.access_log().len() == 2
    })
    .await;
    assert!(
        fixture
            .access_log()
            .iter()
            .all(|line| line["bytes_in"] == json!(body.len())),
        "{:?}",
        fixture.access_log()
    );
}

#[tokio::test]
async fn an_observer_is_notified_of_changes() {
    need_client!();
    let folder = tempfile::tempdir().unwrap();
    let count = "Handler.n = getattr(Handler, 'n', 0) + (self.command == 'POST'); self.answer(200, b'state %d\\n' % Handler.n)";
    let fixture = CoapFixture::start(
        &[http_function(folder.path(), "count", count)],
        &["--coap-observe-interval", "200ms"],
    )
    .await;
    let mut observer = fixture
        .client_command("/function/count", &["-m", "get", "-s", "20", "-w"])
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(observer.stdout.take().unwrap()).lines();
    let mut next = async || loop {
        let line = within(lines.next_line())
            .await
            .unwrap()
            .expect("the observer goes on");
        if !line.is_empty() {
            return line;
        }
    };
    assert_eq!(next().await, "state 0");
    fixture
        .send_request("/function/count", &["-m", "post", "-e", "x"])
        .await;
    assert_eq!(next().await, "state 1", "over CoAP: at once");
    fixture.server.call_function("count", "x").await;
    assert_eq!(next().await, "state 2", "over HTTP: with the next interval");
}

#[tokio::test]
async fn hostile_datagrams_are_survived() {
    need_client!();
    let folder = tempfile::tempdir().unwrap();
    let fixture = CoapFixture::start(&[echo_function(folder.path(), "echo")], &[]).await;
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut answer = [0; 2_048];
    for (datagram, report) in [
        (
            &b"\x40\x01\x00\x01\xee\xff\xff\xff\xff"[..],
            &b"\x70\x00\x00\x01"[..],
        ), // options beyond the number's range
        (b"\x49\x01\x00\x02", b"\x70\x00\x00\x02"), // a token of nine bytes
        (b"\x40\x00\x00\x03", b"\x70\x00\x00\x03"), // a ping
        (b"\x40\x45\x00\x04", b"\x70\x00\x00\x04"), // a response without a request
        (b"\x40\x1f\x00\x05", b"\x60\x85\x00\x05"), // no such method
    ] {
        socket.send_to(datagram, fixture.coap).await.unwrap();
        let (length, _) = within(socket.recv_from(&mut answer)).await.unwrap();
        assert_eq!(&answer[..length], report, "{datagram:?}");
    }
    for silent in [
        &b""[..],
        b"\x40",
        b"\xc0\x01\x00\x01",
        b"\x50\x00\x00\x01",
        &[0x50; 4_000],
    ] {
        socket.send_to(silent, fixture.coap).await.unwrap();
    }
    let request = b"\x41\x02\x00\x09t\xb8function\x04echo\xffonce";
    for _ in 0..3 {
        socket.send_to(request, fixture.coap).await.unwrap();
    }
    let (length, _) = within(socket.recv_from(&mut answer)).await.unwrap();
    assert!(
        answer[..length].starts_with(b"\x61\x44\x00\x09t") && answer[..length].ends_with(b"once")
    );
    let (reply, wrong) = fixture
        .send_request("/function/echo", &["-m", "post", "-e", "honest"])
        .await;
    assert_eq!(reply.trim_end(), "honest", "{wrong}");
    eventually("two calls", async || fixture.access_log().len() == 2).await;
}
