//! Runs a program twice: natively, and under a supervisor with a few warm sockets.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
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

/// Maximum run time of a program: machines are busy, and a JVM starts slowly.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(120);

/// Output of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProgramOutput {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) code: Option<i32>,
}

/// Counters of a pool's thread.
#[derive(Debug, Clone)]
pub(crate) struct PoolTally {
    /// Warm sockets that replaced a program's own.
    pub(crate) handed_over: u64,
    /// Those of them that are not closed.
    pub(crate) open: usize,
    /// Calls without a warm socket, by reason.
    pub(crate) pass_through: BTreeMap<&'static str, u64>,
}

enum PoolJob {
    /// Answer the connects of the program whose listener arrives here.
    Supervise(OwnedFd),
    Report(std::sync::mpsc::Sender<PoolTally>),
}

/// Setup of a pool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolSetup {
    /// Warm sockets of each family at the start.
    pub(crate) warm: usize,
    /// True if every taken socket is replaced.
    pub(crate) refills: bool,
    /// True if the caller's other descriptors are searched.
    pub(crate) searches_aliases: bool,
    /// True for the connection pool of a node with its ready slots.
    pub(crate) uses_node_pool: bool,
    /// Control: one socket is handed over repeatedly.
    pub(crate) reuses_socket: bool,
    /// True if the server is near: sockets are opened on demand.
    pub(crate) is_near: bool,
}

impl Default for PoolSetup {
    fn default() -> Self {
        Self {
            warm: 4,
            refills: true,
            searches_aliases: true,
            uses_node_pool: false,
            reuses_socket: false,
            is_near: false,
        }
    }
}

/// A pool's thread with warm sockets to one server.
pub(crate) struct TestPool(mpsc::UnboundedSender<PoolJob>);

impl TestPool {
    pub(crate) fn for_server(server: SocketAddr) -> Self {
        Self::with_warm(server, 4)
    }

    /// Creates a pool with `warm` sockets of each family.
    pub(crate) fn with_warm(server: SocketAddr, warm: usize) -> Self {
        Self::new(
            server,
            PoolSetup {
                warm,
                ..PoolSetup::default()
            },
        )
    }

    /// Creates a pool as a node has it.
    pub(crate) fn with_node_pool(server: SocketAddr) -> Self {
        Self::new(
            server,
            PoolSetup {
                uses_node_pool: true,
                ..PoolSetup::default()
            },
        )
    }

    /// Creates a control pool without the alias search.
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
        let (jobs, job_receiver) = mpsc::unbounded_channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(tokio::task::LocalSet::new().run_until(run_jobs(
                server,
                setup,
                job_receiver,
            )));
        });
        Self(jobs)
    }

    pub(crate) fn tally(&self) -> PoolTally {
        let (sender, receiver) = std::sync::mpsc::channel();
        assert!(self.0.send(PoolJob::Report(sender)).is_ok());
        receiver.recv().unwrap()
    }

    pub(crate) fn handed_over(&self) -> u64 {
        self.tally().handed_over
    }

    pub(crate) fn pass_through(&self, why: &str) -> u64 {
        self.tally().pass_through.get(why).copied().unwrap_or(0)
    }

    /// Returns how many connections passed through for a reason, once there are `expected`: the
    /// supervisor lets the connection go on before it reports it.
    pub(crate) fn wait_pass_through(&self, why: &str, expected: u64) -> u64 {
        let deadline = Instant::now() + PROGRAM_TIMEOUT;
        while self.pass_through(why) < expected && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
        self.pass_through(why)
    }

    /// Waits until every handed-over socket is closed.
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

    /// Starts a program. The supervisor begins once the program has installed the filter.
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
    mut job_receiver: mpsc::UnboundedReceiver<PoolJob>,
) {
    let (destination, handed_sockets) = (
        Rc::new(test_destination(&server)),
        HandedSockets::start().unwrap(),
    );
    let to = &destination;
    let source: Rc<dyn WarmSource> = if setup.uses_node_pool {
        pool_warm_source(to, "tested".parse().unwrap())
    } else {
        Rc::new(TestWarmSource::new(server, setup))
    };
    while let Some(job) = job_receiver.recv().await {
        match job {
            PoolJob::Supervise(socket) => {
                let handover = handover::receive_listener(&socket).unwrap();
                let (to, source, handed_sockets) =
                    (vec![to.clone()], source.clone(), handed_sockets.clone());
                tokio::task::spawn_local(async move {
                    match setup.searches_aliases {
                        true => supervise_connects(handover, to, source, handed_sockets)
                            .await
                            .unwrap(),
                        false => {
                            supervise_without_alias_search(handover, to, source, handed_sockets)
                                .await
                                .unwrap()
                        }
                    }
                });
            }
            PoolJob::Report(sender) => {
                let counters = source.counters_for(to);
                let (handed_over, pass_through) = (
                    counters.handed_over.get(),
                    counters.pass_through.borrow().clone(),
                );
                let _ = sender.send(PoolTally {
                    handed_over,
                    open: handed_sockets.open_count(),
                    pass_through,
                });
            }
        }
    }
}

