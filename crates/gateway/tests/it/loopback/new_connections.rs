//! First requests of connections, which the event loop answers before they have a task.

use nearpath_gateway::GatewaySettings;
use nearpath_testkit::{eventually, within};
use nearpath_types::FunctionPolicy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{
    Caller, LoopbackDelivery, LoopbackRedirect, REQUEST, ScriptedFunction, WHOLE, inline_calls,
    need_support, read_response,
};
use crate::fixture::{TestGateway, millis};

test_both_deliveries! {
    the_event_loop_answers_first_requests,
    a_connection_is_kept_after_a_first_request_in_the_event_loop,
    a_caller_that_sends_more_than_its_last_request_gets_the_response,
    the_idle_timeout_ends_a_connection_after_its_first_request,
    a_connection_without_a_request_is_closed,
    the_drain_ends_connections_after_their_first_request,
    a_first_request_in_pieces_is_whole,
}

async fn the_event_loop_answers_first_requests(delivery: LoopbackDelivery) {
    let function = ScriptedFunction::start(
        Caller::NEW.with_delivery(delivery),
        &[(WHOLE, false); 5_000],
    )
    .await;
    // A task answers the first one, and what arrives late on a busy machine.
    eventually("some calls are inline", async || {
        assert!(function.get().await.ends_with("\r\n\r\nok"));
        inline_calls(&function) > 0 // added each tick
    })
    .await;
}

async fn a_connection_is_kept_after_a_first_request_in_the_event_loop(delivery: LoopbackDelivery) {
    let function =
        ScriptedFunction::start(Caller::LATER.with_delivery(delivery), &[(WHOLE, false); 3]).await;
    let mut stream = function.connect_and_write(REQUEST).await;
    assert_eq!(read_response(&mut stream, 2).await.1, "ok");
    let last = REQUEST.replace("host: a", "host: a\r\nconnection: close");
    let pipelined = [REQUEST, &last].concat();
    stream.write_all(pipelined.as_bytes()).await.unwrap();
    assert_eq!(read_response(&mut stream, 2).await.1, "ok");
    let mut answer = String::new();
    within(stream.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
}

/// A reset would overtake the last response.
async fn a_caller_that_sends_more_than_its_last_request_gets_the_response(
    delivery: LoopbackDelivery,
) {
    let function =
        ScriptedFunction::start(Caller::LATER.with_delivery(delivery), &[(WHOLE, false); 20]).await;
    let last = REQUEST.replace("host: a", "host: a\r\nconnection: close");
    for surplus in [1, 100_000] {
        let mut stream = function.connect_and_write(&last).await;
        stream.write_all(&vec![b'x'; surplus]).await.unwrap();
        let mut answer = String::new();
        within(stream.read_to_string(&mut answer)).await.unwrap();
        assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
    }
}

/// Starts a function with answers enough, on a gateway with these settings.
async fn start_with(settings: GatewaySettings, delivery: LoopbackDelivery) -> ScriptedFunction {
    let (fixture, policy) = (
        TestGateway::with_settings(settings),
        FunctionPolicy::default(),
    );
    let scripts = [(WHOLE, false); 20];
    ScriptedFunction::start_on(
        fixture,
        Caller::LATER.with_delivery(delivery),
        &scripts,
        None,
        policy,
    )
    .await
}

fn short_timeouts() -> GatewaySettings {
    GatewaySettings {
        header_timeout: millis(300),
        idle_timeout: millis(300),
        ..GatewaySettings::default()
    }
}

/// Sends a first request, at once or after a pause; the response has arrived.
async fn connect_and_get(function: &ScriptedFunction, pause: u64) -> TcpStream {
    let at_once = if pause == 0 { REQUEST } else { "" };
    let mut stream = function.connect_and_write(at_once).await;
    if pause > 0 {
        // The pauses are the case itself: the loop waits for the request, or its task does.
        tokio::time::sleep(millis(pause)).await;
        stream.write_all(REQUEST.as_bytes()).await.unwrap();
    }
    assert_eq!(read_response(&mut stream, 2).await.1, "ok");
    stream
}

async fn the_idle_timeout_ends_a_connection_after_its_first_request(delivery: LoopbackDelivery) {
    let function = start_with(short_timeouts(), delivery).await;
    for pause in [0, 3, 40] {
        let mut stream = connect_and_get(&function, pause).await;
        let read = within(stream.read(&mut [0])).await;
        assert_eq!(read.unwrap(), 0, "pause {pause}");
    }
}

async fn a_connection_without_a_request_is_closed(delivery: LoopbackDelivery) {
    let function = start_with(short_timeouts(), delivery).await;
    for begun in ["", "G", "GET /function/echo HTTP/1.1\r\nhost: "] {
        let mut stream = function.connect_and_write(begun).await;
        let read = within(stream.read_to_string(&mut String::new())).await;
        assert!(read.is_ok(), "{begun:?}: {read:?}");
    }
}

/// A drain waits for connections with a request, and for no others.
async fn the_drain_ends_connections_after_their_first_request(delivery: LoopbackDelivery) {
    let settings = GatewaySettings {
        drain_timeout: millis(600_000),
        ..GatewaySettings::default()
    };
    let mut function = start_with(settings, delivery).await;
    let mut open = Vec::new();
    for pause in [0, 3, 40] {
        open.push(connect_and_get(&function, pause).await);
    }
    within(function.fixture.drain_gateway()).await;
    for mut stream in open {
        let read = within(stream.read(&mut [0])).await;
        assert_eq!(read.unwrap(), 0);
    }
}

async fn a_first_request_in_pieces_is_whole(delivery: LoopbackDelivery) {
    let function = start_with(GatewaySettings::default(), delivery).await;
    for pause in [0, 1, 40] {
        let mut stream = function.connect_and_write("").await;
        for piece in [
            "G",
            "ET /function/echo/x HTTP/1.1\r\n",
            "host: a\r\n\r",
            "\n",
        ] {
            stream.write_all(piece.as_bytes()).await.unwrap();
            // The pauses are the case itself, as above.
            tokio::time::sleep(millis(pause)).await;
        }
        assert_eq!(read_response(&mut stream, 2).await.1, "ok", "pause {pause}");
    }
}
