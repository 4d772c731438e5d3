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

use nearpath_connpool::counters::Ledger;
use nearpath_connpool::destination::{Destination, Key};
use nearpath_connpool::pool::Gone;
use nearpath_egress::intercept::{Family, Given, Stock, Warm, kept, supervise, supervise_blindly};
use nearpath_kernel::seccomp::handover;
use nearpath_types::egress::{Egress, Host, Mode, Protocol, Shared, Tls, Writes};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, socketpair};
use tokio::sync::mpsc;

/// A program may take so long: machines are busy, and Java is Java.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a program left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) code: Option<i32>,
}

/// What a pool's thread has counted.
#[derive(Debug, Clone)]
pub(crate) struct Tally {
    /// Warm sockets that took the place of a program's own.
    pub(crate) given: u64,
    /// Of those, how many are not closed.
    pub(crate) open: usize,
    /// Calls for which none did, by the reason.
    pub(crate) passed: BTreeMap<&'static str, u64>,
}

enum Job {
    /// Answer the connects of the program whose listener comes from here.
    Supervise(OwnedFd),
    Tell(std::sync::mpsc::Sender<Tally>),
}

/// What a pool is like.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    /// Warm sockets a family at the beginning.
    pub(crate) warm: usize,
    /// Whether there is a new one for each that is taken.
    pub(crate) refill: bool,
    /// Whether it looks at the caller's other descriptors.
    pub(crate) looks: bool,
    /// Whether the warm sockets are those of a node's keeper, one of which lies ready.
    pub(crate) kept: bool,
    /// For a control: whether one socket is given again and again.
    pub(crate) again: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self { warm: 4, refill: true, looks: true, kept: false, again: false }
    }
}

/// A pool's thread with warm sockets to one server.
pub(crate) struct Pool(mpsc::UnboundedSender<Job>);

impl Pool {
    pub(crate) fn to(server: SocketAddr) -> Self {
        Self::with(server, 4)
    }

    /// One that keeps `warm` sockets a family.
    pub(crate) fn with(server: SocketAddr, warm: usize) -> Self {
        Self::new(server, Setup { warm, ..Setup::default() })
    }

    /// One with the keeper of a node.
    pub(crate) fn of_a_node(server: SocketAddr) -> Self {
        Self::new(server, Setup { kept: true, ..Setup::default() })
    }

    /// A control: one that does not look at the caller's other descriptors.
    pub(crate) fn blind(server: SocketAddr) -> Self {
        Self::new(server, Setup { looks: false, ..Setup::default() })
    }

