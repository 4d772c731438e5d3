use super::*;

use nearpath_wire::identity::Refusal;

/// Minting checks certificates by the machine's clock, which is 60 s behind at most: so long a certificate was good before it was made.
const LIFETIME: Duration = Duration::from_secs(30);

struct Scene {
    office: Office,
    callers: watch::Receiver<Caller>,
    now: Moment,
}

/// An instance as its watchdog sees it.
struct Told {
    name: String,
    frames: mpsc::Receiver<Vec<u8>>,
}

impl Office {
    /// The instances that it remembers.
    pub(in super::super) fn known(&self) -> Vec<InstanceId> {
        self.instances.values().map(|instance| instance.id).collect()
    }
}

impl Told {
    fn next(&mut self) -> Option<Provision> {
        self.frames.try_recv().ok().map(|frame| Provision::read(&frame[4..]).unwrap())
    }
}

impl Scene {
    fn new() -> Self {
        let terms = Terms { node: "a".to_owned(), from: [127, 0, 0, 1].into(), lifetime: LIFETIME };
        let now = Moment { at: Instant::now(), wall: SystemTime::now() };
        let (office, callers) = Office::open(terms, now).unwrap();
        Self { office, callers, now }
    }

    fn start(&mut self, id: u64) -> Told {
        let identity = self.office.issue("echo".parse().unwrap(), InstanceId(id), self.now).unwrap();
        Told { name: identity.name.to_string(), frames: identity.frames }
    }

    fn sessions(&self, told: &Told) -> usize {
        self.office.gateway.sessions.left(&told.name)
    }

    /// Lets time pass, and does all that is due by then.
    fn pass(&mut self, time: Duration) {
        let end = self.now.at + time;
        while let Some(at) = self.office.next(self.now.at).filter(|at| *at <= end) {
            self.now = Moment { at, wall: self.now.wall + (at - self.now.at) };
            self.office.renew(self.now);
        }
        self.now = Moment { at: end, wall: self.now.wall + (end - self.now.at) };
    }

    fn admits(&self, provision: &Provision) -> Result<(), Refusal> {
        self.callers.borrow().trust().admit(&provision.credentials.chain, self.now.wall).map(drop)
    }
}

#[test]
fn an_instance_gets_what_the_gateway_has_the_other_half_of() {
    let mut scene = Scene::new();
    let (mut one, mut other) = (scene.start(1), scene.start(2));
    let (first, second) = (one.next().unwrap(), other.next().unwrap());
    assert_eq!((first.credentials.name.as_str(), first.entries.len()), (one.name.as_str(), scene.sessions(&one)));
    assert!(!first.entries.is_empty() && first.callers.is_empty());
    assert!(first.key != second.key && first.credentials.key != second.credentials.key && one.name != other.name);
    assert_eq!(scene.admits(&first), Ok(()));
}

#[test]
fn who_has_ended_is_taken_back_and_forgotten() {
    let mut scene = Scene::new();
    let (mut ended, mut stays) = (scene.start(1), scene.start(2));
    let (of_ended, of_other) = (ended.next().unwrap(), stays.next().unwrap());
    scene.office.gone(vec![ended.name.clone()], scene.now);
    assert!(matches!(scene.admits(&of_ended), Err(Refusal::Revoked(_))), "{:?}", scene.admits(&of_ended));
    assert_eq!((scene.admits(&of_other), scene.sessions(&ended)), (Ok(()), 0));
    scene.pass(LIFETIME);
    assert!(ended.next().is_none() && stays.next().is_some(), "only who is there is renewed");
}

#[test]
fn certificates_are_renewed_before_they_end_under_the_same_name() {
    let mut scene = Scene::new();
    let mut told = scene.start(1);
    let mut last = told.next().unwrap();
    for _ in 0..10 {
        scene.pass(LIFETIME / 6);
        while let Some(next) = told.next() {
            assert_eq!((&next.credentials.name, &next.key), (&last.credentials.name, &last.key));
            last = next;
        }
        assert_eq!(scene.admits(&last), Ok(()));
        assert!(scene.sessions(&told) > 0, "the first flight is never without a session");
    }
    assert!(last.credentials.not_after > scene.now.wall);
}

#[test]
fn a_renewed_gateway_takes_over_when_every_instance_has_a_session_for_it() {
    let mut scene = Scene::new();
    scene.now.at += LIFETIME / 4; // instances are renewed later than the gateway
    let told: Vec<_> = (1..4).map(|id| scene.start(id)).collect();
    let before = scene.callers.borrow_and_update().clone();
    let due = scene.office.next(scene.now.at).unwrap();
    scene.now.at = due;
    for _ in 0..=told.len() {
        assert!(scene.callers.borrow().is_same(&before));
        scene.office.renew(scene.now);
    }
    let late = scene.start(9); // it starts meanwhile
    while scene.office.coming.is_some() {
        scene.office.renew(scene.now);
    }
    assert!(!scene.callers.borrow().is_same(&before));
    assert!(told.iter().chain([&late]).all(|told| scene.sessions(told) > 0));
}

#[test]
fn an_instance_learns_who_may_call_it_who_may_no_more_and_what_was_minted_for_it() {
    let mut scene = Scene::new();
    let mut echo = scene.start(1);
    assert_eq!(echo.next().unwrap().callers, []);
    let caller: FunctionId = "caller".parse().unwrap();
    let edges = BTreeMap::from([("echo".parse().unwrap(), vec![caller.clone()])]);
    scene.office.permit(edges.clone(), scene.now);
    assert_eq!(echo.next().unwrap().callers, std::slice::from_ref(&caller));
    scene.office.permit(edges, scene.now);
    assert_eq!(echo.next(), None, "nothing has changed");
    let calls = scene.office.issue(caller, InstanceId(2), scene.now).unwrap();
    scene.office.gone(vec![calls.name.to_string()], scene.now);
    assert_eq!(echo.next().unwrap().revoked, [calls.name.to_string()]);
    assert!(scene.office.worker(&calls.name).is_none() && scene.office.worker(&echo.name).is_some());
    let entries = vec![Entry { ticket: vec![1], session: vec![2] }];
    scene.office.enter(&echo.name, entries.clone(), scene.now);
    assert_eq!(echo.next().unwrap().entries, entries);
    scene.office.permit(BTreeMap::new(), scene.now);
    let told = echo.next().unwrap();
    assert_eq!((told.callers, told.revoked), (Vec::new(), Vec::new()), "nobody may call: nobody need be named");
}

#[test]
fn an_instance_that_does_not_read_is_told_everything_when_it_does() {
    let mut scene = Scene::new();
    let mut echo = scene.start(1);
    for number in 0..2 * FRAMES {
        let caller = format!("caller{number}").parse().unwrap();
        scene.office.permit(BTreeMap::from([("echo".parse().unwrap(), vec![caller])]), scene.now);
    }
    while echo.next().is_some() {}
    scene.pass(AGAIN);
    assert_eq!(echo.next().unwrap().callers, [format!("caller{}", 2 * FRAMES - 1).parse().unwrap()]);
}