/// Runs a program without a pool.
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

/// Returns the example `intercepted`, which Cargo builds beside the tests.
pub(crate) fn intercepted_program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors()
        .nth(2)
        .unwrap()
        .join("examples/intercepted")
}

/// Returns a file of `programs`.
pub(crate) fn program_source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/it/programs")
        .join(name)
}

fn test_destination(server: &SocketAddr) -> EgressDestination {
    let IpAddr::V4(address) = server.ip() else {
        panic!("a test's server is at an IPv4 address")
    };
    let key = PoolKey {
        owner: "tested.openfaas-fn".to_owned(),
        host_port: server.to_string(),
        identity: String::new(),
        epoch: 1,
    };
    let egress = EgressSpec {
        host: EgressHost::V4(address),
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
        wildcard: None,
        egress,
        visible_ip: address.into(),
        key,
        secrets: BTreeMap::new(),
    }
}

/// A source that is refilled whenever a socket is taken.
struct TestWarmSource {
    server: SocketAddr,
    v4: RefCell<Vec<WarmSocket>>,
    v6: RefCell<Vec<WarmSocket>>,
    refills: bool,
    is_near: bool,
    /// The socket that is handed over each time, while it is open.
    reused: Option<RefCell<OwnedFd>>,
    counters: Rc<DestinationCounters>,
}

impl TestWarmSource {
    fn new(server: SocketAddr, setup: PoolSetup) -> Self {
        let (v4, v6, counters) = (RefCell::default(), RefCell::default(), Rc::default());
        let reused = setup
            .reuses_socket
            .then(|| RefCell::new(TcpStream::connect(server).unwrap().into()));
        let source = Self {
            server,
            v4,
            v6,
            refills: setup.refills,
            is_near: setup.is_near,
            reused,
            counters,
        };
        for _ in 0..setup.warm {
            source
                .v4
                .borrow_mut()
                .push(source.connect_warm(SocketFamily::V4));
            source
                .v6
                .borrow_mut()
                .push(source.connect_warm(SocketFamily::V6));
        }
        source
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
        if let Some(reused) = &self.reused {
            let again = || {
                WarmSocket::new(
                    reused.borrow().try_clone().unwrap(),
                    LeaseGuard::on_drop(|| ()),
                )
            };
            return again()
                .or_else(|_| {
                    reused.replace(TcpStream::connect(self.server).unwrap().into());
                    again()
                })
                .ok();
        }
        let warm_socket = self.sockets_of(family).borrow_mut().pop()?;
        if self.refills {
            let next = self.connect_warm(family);
            self.sockets_of(family).borrow_mut().push(next);
        }
        Some(warm_socket)
    }

    fn connect_near<'a>(
        &'a self,
        _: &'a Rc<EgressDestination>,
        family: SocketFamily,
    ) -> Pin<Box<dyn Future<Output = Option<WarmSocket>> + 'a>> {
        let opened = self.is_near.then(|| self.connect_warm(family));
        Box::pin(std::future::ready(opened))
    }

    fn counters_for(&self, _: &Rc<EgressDestination>) -> Rc<DestinationCounters> {
        self.counters.clone()
    }
}
