//! The idle pool with fake connections and a fake source.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::Ipv4Addr;

use nearpath_types::egress::{EgressHost, EgressProtocol, EgressSpec};
use tokio::task::LocalSet;

use super::*;
use crate::destination::PoolKey;
use crate::pool::ConnectionSource;

/// A connection that records when it is closed.
#[derive(Debug)]
struct FakeConnection {
    name: u32,
    quiet: bool,
    closed: Rc<RefCell<Vec<u32>>>,
}

impl ReusableConnection for FakeConnection {
    fn is_quiet(&self) -> bool {
        self.quiet
    }

    fn close(self) {
        self.closed.borrow_mut().push(self.name);
    }
}

/// A source that is always at its limit.
struct FullSource(Cell<NextWaiter>);

impl ConnectionSource for FullSource {
    fn next_waiter(&self, _: &EgressDestination) -> NextWaiter {
        self.0.get()
    }

    fn connect<'a>(
        &'a self,
        to: &'a EgressDestination,
        deadline: Instant,
    ) -> Pin<Box<dyn Future<Output = Result<ConnectionLease, NoConnection>> + 'a>> {
        Box::pin(async move {
            tokio::time::sleep_until(deadline.into()).await;
            Err(NoConnection::Exhausted {
                to: to.key.host_port.clone(),
                open: 1,
                waited: Duration::ZERO,
            })
        })
    }
}

struct IdlePoolFixture {
    pool: Rc<IdlePool<&'static str, FakeConnection>>,
    source: Rc<FullSource>,
    upstream: UpstreamHandle,
    closed: Rc<RefCell<Vec<u32>>>,
}

impl IdlePoolFixture {
    fn new() -> Self {
        let (host, wait) = (EgressHost::V4(Ipv4Addr::LOCALHOST), Duration::from_secs(5));
        let egress = EgressSpec {
            max: 1,
            warm: 0,
            age: Duration::from_secs(600),
            wait,
            ..EgressSpec::with_defaults(host, 1, EgressProtocol::Tcp)
        };
        let key = PoolKey {
            owner: "a.b".into(),
            host_port: "127.0.0.1:1".into(),
            identity: String::new(),
            epoch: 0,
        };
        let secrets = BTreeMap::new();
        let destination = Rc::new(EgressDestination {
            wildcard: None,
            egress,
            visible_ip: Ipv4Addr::LOCALHOST.into(),
            key,
            secrets,
        });
        let source = Rc::new(FullSource(Cell::new(NextWaiter::None)));
        let pool = IdlePool::new(&destination);
        let (backends, adapters, counters) = (source.clone(), Rc::default(), Rc::default());
        let upstream = UpstreamHandle {
            destination,
            source: backends,
            adapters,
            counters,
        };
        Self {
            pool,
            source,
            upstream,
            closed: Rc::default(),
        }
    }

    fn give_back(&self, fingerprint: &'static str, name: u32) {
        let item = FakeConnection {
            name,
            quiet: true,
            closed: self.closed.clone(),
        };
        self.pool.give_back(
            &self.upstream,
            &fingerprint,
            UsedConnection::new(item, Instant::now()),
        );
    }

    /// Spawns a client that waits for a connection and keeps it.
    fn spawn_client(&self, fingerprint: &'static str) -> tokio::task::JoinHandle<Option<u32>> {
        let (pool, upstream) = (self.pool.clone(), self.upstream.clone());
        tokio::task::spawn_local(async move {
            let deadline = Instant::now() + upstream.destination.egress.wait;
            match pool.acquire(&upstream, &fingerprint, deadline).await {
                Ok(AcquireOutcome::Reused(used)) => Some(used.connection.name),
                Ok(AcquireOutcome::New(_)) => panic!("the limit is reached"),
                Err(_) => None,
            }
        })
    }
}

/// Runs on one thread, as the pool does.
fn run_local(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    LocalSet::new().block_on(&runtime, async { nearpath_testkit::within(test).await });
}

#[test]
fn clients_are_served_in_order_and_the_rest_stays_idle() {
    run_local(async {
        let fixture = IdlePoolFixture::new();
        let (first, second) = (fixture.spawn_client("a"), fixture.spawn_client("a"));
        tokio::task::yield_now().await;
        [1, 2, 3]
            .into_iter()
            .for_each(|name| fixture.give_back("a", name));
        assert_eq!(
            (first.await.unwrap(), second.await.unwrap()),
            (Some(1), Some(2))
        );
        assert_eq!(
            (
                fixture.pool.idle_count(),
                fixture.spawn_client("a").await.unwrap()
            ),
            (1, Some(3))
        );
    });
}

#[test]
fn a_client_that_leaves_in_the_same_moment_loses_nothing() {
    run_local(async {
        let fixture = IdlePoolFixture::new();
        let (first, second) = (fixture.spawn_client("a"), fixture.spawn_client("a"));
        tokio::task::yield_now().await;
        first.abort();
        fixture.give_back("a", 1);
        assert_eq!(second.await.unwrap(), Some(1), "the next client got it");
        fixture.give_back("a", 2);
        assert_eq!(
            fixture.pool.take(&"a").map(|used| used.connection.name),
            Some(2)
        );
    });
}

#[test]
fn the_next_waiter_decides_whether_a_connection_is_kept() {
    run_local(async {
        let fixture = IdlePoolFixture::new();
        let other = fixture.spawn_client("b");
        tokio::task::yield_now().await;
        fixture.source.0.set(NextWaiter::OtherKey);
        fixture.give_back("a", 1);
        fixture.source.0.set(NextWaiter::SameKey);
        fixture.give_back("a", 2);
        assert_eq!(
            *fixture.closed.borrow(),
            [1, 2],
            "neither serves the next waiter"
        );
        fixture.source.0.set(NextWaiter::None);
        fixture.give_back("a", 3);
        fixture.give_back("b", 4);
        assert_eq!(
            (other.await.unwrap(), fixture.pool.idle_count()),
            (Some(4), 1)
        );
        fixture.pool.shut_down();
        fixture.give_back("a", 5);
        assert_eq!(*fixture.closed.borrow(), [1, 2, 3, 5]);
    });
}

#[test]
fn a_connection_that_died_while_idle_is_not_handed_out() {
    run_local(async {
        let fixture = IdlePoolFixture::new();
        fixture.give_back("a", 1);
        let dead = FakeConnection {
            name: 2,
            quiet: false,
            closed: fixture.closed.clone(),
        };
        fixture.pool.give_back(
            &fixture.upstream,
            &"a",
            UsedConnection::new(dead, Instant::now()),
        );
        assert_eq!(
            fixture.pool.take(&"a").map(|used| used.connection.name),
            Some(1)
        );
        assert_eq!(*fixture.closed.borrow(), [2]);
    });
}
