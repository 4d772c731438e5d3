//! Connections whose bytes sockmap redirects, and how long they are kept.

use super::*;

/// Starts a function with sockmap, which answers this often.
async fn start_by_sockmap(connection: Caller) -> ScriptedFunction {
    let caller = connection.with_delivery(LoopbackDelivery::Sockmap);
    ScriptedFunction::start(caller, &[(WHOLE, false); 400]).await
}

#[tokio::test]
async fn requests_and_responses_are_redirected() {
    need_support!(LoopbackRedirect::check_support());
    let function = start_by_sockmap(Caller::KEPT).await;
    for number in 1..=3 {
        assert!(function.get().await.ends_with("ok"));
        // Each get warms up a connection first: two calls, two messages each.
        assert!(function.network.redirected_messages() >= 4 * number);
    }
}

#[tokio::test]
async fn a_connection_is_replaced_after_half_a_mebibyte_of_requests() {
    need_support!(LoopbackRedirect::check_support());
    let function = start_by_sockmap(Caller::NEW).await;
    let body = "x".repeat(3_000);
    let post =
        format!("POST /function/echo HTTP/1.1\r\nhost: a\r\ncontent-length: 3000\r\n\r\n{body}");
    let mut caller = function.connect().await;
    for number in 1..=150 {
        caller.write_all(post.as_bytes()).await.unwrap();
        assert_eq!(read_response(&mut caller, 2).await.1, "ok");
        let is_within_limit = number * (post.len() + 1024) < 512 * 1024;
        assert!(function.socket_count() > 1 || is_within_limit, "{number}");
    }
    assert_eq!(function.network.tcp_messages(), 0);
}
