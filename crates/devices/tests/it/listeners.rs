//! The listeners behind a real gateway: admission, timeouts, and forged addresses. Real clients are
//! in the system tests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nearpath_devices::{
    CoapLimits, CoapListener, Devices, MqttLimits, MqttListener, PasswordCheck, PasswordVerdict,
};
use nearpath_testkit::within;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use crate::fixture::{GatewayFixture, echo_instance, instance_answering};

fn with_mqtt(limits: MqttLimits, password: Option<&'static [u8]>) -> (GatewayFixture, SocketAddr) {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = socket.local_addr().unwrap();
    let password_check = password.map(|right| -> PasswordCheck {
        Arc::new(move |_, user: &str, password: &[u8]| match password {
            b"locked" => PasswordVerdict::LockedOut,
            _ if user == "admin" && password == right => PasswordVerdict::Right,
            _ => PasswordVerdict::Wrong,
        })
    });
    let mqtt = Some(MqttListener {
        socket,
        limits,
        password_check,
    });
    (GatewayFixture::start(Devices { mqtt, coap: None }), at)
}

fn with_coap(limits: CoapLimits) -> (GatewayFixture, SocketAddr) {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = socket.local_addr().unwrap();
    let coap = Some(CoapListener { socket, limits });
    (GatewayFixture::start(Devices { mqtt: None, coap }), at)
}

/// Sends bytes and reads one packet; returns nothing if the connection was closed.
async fn exchange(stream: &mut TcpStream, bytes: &[u8]) -> Vec<u8> {
    stream.write_all(bytes).await.unwrap();
    let mut head = [0; 2];
    if within(stream.read_exact(&mut head)).await.is_err() {
        return Vec::new();
    }
    let mut rest = vec![0; usize::from(head[1])];
    within(stream.read_exact(&mut rest)).await.unwrap();
    [&head[..], &rest].concat()
}

const CONNECT_ANONYMOUS: &[u8] = b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x01a";

fn connect_with_password(password: &[u8]) -> Vec<u8> {
    let head = b"\x00\x04MQTT\x05\xc2\x00\x3c\x00\x00\x01a\x00\x05admin\x00";
    [
        &[0x10, (head.len() + 1 + password.len()) as u8],
        &head[..],
        &[password.len() as u8],
        password,
    ]
    .concat()
}

#[tokio::test]
async fn a_password_is_required() {
    let (_gateway, at) = with_mqtt(MqttLimits::default(), Some(b"right"));
    for (connect, code) in [
        (CONNECT_ANONYMOUS.to_vec(), 0x86),
        (connect_with_password(b"wrong"), 0x86),
        (connect_with_password(b"locked"), 0x9f),
        (connect_with_password(b"right"), 0),
    ] {
        let mut stream = TcpStream::connect(at).await.unwrap();
        assert_eq!(exchange(&mut stream, &connect).await[3], code);
    }
    let old = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01a";
    assert_eq!(
        exchange(&mut TcpStream::connect(at).await.unwrap(), old).await,
        [0x20, 2, 0, 4]
    );
    let old_locked = b"\x10\x1c\x00\x04MQTT\x04\xc2\x00\x3c\x00\x01a\x00\x05admin\x00\x06locked";
    assert_eq!(
        exchange(&mut TcpStream::connect(at).await.unwrap(), old_locked).await,
        [0x20, 2, 0, 3]
    );
}

#[tokio::test]
async fn clients_are_limited() {
    let (_gateway, at) = with_mqtt(
        MqttLimits {
            max_clients: 1,
            ..MqttLimits::default()
        },
        None,
    );
    let mut first = TcpStream::connect(at).await.unwrap();
    assert_eq!(exchange(&mut first, CONNECT_ANONYMOUS).await[3], 0);
    assert_eq!(
        exchange(
            &mut TcpStream::connect(at).await.unwrap(),
            CONNECT_ANONYMOUS
        )
        .await[3],
        0x89
    );
    drop(first);
    nearpath_testkit::eventually("room again", async || {
        exchange(
            &mut TcpStream::connect(at).await.unwrap(),
            CONNECT_ANONYMOUS,
        )
        .await[3]
            == 0
    })
    .await;
}

