//! Calls from watchdog to watchdog: the test is the node of both, and the gateway that is not
//! asked.

use std::net::SocketAddr;
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::{Frame, Incoming};
use nearpath_testkit::{eventually, within};
use nearpath_types::frames::{self, CalleeEntry, CalleePeer, HandshakeMessage};
use nearpath_types::policy::ZeroRttPolicy;
use nearpath_types::{InstanceLocality, Reason};
use nearpath_wire::zero_rtt::Provision;
use rustix::process::Signal;
use tokio::io::AsyncWriteExt;
use tokio::net::UdpSocket;
use tokio::sync::{Notify, mpsc, watch};

use crate::contract::node::{run_on_one_thread, start_serving_quic, start_with_node};
use crate::contract::support::{full, send, start_tenant, text};
use crate::contract::watchdog_pair::{
    WatchdogPair, echo, function_id, path_header, start_one_way_relay,
};

#[test]
fn the_first_call_to_an_instance_that_was_never_contacted_is_in_the_first_packets() {
    run_on_one_thread(async {
        let (seen, open) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let reached = Arc::clone(&seen);
        let b = start_tenant(move |request| {
            reached.notify_one();
            echo(request)
        });
        let b = b.await;
        let mut pair = WatchdogPair::new(b, &["a"], &[]).await;
        let (there, to) = watch::channel(None);
        let relay_addr = start_one_way_relay(to, Arc::clone(&open)).await;
        pair.send_callee(relay_addr).await;
        let entries = pair.answer_handshake().await;
        // It starts only now, with what was minted for it. Its name is that of the first, which was
        // never called.
        let first = Provision {
            sessions: entries,
            ..pair.provision_of_b.clone()
        }
        .encode();
        let url = format!("http://{b}");
        let (b, _node) = start_serving_quic(
            &[
                ("mode", "http"),
                ("fprocess", "sleep 1000"),
                ("upstream_url", &url),
            ],
            &first,
        );
        there.send_replace(Some(b.addr));
        let calling = pair.call("/function/b/x?y", "at once");
        let control = async {
            seen.notified().await; // nothing went back until now
            open.notify_one();
        };
        let (answer, ()) = within(async { tokio::join!(calling, control) }).await;
        assert_eq!(
            (path_header(&answer), &answer.headers()["x-path"]),
            ("quic", &"/x?y".parse().unwrap())
        );
        assert_eq!(text(answer).await, (200, "at once".to_owned()));
        assert!(pair.gateway_calls.try_recv().is_err());
        let tally = pair.read_tally(1).await;
        assert_eq!((tally.ended, tally.failed), (1, 0));
    });
}

#[test]
fn without_a_session_the_first_call_waits_for_the_handshake() {
    run_on_one_thread(async {
        let mut pair = WatchdogPair::new(start_tenant(echo).await, &["a"], &[]).await;
        pair.send_callee(pair.b.addr).await;
        pair.refuse_session().await;
        for (name, body) in [("b", "once"), ("other", "again, by another name")] {
            let answer = pair.call(&format!("/function/{name}"), body).await;
            assert_eq!(path_header(&answer), "quic");
            assert_eq!(text(answer).await, (200, body.to_owned()));
        }
        assert_eq!(pair.read_tally(2).await.failed, 0);
    });
}

#[test]
fn bodies_of_any_size_and_kind_go_both_ways() {
    run_on_one_thread(async {
        let mut pair = WatchdogPair::new(start_tenant(echo).await, &["a"], &[]).await;
        pair.send_callee(pair.b.addr).await;
        pair.mint_session().await;
        for size in [0, 70_000, 3 << 20] {
            let body = "x".repeat(size);
            let answer = pair.call("/function/b", &body).await;
            assert_eq!(path_header(&answer), "quic");
            assert_eq!(
                answer.headers()["content-length"],
                *size.to_string(),
                "who gets it is told how long it is"
            );
            assert_eq!(text(answer).await, (200, body));
        }
        let (sender, parts) = crate::contract::support::frames();
        let request = Request::post("/function/b")
            .header("x-nearpath-path", "tell")
            .body(parts)
            .unwrap();
        let sending = async {
            for part in ["piece ", "by ", "piece"] {
                sender.send(Ok(Frame::data(part.into()))).await.unwrap();
            }
            drop(sender);
        };
        let (answer, ()) = tokio::join!(send(pair.outbound_addr, request), sending);
        let answer = answer.unwrap();
        assert_eq!(path_header(&answer), "quic");
        assert_eq!(text(answer).await, (200, "piece by piece".to_owned()));
        assert!(pair.gateway_calls.try_recv().is_err());
    });
}

