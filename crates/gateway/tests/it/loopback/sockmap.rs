//! Connections whose bytes sockmap moves, and how long they are kept.

use super::{Caller, LoopbackDelivery, ScriptedFunction, WHOLE};

#[tokio::test]
async fn requests_and_responses_go_past_tcp() {
    need_sockmap!();
    let caller = Caller::KEPT.by(LoopbackDelivery::Sockmap);
    let function = ScriptedFunction::start(caller, &[(WHOLE, false); 3]).await;
    for number in 1..=3 {
        assert!(function.get().await.ends_with("ok"));
        // Two of the call that opened the first connection, and two of each request.
        assert!(function.network.moved_messages() >= 2 * number);
    }
}
