//! An adapter behind a listener on loopback. Its connection source only opens connections, up to a
//! limit.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use nearpath_connpool::counters::DestinationCounters;
use nearpath_connpool::destination::{EgressDestination, PoolKey};
use nearpath_connpool::pool::{
    ConnectionLease, ConnectionSource, LeaseGuard, NextWaiter, NoConnection,
};
use nearpath_connpool::upstream::UpstreamHandle;
use nearpath_dbproxy::failed_writes::FailedWrites;
use nearpath_dbproxy::{ClientContext, ClientInstance, adapter_of};
use nearpath_types::InstanceId;
use nearpath_types::egress::{
    EgressHost, EgressLogin, EgressProtocol, EgressSpec, EgressTls, PoolingMode, SharingScope,
    WriteMode,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;

use crate::client_tls;

/// The egress that a test starts from.
pub(crate) fn default_egress(protocol: EgressProtocol, server: SocketAddr) -> EgressSpec {
    EgressSpec {
        host: EgressHost::V4(Ipv4Addr::LOCALHOST),
        port: server.port(),
        protocol,
        mode: PoolingMode::Session,
        max: 20,
        warm: 8,
        idle: Duration::from_secs(60),
        age: Duration::from_secs(1800),
        wait: Duration::from_secs(10),
        login: None,
        tls: EgressTls::Pass,
        shared: SharingScope::Function,
        cache: None,
        writes: WriteMode::Sync,
        prefetch: Vec::new(),
    }
}

/// The node's login with the password of the secret `password`.
pub(crate) fn node_login(user: &str) -> Option<EgressLogin> {
    Some(EgressLogin {
        user: user.into(),
        password: Some("password".into()),
        database: None,
    })
}

/// A source of connections straight to the server, never more than `max`.
#[derive(Default)]
pub(crate) struct DirectBackends {
    open_count: Rc<Cell<u32>>,
    waiting: Rc<Cell<u32>>,
    max_open: Cell<u32>,
    opened: Cell<u32>,
    freed: Rc<tokio::sync::Notify>,
}

impl DirectBackends {
    /// Returns the number of connections opened so far.
    pub(crate) fn opened(&self) -> u32 {
        self.opened.get()
    }

    /// Returns the largest number of connections open at a time.
    pub(crate) fn max_open(&self) -> u32 {
        self.max_open.get()
    }

    async fn wait_for_permit(&self, max: u32) {
        self.waiting.set(self.waiting.get() + 1);
        // The guard also counts down when the client has got another connection meanwhile, or has
        // left.
        let _place = LeaseGuard::on_drop({
            let waiting = self.waiting.clone();
            move || waiting.set(waiting.get() - 1)
        });
        while self.open_count.get() >= max {
            self.freed.notified().await;
        }
        self.open_count.set(self.open_count.get() + 1);
        self.max_open
            .set(self.max_open.get().max(self.open_count.get()));
    }

    async fn open_connection(
        &self,
        to: &EgressDestination,
    ) -> Result<ConnectionLease, NoConnection> {
        self.wait_for_permit(to.egress.max).await;
        let (open, freed) = (self.open_count.clone(), self.freed.clone());
        let gone = LeaseGuard::on_drop(move || {
            open.set(open.get() - 1);
            freed.notify_one();
        });
        let name = || to.key.host_port.clone();
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, to.egress.port)).await;
        let stream = stream.map_err(|error| NoConnection::Refused { to: name(), error })?;
        stream
            .set_nodelay(true)
            .map_err(|error| NoConnection::Refused { to: name(), error })?;
        self.opened.set(self.opened.get() + 1);
        Ok(ConnectionLease {
            stream,
            guard: gone,
        })
    }
}

impl ConnectionSource for DirectBackends {
    fn next_waiter(&self, _: &EgressDestination) -> NextWaiter {
        if self.waiting.get() > 0 {
            NextWaiter::SameKey
        } else {
            NextWaiter::None
        }
    }

    fn connect<'a>(
        &'a self,
        to: &'a EgressDestination,
        deadline: Instant,
    ) -> Pin<Box<dyn Future<Output = Result<ConnectionLease, NoConnection>> + 'a>> {
        Box::pin(async move {
            let opening = tokio::time::timeout_at(deadline.into(), self.open_connection(to));
            opening.await.unwrap_or_else(|_| {
                Err(NoConnection::Exhausted {
                    to: to.key.host_port.clone(),
                    open: to.egress.max,
                    waited: to.egress.wait,
                })
            })
        })
    }
}

