//! Certificates that change, or do not, while watchdogs call each other.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use nearpath_types::frames::{self, HandshakeMessage};
use tokio::io::AsyncWriteExt;
use tokio::sync::{Notify, mpsc};

use crate::contract::node::run_on_one_thread;
use crate::contract::support::{full, send, start_tenant, text};
use crate::contract::watchdog_pair::{
    WatchdogPair, echo, path_and_text, path_header, quic_reply, slow_tenant,
};

/// Short enough to see its end, long enough to do something before.
const SHORT_LIFETIME: Duration = Duration::from_secs(4);

#[test]
fn calls_go_on_with_a_renewed_certificate_and_none_is_lost() {
    run_on_one_thread(async {
        let (reached, mut reaching) = mpsc::unbounded_channel();
        let go = Arc::new(Notify::new());
        let b = start_tenant(slow_tenant(reached, Arc::clone(&go))).await;
        let mut pair = WatchdogPair::with_lifetime(b, &["a"], &[], SHORT_LIFETIME).await;
        pair.send_callee(pair.b.addr).await;
        pair.mint_session().await;
        let request = Request::post("/function/b/slow")
            .header("x-nearpath-path", "tell")
            .body(full(""))
            .unwrap();
        let held = tokio::task::spawn_local(send(pair.outbound_addr, request));
        reaching.recv().await.unwrap();
        pair.renew_certificate().await;
        pair.mint_session().await; // sessions are of a certificate: it wants another one
        assert_eq!(
            path_and_text(pair.call("/function/b", "").await).await,
            quic_reply("done")
        );
        tokio::time::sleep(SHORT_LIFETIME + Duration::from_secs(1)).await; // certificates count in seconds
        assert_eq!(
            path_and_text(pair.call("/function/b", "").await).await,
            quic_reply("done"),
            "the old one has ended"
        );
        go.notify_one();
        assert_eq!(
            path_and_text(held.await.unwrap().unwrap()).await,
            quic_reply("done"),
            "it began with the old one"
        );
        assert!(pair.gateway_calls.try_recv().is_err());
        assert_eq!(pair.read_tally(3).await.failed, 0);
    });
}

#[test]
fn calls_go_to_the_gateway_once_the_certificate_has_expired() {
    run_on_one_thread(async {
        let mut pair =
            WatchdogPair::with_lifetime(start_tenant(echo).await, &["a"], &[], SHORT_LIFETIME)
                .await;
        pair.send_callee(pair.b.addr).await;
        pair.mint_session().await;
        assert_eq!(path_header(&pair.call("/function/b", "").await), "quic");
        tokio::time::sleep(SHORT_LIFETIME + Duration::from_secs(1)).await; // certificates count in seconds
        assert_eq!(
            text(pair.call("/function/b", "").await).await,
            (200, "by the gateway".to_owned())
        );
    });
}

#[test]
fn a_session_that_was_being_made_when_the_certificate_changed_is_made_again() {
    run_on_one_thread(async {
        let mut pair = WatchdogPair::new(start_tenant(echo).await, &["a"], &[]).await;
        pair.send_callee(pair.b.addr).await;
        let begun = pair.read_handshake().await;
        pair.renew_certificate().await;
        let nothing = HandshakeMessage {
            callee: begun.callee,
            datagrams: Vec::new(),
        };
        pair.node_of_a
            .write_all(&frames::handshake_frame(&nothing))
            .await
            .unwrap();
        pair.mint_session().await;
        assert_eq!(
            path_and_text(pair.call("/function/b", "first").await).await,
            quic_reply("first")
        );
        let log = pair.b.stderr.joined_lines();
        assert!(!log.contains("refused"), "{log}");
    });
}
