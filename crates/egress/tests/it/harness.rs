//! Runs a program twice: as it is, and under a supervisor with a small stock of warm sockets.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use nearpath_connpool::counters::DestinationCounters;
use nearpath_connpool::destination::{EgressDestination, PoolKey};
use nearpath_connpool::pool::LeaseGuard;
use nearpath_egress::intercept::{
    HandedSockets, SocketFamily, WarmSocket, WarmSource, pool_warm_source, supervise_connects,
    supervise_without_alias_search,
};
use nearpath_kernel::seccomp::handover;
use nearpath_types::egress::{
    EgressHost, EgressProtocol, EgressSpec, EgressTls, PoolingMode, SharingScope, WriteMode,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, socketpair};
use tokio::sync::mpsc;

/// A program may take so long: machines are busy, and Java is Java.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(120);

/// What a program left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProgramOutput {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) code: Option<i32>,
}

/// What a pool's thread has counted.
#[derive(Debug, Clone)]
pub(crate) struct PoolTally {
    /// Warm sockets that took the place of a program's own.
    pub(crate) handed_over: u64,
    /// Of those, how many are not closed.
    pub(crate) open: usize,
    /// Calls for which none did, by the reason.
    pub(crate) pass_through: BTreeMap<&'static str, u64>,
}

enum PoolJob {
    /// Answer the connects of the program whose listener comes from here.
    Supervise(OwnedFd),
    Report(std::sync::mpsc::Sender<PoolTally>),
}

/// What a pool is like.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolSetup {
    /// Warm sockets a family at the beginning.
    pub(crate) warm: usize,
    /// Whether there is a new one for each that is taken.
    pub(crate) refills: bool,
    /// Whether it looks at the caller's other descriptors.
    pub(crate) searches_aliases: bool,
    /// Whether the warm sockets are those of a node's keeper, one of which lies ready.
    pub(crate) uses_node_pool: bool,
    /// For a control: whether one socket is given again and again.
    pub(crate) reuses_socket: bool,
}

impl Default for PoolSetup {
    fn default() -> Self {
        Self {
            warm: 4,
            refills: true,
            searches_aliases: true,
            uses_node_pool: false,
            reuses_socket: false,
        }
    }
}

/// A pool's thread with warm sockets to one server.
pub(crate) struct TestPool(mpsc::UnboundedSender<PoolJob>);

impl TestPool {
    pub(crate) fn for_server(server: SocketAddr) -> Self {
        Self::with_warm(server, 4)
    }

    /// One that keeps `warm` sockets a family.
    pub(crate) fn with_warm(server: SocketAddr, warm: usize) -> Self {
        Self::new(
            server,
            PoolSetup {
                warm,
                ..PoolSetup::default()
            },
        )
    }

    /// One with the keeper of a node.
    pub(crate) fn with_node_pool(server: SocketAddr) -> Self {
        Self::new(
            server,
            PoolSetup {
                uses_node_pool: true,
                ..PoolSetup::default()
            },
        )
    }

    /// A control: one that does not look at the caller's other descriptors.
    pub(crate) fn without_alias_search(server: SocketAddr) -> Self {
        Self::new(
            server,
            PoolSetup {
                searches_aliases: false,
                ..PoolSetup::default()
            },
        )
    }

    pub(crate) fn new(server: SocketAddr, setup: PoolSetup) -> Self {
        let (jobs, orders) = mpsc::unbounded_channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime
                .block_on(tokio::task::LocalSet::new().run_until(run_jobs(server, setup, orders)));
        });
        Self(jobs)
    }

    pub(crate) fn tally(&self) -> PoolTally {
        let (tell, told) = std::sync::mpsc::channel();
        assert!(self.0.send(PoolJob::Report(tell)).is_ok());
        told.recv().unwrap()
    }

    pub(crate) fn handed_over(&self) -> u64 {
        self.tally().handed_over
    }

    pub(crate) fn pass_through(&self, why: &str) -> u64 {
        self.tally().pass_through.get(why).copied().unwrap_or(0)
    }

    /// Waits until every socket that was given is closed.
    pub(crate) fn wait_all_closed(&self) {
        let deadline = Instant::now() + PROGRAM_TIMEOUT;
        while self.tally().open > 0 {
            assert!(
                Instant::now() < deadline,
                "not all are closed: {:?}",
                self.tally()
            );
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Runs a program under the filter.
    pub(crate) fn run(&self, program: &mut Command) -> ProgramOutput {
        wait_for_output(self.start(program))
    }

    /// Starts it. The supervisor begins once the program has come under the filter.
    pub(crate) fn start(&self, program: &mut Command) -> Child {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let mut command = Command::new(intercepted_program());
        command
            .arg(program.get_program())
            .args(program.get_args())
            .stdin(Stdio::from(theirs));
        command.envs(
            program
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        assert!(self.0.send(PoolJob::Supervise(ours)).is_ok());
        child
    }
}

async fn run_jobs(
    server: SocketAddr,
    setup: PoolSetup,
    mut orders: mpsc::UnboundedReceiver<PoolJob>,
) {
    let (destination, given) = (
        Rc::new(test_destination(&server)),
        HandedSockets::start().unwrap(),
    );
    let to = &destination;
    let stock: Rc<dyn WarmSource> = if setup.uses_node_pool {
        pool_warm_source(to)
    } else {
        Rc::new(TestWarmSource::new(server, setup))
    };
    while let Some(job) = orders.recv().await {
        match job {
            PoolJob::Supervise(socket) => {
                let handed = handover::receive_listener(&socket).unwrap();
                let (to, stock, given) = (vec![to.clone()], stock.clone(), given.clone());
                tokio::task::spawn_local(async move {
                    match setup.searches_aliases {
                        true => supervise_connects(handed, to, stock, given).await.unwrap(),
                        false => supervise_without_alias_search(handed, to, stock, given)
                            .await
                            .unwrap(),
                    }
                });
            }
            PoolJob::Report(tell) => {
                let ledger = stock.counters_for(to);
                let (hits, passed) = (
                    ledger.handed_over.get(),
                    ledger.pass_through.borrow().clone(),
                );
                let _ = tell.send(PoolTally {
                    handed_over: hits,
                    open: given.open_count(),
                    pass_through: passed,
                });
            }
        }
    }
}

/// As it is.
pub(crate) fn run_natively(program: &mut Command) -> ProgramOutput {
    wait_for_output(
        program
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    )
}

pub(crate) fn wait_for_output(mut child: Child) -> ProgramOutput {
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let out = thread::spawn(move || read_all(&mut out));
    let err = thread::spawn(move || read_all(&mut err));
    let deadline = Instant::now() + PROGRAM_TIMEOUT;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        thread::sleep(Duration::from_millis(2));
    };
    let (out, err) = (out.join().unwrap(), err.join().unwrap());
    let status = status.unwrap_or_else(|| panic!("it hung: {out} {err}"));
    ProgramOutput {
        stdout: out,
        stderr: err,
        code: status.code(),
    }
}

fn read_all(from: &mut impl Read) -> String {
    let mut text = String::new();
    let _ = from.read_to_string(&mut text);
    text
}

/// The example `intercepted`, which Cargo builds beside the tests.
pub(crate) fn intercepted_program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors()
        .nth(2)
        .unwrap()
        .join("examples/intercepted")
}

