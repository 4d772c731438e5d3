//! MQTT end to end, with mosquitto's clients, and with hostile bytes.

use std::net::SocketAddr;
use std::process::{Output, Stdio};

use nearpath_testkit::{eventually, free_addr, skip, within};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::test_server::{TestServer, echo_function, http_function};

macro_rules! need_clients {
    () => {
        nearpath_testkit::need_root!();
        if std::process::Command::new("mosquitto_rr")
            .arg("--help")
            .output()
            .is_err()
        {
            skip!("mosquitto's clients are missing: apt-get install mosquitto-clients");
        }
    };
}

struct MqttFixture {
    server: TestServer,
    mqtt: SocketAddr,
    _folder: tempfile::TempDir,
}

impl MqttFixture {
    async fn start(functions: &[Value], options: &[&str]) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("nearpath-test-")
            .tempdir()
            .unwrap();
        let (mqtt, log) = (free_addr(), folder.path().join("access.log"));
        let listen = mqtt.to_string();
        let all = [
            &[
                "--mqtt-listen",
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
            mqtt,
            _folder: folder,
        }
    }

    fn client_command(&self, program: &str, arguments: &[&str]) -> Command {
        // unbuffered: a pipe would get all lines at the end
        let mut client = Command::new("stdbuf");
        client
            .args([
                "-oL",
                program,
                "-h",
                "127.0.0.1",
                "-p",
                &self.mqtt.port().to_string(),
            ])
            .args(arguments);
        client
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        client
    }

    async fn run_client(&self, program: &str, arguments: &[&str]) -> Output {
        within(self.client_command(program, arguments).output())
            .await
            .unwrap()
    }

    async fn publish(&self, arguments: &[&str]) -> String {
        let reply = self.run_client("mosquitto_pub", arguments).await;
        assert!(reply.status.success(), "{reply:?}\n{}", self.server.log());
        String::from_utf8(reply.stderr).unwrap()
    }

    /// Completion records of requests through the adapter.
    fn access_log(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self._folder.path().join("access.log")).unwrap();
        let lines = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines
            .filter(|line| line["protocol"].as_str().unwrap().starts_with("MQTT"))
            .collect()
    }

    async fn metrics(&self) -> String {
        let mut stream = TcpStream::connect(self.server.admin).await.unwrap();
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut text = String::new();
        within(stream.read_to_string(&mut text)).await.unwrap();
        text
    }

    /// Opens a connection of MQTT 5 (or 3.1.1) that was accepted.
    async fn connect_raw(&self, five: bool) -> TcpStream {
        let mut stream = TcpStream::connect(self.mqtt).await.unwrap();
        let connect: &[u8] = match five {
            true => b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01r",
            false => b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01r",
        };
        stream.write_all(connect).await.unwrap();
        let packet = read_packet(&mut stream).await;
        assert_eq!((packet[0], packet[3]), (0x20, 0), "welcome: {packet:?}");
        stream
    }
}

/// Reads the next packet, with a length below 128; empty: the connection is closed.
async fn read_packet(stream: &mut TcpStream) -> Vec<u8> {
    let mut head = [0; 2];
    if within(stream.read_exact(&mut head)).await.is_err() {
        return Vec::new();
    }
    let mut packet = [&head[..], &vec![0; usize::from(head[1])]].concat();
    within(stream.read_exact(&mut packet[2..])).await.unwrap();
    packet
}

/// A PUBLISH packet of MQTT 3.1.1, with QoS 1 if it has a number.
fn publish_packet(topic: &str, number: Option<u8>) -> Vec<u8> {
    let mut rest = [&[0, topic.len() as u8], topic.as_bytes()].concat();
    rest.extend(number.into_iter().flat_map(|number| [0, number]));
    rest.push(b'x');
    [
        &[
            0x30 | if number.is_some() { 2 } else { 0 },
            rest.len() as u8,
        ],
        &rest[..],
    ]
    .concat()
}