#[test]
fn a_call_without_an_edge_goes_to_the_gateway() {
    run_on_one_thread(async {
        let mut pair = WatchdogPair::new(start_tenant(echo).await, &["somebody-else"], &[]).await;
        pair.send_callee(pair.b.addr).await;
        pair.refuse_session().await;
        assert_eq!(
            text(pair.call("/function/b", "").await).await,
            (200, "by the gateway".to_owned())
        );
        assert_eq!(
            text(pair.call("/function/c", "").await).await,
            (200, "by the gateway".to_owned())
        );
        assert_eq!(pair.gateway_calls.recv().await.unwrap(), "/function/b");
        assert_eq!(
            pair.gateway_calls.recv().await.unwrap(),
            "/function/c",
            "nobody was named"
        );
        assert_eq!(pair.b.get("/").await.0, 200, "the control: it is there");
    });
}

#[test]
fn calls_to_unreachable_and_missing_instances_go_to_the_gateway() {
    run_on_one_thread(async {
        let mut pair = WatchdogPair::new(start_tenant(echo).await, &["a"], &[]).await;
        let silent_socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        pair.send_callee(silent_socket.local_addr().unwrap()).await;
        pair.refuse_session().await;
        assert_eq!(
            text(pair.call("/function/b", "whole").await).await,
            (200, "by the gateway".to_owned())
        );
        assert_eq!(pair.gateway_calls.recv().await.unwrap(), "/function/b");
        pair.send_callee(pair.b.addr).await;
        pair.refuse_session().await;
        assert_eq!(
            text(pair.call("/function/b", "now").await).await,
            (200, "now".to_owned()),
            "the control"
        );
        let none = CalleeEntry {
            function: function_id("b"),
            aliases: Vec::new(),
            zero_rtt: ZeroRttPolicy::Always,
            peers: Vec::new(),
        };
        pair.node_of_a
            .write_all(&frames::callees_frame(&[none]))
            .await
            .unwrap();
        eventually("it is the gateway's", async || {
            text(pair.call("/function/b", "later").await).await.1 == "by the gateway"
        })
        .await;
    });
}

/// A silent instance is waited for a second. A caller may have less time, and the gateway gets only
/// the rest.
#[test]
fn a_deadline_runs_while_no_instance_responds() {
    run_on_one_thread(async {
        let mut pair = WatchdogPair::new(start_tenant(echo).await, &["a"], &[]).await;
        let silent_socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        pair.send_callee(silent_socket.local_addr().unwrap()).await;
        pair.refuse_session().await;
        let ask = |limit: &str| {
            Request::get("/function/b")
                .header("x-timeout", limit)
                .body(full(""))
                .unwrap()
        };
        let late = send(pair.outbound_addr, ask("50ms")).await.unwrap();
        assert_eq!(
            late.headers()["x-nearpath-reason"],
            Reason::TotalTimeout.name()
        );
        assert!(
            pair.gateway_calls.try_recv().is_err(),
            "it was too late for any way"
        );
        assert_eq!(
            text(send(pair.outbound_addr, ask("60s")).await.unwrap()).await,
            (200, "by the gateway".to_owned())
        );
        let forwarded = pair.gateway_calls.recv().await.unwrap();
        let left: u64 = forwarded
            .strip_prefix("/function/b ")
            .unwrap()
            .strip_suffix("ms")
            .unwrap()
            .parse()
            .unwrap();
        assert!(left < 60_000, "{left} ms");
    });
}

#[test]
fn a_call_that_a_full_instance_refuses_goes_to_the_gateway() {
    run_on_one_thread(async {
        let (reached, mut reaching) = mpsc::unbounded_channel();
        let go = Arc::new(Notify::new());
        let wait = Arc::clone(&go);
        let slow = move |_| {
            reached.send(()).unwrap();
            let wait = Arc::clone(&wait);
            async move {
                wait.notified().await;
                Response::new(full("at last"))
            }
        };
        let mut pair =
            WatchdogPair::new(start_tenant(slow).await, &["a"], &[("max_inflight", "1")]).await;
        pair.send_callee(pair.b.addr).await;
        pair.mint_session().await;
        let first = pair.call("/function/b", "");
        let second = async {
            reaching.recv().await.unwrap();
            let second = text(pair.call("/function/b", "").await).await;
            go.notify_one();
            second
        };
        let (first, second) = tokio::join!(first, second);
        assert_eq!(second, (200, "by the gateway".to_owned()));
        assert_eq!(text(first).await, (200, "at last".to_owned()));
        let tally = pair.read_tally(1).await;
        assert_eq!(
            (tally.ended, tally.failed),
            (1, 0),
            "what the gateway did, the gateway counts"
        );
    });
}

