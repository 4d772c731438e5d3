//! An adapter behind a listener on loopback, with a keeper that only opens connections below a ceiling.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use nearpath_connpool::counters::Ledger;
use nearpath_connpool::destination::{Destination, Key};
use nearpath_connpool::pool::{Backends, Gone, Lease, Need, NoConnection};
use nearpath_connpool::upstream::Upstream;
use nearpath_dbproxy::failed_writes::Unwritten;
use nearpath_dbproxy::{Caller, Visit};
use nearpath_types::InstanceId;
use nearpath_types::egress::{Egress, Host, Login, Mode, Protocol, Shared, Tls, Writes};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;

/// What a test says of its destination.
pub(crate) fn egress(protocol: Protocol, server: SocketAddr) -> Egress {
    Egress {
        host: Host::V4(Ipv4Addr::LOCALHOST),
        port: server.port(),
        protocol,
        mode: Mode::Session,
        max: 20,
        warm: 8,
        idle: Duration::from_secs(60),
        age: Duration::from_secs(1800),
        wait: Duration::from_secs(10),
        login: None,
        tls: Tls::Pass,
        shared: Shared::Function,
        cache: None,
        writes: Writes::Sync,
        prefetch: Vec::new(),
    }
}

/// The node logs in with the password in the secret `password`.
pub(crate) fn login(user: &str) -> Option<Login> {
    Some(Login { user: user.into(), password: Some("password".into()), database: None })
}

/// Connections straight to the server, never more than the ceiling.
#[derive(Default)]
pub(crate) struct Direct {
    open: Rc<Cell<u32>>,
    waiting: Rc<Cell<u32>>,
    most: Cell<u32>,
    opened: Cell<u32>,
    freed: Rc<tokio::sync::Notify>,
}

impl Direct {
    /// Connections opened so far.
    pub(crate) fn opened(&self) -> u32 {
        self.opened.get()
    }

    /// Most that were open at a time.
    pub(crate) fn most(&self) -> u32 {
        self.most.get()
    }

    async fn place(&self, max: u32) {
        self.waiting.set(self.waiting.get() + 1);
        // Also when its client has got another connection meanwhile, or has left.
        let _place = Gone::then({
            let waiting = self.waiting.clone();
            move || waiting.set(waiting.get() - 1)
        });
        while self.open.get() >= max {
            self.freed.notified().await;
        }
        self.open.set(self.open.get() + 1);
        self.most.set(self.most.get().max(self.open.get()));
    }

    async fn open(&self, to: &Destination) -> Result<Lease, NoConnection> {
        self.place(to.egress.max).await;
        let (open, freed) = (self.open.clone(), self.freed.clone());
        let gone = Gone::then(move || {
            open.set(open.get() - 1);
            freed.notify_one();
        });
        let name = || to.key.to.clone();
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, to.egress.port)).await;
        let stream = stream.map_err(|error| NoConnection::Refused { to: name(), error })?;
        stream.set_nodelay(true).map_err(|error| NoConnection::Refused { to: name(), error })?;
        self.opened.set(self.opened.get() + 1);
        Ok(Lease { stream, gone })
    }
}

impl Backends for Direct {
    fn need(&self, _: &Destination) -> Need {
        if self.waiting.get() > 0 { Need::Own } else { Need::Nobody }
    }

    fn connect<'a>(
        &'a self,
        to: &'a Destination,
        deadline: Instant,
    ) -> Pin<Box<dyn Future<Output = Result<Lease, NoConnection>> + 'a>> {
        Box::pin(async move {
            let opening = tokio::time::timeout_at(deadline.into(), self.open(to));
            opening.await.unwrap_or_else(|_| {
                Err(NoConnection::Exhausted { to: to.key.to.clone(), open: to.egress.max, waited: to.egress.wait })
            })
        })
    }
}

/// An adapter that serves.
pub(crate) struct Stage {
    /// Where.
    pub(crate) at: SocketAddr,
    pub(crate) backends: Rc<Direct>,
    pub(crate) ledger: Rc<Ledger>,
    pub(crate) unwritten: Rc<Unwritten>,
    pub(crate) ended: Rc<RefCell<Vec<std::io::Result<()>>>>,
    /// What its clients are served with.
    pub(crate) visit: RefCell<Option<Visit>>,
}

impl Stage {
    /// Serves with `adapter`, until the `LocalSet` ends.
    pub(crate) async fn open<S, F>(egress: Egress, secrets: &[(&str, &str)], adapter: S) -> Self
    where
        S: Fn(TcpStream, Visit) -> F + 'static,
        F: Future<Output = std::io::Result<()>> + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let (backends, ledger, ended) = (Rc::new(Direct::default()), Rc::new(Ledger::default()), Rc::default());
        let unwritten = Rc::default();
        let stage =
            Self { at: listener.local_addr().unwrap(), backends, ledger, unwritten, ended, visit: RefCell::default() };
        let visit = visit(egress, secrets, &stage);
        stage.visit.replace(Some(visit.clone()));
        let ended = stage.ended.clone();
        tokio::task::spawn_local(async move {
            while let Ok((client, _)) = listener.accept().await {
                client.set_nodelay(true).unwrap(); // as those of the way out have it
                let (serving, ended) = (adapter(client, visit.clone()), ended.clone());
                tokio::task::spawn_local(async move {
                    let end = serving.await;
                    ended.borrow_mut().push(end);
                });
            }
        });
        stage
    }

    /// Waits until so many clients have been served to their end.
    pub(crate) async fn served(&self, clients: usize) {
        nearpath_testkit::eventually("the clients' ends", async || self.ended.borrow().len() >= clients).await;
    }

    /// A call of the function arrives.
    pub(crate) fn called(&self, adapter: fn(&Visit)) {
        adapter(self.visit.borrow().as_ref().unwrap());
    }

    /// Why clients kept their backends.
    pub(crate) fn pins(&self) -> Vec<&'static str> {
        self.ledger.pins.borrow().keys().copied().collect()
    }
}

fn visit(egress: Egress, secrets: &[(&str, &str)], stage: &Stage) -> Visit {
    let secrets: BTreeMap<_, _> =
        secrets.iter().map(|(name, value)| ((*name).into(), value.as_bytes().to_vec())).collect();
    let to = format!("{}:{}", egress.host, egress.port);
    let key = Key { owner: "test.fn".into(), to, identity: String::new(), epoch: 1 };
    let destination = Rc::new(Destination { egress, stands: Ipv4Addr::new(10, 61, 0, 1).into(), key, secrets });
    let caller = Caller { instance: InstanceId(1), function: "test.fn".parse().unwrap() };
    Visit {
        caller: Rc::new(caller),
        upstream: Upstream {
            destination,
            backends: stage.backends.clone(),
            rooms: Rc::default(),
            ledger: stage.ledger.clone(),
        },
        unwritten: stage.unwritten.clone(),
        here: None,
    }
}

/// Runs a test on one thread, as the pool does.
pub(crate) fn on_stage(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let test =
        async { tokio::time::timeout(Duration::from_secs(120), test).await.expect("the test hung for 2 minutes") };
    LocalSet::new().block_on(&runtime, test);
}
