//! HTTPS clients that read nothing, and those whose requests have arrived when a drain begins.

use http::Response;
use nearpath_gateway::GatewaySettings;
use nearpath_testkit::{eventually, within};
use nearpath_types::FunctionPolicy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::client::TlsStream;

use super::{Caller, REQUEST, ScriptedFunction, publish};
use crate::fixture::{TestGateway, full_body, millis, start_instance};
use crate::tls::{connect_tls, connect_tls_over};

/// Length of a response that a TLS session takes at once although its socket takes nothing.
const RESPONSE_BYTES: usize = 20_000;

/// Starts a function whose server answers all requests with a body of this length.
async fn start_function(settings: GatewaySettings, body_bytes: usize) -> ScriptedFunction {
    let fixture = TestGateway::with_settings(settings);
    let (caller, policy) = (Caller::NEW, FunctionPolicy::default());
    let function = ScriptedFunction::start_on(fixture, caller, &[], None, policy).await;
    let answer = move |_| async move { Response::new(full_body(vec![b'x'; body_bytes])) };
    let addr = start_instance(answer).await;
    let policy = FunctionPolicy::default();
    // The watchdog takes the calls that would wait for a connection to the server.
    publish(&function.fixture, addr, &function.listen_at(addr), policy);
    function
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_cut() {
    let settings = GatewaySettings {
        write_timeout: millis(300),
        ..GatewaySettings::default()
    };
    let function = start_function(settings, RESPONSE_BYTES).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap(); // soon full
    let fixture = &function.fixture;
    let stream = socket.connect(fixture.secure).await.unwrap();
    let mut client = connect_tls_over(stream, &fixture.certificate, b"http/1.1").await;
    let sending = async {
        // Ends when the gateway closes the connection.
        while client.write_all(REQUEST.as_bytes()).await.is_ok() && client.flush().await.is_ok() {}
    };
    let cut = eventually("the client is cut", async || {
        let metrics = fixture.encode_metrics();
        metrics.contains("nearpath_connections_cut_total 1")
    });
    tokio::join!(sending, cut);
}

/// Opens a connection whose first request was answered.
async fn used_connection(function: &ScriptedFunction) -> TlsStream<TcpStream> {
    let mut client = connect_tls(&function.fixture, b"http/1.1").await;
    client.write_all(REQUEST.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nx") {
        answer.push(within(client.read_u8()).await.unwrap());
    }
    client
}

#[tokio::test]
async fn a_drain_answers_the_requests_that_have_arrived() {
    let mut function = start_function(GatewaySettings::default(), 1).await;
    let mut clients = Vec::new();
    for _ in 0..64 {
        clients.push(used_connection(&function).await);
    }
    for client in &mut clients {
        client.write_all(REQUEST.as_bytes()).await.unwrap();
        client.flush().await.unwrap();
    }
    let draining = function.fixture.drain_gateway();
    let reading = async {
        for (number, client) in clients.iter_mut().enumerate() {
            let mut answer = Vec::new();
            // Closed with or without a close_notify.
            // Closed with or without a close_notify.
            let _ = within(client.read_to_end(&mut answer)).await;
            let answer = String::from_utf8(answer).unwrap();
            assert!(answer.ends_with("\r\n\r\nx"), "{number}: {answer:?}");
        }
    };
    within(async { tokio::join!(draining, reading) }).await;
}
