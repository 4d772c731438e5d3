//! Instances of another node, whose authority counts for its own trust domain alone.

use std::collections::BTreeMap;
use std::time::SystemTime;

use nearpath_ca::Authority;
use nearpath_types::direct::ForeignAuthority;
use nearpath_types::{FunctionId, InstanceId, SpiffeId};
use nearpath_wire::identity::Trust;
use nearpath_wire::quic::EarlyData;

use crate::quic::fixture::{
    DOMAIN, LIMIT, QuicFixture, TestCaller, TestWorkerSpec, echo, post, run,
};

const OTHER_DOMAIN: &str = "b.nearpath";

/// Another node, which trusts the workers of the fixture.
struct OtherNode(QuicFixture);

impl OtherNode {
    /// Its authority says that it signs for this domain.
    fn of_domain(domain: &str, workers: &QuicFixture) -> Self {
        let lifetime = std::time::Duration::from_secs(3600);
        let authority = Authority::new(domain, SystemTime::now(), lifetime).unwrap();
        let trust = Trust::new(domain, &[authority.certificate().clone()]).unwrap();
        let known = foreign(DOMAIN, &workers.authority, []);
        // A node that pretends to be of the domain of the workers has no second one to trust.
        let trust = match domain == DOMAIN {
            true => Trust::new(
                DOMAIN,
                &[
                    authority.certificate().clone(),
                    workers.authority.certificate().clone(),
                ],
            ),
            false => trust.with_foreign(&[known]),
        };
        Self(QuicFixture {
            authority,
            trust: trust.unwrap(),
        })
    }

    fn caller(&self, domain: &str, function: &str, name: &str) -> TestCaller {
        let id = SpiffeId::for_instance(domain, function.parse().unwrap(), InstanceId(1));
        self.0.caller_as(self.0.credentials(id, name))
    }
}

fn foreign<const N: usize>(
    domain: &str,
    authority: &Authority,
    callers: [(&str, &str); N],
) -> ForeignAuthority {
    let caller = |(name, function): (&str, &str)| -> (String, FunctionId) {
        (name.to_owned(), function.parse().unwrap())
    };
    ForeignAuthority {
        trust_domain: domain.to_owned(),
        certificate: authority.certificate().to_vec(),
        callers: callers.map(caller).into_iter().collect::<BTreeMap<_, _>>(),
    }
}

/// A worker that `friend` as `i1` of the other node may call.
fn worker_of(fixture: &QuicFixture, other: &OtherNode) -> TestWorkerSpec {
    let listed = foreign(
        OTHER_DOMAIN,
        &other.0.authority,
        [("i1.b.nearpath", "friend")],
    );
    let mut worker = fixture.worker(1);
    let trust = fixture.trust.with_foreign(&[listed]).unwrap();
    worker.trust = trust.with_callers(["friend".parse().unwrap()].into());
    worker
}

/// Result of a call: its status, or the reason of the refusal.
async fn outcome(caller: &TestCaller, worker: &TestWorkerSpec) -> Result<u16, String> {
    let worker = worker.start(echo);
    let dialer = caller.dialer();
    let dialed = dialer.dial_worker(worker.addr, &worker.name, LIMIT).await;
    let connection = dialed.map_err(|error| error.to_string())?;
    let called = connection.call_buffered(post("in"), EarlyData::Allowed);
    match called.await {
        Ok(response) => Ok(response.status().as_u16()),
        Err(error) => {
            let reason = connection.connection().closed().await;
            Err(format!("{error}: {reason}"))
        }
    }
}

#[test]
fn a_listed_instance_of_another_node_is_admitted() {
    run(async {
        let fixture = QuicFixture::new();
        let other = OtherNode::of_domain(OTHER_DOMAIN, &fixture);
        let caller = other.caller(OTHER_DOMAIN, "friend", "i1.b.nearpath");
        let called = outcome(&caller, &worker_of(&fixture, &other)).await;
        assert_eq!(called, Ok(200));
    });
}

#[test]
fn others_of_that_node_are_refused() {
    run(async {
        let fixture = QuicFixture::new();
        let other = OtherNode::of_domain(OTHER_DOMAIN, &fixture);
        // Another instance, and another function under the name of the listed one.
        for (function, name) in [("friend", "i2.b.nearpath"), ("stranger", "i1.b.nearpath")] {
            let caller = other.caller(OTHER_DOMAIN, function, name);
            let refused = outcome(&caller, &worker_of(&fixture, &other)).await;
            let why = refused.unwrap_err();
            assert!(
                why.contains("no edge leads from spiffe://b.nearpath"),
                "{why}"
            );
        }
    });
}

#[test]
fn its_authority_does_not_count_for_the_own_trust_domain() {
    run(async {
        let fixture = QuicFixture::new();
        // The node announces an authority that signs for the domain of the worker.
        let other = OtherNode::of_domain(DOMAIN, &fixture);
        let caller = other.caller(DOMAIN, "friend", "i1.test.nearpath");
        let why = outcome(&caller, &worker_of(&fixture, &other)).await;
        let why = why.unwrap_err();
        assert!(why.contains("is not accepted any more"), "{why}");
    });
}

#[test]
fn an_instance_of_no_listed_domain_is_refused() {
    run(async {
        let fixture = QuicFixture::new();
        let other = OtherNode::of_domain("c.nearpath", &fixture);
        let caller = other.caller("c.nearpath", "friend", "i1.b.nearpath");
        let why = outcome(&caller, &worker_of(&fixture, &other)).await;
        let why = why.unwrap_err();
        assert!(why.contains("belongs to another trust domain"), "{why}");
    });
}
