//! Peers that may not connect or call: refused with who and why, logged and counted.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use nearpath_testkit::{eventually, need_root};
use nearpath_types::SpiffeId;
use nearpath_wire::identity::{Credentials, Trust};

use super::functions::{counted, write_handler};
use super::machines::{Machines, run_ca};
use super::scripted_peer::{self as peer, TRUST_DOMAIN, call_of, node_credentials, sign};

/// Full names of the functions.
const FRONT: &str = "front.openfaas-fn";
const TASK: &str = "task.openfaas-fn";
const OTHER: &str = "other.openfaas-fn";

/// `front` runs on c and calls `task`, which runs on b.
async fn start_nodes() -> Machines {
    let mut machines = Machines::new(&["b", "c"]);
    write_handler(&machines);
    machines.write(
        "stack.yml",
        &format!(
            "functions:\n{}{}{}chains:\n  shop: {{edges: {{front: [task]}}}}\n",
            counted("front", "nodes: [c],"),
            counted("task", "nodes: [b],"),
            counted("other", "nodes: [c],"),
        ),
    );
    machines.start(0).await;
    machines.wait_answered(0, "/function/task").await;
    machines
}

struct Refused<'a> {
    machines: &'a Machines,
    addr: SocketAddr,
    trust: Trust,
}

impl Refused<'_> {
    /// Sends a call over TLS and over QUIC.
    async fn both(
        &self,
        credentials: &Credentials,
        caller: Option<&str>,
    ) -> [Result<(u16, String), String>; 2] {
        let with = (credentials, &self.trust);
        [
            peer::send_over_tls(self.addr, with, call_of(TASK, caller)).await,
            peer::send_over_quic(self.addr, with, call_of(TASK, caller)).await,
        ]
    }

    /// Checks that node b has refused twice for this reason, and says to whom and why.
    async fn assert_counted(&self, reason: &str, texts: &[&str]) {
        let series = format!("nearpath_node_refusals_total{{reason=\"{reason}\"}}");
        eventually(&format!("two refusals: {reason}"), async || {
            self.machines.metric(0, &series).await >= 2.0
        })
        .await;
        for text in texts {
            let what = format!("the log has {text:?}:\n{}", self.machines.logs());
            eventually(&what, async || self.machines.logs().contains(text)).await;
        }
    }
}

fn assert_refused(answers: [Result<(u16, String), String>; 2]) {
    for answer in answers {
        assert!(answer.is_err(), "{answer:?}");
    }
}

fn expired(authority: &Path) -> Credentials {
    let hour = Duration::from_secs(3600);
    let now = SystemTime::now();
    let id = SpiffeId::for_gateway(TRUST_DOMAIN, "c");
    sign(authority, id, "c", (now - 2 * hour, now - hour))
}

fn instance(authority: &Path) -> Credentials {
    let hour = Duration::from_secs(3600);
    let (now, name) = (SystemTime::now(), "f-1.instance");
    let id = format!("spiffe://{TRUST_DOMAIN}/ns/openfaas-fn/fn/front/instance/1");
    let id = id.parse().unwrap();
    sign(authority, id, name, (now - hour, now + hour))
}

#[tokio::test]
async fn peers_that_may_not_connect_are_refused_with_who_and_why() {
    need_root!();
    let machines = start_nodes().await;
    let authority = machines.authority();
    let foreign = machines.folder().join("foreign");
    run_ca(&["init", "--dir", foreign.to_str().unwrap()], &[]);
    let test = Refused {
        machines: &machines,
        addr: machines.machines[0].node_port(),
        trust: peer::trust(&authority),
    };
    // Control: this peer is admitted, so the refusals have the reasons below.
    for answer in test
        .both(&node_credentials(&authority, "c"), Some(FRONT))
        .await
    {
        assert_eq!(answer.as_ref().map(|one| one.0), Ok(200), "{answer:?}");
    }
    assert_refused(
        test.both(&node_credentials(&foreign, "c"), Some(FRONT))
            .await,
    );
    test.assert_counted("unknown_root", &["10.77.0.1"]).await;
    assert_refused(test.both(&expired(&authority), Some(FRONT)).await);
    test.assert_counted("expired", &["10.77.0.1"]).await;
    assert_refused(test.both(&instance(&authority), Some(FRONT)).await);
    test.assert_counted("identity", &["is not the gateway of a node"])
        .await;
}

#[tokio::test]
async fn nodes_that_may_not_call_are_refused_with_who_and_why() {
    need_root!();
    let machines = start_nodes().await;
    let authority = machines.authority();
    let test = Refused {
        machines: &machines,
        addr: machines.machines[0].node_port(),
        trust: peer::trust(&authority),
    };
    let d = node_credentials(&authority, "d");
    let placed = "node d may not call task.openfaas-fn for front.openfaas-fn: it runs on c";
    let c = node_credentials(&authority, "c");
    let undeclared = "other.openfaas-fn may not call task.openfaas-fn: that edge is not declared";
    for (credentials, caller, text) in [(&d, FRONT, placed), (&c, OTHER, undeclared)] {
        for answer in test.both(credentials, Some(caller)).await {
            let (status, body) = answer.unwrap();
            assert!(status == 403 && body.contains(text), "{status}: {body}");
        }
        test.assert_counted("not_allowed", &[text]).await;
    }
}