    pub(crate) fn new(server: SocketAddr, setup: Setup) -> Self {
        let (jobs, orders) = mpsc::unbounded_channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(tokio::task::LocalSet::new().run_until(work(server, setup, orders)));
        });
        Self(jobs)
    }

    pub(crate) fn tally(&self) -> Tally {
        let (tell, told) = std::sync::mpsc::channel();
        assert!(self.0.send(Job::Tell(tell)).is_ok());
        told.recv().unwrap()
    }

    pub(crate) fn given(&self) -> u64 {
        self.tally().given
    }

    pub(crate) fn passed(&self, why: &str) -> u64 {
        self.tally().passed.get(why).copied().unwrap_or(0)
    }

    /// Waits until every socket that was given is closed.
    pub(crate) fn all_closed(&self) {
        let deadline = Instant::now() + PATIENCE;
        while self.tally().open > 0 {
            assert!(Instant::now() < deadline, "not all are closed: {:?}", self.tally());
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Runs a program under the filter.
    pub(crate) fn run(&self, program: &mut Command) -> Left {
        finish(self.start(program))
    }

    /// Starts it. The supervisor begins once the program has come under the filter.
    pub(crate) fn start(&self, program: &mut Command) -> Child {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let mut command = Command::new(intercepted_program());
        command.arg(program.get_program()).args(program.get_args()).stdin(Stdio::from(theirs));
        command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        assert!(self.0.send(Job::Supervise(ours)).is_ok());
        child
    }
}

async fn work(server: SocketAddr, setup: Setup, mut orders: mpsc::UnboundedReceiver<Job>) {
    let (destination, given) = (Rc::new(destination(&server)), Given::start().unwrap());
    let to = &destination;
    let stock: Rc<dyn Stock> = if setup.kept { kept(to) } else { Rc::new(Shelf::new(server, setup)) };
    while let Some(job) = orders.recv().await {
        match job {
            Job::Supervise(socket) => {
                let handed = handover::receive_listener(&socket).unwrap();
                let (to, stock, given) = (vec![to.clone()], stock.clone(), given.clone());
                tokio::task::spawn_local(async move {
                    match setup.looks {
                        true => supervise(handed, to, stock, given).await.unwrap(),
                        false => supervise_blindly(handed, to, stock, given).await.unwrap(),
                    }
                });
            }
            Job::Tell(tell) => {
                let ledger = stock.ledger(to);
                let (hits, passed) = (ledger.given.get(), ledger.passed.borrow().clone());
                let _ = tell.send(Tally { given: hits, open: given.open(), passed });
            }
        }
    }
}

/// As it is.
pub(crate) fn natively(program: &mut Command) -> Left {
    finish(program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

pub(crate) fn finish(mut child: Child) -> Left {
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let out = thread::spawn(move || read(&mut out));
    let err = thread::spawn(move || read(&mut err));
    let deadline = Instant::now() + PATIENCE;
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
    Left { out, err, code: status.code() }
}

fn read(from: &mut impl Read) -> String {
    let mut text = String::new();
    let _ = from.read_to_string(&mut text);
    text
}

/// The example `intercepted`, which Cargo builds beside the tests.
pub(crate) fn intercepted_program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().join("examples/intercepted")
}

/// A file beside this one.
pub(crate) fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/programs").join(name)
}

fn destination(server: &SocketAddr) -> Destination {
    let IpAddr::V4(stands) = server.ip() else { panic!("a test's server is at an IPv4 address") };
    let key = Key { owner: "tested.openfaas-fn".to_owned(), to: server.to_string(), identity: String::new(), epoch: 1 };
    let egress = Egress {
        host: Host::V4(stands),
        port: server.port(),
        protocol: Protocol::Tcp,
        mode: Mode::Session,
        max: 100,
        warm: 4,
        idle: Duration::from_secs(60),
        age: Duration::from_secs(60),
        wait: Duration::from_secs(10),
        login: None,
        tls: Tls::Pass,
        shared: Shared::Function,
        cache: None,
        writes: Writes::Sync,
        prefetch: Vec::new(),
    };
    Destination { egress, stands: stands.into(), key, secrets: BTreeMap::new() }
}

/// A stock that is filled up again each time one is taken.
struct Shelf {
    server: SocketAddr,
    v4: RefCell<Vec<Warm>>,
    v6: RefCell<Vec<Warm>>,
    refill: bool,
    /// What is given each time, as long as it is open.
    only: Option<RefCell<OwnedFd>>,
    ledger: Rc<Ledger>,
}

impl Shelf {
    fn new(server: SocketAddr, setup: Setup) -> Self {
        let (v4, v6, ledger) = (RefCell::default(), RefCell::default(), Rc::default());
        let only = setup.again.then(|| RefCell::new(TcpStream::connect(server).unwrap().into()));
        let shelf = Self { server, v4, v6, refill: setup.refill, only, ledger };
        for _ in 0..setup.warm {
            shelf.v4.borrow_mut().push(shelf.connect(Family::V4));
            shelf.v6.borrow_mut().push(shelf.connect(Family::V6));
        }
        shelf
    }

    fn connect(&self, family: Family) -> Warm {
        let socket: OwnedFd = match (family, self.server) {
            (Family::V6, SocketAddr::V4(to)) => {
                let flags = SocketFlags::CLOEXEC;
                let socket = socket_with(AddressFamily::INET6, SocketType::STREAM, flags, None).unwrap();
                rustix::net::connect(&socket, &SocketAddr::from((to.ip().to_ipv6_mapped(), to.port()))).unwrap();
                socket
            }
            (_, to) => TcpStream::connect(to).unwrap().into(),
        };
        Warm::new(socket, Gone::then(|| ())).unwrap()
    }

    fn shelf(&self, family: Family) -> &RefCell<Vec<Warm>> {
        if family == Family::V4 { &self.v4 } else { &self.v6 }
    }
}

impl Stock for Shelf {
    fn take(&self, _: &Rc<Destination>, family: Family) -> Option<Warm> {
        if let Some(only) = &self.only {
            let again = || Warm::new(only.borrow().try_clone().unwrap(), Gone::then(|| ()));
            return again()
                .or_else(|_| {
                    only.replace(TcpStream::connect(self.server).unwrap().into());
                    again()
                })
                .ok();
        }
        let warm = self.shelf(family).borrow_mut().pop()?;
        if self.refill {
            let next = self.connect(family);
            self.shelf(family).borrow_mut().push(next);
        }
        Some(warm)
    }

    fn ledger(&self, _: &Rc<Destination>) -> Rc<Ledger> {
        self.ledger.clone()
    }
}