/// A file beside this one.
pub(crate) fn program_source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/it/programs")
        .join(name)
}

fn test_destination(server: &SocketAddr) -> EgressDestination {
    let IpAddr::V4(stands) = server.ip() else {
        panic!("a test's server is at an IPv4 address")
    };
    let key = PoolKey {
        owner: "tested.openfaas-fn".to_owned(),
        host_port: server.to_string(),
        identity: String::new(),
        epoch: 1,
    };
    let egress = EgressSpec {
        host: EgressHost::V4(stands),
        port: server.port(),
        protocol: EgressProtocol::Tcp,
        mode: PoolingMode::Session,
        max: 100,
        warm: 4,
        idle: Duration::from_secs(60),
        age: Duration::from_secs(60),
        wait: Duration::from_secs(10),
        login: None,
        tls: EgressTls::Pass,
        shared: SharingScope::Function,
        cache: None,
        writes: WriteMode::Sync,
        prefetch: Vec::new(),
    };
    EgressDestination {
        egress,
        visible_ip: stands.into(),
        key,
        secrets: BTreeMap::new(),
    }
}

/// A stock that is filled up again each time one is taken.
struct TestWarmSource {
    server: SocketAddr,
    v4: RefCell<Vec<WarmSocket>>,
    v6: RefCell<Vec<WarmSocket>>,
    refills: bool,
    /// What is given each time, as long as it is open.
    reused: Option<RefCell<OwnedFd>>,
    counters: Rc<DestinationCounters>,
}

impl TestWarmSource {
    fn new(server: SocketAddr, setup: PoolSetup) -> Self {
        let (v4, v6, ledger) = (RefCell::default(), RefCell::default(), Rc::default());
        let only = setup
            .reuses_socket
            .then(|| RefCell::new(TcpStream::connect(server).unwrap().into()));
        let shelf = Self {
            server,
            v4,
            v6,
            refills: setup.refills,
            reused: only,
            counters: ledger,
        };
        for _ in 0..setup.warm {
            shelf
                .v4
                .borrow_mut()
                .push(shelf.connect_warm(SocketFamily::V4));
            shelf
                .v6
                .borrow_mut()
                .push(shelf.connect_warm(SocketFamily::V6));
        }
        shelf
    }

    fn connect_warm(&self, family: SocketFamily) -> WarmSocket {
        let socket: OwnedFd = match (family, self.server) {
            (SocketFamily::V6, SocketAddr::V4(to)) => {
                let flags = SocketFlags::CLOEXEC;
                let socket =
                    socket_with(AddressFamily::INET6, SocketType::STREAM, flags, None).unwrap();
                rustix::net::connect(
                    &socket,
                    &SocketAddr::from((to.ip().to_ipv6_mapped(), to.port())),
                )
                .unwrap();
                socket
            }
            (_, to) => TcpStream::connect(to).unwrap().into(),
        };
        WarmSocket::new(socket, LeaseGuard::on_drop(|| ())).unwrap()
    }

    fn sockets_of(&self, family: SocketFamily) -> &RefCell<Vec<WarmSocket>> {
        if family == SocketFamily::V4 {
            &self.v4
        } else {
            &self.v6
        }
    }
}

impl WarmSource for TestWarmSource {
    fn take_warm(&self, _: &Rc<EgressDestination>, family: SocketFamily) -> Option<WarmSocket> {
        if let Some(only) = &self.reused {
            let again = || {
                WarmSocket::new(
                    only.borrow().try_clone().unwrap(),
                    LeaseGuard::on_drop(|| ()),
                )
            };
            return again()
                .or_else(|_| {
                    only.replace(TcpStream::connect(self.server).unwrap().into());
                    again()
                })
                .ok();
        }
        let warm = self.sockets_of(family).borrow_mut().pop()?;
        if self.refills {
            let next = self.connect_warm(family);
            self.sockets_of(family).borrow_mut().push(next);
        }
        Some(warm)
    }

    fn counters_for(&self, _: &Rc<EgressDestination>) -> Rc<DestinationCounters> {
        self.counters.clone()
    }
}
