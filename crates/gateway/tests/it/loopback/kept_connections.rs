//! Requests on connections that the event loop serves. Tests play the function's server byte by byte.

use std::net::Ipv4Addr;

use nearpath_testkit::{eventually, within};
use nearpath_types::FunctionPolicy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{
    Caller, LoopbackDelivery, LoopbackRedirect, REQUEST, ScriptedFunction, WHOLE, inline_calls,
    need_support, read_request, read_response,
};
use crate::fixture::millis;

test_all_transports! {
    the_event_loop_answers_on_kept_connections,
    a_response_in_pieces_is_whole_however_long_they_take,
    a_time_limit_ends_a_call_that_the_event_loop_has_sent,
    a_short_body_that_breaks_off_breaks_the_callers_connection,
    surplus_bytes_on_a_kept_connection_never_answer_its_next_request,
    a_request_in_pieces_is_answered,
    long_bodies_pass_kept_connections,
    callers_that_leave_are_noticed,
    a_caller_that_leaves_ends_its_inline_call,
    the_last_request_of_a_kept_connection_is_answered,
    a_kept_connection_ends_with_the_drain,
}

async fn the_event_loop_answers_on_kept_connections(caller: Caller) {
    let function = ScriptedFunction::start(caller, &[(WHOLE, false); 5_000]).await;
    let mut stream = function.connect().await;
    // A task answers the first request, and what takes long on a busy machine.
    eventually("some calls are inline", async || {
        stream.write_all(REQUEST.as_bytes()).await.unwrap();
        assert_eq!(read_response(&mut stream, 2).await.1, "ok");
        inline_calls(&function) > 0 // added each tick
    })
    .await;
}

/// Publishes a server that a test plays itself.
async fn publish_played_server(function: &ScriptedFunction) -> TcpListener {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    function.publish_server_at(listener.local_addr().unwrap());
    listener
}

/// A caller's connection and the server's, which have carried a request.
async fn used_connections(function: &ScriptedFunction) -> (TcpStream, TcpStream) {
    let listener = publish_played_server(function).await;
    let mut caller = TcpStream::connect(function.fixture.public).await.unwrap();
    caller.write_all(REQUEST.as_bytes()).await.unwrap();
    let (mut server, _) = within(listener.accept()).await.unwrap();
    within(read_request(&mut server)).await.unwrap();
    let whole = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    server.write_all(whole).await.unwrap();
    assert_eq!(read_response(&mut caller, 2).await.1, "ok");
    (caller, server)
}

async fn a_response_in_pieces_is_whole_however_long_they_take(caller: Caller) {
    let function = ScriptedFunction::start(caller, &[]).await;
    let (mut caller, mut server) = used_connections(&function).await;
    let pieces = [
        "HTTP/1.1 200 OK\r\nconte",
        "nt-length: 6\r\n",
        "\r\non",
        "e",
        "two",
    ];
    for pause in [0, 1, 40] {
        caller.write_all(REQUEST.as_bytes()).await.unwrap();
        within(read_request(&mut server)).await.unwrap();
        for piece in pieces {
            server.write_all(piece.as_bytes()).await.unwrap();
            // The pauses are the case itself: in one round, in several, and after the move to the task.
            tokio::time::sleep(millis(pause)).await;
        }
        let (head, body) = read_response(&mut caller, 6).await;
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert_eq!(body, "onetwo", "pause {pause}");
    }
}

/// The loop has no timers: a task ends the call, to which the loop has handed it over.
async fn a_time_limit_ends_a_call_that_the_event_loop_has_sent(caller: Caller) {
    let limit = Some(millis(300)); // longer than the limits that keep a call in its task
    let policy = FunctionPolicy::default();
    let function = ScriptedFunction::start_with(caller.kept(), &[], limit, policy).await;
    let got = function.get().await;
    assert!(got.starts_with("HTTP/1.1 504 "), "{got}");
    assert!(got.contains("x-nearpath-reason: exec_timeout"), "{got}");
}

async fn a_short_body_that_breaks_off_breaks_the_callers_connection(caller: Caller) {
    for pause in [0, 1, 40] {
        let function = ScriptedFunction::start(caller, &[]).await;
        let (mut caller, mut server) = used_connections(&function).await;
        caller.write_all(REQUEST.as_bytes()).await.unwrap();
        within(read_request(&mut server)).await.unwrap();
        let part = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\none";
        server.write_all(part).await.unwrap();
        // Before, with and after the move of the call from the loop to its task.
        tokio::time::sleep(millis(pause)).await;
        drop(server);
        let mut answer = String::new();
        let _ = within(caller.read_to_string(&mut answer)).await; // perhaps a reset
        assert!(answer.ends_with("\r\n\r\none"), "{answer}");
        let other = "GET /function/none HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        let answer = function.send(other).await;
        assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    }
}

