//! One caller and one worker, at one distance.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use nearpath_testkit::lab::{LabNode, LinkConditions, NetworkLab};

use super::{Args, Place, here, minting, names};
use crate::compare::{Better, Comparison, Ratio, median};
use crate::cpu;
use crate::remote::caller::{Ask, Callee, Caller};
use crate::remote::drive::{self, Took};
use crate::remote::site::{Identity, Site, mint};
use crate::remote::worker::{Machine, Worker};
use crate::remote::{Error, Way};

/// Of every message that is not large.
const SMALL: usize = 100;
const LARGE: usize = 1_000_000;
/// On connections that stay, sessions and who shows a certificate make no difference.
const KEPT: [Way; 4] = [Way::Tcp, Way::Tls12, Way::Tls13, Way::Quic];
/// Sessions that a worker is started with.
const SESSIONS: usize = 8;

/// How the cases here begin.
const CASES: [&str; 4] = ["GET", "POST", "1 MB", "first call"];

/// Where the caller is, and where the worker.
struct Ground {
    _lab: NetworkLab,
    caller: LabNode,
    worker: LabNode,
    caller_at: IpAddr,
    worker_at: IpAddr,
}

/// All that stays for the cases of one distance.
struct Stage<'a> {
    args: &'a Args,
    place: Place,
    site: Site,
    identity: Identity,
    caller_at: IpAddr,
    caller: Caller,
    machine: Machine,
    next: Cell<u64>,
}

/// Every case at this distance.
pub(super) fn measure(args: &Args, place: Place, comparison: &mut Comparison) -> Result<(), Error> {
    if !CASES.iter().any(|case| args.may_want(case)) {
        return Ok(());
    }
    let ground = Ground::new(place, args.awake)?;
    ground.caller.enter(|| {
        here(async {
            let machine = Machine::new(&ground.worker, ground.worker_at)?;
            let site = Site::new()?;
            let identity = site.gateway()?;
            let caller = Caller::new(identity.clone())?;
            let (caller_at, next) = (ground.caller_at, Cell::new(0));
            let stage = Stage {
                args,
                place,
                site,
                identity,
                caller_at,
                caller,
                machine,
                next,
            };
            stage.all(comparison).await
        })
    })
}

impl Ground {
    fn new(place: Place, awake: Duration) -> Result<Self, Error> {
        let mut lab = NetworkLab::new()?;
        let worker = lab.add_node("worker")?;
        let Place::Link(delay) = place else {
            let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
            return Ok(Self {
                _lab: lab,
                caller: worker.clone(),
                worker,
                caller_at: here,
                worker_at: here,
            });
        };
        let caller = lab.add_node("caller")?;
        let cable = lab.connect_nodes(
            &caller,
            &worker,
            &LinkConditions {
                delay,
                awake,
                ..LinkConditions::default()
            },
        )?;
        let (caller_at, worker_at) = (cable.first_end().v4.into(), cable.second_end().v4.into());
        Ok(Self {
            _lab: lab,
            caller,
            worker,
            caller_at,
            worker_at,
        })
    }
}

