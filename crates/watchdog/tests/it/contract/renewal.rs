//! Certificates that change, or do not, while watchdogs call each other.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use nearpath_types::frames::{self, Handshake};
use tokio::io::AsyncWriteExt;
use tokio::sync::{Notify, mpsc};

use crate::contract::node::run;
use crate::contract::pair::{Pair, by_quic, echo, path, slow, told};
use crate::contract::support::{full, send, tenant, text};

/// Short enough to see its end, long enough to do something before.
const BRIEF: Duration = Duration::from_secs(4);

#[test]
fn calls_go_on_with_a_renewed_certificate_and_none_is_lost() {
    run(async {
        let (reached, mut reaching) = mpsc::unbounded_channel();
        let go = Arc::new(Notify::new());
        let b = tenant(slow(reached, Arc::clone(&go))).await;
        let mut pair = Pair::lasting(b, &["a"], &[], BRIEF).await;
        pair.introduce(pair.b.addr).await;
        pair.mint().await;
        let request = Request::post("/function/b/slow").header("x-nearpath-path", "tell").body(full("")).unwrap();
        let held = tokio::task::spawn_local(send(pair.pickup, request));
        reaching.recv().await.unwrap();
        pair.renew().await;
        pair.mint().await; // sessions are of a certificate: it wants another one
        assert_eq!(told(pair.call("/function/b", "").await).await, by_quic("done"));
        tokio::time::sleep(BRIEF + Duration::from_secs(1)).await; // certificates count in seconds
        assert_eq!(told(pair.call("/function/b", "").await).await, by_quic("done"), "the old one has ended");
        go.notify_one();
        assert_eq!(told(held.await.unwrap().unwrap()).await, by_quic("done"), "it began with the old one");
        assert!(pair.forwarded.try_recv().is_err());
        assert_eq!(pair.tally(3).await.failed, 0);
    });
}

#[test]
fn who_is_not_renewed_is_the_gateways_from_then_on() {
    run(async {
        let mut pair = Pair::lasting(tenant(echo).await, &["a"], &[], BRIEF).await;
        pair.introduce(pair.b.addr).await;
        pair.mint().await;
        assert_eq!(path(&pair.call("/function/b", "").await), "quic");
        tokio::time::sleep(BRIEF + Duration::from_secs(1)).await; // certificates count in seconds
        assert_eq!(text(pair.call("/function/b", "").await).await, (200, "by the gateway".to_owned()));
    });
}

#[test]
fn a_session_that_was_being_made_when_the_certificate_changed_is_made_again() {
    run(async {
        let mut pair = Pair::new(tenant(echo).await, &["a"], &[]).await;
        pair.introduce(pair.b.addr).await;
        let begun = pair.half().await;
        pair.renew().await;
        let nothing = Handshake { callee: begun.callee, datagrams: Vec::new() };
        pair.node_of_a.write_all(&frames::handshake(&nothing)).await.unwrap();
        pair.mint().await;
        assert_eq!(told(pair.call("/function/b", "first").await).await, by_quic("first"));
        let log = pair.b.stderr.all();
        assert!(!log.contains("refused"), "{log}");
    });
}
