//! Calls between a caller and a worker at one distance.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use nearpath_testkit::lab::{LabNode, LinkConditions, NetworkLab};

use super::{NetworkPlace, QuicArgs, minting, run_local, transport_names};
use crate::compare::{BenchComparison, BetterDirection, GoalRatio, median_of};
use crate::cpu;
use crate::remote::caller::{CalleeAddress, RemoteCaller, SizedCall};
use crate::remote::drive::{self, CallTimes};
use crate::remote::identities::{BenchAuthority, CallIdentity, mint_session};
use crate::remote::worker::{StartedWorker, WorkerMachine};
use crate::remote::{BenchError, RemoteTransport};

/// Of every message that is not large.
const SMALL_BYTES: usize = 100;
const LARGE_BYTES: usize = 1_000_000;
/// On connections that stay, sessions and who shows a certificate make no difference.
const KEPT_TRANSPORTS: [RemoteTransport; 4] = [
    RemoteTransport::Tcp,
    RemoteTransport::Tls12,
    RemoteTransport::Tls13,
    RemoteTransport::Quic,
];
/// Sessions that a worker is started with.
const SESSION_COUNT: usize = 8;

/// Prefixes of the case names here.
const CASE_PREFIXES: [&str; 4] = ["GET", "POST", "1 MB", "first call"];

/// Machines of the caller and of the worker.
struct NearNetwork {
    _lab: NetworkLab,
    caller: LabNode,
    worker: LabNode,
    caller_at: IpAddr,
    worker_at: IpAddr,
}

/// All that stays for the cases of one distance.
struct NearSetup<'a> {
    args: &'a QuicArgs,
    place: NetworkPlace,
    site: BenchAuthority,
    identity: CallIdentity,
    caller_at: IpAddr,
    caller: RemoteCaller,
    machine: WorkerMachine,
    next: Cell<u64>,
}

/// Every case at this distance.
pub(super) fn measure(
    args: &QuicArgs,
    place: NetworkPlace,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    if !CASE_PREFIXES.iter().any(|case| args.may_want(case)) {
        return Ok(());
    }
    let ground = NearNetwork::new(place, args.awake)?;
    ground.caller.enter(|| {
        run_local(async {
            let machine = WorkerMachine::new(&ground.worker, ground.worker_at)?;
            let site = BenchAuthority::new()?;
            let identity = site.gateway_identity()?;
            let caller = RemoteCaller::new(identity.clone())?;
            let (caller_at, next) = (ground.caller_at, Cell::new(0));
            let stage = NearSetup {
                args,
                place,
                site,
                identity,
                caller_at,
                caller,
                machine,
                next,
            };
            stage.measure_all(comparison).await
        })
    })
}