#[test]
fn a_body_above_the_callees_limit_is_refused_by_the_callee() {
    run_on_one_thread(async {
        let mut pair = WatchdogPair::new(
            start_tenant(echo).await,
            &["a"],
            &[("NEARPATH_MAX_BODY", "10")],
        )
        .await;
        pair.send_callee(pair.b.addr).await;
        pair.mint_session().await;
        assert_eq!(
            text(pair.call("/function/b", "0123456789").await).await.0,
            200,
            "the control"
        );
        let answer = pair.call("/function/b", "0123456789x").await;
        assert_eq!(
            answer.headers()["x-nearpath-reason"],
            Reason::BodyTooLarge.name()
        );
        let (sender, parts) = crate::contract::support::frames();
        let request = Request::post("/function/b").body(parts).unwrap();
        let sending = async {
            for part in ["01234", "56789", "x"] {
                let _ = sender.send(Ok(Frame::data(part.into()))).await; // it may have been refused already
            }
            drop(sender);
        };
        let (answer, ()) = tokio::join!(send(pair.outbound_addr, request), sending);
        assert_eq!(
            answer.unwrap().headers()["x-nearpath-reason"],
            Reason::BodyTooLarge.name()
        );
        assert!(pair.gateway_calls.try_recv().is_err());
    });
}

#[test]
fn an_instance_that_stops_before_it_has_answered_is_an_error_and_no_second_call() {
    run_on_one_thread(async {
        let (reached, mut reaching) = mpsc::unbounded_channel();
        let never = move |_| {
            reached.send(()).unwrap();
            std::future::pending::<Response<http_body_util::Full<bytes::Bytes>>>()
        };
        let mut pair = WatchdogPair::new(
            start_tenant(never).await,
            &["a"],
            &[("write_timeout", "50ms")],
        )
        .await;
        pair.send_callee(pair.b.addr).await;
        pair.mint_session().await;
        let killing = async {
            reaching.recv().await.unwrap();
            pair.b.send_signal(Signal::TERM); // its callers get a CLOSE frame
        };
        let (answer, ()) = tokio::join!(pair.call("/function/b", ""), killing);
        assert_eq!(
            answer.headers()["x-nearpath-reason"],
            Reason::InstanceDied.name()
        );
        assert!(pair.gateway_calls.try_recv().is_err(), "it may have run");
        assert_eq!(pair.read_tally(1).await.failed, 1);
    });
}

#[test]
fn an_instance_that_vanishes_takes_its_calls_with_it_as_soon_as_the_node_knows() {
    run_on_one_thread(async {
        let (reached, mut reaching) = mpsc::unbounded_channel();
        let never = move |_| {
            reached.send(()).unwrap();
            std::future::pending::<Response<http_body_util::Full<bytes::Bytes>>>()
        };
        let mut pair = WatchdogPair::new(start_tenant(never).await, &["a"], &[]).await;
        pair.send_callee(pair.b.addr).await;
        pair.mint_session().await;
        let WatchdogPair {
            a: _,
            b,
            outbound_addr: pickup,
            node_of_a,
            ..
        } = &mut pair;
        let killing = async {
            reaching.recv().await.unwrap();
            b.send_signal(Signal::KILL);
            let none = CalleeEntry {
                function: function_id("b"),
                aliases: Vec::new(),
                zero_rtt: ZeroRttPolicy::Always,
                peers: Vec::new(),
            };
            node_of_a
                .write_all(&frames::callees_frame(&[none]))
                .await
                .unwrap();
        };
        let request = Request::post("/function/b").body(full("")).unwrap();
        let (answer, ()) = tokio::join!(send(*pickup, request), killing);
        let answer = answer.unwrap();
        let reason = answer.headers().get("x-nearpath-reason");
        assert_eq!(
            reason.unwrap_or_else(|| panic!("{answer:?}")),
            Reason::InstanceDied.name()
        );
        assert!(pair.gateway_calls.try_recv().is_err(), "it may have run");
    });
}