async fn surplus_bytes_on_a_kept_connection_never_answer_its_next_request(caller: Caller) {
    let function = ScriptedFunction::start(caller, &[]).await;
    let listener = publish_played_server(&function).await;
    let mut caller = TcpStream::connect(function.fixture.public).await.unwrap();
    let whole = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    let surplus = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil";
    for round in 0..4 {
        // Each surplus costs the server its connection.
        let (mut server, _) = {
            caller.write_all(REQUEST.as_bytes()).await.unwrap();
            within(listener.accept()).await.unwrap()
        };
        for _ in 0..3 {
            within(read_request(&mut server)).await.unwrap();
            server.write_all(whole.as_bytes()).await.unwrap();
            assert_eq!(read_response(&mut caller, 2).await.1, "ok", "{round}");
            caller.write_all(REQUEST.as_bytes()).await.unwrap();
        }
        within(read_request(&mut server)).await.unwrap();
        let answer = [whole, surplus].concat();
        server.write_all(answer.as_bytes()).await.unwrap();
        assert_eq!(read_response(&mut caller, 2).await.1, "ok", "{round}");
    }
}

async fn a_request_in_pieces_is_answered(caller: Caller) {
    let function = ScriptedFunction::start(caller, &[]).await;
    let (mut caller, mut server) = used_connections(&function).await;
    let post = "POST /function/echo HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nbody";
    let (head, rest) = post.split_at(40);
    caller.write_all(head.as_bytes()).await.unwrap();
    tokio::time::sleep(millis(30)).await; // two pieces, and not one
    caller.write_all(rest.as_bytes()).await.unwrap();
    let request = within(read_request(&mut server)).await.unwrap();
    assert!(request.ends_with("\r\n\r\nbody"), "{request}");
    let whole = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    server.write_all(whole).await.unwrap();
    assert_eq!(read_response(&mut caller, 2).await.1, "ok");
}

async fn long_bodies_pass_kept_connections(caller: Caller) {
    let function = ScriptedFunction::start(caller, &[]).await;
    let (mut caller, mut server) = used_connections(&function).await;
    for length in [900, 20_000, 60_000, 3_000_000] {
        let body: String = (0..length)
            .map(|at| char::from(b'a' + (at % 23) as u8))
            .collect();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
        let post = "POST /function/echo HTTP/1.1\r\nhost: a\r\n";
        let sent = body.get(..3_000).unwrap_or(&body);
        let post = format!("{post}content-length: {}\r\n\r\n{sent}", sent.len());
        caller.write_all(post.as_bytes()).await.unwrap();
        let request = within(read_request(&mut server)).await.unwrap();
        assert!(request.ends_with(sent), "{length}");
        let answering = async {
            server.write_all(head.as_bytes()).await.unwrap();
            server.write_all(body.as_bytes()).await.unwrap();
        };
        let ((head, got), ()) = tokio::join!(read_response(&mut caller, length), answering);
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(got == body, "{length}");
    }
}

async fn callers_that_leave_are_noticed(caller: Caller) {
    for last in ["", "GET /fun"] {
        let function = ScriptedFunction::start(caller, &[]).await;
        let (mut caller, _server) = used_connections(&function).await;
        // Bytes and end come in one event.
        caller.write_all(last.as_bytes()).await.unwrap();
        caller.shutdown().await.unwrap();
        let mut answer = String::new();
        within(caller.read_to_string(&mut answer)).await.unwrap();
    }
}

async fn a_caller_that_leaves_ends_its_inline_call(caller: Caller) {
    let function = ScriptedFunction::start(caller, &[]).await;
    let (mut caller, mut server) = used_connections(&function).await;
    caller.write_all(REQUEST.as_bytes()).await.unwrap();
    within(read_request(&mut server)).await.unwrap();
    caller.write_all(REQUEST.as_bytes()).await.unwrap(); // bytes and end come in one event
    drop(caller);
    assert_eq!(within(server.read(&mut [0])).await.unwrap(), 0);
}

async fn the_last_request_of_a_kept_connection_is_answered(caller: Caller) {
    let function = ScriptedFunction::start(caller, &[]).await;
    let (mut caller, mut server) = used_connections(&function).await;
    let last = "GET /function/echo HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    caller.write_all(last.as_bytes()).await.unwrap();
    within(read_request(&mut server)).await.unwrap();
    let whole = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    server.write_all(whole).await.unwrap();
    let mut answer = String::new();
    within(caller.read_to_string(&mut answer)).await.unwrap();
    assert!(
        answer.contains("connection: close") && answer.ends_with("ok"),
        "{answer}"
    );
}

async fn a_kept_connection_ends_with_the_drain(caller: Caller) {
    let function = ScriptedFunction::start(caller, &[]).await;
    let (mut idle, _server) = used_connections(&function).await;
    let ScriptedFunction { mut fixture, .. } = function;
    let _drained = fixture.drain_gateway();
    assert_eq!(within(idle.read(&mut [0])).await.unwrap(), 0);
}
