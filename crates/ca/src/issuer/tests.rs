use super::*;

use super::renewal::RETRY_INTERVAL;
use nearpath_wire::identity::PeerRefusal;

/// Shorter than the clock skew of 60 s for which certificates are valid in advance: minting checks
/// them by the machine's clock, not by the test's.
const LIFETIME: Duration = Duration::from_secs(30);

/// An issuer under a clock that the test moves.
struct TestIssuer {
    issuer: Issuer,
    callers: watch::Receiver<CallerConfig>,
    now: TimePoint,
}

/// An instance as its watchdog sees it.
struct TestInstance {
    name: String,
    frames: mpsc::Receiver<Vec<u8>>,
}

impl Issuer {
    /// Ids of the instances that have an identity.
    pub(crate) fn known_instances(&self) -> Vec<InstanceId> {
        self.instances
            .values()
            .map(|instance| instance.id)
            .collect()
    }
}

impl TestInstance {
    fn next_provision(&mut self) -> Option<Provision> {
        self.frames
            .try_recv()
            .ok()
            .map(|frame| Provision::decode(&frame[4..]).unwrap())
    }
}

impl TestIssuer {
    fn new() -> Self {
        Self::of_member(None)
    }

    fn of_member(name: Option<&str>) -> Self {
        let settings = IssuerSettings {
            node: "a".to_owned(),
            member_name: name.map(|name| name.parse().unwrap()),
            gateway_ip: [127, 0, 0, 1].into(),
            lifetime: LIFETIME,
        };
        let now = TimePoint::now();
        let (issuer, callers) = Issuer::new(settings, now).unwrap();
        Self {
            issuer,
            callers,
            now,
        }
    }

    fn start(&mut self, id: u64) -> TestInstance {
        let identity = self
            .issuer
            .issue("echo".parse().unwrap(), InstanceId(id), self.now)
            .unwrap();
        TestInstance {
            name: identity.name.to_string(),
            frames: identity.frames,
        }
    }

    fn sessions(&self, instance: &TestInstance) -> usize {
        self.issuer.gateway.sessions.session_count(&instance.name)
    }

    /// Advances the clock and does every renewal that is due meanwhile.
    fn advance(&mut self, time: Duration) {
        let end = self.now.at + time;
        while let Some(at) = self.issuer.next_due(self.now.at).filter(|at| *at <= end) {
            self.now = TimePoint {
                at,
                wall: self.now.wall + (at - self.now.at),
            };
            self.issuer.renew_next(self.now);
        }
        self.now = TimePoint {
            at: end,
            wall: self.now.wall + (end - self.now.at),
        };
    }

    fn gateway_admits(&self, provision: &Provision) -> Result<(), PeerRefusal> {
        self.callers
            .borrow()
            .trust()
            .admit_peer(&provision.credentials.chain, self.now.wall)
            .map(drop)
    }
}

#[test]
fn an_instance_and_the_gateway_get_halves_of_the_same_session() {
    let mut test = TestIssuer::new();
    let (mut one, mut other) = (test.start(1), test.start(2));
    let (first, second) = (
        one.next_provision().unwrap(),
        other.next_provision().unwrap(),
    );
    assert_eq!(
        (first.credentials.name.as_str(), first.sessions.len()),
        (one.name.as_str(), test.sessions(&one))
    );
    assert!(!first.sessions.is_empty() && first.callers.is_empty());
    assert!(
        first.token_key != second.token_key
            && first.credentials.key != second.credentials.key
            && one.name != other.name
    );
    assert_eq!(test.gateway_admits(&first), Ok(()));
}

#[test]
fn instances_of_two_nodes_have_different_identities() {
    let [mut first, mut second] = ["a", "b"].map(|name| TestIssuer::of_member(Some(name)));
    let (mut of_a, mut of_b) = (first.start(1), second.start(1));
    let (at_a, at_b) = (
        of_a.next_provision().unwrap(),
        of_b.next_provision().unwrap(),
    );
    assert_eq!(
        (&*of_a.name, &*of_b.name),
        ("i1.a.up.nearpath", "i1.b.up.nearpath")
    );
    assert_ne!(at_a.credentials.id, at_b.credentials.id);
    assert_eq!(first.gateway_admits(&at_a), Ok(()));
    assert!(first.gateway_admits(&at_b).is_err());
}

#[test]
fn an_ended_instance_is_revoked_and_forgotten() {
    let mut test = TestIssuer::new();
    let (mut ended, mut running) = (test.start(1), test.start(2));
    let (of_ended, of_running) = (
        ended.next_provision().unwrap(),
        running.next_provision().unwrap(),
    );
    test.issuer.revoke(vec![ended.name.clone()], test.now);
    let admitted = test.gateway_admits(&of_ended);
    assert!(
        matches!(admitted, Err(PeerRefusal::Revoked(_))),
        "{admitted:?}"
    );
    assert_eq!(
        (test.gateway_admits(&of_running), test.sessions(&ended)),
        (Ok(()), 0)
    );
    test.advance(LIFETIME);
    assert!(
        ended.next_provision().is_none() && running.next_provision().is_some(),
        "only the running one is renewed"
    );
}

#[test]
fn certificates_are_renewed_before_they_expire_under_the_same_name() {
    let mut test = TestIssuer::new();
    let mut instance = test.start(1);
    let mut last = instance.next_provision().unwrap();
    for _ in 0..10 {
        test.advance(LIFETIME / 6);
        while let Some(next) = instance.next_provision() {
            assert_eq!(
                (&next.credentials.name, &next.token_key),
                (&last.credentials.name, &last.token_key)
            );
            last = next;
        }
        assert_eq!(test.gateway_admits(&last), Ok(()));
        assert!(
            test.sessions(&instance) > 0,
            "the first flight always has a session"
        );
    }
    assert!(last.credentials.not_after > test.now.wall);
}