#[tokio::test]
#[expect(
    clippy::too_many_lines,
    reason = "a table of cases, or one conversation from begin to end"
)]
async fn a_message_is_a_call_and_its_answer_a_message() {
    need_clients!();
    let folder = tempfile::tempdir().unwrap();
    let shout = "self.answer(200, f\"{self.path} {self.headers['X-Topic']} {self.headers['Content-Type']} \".encode() + body)";
    let mut shout = http_function(folder.path(), "shout", shout);
    shout["annotations"] = json!({ "topic": "vm/+/on, other" });
    let fixture = MqttFixture::start(&[echo_function(folder.path(), "echo"), shout], &[]).await;

    let rr = [
        "-V",
        "5",
        "-q",
        "1",
        "-t",
        "functions/echo",
        "-e",
        "answers/7",
        "-m",
        "hello",
        "-W",
        "20",
    ];
    let reply = fixture.run_client("mosquitto_rr", &rr).await;
    assert_eq!(
        String::from_utf8_lossy(&reply.stdout),
        "hello\n",
        "{reply:?}\n{}",
        fixture.server.log()
    );

    for version in ["mqttv311", "mqttv5"] {
        let subscribe = [
            "-V",
            version,
            "-q",
            "1",
            "-t",
            "functions/+/result",
            "-F",
            "%t %p",
            "-C",
            "3",
            "-W",
            "20",
            "-d",
        ];
        let mut subscriber = fixture
            .client_command("mosquitto_sub", &subscribe)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(subscriber.stdout.take().unwrap()).lines();
        while !within(lines.next_line())
            .await
            .unwrap()
            .expect("it subscribes")
            .starts_with("Subscribed")
        {}
        fixture
            .publish(&[
                "-V",
                version,
                "-q",
                "1",
                "-t",
                "functions/shout/a/b",
                "-m",
                "one",
            ])
            .await;
        fixture
            .publish(&["-V", version, "-q", "1", "-t", "vm/1/on", "-m", "two"])
            .await;
        fixture
            .publish(&[
                "-V",
                version,
                "-q",
                "0",
                "-t",
                "functions/echo",
                "-m",
                "three",
            ])
            .await;
        let mut results = Vec::new();
        while let Some(line) = within(lines.next_line()).await.unwrap() {
            results.extend(line.starts_with("functions/").then_some(line));
        }
        assert_eq!(
            results,
            [
                "functions/shout/result /a/b functions/shout/a/b None one",
                "functions/shout/result / vm/1/on None two",
                "functions/echo/result three",
            ]
        );
    }
    let typed = [
        "-V",
        "5",
        "-q",
        "1",
        "-t",
        "other",
        "-m",
        "x",
        "-D",
        "publish",
        "content-type",
        "application/json",
    ];
    fixture.publish(&typed).await;
    eventually("one record a call", async || {
        fixture.access_log().len() == 8
    })
    .await;
    let records: Vec<_> = fixture
        .access_log()
        .iter()
        .map(|line| (line["protocol"].clone(), line["status"].clone()))
        .collect();
    assert_eq!(
        records
            .iter()
            .filter(|one| **one == (json!("MQTT/5"), json!(200)))
            .count(),
        5
    );
    assert_eq!(
        records
            .iter()
            .filter(|one| **one == (json!("MQTT/3.1.1"), json!(200)))
            .count(),
        3
    );
    let metrics = fixture.metrics().await;
    assert!(
        metrics.contains("nearpath_mqtt_messages_total 8")
            && metrics.contains("nearpath_mqtt_sent_total 7"),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_failed_call_is_reported_in_version_5_and_not_acknowledged_in_3() {
    need_clients!();
    let folder = tempfile::tempdir().unwrap();
    let fixture = MqttFixture::start(
        &[http_function(
            folder.path(),
            "fail",
            "self.answer(int(body or b'500'), b'')",
        )],
        &[],
    )
    .await;
    let report = fixture
        .publish(&["-V", "5", "-q", "1", "-t", "functions/fail", "-m", "500"])
        .await;
    assert!(report.contains("Publish 1 failed"), "{report}");
    fixture
        .publish(&[
            "-V",
            "mqttv311",
            "-q",
            "1",
            "-t",
            "functions/missing",
            "-m",
            "x",
        ])
        .await; // acknowledged although no function has that name
    let mut stream = fixture.connect_raw(false).await;
    let mut publication = publish_packet("functions/fail", Some(9));
    publication.pop(); // no payload: 500
    publication[1] -= 1;
    stream.write_all(&publication).await.unwrap();
    eventually("the call's end", async || fixture.access_log().len() == 2).await;
    stream.write_all(&[0xc0, 0]).await.unwrap();
    assert_eq!(
        read_packet(&mut stream).await,
        [0xd0, 0],
        "the ping is answered, the message before it is not"
    );
}

#[tokio::test]
async fn hostile_clients_are_bounded() {
    need_clients!();
    let folder = tempfile::tempdir().unwrap();
    let fixture = MqttFixture::start(&[echo_function(folder.path(), "echo")], &[]).await;
    for (bytes, end) in [
        (b"\x30\xff\xff\xff\x7f".to_vec(), 0x95), // 256 MiB announced
        (b"\x34\x06\x00\x01a\x00\x01\x00".to_vec(), 0x9b), // QoS 2
        (b"\x31\x04\x00\x01a\x00".to_vec(), 0x9a), // with the retain flag
        (b"\x30\x07\x00\x01a\x03\x23\x00\x01".to_vec(), 0x94), // a topic alias
        (
            b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01r".to_vec(),
            0x82,
        ), // a second CONNECT
        (b"\x20\x00".to_vec(), 0x81),
        (b"\x30\x02\x00\x09".to_vec(), 0x81),
    ] {
        let mut stream = fixture.connect_raw(true).await;
        stream.write_all(&bytes).await.unwrap();
        let report = read_packet(&mut stream).await;
        assert_eq!((report[0], report[2]), (0xe0, end), "{bytes:?}: {report:?}");
        assert!(read_packet(&mut stream).await.is_empty(), "it is closed");
    }
    let mut greedy = fixture.connect_raw(false).await;
    for number in 0..70u8 {
        let filter = format!("a{number:02}/+/#");
        let rest = [&[0, 1, 0, filter.len() as u8], filter.as_bytes(), &[0]].concat();
        greedy
            .write_all(&[&[0x82, rest.len() as u8], &rest[..]].concat())
            .await
            .unwrap();
        let granted = if number < 64 { 0 } else { 0x80 };
        assert_eq!(
            read_packet(&mut greedy).await,
            [0x90, 3, 0, 1, granted],
            "subscription {number}"
        );
    }
    let mut silent = TcpStream::connect(fixture.mqtt).await.unwrap();
    silent.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    assert!(
        read_packet(&mut silent).await.is_empty(),
        "not MQTT: closed without a word"
    );
    fixture
        .publish(&["-t", "functions/echo", "-q", "1", "-m", "honest"])
        .await;
    let metrics = fixture.metrics().await;
    assert!(
        metrics.contains("nearpath_mqtt_ended_total{reason=\"packet_too_large\"} 1"),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_lost_client_leaves_its_last_will_and_its_name() {
    need_clients!();
    let folder = tempfile::tempdir().unwrap();
    let fixture = MqttFixture::start(&[echo_function(folder.path(), "echo")], &[]).await;
    let with_will = b"\x10\x1f\x00\x04MQTT\x04\x06\x00\x00\x00\x01w\x00\x0efunctions/echo\x00\x00";
    let mut lost = TcpStream::connect(fixture.mqtt).await.unwrap();
    lost.write_all(with_will).await.unwrap();
    assert_eq!(read_packet(&mut lost).await, [0x20, 2, 0, 0]);
    let mut first = fixture.connect_raw(true).await;
    let _second = fixture.connect_raw(true).await;
    assert_eq!(read_packet(&mut first).await[2], 0x8e, "taken over");
    assert!(fixture.access_log().is_empty());
    drop(lost);
    eventually("the call that the will makes", async || {
        fixture.access_log().len() == 1
    })
    .await;
}

#[tokio::test]
async fn a_drain_notifies_clients_and_answers_what_is_in_flight() {
    need_clients!();
    let folder = tempfile::tempdir().unwrap();
    let slow = http_function(
        folder.path(),
        "slow",
        "time.sleep(1); self.answer(200, b'')",
    );
    let mut fixture = MqttFixture::start(&[slow], &[]).await;
    let mut stream = fixture.connect_raw(true).await;
    let topic = b"functions/slow";
    let rest = [&[0, topic.len() as u8], &topic[..], &[0, 5, 0, b'x']].concat();
    stream
        .write_all(&[&[0x32, rest.len() as u8], &rest[..]].concat())
        .await
        .unwrap();
    let started = "gateway_function_invocation_started{function_name=\"slow.openfaas-fn\"} 1";
    eventually("the call", async || {
        fixture.metrics().await.contains(started)
    })
    .await;
    let ended = tokio::task::spawn_blocking(move || {
        let status = fixture.server.end_with(rustix::process::Signal::TERM);
        (fixture, status)
    });
    assert_eq!(
        read_packet(&mut stream).await[..4],
        [0x40, 2, 0, 5],
        "acknowledged"
    );
    assert_eq!(
        read_packet(&mut stream).await[2],
        0x8b,
        "told that the server shuts down"
    );
    let (fixture, status) = within(ended).await.unwrap();
    assert!(status.success(), "{}", fixture.server.log());
}