impl NearNetwork {
    fn new(place: NetworkPlace, awake: Duration) -> Result<Self, BenchError> {
        let mut lab = NetworkLab::new()?;
        let worker = lab.add_node("worker")?;
        let NetworkPlace::Link(delay) = place else {
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

impl NearSetup<'_> {
    async fn measure_all(&self, comparison: &mut BenchComparison) -> Result<(), BenchError> {
        // One worker for all cases, with both ways in: its start is measured elsewhere.
        let worker = self.start_worker(SESSION_COUNT, true, true)?;
        let asks = [
            ("GET", SizedCall::for_get(SMALL_BYTES)),
            ("POST", SizedCall::for_post(SMALL_BYTES)),
            ("1 MB response", SizedCall::for_get(LARGE_BYTES)),
        ];
        for (what, ask) in &asks {
            self.measure_fresh(
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
            self.measure_kept(comparison, &worker, &case, (ask, at_a_time))
                .await?;
        }
        if self.place == NetworkPlace::Loopback {
            self.measure_beside_mints(comparison, &worker, &asks[0].1)
                .await?;
        }
        // Its processes would otherwise run beside those of the first calls.
        drop(worker);
        self.measure_first_call(comparison).await
    }

    /// Starts a new worker with `sessions` sessions of this caller.
    fn start_worker(
        &self,
        sessions: usize,
        dog: bool,
        front: bool,
    ) -> Result<StartedWorker, BenchError> {
        self.next.set(self.next.get() + 1);
        let mut provision = self.site.worker_provision(self.next.get())?;
        for _ in 0..sessions {
            mint_session(&mut provision, &self.identity, self.caller_at)?;
        }
        self.machine.start_worker(&provision, dog, front)
    }

    async fn measure_fresh(
        &self,
        to: &mut BenchComparison,
        worker: &StartedWorker,
        case: &str,
        ask: &SizedCall,
    ) -> Result<(), BenchError> {
        if !self.args.wants_case(case) {
            return Ok(());
        }
        let ways = self.args.wanted_transports(&RemoteTransport::ALL);
        let one = async |index: usize| {
            let way = ways[index];
            let of = (way, &worker.callee);
            let took = drive::call_fresh(
                &self.caller,
                of,
                ask,
                self.args.call_plan(),
                worker_cpu(worker, way),
            )
            .await;
            Ok::<_, BenchError>(print_failures(case, way.name(), &took).to_sample())
        };
        to.measure_loads(case, &transport_names(&ways), one).await?;
        eprintln!("measured: {case}");
        Ok(())
    }

    async fn measure_kept(
        &self,
        to: &mut BenchComparison,
        worker: &StartedWorker,
        case: &str,
        what: (&SizedCall, usize),
    ) -> Result<(), BenchError> {
        if !self.args.wants_case(case) {
            return Ok(());
        }
        let ways = self.args.wanted_transports(&KEPT_TRANSPORTS);
        let callers = RefCell::new(vec![Vec::new(); ways.len()]);
        let one = async |index: usize| {
            let way = ways[index];
            let of = (way, &worker.callee);
            let took = drive::call_kept(
                &self.caller,
                of,
                what,
                self.args.call_plan(),
                worker_cpu(worker, way),
            )
            .await;
            callers.borrow_mut()[index].push(took.caller_us());
            Ok::<_, BenchError>(print_failures(case, way.name(), &took).to_sample())
        };
        to.measure_loads(case, &transport_names(&ways), one).await?;
        eprintln!("measured: {case}");
        if self.place == NetworkPlace::Loopback
            && what.0.answer == SMALL_BYTES
            && ways == KEPT_TRANSPORTS
        {
            let us: Vec<f64> = callers
                .into_inner()
                .into_iter()
                .map(|us| median_of(us.into_iter()))
                .collect();
            let (tcp, quic) = (us[0], us[KEPT_TRANSPORTS.len() - 1]);
            let name = format!("caller's CPU µs a call, {case}, quic - tcp");
            to.add_figure(GoalRatio {
                name,
                value: quic - tcp,
                better: BetterDirection::Lower,
                goal: 8.0,
            });
        }
        Ok(())
    }

    /// Calls on a connection that stays, while sessions for other workers are minted as fast as one
    /// thread can.
    async fn measure_beside_mints(
        &self,
        to: &mut BenchComparison,
        worker: &StartedWorker,
        ask: &SizedCall,
    ) -> Result<(), BenchError> {
        let case = "GET beside mints, continuous 1, loopback";
        if self.args.mints == 0 || !self.args.wants_case(case) {
            return Ok(());
        }
        let one = async |index: usize| {
            let of = (RemoteTransport::Quic, &worker.callee);
            let calls = drive::call_kept(
                &self.caller,
                of,
                (ask, 1),
                self.args.call_plan(),
                worker_cpu(worker, RemoteTransport::Quic),
            );
            let took = match index {
                0 => calls.await,
                _ => minting::mint_beside(calls).await?.0,
            };
            Ok::<_, BenchError>(
                print_failures(case, RemoteTransport::Quic.name(), &took).to_sample(),
            )
        };
        to.measure_loads(case, &["quic, no mints", "quic, mints"], one)
            .await?;
        eprintln!("measured: {case}");
        Ok(())
    }

    /// Each call is the first that its worker gets; the worker's start is not in it.
    async fn measure_first_call(&self, to: &mut BenchComparison) -> Result<(), BenchError> {
        let case = format!("first call to a worker, {}", self.place);
        if self.args.starts == 0 || !self.args.wants_case(&case) {
            return Ok(());
        }
        // A session of an earlier connection, and a connection from before, are what such a worker cannot have.
        let mut ways = self.args.wanted_transports(&RemoteTransport::ALL);
        ways.retain(|way| {
            !matches!(
                way,
                RemoteTransport::Tls13Resumed | RemoteTransport::QuicReady
            )
        });
        let one = async |index: usize| {
            let (way, mut took) = (ways[index], CallTimes::default());
            for _ in 0..self.args.starts {
                let worker = self.start_worker(1, !way.needs_front(), way.needs_front())?;
                self.call_once(way, &worker, &mut took).await;
            }
            Ok::<_, BenchError>(print_failures(&case, way.name(), &took).to_sample())
        };
        to.measure_loads(&case, &transport_names(&ways), one)
            .await?;
        eprintln!("measured: {case}");
        Ok(())
    }

    async fn call_once(&self, way: RemoteTransport, worker: &StartedWorker, took: &mut CallTimes) {
        let spent = worker_cpu(worker, way);
        let (own, far) = (drive::thread_cpu(), spent());
        let callee: &CalleeAddress = &worker.callee;
        let ask = SizedCall::for_get(SMALL_BYTES);
        drive::call_first(
            &self.caller,
            (way, callee),
            async |to| to.make_call(&ask).await,
            took,
        )
        .await;
        took.caller += drive::thread_cpu() - own;
        took.worker += spent() - far;
    }
}

/// Returns a reader of the CPU time of the answering process.
fn worker_cpu(worker: &StartedWorker, way: RemoteTransport) -> impl Fn() -> Duration {
    let pid = worker.pid(way.needs_front());
    move || pid.map_or(Duration::ZERO, |pid| cpu::processes_cpu(&[pid]))
}

/// Failures are in the table as a number; what they are is told here.
pub(super) fn print_failures<'a>(case: &str, variant: &str, took: &'a CallTimes) -> &'a CallTimes {
    if took.tally.failed_count() > 0 {
        eprintln!("{case}, {variant}: {:?}", took.tally.failures_by_kind());
    }
    took
}
