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

/// Bytes of every small message.
const SMALL_BYTES: usize = 100;
const LARGE_BYTES: usize = 1_000_000;
/// Transports for open connections, where sessions and callers' certificates have no effect.
const KEEP_ALIVE_TRANSPORTS: [RemoteTransport; 4] = [
    RemoteTransport::Tcp,
    RemoteTransport::Tls12,
    RemoteTransport::Tls13,
    RemoteTransport::Quic,
];
/// Initial sessions of a worker.
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

/// Setup for all cases of one distance.
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

/// Measures every case at this distance.
pub(super) fn measure(
    args: &QuicArgs,
    place: NetworkPlace,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    if !CASE_PREFIXES.iter().any(|case| args.may_want(case)) {
        return Ok(());
    }
    let network = NearNetwork::new(place, args.awake)?;
    network.caller.enter(|| {
        run_local(async {
            let machine = WorkerMachine::new(&network.worker, network.worker_at)?;
            let site = BenchAuthority::new()?;
            let identity = site.gateway_identity()?;
            let caller = RemoteCaller::new(identity.clone())?;
            let (caller_at, next) = (network.caller_at, Cell::new(0));
            let setup = NearSetup {
                args,
                place,
                site,
                identity,
                caller_at,
                caller,
                machine,
                next,
            };
            setup.measure_all(comparison).await
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
        let requests = [
            ("GET", SizedCall::for_get(SMALL_BYTES)),
            ("POST", SizedCall::for_post(SMALL_BYTES)),
            ("1 MB response", SizedCall::for_get(LARGE_BYTES)),
        ];
        for (what, request) in &requests {
            self.measure_fresh(
                comparison,
                &worker,
                &format!("{what}, new connection, {}", self.place),
                request,
            )
            .await?;
        }
        for (what, request, at_a_time) in [
            ("GET", &requests[0].1, 1),
            ("GET", &requests[0].1, 32),
            ("1 MB response", &requests[2].1, 1),
        ] {
            let case = format!("{what}, continuous {at_a_time}, {}", self.place);
            self.measure_keep_alive(comparison, &worker, &case, (request, at_a_time))
                .await?;
        }
        if self.place == NetworkPlace::Loopback {
            self.measure_during_minting(comparison, &worker, &requests[0].1)
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
        watchdog: bool,
        front: bool,
    ) -> Result<StartedWorker, BenchError> {
        self.next.set(self.next.get() + 1);
        let mut provision = self.site.worker_provision(self.next.get())?;
        for _ in 0..sessions {
            mint_session(&mut provision, &self.identity, self.caller_at)?;
        }
        self.machine.start_worker(&provision, watchdog, front)
    }

    async fn measure_fresh(
        &self,
        to: &mut BenchComparison,
        worker: &StartedWorker,
        case: &str,
        request: &SizedCall,
    ) -> Result<(), BenchError> {
        if !self.args.wants_case(case) {
            return Ok(());
        }
        let transports = self.args.wanted_transports(&RemoteTransport::ALL);
        let one = async |index: usize| {
            let transport = transports[index];
            let of = (transport, &worker.callee);
            let took = drive::call_fresh(
                &self.caller,
                of,
                request,
                self.args.call_plan(),
                worker_cpu(worker, transport),
            )
            .await;
            Ok::<_, BenchError>(print_failures(case, transport.name(), &took).to_sample())
        };
        to.measure_loads(case, &transport_names(&transports), one)
            .await?;
        eprintln!("measured: {case}");
        Ok(())
    }

    async fn measure_keep_alive(
        &self,
        to: &mut BenchComparison,
        worker: &StartedWorker,
        case: &str,
        what: (&SizedCall, usize),
    ) -> Result<(), BenchError> {
        if !self.args.wants_case(case) {
            return Ok(());
        }
        let transports = self.args.wanted_transports(&KEEP_ALIVE_TRANSPORTS);
        let callers = RefCell::new(vec![Vec::new(); transports.len()]);
        let one = async |index: usize| {
            let transport = transports[index];
            let of = (transport, &worker.callee);
            let took = drive::call_keep_alive(
                &self.caller,
                of,
                what,
                self.args.call_plan(),
                worker_cpu(worker, transport),
            )
            .await;
            callers.borrow_mut()[index].push(took.caller_us());
            Ok::<_, BenchError>(print_failures(case, transport.name(), &took).to_sample())
        };
        to.measure_loads(case, &transport_names(&transports), one)
            .await?;
        eprintln!("measured: {case}");
        if self.place == NetworkPlace::Loopback
            && what.0.response == SMALL_BYTES
            && transports == KEEP_ALIVE_TRANSPORTS
        {
            let us: Vec<f64> = callers
                .into_inner()
                .into_iter()
                .map(|us| median_of(us.into_iter()))
                .collect();
            let (tcp, quic) = (us[0], us[KEEP_ALIVE_TRANSPORTS.len() - 1]);
            let name = format!("caller's CPU µs per call, {case}, quic - tcp");
            to.add_figure(GoalRatio {
                name,
                value: quic - tcp,
                better: BetterDirection::Lower,
                goal: 8.0,
            });
        }
        Ok(())
    }

    /// Measures calls on an open connection while one thread mints sessions for other workers at
    /// full speed.
    async fn measure_during_minting(
        &self,
        to: &mut BenchComparison,
        worker: &StartedWorker,
        request: &SizedCall,
    ) -> Result<(), BenchError> {
        let case = "GET during minting, continuous 1, loopback";
        if self.args.mints == 0 || !self.args.wants_case(case) {
            return Ok(());
        }
        let one = async |index: usize| {
            let of = (RemoteTransport::Quic, &worker.callee);
            let calls = drive::call_keep_alive(
                &self.caller,
                of,
                (request, 1),
                self.args.call_plan(),
                worker_cpu(worker, RemoteTransport::Quic),
            );
            let took = match index {
                0 => calls.await,
                _ => minting::mint_during(calls).await?.0,
            };
            Ok::<_, BenchError>(
                print_failures(case, RemoteTransport::Quic.name(), &took).to_sample(),
            )
        };
        to.measure_loads(case, &["quic, no minting", "quic, minting"], one)
            .await?;
        eprintln!("measured: {case}");
        Ok(())
    }

    /// Measures first calls of workers, without their start.
    async fn measure_first_call(&self, to: &mut BenchComparison) -> Result<(), BenchError> {
        let case = format!("first call to a worker, {}", self.place);
        if self.args.starts == 0 || !self.args.wants_case(&case) {
            return Ok(());
        }
        // A session of an earlier connection, and a connection from before, are what such a worker cannot have.
        let mut transports = self.args.wanted_transports(&RemoteTransport::ALL);
        transports.retain(|transport| {
            !matches!(
                transport,
                RemoteTransport::Tls13Resumed | RemoteTransport::QuicReady
            )
        });
        let one = async |index: usize| {
            let (transport, mut took) = (transports[index], CallTimes::default());
            for _ in 0..self.args.starts {
                let worker =
                    self.start_worker(1, !transport.needs_front(), transport.needs_front())?;
                self.call_once(transport, &worker, &mut took).await;
            }
            Ok::<_, BenchError>(print_failures(&case, transport.name(), &took).to_sample())
        };
        to.measure_loads(&case, &transport_names(&transports), one)
            .await?;
        eprintln!("measured: {case}");
        Ok(())
    }

    async fn call_once(
        &self,
        transport: RemoteTransport,
        worker: &StartedWorker,
        took: &mut CallTimes,
    ) {
        let spent = worker_cpu(worker, transport);
        let (own, far) = (drive::thread_cpu(), spent());
        let callee: &CalleeAddress = &worker.callee;
        let request = SizedCall::for_get(SMALL_BYTES);
        drive::call_first(
            &self.caller,
            (transport, callee),
            async |to| to.make_call(&request).await,
            took,
        )
        .await;
        took.caller += drive::thread_cpu() - own;
        took.worker += spent() - far;
    }
}

/// Returns a reader of the worker's CPU time.
fn worker_cpu(worker: &StartedWorker, transport: RemoteTransport) -> impl Fn() -> Duration {
    let pid = worker.pid(transport.needs_front());
    move || pid.map_or(Duration::ZERO, |pid| cpu::processes_cpu(&[pid]))
}

/// Prints the kinds of failures; the table has only their number.
pub(super) fn print_failures<'a>(case: &str, variant: &str, took: &'a CallTimes) -> &'a CallTimes {
    if took.tally.failed_count() > 0 {
        eprintln!("{case}, {variant}: {:?}", took.tally.failures_by_kind());
    }
    took
}