#[tokio::test]
async fn a_silent_client_is_cut_off() {
    let (_gateway, at) = with_mqtt(
        MqttLimits {
            max_keep_alive: Duration::from_secs(1),
            ..MqttLimits::default()
        },
        None,
    );
    let mut stream = TcpStream::connect(at).await.unwrap();
    assert_eq!(exchange(&mut stream, CONNECT_ANONYMOUS).await[3], 0);
    assert_eq!(exchange(&mut stream, b"").await, [0xe0, 1, 0x8d]);
    let hasty = MqttLimits {
        io_timeout: Duration::from_millis(50),
        ..MqttLimits::default()
    };
    let (_gateway, at) = with_mqtt(hasty, None);
    assert!(
        exchange(&mut TcpStream::connect(at).await.unwrap(), b"\x10")
            .await
            .is_empty(),
        "it sends no CONNECT"
    );
}

#[tokio::test]
async fn a_protocol_without_listener_has_no_metrics() {
    let gateway = GatewayFixture::start(Devices::default());
    assert!(!gateway.metrics().contains("mqtt") && !gateway.metrics().contains("coap"));
    let (gateway, _) = with_coap(CoapLimits::default());
    assert!(
        !gateway.metrics().contains("mqtt")
            && gateway
                .metrics()
                .contains("nearpath_coap_datagrams_total 0")
    );
}

#[tokio::test]
async fn a_forged_address_gains_nothing() {
    let (gateway, at) = with_coap(CoapLimits {
        trust_loopback: false,
        ..CoapLimits::default()
    });
    gateway.publish_echo(instance_answering("x".repeat(10_000)).await);
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut answer = [0; 2_048];
    let request = b"\x40\x01\x00\x01\xb8function\x04echo";
    socket.send_to(request, at).await.unwrap();
    let (length, _) = within(socket.recv_from(&mut answer)).await.unwrap();
    assert!(
        length <= 3 * request.len(),
        "{length} for {}",
        request.len()
    );
    // The challenge is option 252 with eight bytes, the last option before the payload marker.
    let mark = answer[..length]
        .iter()
        .rposition(|byte| *byte == 0xff)
        .unwrap();
    let challenge = answer[mark - 8..mark].to_vec();
    let proven = [
        &b"\x40\x01\x00\x02\xb8function\x04echo\xd8\xe4"[..],
        &challenge,
    ]
    .concat();
    socket.send_to(&proven, at).await.unwrap();
    let (length, _) = within(socket.recv_from(&mut answer)).await.unwrap();
    assert!(length > 1_024, "a whole block: {length}");
    assert!(
        gateway
            .metrics()
            .contains("nearpath_coap_challenged_total 1")
    );
}

#[tokio::test]
async fn headers_of_a_coap_request() {
    let (gateway, at) = with_coap(CoapLimits::default());
    gateway.publish_echo(echo_instance().await);
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut answer = [0; 2_048];
    socket
        .send_to(b"\x40\x02\x00\x01\xb8function\x04echo\x02..\xff!", at)
        .await
        .unwrap();
    let (length, _) = within(socket.recv_from(&mut answer)).await.unwrap();
    assert_eq!(
        answer[..length],
        *b"\x60\x80\x00\x01",
        "dot segments are refused"
    );
    socket
        .send_to(b"\x40\x02\x00\x02\xb8function\x04echo\x01/\xff!", at)
        .await
        .unwrap();
    let (length, _) = within(socket.recv_from(&mut answer)).await.unwrap();
    let text = String::from_utf8_lossy(&answer[..length]).into_owned();
    for line in [
        "POST /%2F\n",
        "content-length: 1\n",
        "x-forwarded-proto: coap\n",
        "x-forwarded-for: 127.0.0.1\n",
        "x-call-id: ",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_recorded_as_that() {
    let (gateway, at) = with_coap(CoapLimits {
        max_body_bytes: 1_000,
        ..CoapLimits::default()
    });
    gateway.publish_echo(instance_answering("x".repeat(10_000)).await);
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut answer = [0; 2_048];
    socket
        .send_to(b"\x40\x01\x00\x01\xb8function\x04echo", at)
        .await
        .unwrap();
    let (length, _) = within(socket.recv_from(&mut answer)).await.unwrap();
    assert_eq!(answer[..length], *b"\x60\xa2\x00\x01", "5.02");
    nearpath_testkit::eventually("the request is logged", async || {
        !gateway.log_lines().is_empty()
    })
    .await;
    let line = &gateway.log_lines()[0];
    assert_eq!(
        (&line["reason"], &line["status"]),
        (&"answer_too_large".into(), &200.into()),
        "the function did answer"
    );
}