#[test]
fn a_renewed_gateway_takes_over_once_every_instance_has_a_session_for_it() {
    let mut test = TestIssuer::new();
    test.now.at += LIFETIME / 4; // so that instances are renewed later than the gateway
    let instances: Vec<_> = (1..4).map(|id| test.start(id)).collect();
    let before = test.callers.borrow_and_update().clone();
    test.now.at = test.issuer.next_due(test.now.at).unwrap();
    for _ in 0..=instances.len() {
        assert!(test.callers.borrow().has_same_certificate(&before));
        test.issuer.renew_next(test.now);
    }
    let late = test.start(9); // starts before the switch
    while test.issuer.pending_gateway.is_some() {
        test.issuer.renew_next(test.now);
    }
    assert!(!test.callers.borrow().has_same_certificate(&before));
    assert!(
        instances
            .iter()
            .chain([&late])
            .all(|instance| test.sessions(instance) > 0)
    );
}

#[test]
fn an_instance_learns_its_callers_their_revocations_and_its_session_entries() {
    let mut test = TestIssuer::new();
    let mut echo = test.start(1);
    assert_eq!(echo.next_provision().unwrap().callers, []);
    let caller: FunctionId = "caller".parse().unwrap();
    let callers = BTreeMap::from([("echo".parse().unwrap(), vec![caller.clone()])]);
    test.issuer.update_callers(callers.clone(), test.now);
    assert_eq!(
        echo.next_provision().unwrap().callers,
        std::slice::from_ref(&caller)
    );
    test.issuer.update_callers(callers, test.now);
    assert_eq!(echo.next_provision(), None, "nothing has changed");
    let identity = test.issuer.issue(caller, InstanceId(2), test.now).unwrap();
    test.issuer
        .revoke(vec![identity.name.to_string()], test.now);
    assert_eq!(
        echo.next_provision().unwrap().revoked,
        [identity.name.to_string()]
    );
    assert!(test.issuer.worker_setup(&identity.name, test.now).is_none());
    assert!(test.issuer.worker_setup(&echo.name, test.now).is_some());
    let entries = vec![SessionEntry {
        ticket: vec![1],
        session: vec![2],
    }];
    test.issuer
        .deliver_entries(&echo.name, entries.clone(), test.now);
    assert_eq!(echo.next_provision().unwrap().sessions, entries);
    let none = BTreeMap::from([("echo".parse().unwrap(), Vec::new())]);
    test.issuer.update_callers(none, test.now);
    let provision = echo.next_provision().unwrap();
    assert_eq!(
        (provision.callers, provision.revoked),
        (Vec::new(), Vec::new()),
        "without callers no name is revoked"
    );
}

#[test]
fn an_instance_that_does_not_read_gets_the_current_state_later() {
    let mut test = TestIssuer::new();
    let mut echo = test.start(1);
    for number in 0..2 * MAX_QUEUED_FRAMES {
        let caller = format!("caller{number}").parse().unwrap();
        test.issuer.update_callers(
            BTreeMap::from([("echo".parse().unwrap(), vec![caller])]),
            test.now,
        );
    }
    while echo.next_provision().is_some() {}
    test.advance(RETRY_INTERVAL);
    let last = format!("caller{}", 2 * MAX_QUEUED_FRAMES - 1)
        .parse()
        .unwrap();
    assert_eq!(echo.next_provision().unwrap().callers, [last]);
}

#[test]
fn a_jump_of_the_wall_clock_renews_every_certificate() {
    let mut test = TestIssuer::new();
    let mut instance = test.start(1);
    let mut last = instance.next_provision().unwrap();
    // Suspended three times, and set back: only the wall clock changes, and each step alone is small.
    for (step, is_forward) in [
        (LIFETIME / 2, true),
        (LIFETIME / 10, true),
        (LIFETIME / 10, true),
        (LIFETIME, false),
    ] {
        test.now.wall = match is_forward {
            true => test.now.wall + step,
            false => test.now.wall - step,
        };
        test.issuer.follow_clock(test.now);
        test.advance(Duration::ZERO);
        last = instance.next_provision().unwrap_or(last);
        let left = last
            .credentials
            .not_after
            .duration_since(test.now.wall)
            .unwrap();
        assert!(left >= LIFETIME * 5 / 6, "{left:?} after {step:?}");
        assert!(left <= LIFETIME + LIFETIME / 6, "{left:?} after {step:?}");
        let gateway = test
            .issuer
            .gateway
            .expires_at
            .duration_since(test.now.wall)
            .unwrap();
        assert!(gateway >= LIFETIME * 5 / 6 && gateway <= LIFETIME * 7 / 6);
        assert!(test.sessions(&instance) > 0);
    }
    // The control: a steady clock makes nothing due.
    test.now.wall += LIFETIME / 10;
    test.now.at += LIFETIME / 10;
    test.issuer.follow_clock(test.now);
    test.advance(Duration::ZERO);
    assert!(instance.next_provision().is_none());
}

#[test]
fn an_instance_that_starts_beside_an_expired_gateway_is_issued() {
    let mut test = TestIssuer::new();
    let mut first = test.start(1);
    first.next_provision().unwrap();
    // The thread was not scheduled for as long: no renewal took place.
    test.now.at += LIFETIME * 2;
    test.now.wall += LIFETIME * 2;
    let mut late = test.start(2);
    let provision = late.next_provision().unwrap();
    assert_eq!(test.gateway_admits(&provision), Ok(()));
    assert!(test.issuer.gateway.expires_at > test.now.wall);
    assert!(!provision.sessions.is_empty());
}