/// A running adapter.
pub(crate) struct AdapterFixture {
    /// Address of its listener.
    pub(crate) at: SocketAddr,
    pub(crate) backends: Rc<DirectBackends>,
    pub(crate) ledger: Rc<DestinationCounters>,
    pub(crate) failed_writes: Rc<FailedWrites>,
    /// Lines of the function's log.
    pub(crate) log: Rc<RefCell<Vec<String>>>,
    pub(crate) ended: Rc<RefCell<Vec<std::io::Result<()>>>>,
    /// Context of its clients.
    pub(crate) context: RefCell<Option<ClientContext>>,
}

impl AdapterFixture {
    /// Serves with the protocol's adapter until the `LocalSet` ends.
    pub(crate) async fn open(egress: EgressSpec, secrets: &[(&str, &str)]) -> Self {
        let adapter = adapter_of(egress.protocol).expect("the protocol has an adapter");
        Self::open_with(egress, secrets, |client, context| {
            adapter.serve(client, context)
        })
        .await
    }

    /// Serves with a function in place of an adapter.
    pub(crate) async fn open_with<S, F>(
        egress: EgressSpec,
        secrets: &[(&str, &str)],
        adapter: S,
    ) -> Self
    where
        S: Fn(TcpStream, ClientContext) -> F + 'static,
        F: Future<Output = std::io::Result<()>> + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let (backends, ledger, ended) = (
            Rc::new(DirectBackends::default()),
            Rc::new(DestinationCounters::default()),
            Rc::default(),
        );
        let failed_writes = Rc::default();
        let fixture = Self {
            at: listener.local_addr().unwrap(),
            backends,
            ledger,
            failed_writes,
            log: Rc::default(),
            ended,
            context: RefCell::default(),
        };
        let context = client_context(egress, secrets, &fixture);
        fixture.context.replace(Some(context.clone()));
        let ended = fixture.ended.clone();
        tokio::task::spawn_local(async move {
            while let Ok((client, _)) = listener.accept().await {
                client.set_nodelay(true).unwrap(); // as the egress proxy's listener does
                let (serving, ended) = (adapter(client, context.clone()), ended.clone());
                tokio::task::spawn_local(async move {
                    let end = serving.await;
                    ended.borrow_mut().push(end);
                });
            }
        });
        fixture
    }

    /// Waits until so many clients have been served to their end.
    pub(crate) async fn wait_served(&self, clients: usize) {
        nearpath_testkit::eventually("the clients' ends", async || {
            self.ended.borrow().len() >= clients
        })
        .await;
    }

    /// Reports a call of the function to the adapter.
    pub(crate) fn call_function(&self) {
        let context = self.context.borrow();
        let context = context.as_ref().unwrap();
        let protocol = context.upstream.destination.egress.protocol;
        adapter_of(protocol).unwrap().prefetch_reads(context);
    }

    /// Returns why clients kept their backends.
    pub(crate) fn pin_reasons(&self) -> Vec<&'static str> {
        self.ledger.pins.borrow().keys().copied().collect()
    }
}

fn client_context(
    egress: EgressSpec,
    secrets: &[(&str, &str)],
    fixture: &AdapterFixture,
) -> ClientContext {
    let secrets: BTreeMap<_, _> = secrets
        .iter()
        .map(|(name, value)| ((*name).into(), value.as_bytes().to_vec()))
        .collect();
    let to = format!("{}:{}", egress.host, egress.port);
    let key = PoolKey {
        owner: "test.fn".into(),
        host_port: to,
        identity: String::new(),
        epoch: 1,
    };
    let destination = Rc::new(EgressDestination {
        wildcard: None,
        egress,
        visible_ip: Ipv4Addr::new(10, 61, 0, 1).into(),
        key,
        secrets,
    });
    let caller = ClientInstance {
        instance: InstanceId(1),
        function: "test.fn".parse().unwrap(),
        requires_tls: false,
    };
    ClientContext {
        caller: Rc::new(caller),
        upstream: UpstreamHandle {
            destination,
            source: fixture.backends.clone(),
            adapters: Rc::default(),
            counters: fixture.ledger.clone(),
        },
        logger: {
            let log = Rc::clone(&fixture.log);
            Rc::new(move |_: &_, _: &_, what: &str| log.borrow_mut().push(what.to_owned()))
        },
        failed_writes: fixture.failed_writes.clone(),
        tls_acceptors: Rc::new(|_| Ok(client_tls::destination().acceptor.clone())),
        instance_alive: None,
    }
}

/// Runs a test on one thread, as the pool does.
pub(crate) fn run_local(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let test = async {
        tokio::time::timeout(Duration::from_secs(120), test)
            .await
            .expect("the test hung for 2 minutes")
    };
    LocalSet::new().block_on(&runtime, test);
}