impl Stage<'_> {
    async fn all(&self, comparison: &mut Comparison) -> Result<(), Error> {
        let worker = self.worker(SESSIONS, true, true)?;
        let asks = [
            ("GET", Ask::get(SMALL)),
            ("POST", Ask::post(SMALL)),
            ("1 MB response", Ask::get(LARGE)),
        ];
        for (what, ask) in &asks {
            self.fresh(
                comparison,
                &worker,
                &format!("{what}, new connection, {}", self.place),
                ask,
            )
            .await?;
        }
        for (what, ask, at_a_time) in [
            ("GET", &asks[0].1, 1),
            ("GET", &asks[0].1, 32),
            ("1 MB response", &asks[2].1, 1),
        ] {
            let case = format!("{what}, continuous {at_a_time}, {}", self.place);
            self.kept(comparison, &worker, &case, (ask, at_a_time))
                .await?;
        }
        if self.place == Place::Loopback {
            self.beside_mints(comparison, &worker, &asks[0].1).await?;
        }
        drop(worker);
        self.never_contacted(comparison).await
    }

    /// A worker that has served nobody, with so many sessions of this caller.
    fn worker(&self, sessions: usize, dog: bool, front: bool) -> Result<Worker, Error> {
        self.next.set(self.next.get() + 1);
        let mut provision = self.site.worker(self.next.get())?;
        for _ in 0..sessions {
            mint(&mut provision, &self.identity, self.caller_at)?;
        }
        self.machine.start(&provision, dog, front)
    }

    async fn fresh(
        &self,
        to: &mut Comparison,
        worker: &Worker,
        case: &str,
        ask: &Ask,
    ) -> Result<(), Error> {
        if !self.args.wants(case) {
            return Ok(());
        }
        let ways = self.args.ways(&Way::ALL);
        let one = async |index: usize| {
            let way = ways[index];
            let of = (way, &worker.callee);
            let took =
                drive::fresh(&self.caller, of, ask, self.args.plan(), spent(worker, way)).await;
            Ok::<_, Error>(told(case, way.name(), &took).measured())
        };
        to.loads(case, &names(&ways), one).await?;
        eprintln!("measured: {case}");
        Ok(())
    }

    async fn kept(
        &self,
        to: &mut Comparison,
        worker: &Worker,
        case: &str,
        what: (&Ask, usize),
    ) -> Result<(), Error> {
        if !self.args.wants(case) {
            return Ok(());
        }
        let ways = self.args.ways(&KEPT);
        let callers = RefCell::new(vec![Vec::new(); ways.len()]);
        let one = async |index: usize| {
            let way = ways[index];
            let of = (way, &worker.callee);
            let took =
                drive::kept(&self.caller, of, what, self.args.plan(), spent(worker, way)).await;
            callers.borrow_mut()[index].push(took.caller_us());
            Ok::<_, Error>(told(case, way.name(), &took).measured())
        };
        to.loads(case, &names(&ways), one).await?;
        eprintln!("measured: {case}");
        if self.place == Place::Loopback && what.0.answer == SMALL && ways == KEPT {
            let us: Vec<f64> = callers
                .into_inner()
                .into_iter()
                .map(|us| median(us.into_iter()))
                .collect();
            let (tcp, quic) = (us[0], us[KEPT.len() - 1]);
            let name = format!("caller's CPU µs a call, {case}, quic - tcp");
            to.figure(Ratio {
                name,
                value: quic - tcp,
                better: Better::Lower,
                goal: 8.0,
            });
        }
        Ok(())
    }

    /// Calls on a connection that stays, while sessions for other workers are minted as fast as one thread can.
    async fn beside_mints(
        &self,
        to: &mut Comparison,
        worker: &Worker,
        ask: &Ask,
    ) -> Result<(), Error> {
        let case = "GET beside mints, continuous 1, loopback";
        if self.args.mints == 0 || !self.args.wants(case) {
            return Ok(());
        }
        let one = async |index: usize| {
            let of = (Way::Quic, &worker.callee);
            let calls = drive::kept(
                &self.caller,
                of,
                (ask, 1),
                self.args.plan(),
                spent(worker, Way::Quic),
            );
            let took = match index {
                0 => calls.await,
                _ => minting::beside(calls).await?.0,
            };
            Ok::<_, Error>(told(case, Way::Quic.name(), &took).measured())
        };
        to.loads(case, &["quic, no mints", "quic, mints"], one)
            .await?;
        eprintln!("measured: {case}");
        Ok(())
    }

    /// Each call is the first that its worker gets; the worker's start is not in it.
    async fn never_contacted(&self, to: &mut Comparison) -> Result<(), Error> {
        let case = format!("first call to a worker, {}", self.place);
        if self.args.starts == 0 || !self.args.wants(&case) {
            return Ok(());
        }
        // A session of an earlier connection, and a connection from before, are what such a worker cannot have.
        let mut ways = self.args.ways(&Way::ALL);
        ways.retain(|way| !matches!(way, Way::Tls13Resumed | Way::QuicReady));
        let one = async |index: usize| {
            let (way, mut took) = (ways[index], Took::default());
            for _ in 0..self.args.starts {
                let worker = self.worker(1, !way.needs_front(), way.needs_front())?;
                self.once(way, &worker, &mut took).await;
            }
            Ok::<_, Error>(told(&case, way.name(), &took).measured())
        };
        to.loads(&case, &names(&ways), one).await?;
        eprintln!("measured: {case}");
        Ok(())
    }

    async fn once(&self, way: Way, worker: &Worker, took: &mut Took) {
        let spent = spent(worker, way);
        let (own, far) = (drive::own(), spent());
        let callee: &Callee = &worker.callee;
        let ask = Ask::get(SMALL);
        drive::first(
            &self.caller,
            (way, callee),
            async |to| to.ask(&ask).await,
            took,
        )
        .await;
        took.caller += drive::own() - own;
        took.worker += spent() - far;
    }
}

/// What the process that answers has spent.
fn spent(worker: &Worker, way: Way) -> impl Fn() -> Duration {
    let pid = worker.pid(way.needs_front());
    move || pid.map_or(Duration::ZERO, |pid| cpu::alone(&[pid]))
}

/// Failures are in the table as a number; what they are is told here.
pub(super) fn told<'a>(case: &str, variant: &str, took: &'a Took) -> &'a Took {
    if took.tally.failed() > 0 {
        eprintln!("{case}, {variant}: {:?}", took.tally.failures());
    }
    took
}