#[test]
fn a_deadline_is_the_callers_and_a_caller_that_leaves_ends_the_work() {
    run_on_one_thread(async {
        let gone = Arc::new(Notify::new());
        let noticed = Arc::clone(&gone);
        let (reached, mut reaching) = mpsc::unbounded_channel();
        let never = move |request: Request<Incoming>| {
            reached
                .send(request.headers().get("x-timeout").cloned())
                .unwrap();
            let on_drop = NotifyOnDrop(Arc::clone(&noticed));
            async move {
                std::future::pending::<()>().await;
                drop(on_drop);
                Response::new(full(""))
            }
        };
        let mut pair = WatchdogPair::new(start_tenant(never).await, &["a"], &[]).await;
        pair.send_callee(pair.b.addr).await;
        pair.mint_session().await;
        let request = Request::get("/function/b")
            .header("x-timeout", "100ms")
            .body(full(""))
            .unwrap();
        let answer = send(pair.outbound_addr, request).await.unwrap();
        assert_eq!(
            answer.headers()["x-nearpath-reason"],
            Reason::TotalTimeout.name()
        );
        assert_eq!(reaching.recv().await.unwrap().unwrap(), "100ms");
        within(gone.notified()).await;
        let mut leaving = Box::pin(pair.call("/function/b", ""));
        tokio::select! {
            _ = &mut leaving => panic!("it is never answered"),
            _ = reaching.recv() => drop(leaving),
        }
        within(gone.notified()).await;
        assert!(pair.a.child.try_wait().unwrap().is_none());
    });
}

/// Notifies when it is dropped: hyper drops the service's future when its caller has left.
struct NotifyOnDrop(Arc<Notify>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

#[test]
fn connections_are_opened_ahead_for_recently_called_functions() {
    run_on_one_thread(async {
        let mut pair = WatchdogPair::new(start_tenant(echo).await, &["a"], &[]).await;
        pair.send_callee(pair.b.addr).await;
        pair.mint_session().await;
        assert_eq!(path_header(&pair.call("/function/b", "").await), "quic");
        let (of_b, of_c) = (
            UdpSocket::bind("127.0.0.1:0").await.unwrap(),
            UdpSocket::bind("127.0.0.1:0").await.unwrap(),
        );
        let callee = |name: &str, peers: &[(&str, SocketAddr)]| {
            let (locality, leaving) = (InstanceLocality::SameNode, false);
            let peer = |(name, addr): &(&str, SocketAddr)| CalleePeer {
                name: (*name).to_owned(),
                addr: *addr,
                locality,
                leaving,
            };
            let peers = peers.iter().map(peer).collect();
            CalleeEntry {
                function: function_id(name),
                aliases: Vec::new(),
                zero_rtt: ZeroRttPolicy::Always,
                peers,
            }
        };
        let old = (&*pair.provision_of_b.credentials.name.clone(), pair.b.addr);
        let b = callee("b", &[old, ("i9", of_b.local_addr().unwrap())]);
        let c = callee("c", &[("i8", of_c.local_addr().unwrap())]);
        pair.node_of_a
            .write_all(&frames::callees_frame(&[b, c]))
            .await
            .unwrap();
        let mut asked = [
            pair.read_handshake().await.callee,
            pair.read_handshake().await.callee,
        ];
        asked.sort();
        assert_eq!(asked, ["i8", "i9"], "sessions with both");
        for callee in asked {
            let nothing = HandshakeMessage {
                callee,
                datagrams: Vec::new(),
            };
            pair.node_of_a
                .write_all(&frames::handshake_frame(&nothing))
                .await
                .unwrap();
        }
        within(of_b.recv_from(&mut [0; 2048])).await.unwrap(); // it was never called
        let unused = of_c.try_recv_from(&mut [0; 2048]).unwrap_err();
        assert_eq!(
            unused.kind(),
            std::io::ErrorKind::WouldBlock,
            "nobody ever called that function"
        );
    });
}

#[test]
fn frames_out_of_order_end_quic_and_nothing_else() {
    run_on_one_thread(async {
        let first = frames::handshake_frame(&HandshakeMessage {
            callee: "b".into(),
            datagrams: Vec::new(),
        });
        let url = format!("http://{}", start_tenant(echo).await);
        let (watchdog, _node) = start_with_node(
            &[
                ("mode", "http"),
                ("fprocess", "sleep 9"),
                ("upstream_url", &url),
            ],
            &first,
        );
        watchdog
            .stderr
            .wait_for("the node's first frame is no provision");
        assert_eq!(watchdog.post("/", "still").await, (200, "still".to_owned()));
    });
}
