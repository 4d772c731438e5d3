//! The bench with connections and a keeper that are not real.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::Ipv4Addr;

use nearpath_types::egress::{Egress, Host, Protocol};
use tokio::task::LocalSet;

use super::*;
use crate::destination::Key;
use crate::pool::Backends;

/// A connection that says when it is closed.
#[derive(Debug)]
struct Fake {
    name: u32,
    quiet: bool,
    closed: Rc<RefCell<Vec<u32>>>,
}

impl Reused for Fake {
    fn is_quiet(&self) -> bool {
        self.quiet
    }

    fn close(self) {
        self.closed.borrow_mut().push(self.name);
    }
}

/// A keeper that never has room.
struct Full(Cell<Need>);

impl Backends for Full {
    fn need(&self, _: &Destination) -> Need {
        self.0.get()
    }

    fn connect<'a>(
        &'a self,
        to: &'a Destination,
        deadline: Instant,
    ) -> Pin<Box<dyn Future<Output = Result<Lease, NoConnection>> + 'a>> {
        Box::pin(async move {
            tokio::time::sleep_until(deadline.into()).await;
            Err(NoConnection::Exhausted { to: to.key.to.clone(), open: 1, waited: Duration::ZERO })
        })
    }
}

struct House {
    bench: Rc<Bench<&'static str, Fake>>,
    keeper: Rc<Full>,
    upstream: Upstream,
    closed: Rc<RefCell<Vec<u32>>>,
}

impl House {
    fn new() -> Self {
        let (host, wait) = (Host::V4(Ipv4Addr::LOCALHOST), Duration::from_secs(5));
        let egress =
            Egress { max: 1, warm: 0, age: Duration::from_secs(600), wait, ..Egress::of(host, 1, Protocol::Tcp) };
        let key = Key { owner: "a.b".into(), to: "127.0.0.1:1".into(), identity: String::new(), epoch: 0 };
        let secrets = BTreeMap::new();
        let destination = Rc::new(Destination { egress, stands: Ipv4Addr::LOCALHOST.into(), key, secrets });
        let keeper = Rc::new(Full(Cell::new(Need::Nobody)));
        let bench = Bench::new(&destination);
        let (backends, rooms, ledger) = (keeper.clone(), Rc::default(), Rc::default());
        let upstream = Upstream { destination, backends, rooms, ledger };
        Self { bench, keeper, upstream, closed: Rc::default() }
    }

    fn give(&self, fingerprint: &'static str, name: u32) {
        let item = Fake { name, quiet: true, closed: self.closed.clone() };
        self.bench.give_back(&self.upstream, &fingerprint, Kept::new(item, Instant::now()));
    }

    /// A client that waits until it has one, and keeps it.
    fn waits(&self, fingerprint: &'static str) -> tokio::task::JoinHandle<Option<u32>> {
        let (bench, upstream) = (self.bench.clone(), self.upstream.clone());
        tokio::task::spawn_local(async move {
            let deadline = Instant::now() + upstream.destination.egress.wait;
            match bench.acquire(&upstream, &fingerprint, deadline).await {
                Ok(Got::Used(kept)) => Some(kept.item.name),
                Ok(Got::New(_)) => panic!("there is no room"),
                Err(_) => None,
            }
        })
    }
}

/// On one thread, as the pool is.
fn on_one_thread(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async { nearpath_testkit::within(test).await });
}

#[test]
fn who_came_first_is_served_first_and_what_nobody_wants_lies_ready() {
    on_one_thread(async {
        let house = House::new();
        let (first, second) = (house.waits("a"), house.waits("a"));
        tokio::task::yield_now().await;
        [1, 2, 3].into_iter().for_each(|name| house.give("a", name));
        assert_eq!((first.await.unwrap(), second.await.unwrap()), (Some(1), Some(2)));
        assert_eq!((house.bench.idle(), house.waits("a").await.unwrap()), (1, Some(3)));
    });
}

#[test]
fn a_client_that_leaves_in_the_same_moment_loses_nothing() {
    on_one_thread(async {
        let house = House::new();
        let (first, second) = (house.waits("a"), house.waits("a"));
        tokio::task::yield_now().await;
        first.abort();
        house.give("a", 1);
        assert_eq!(second.await.unwrap(), Some(1), "it went on to the next in line");
        house.give("a", 2);
        assert_eq!(house.bench.take(&"a").map(|kept| kept.item.name), Some(2));
    });
}

#[test]
fn who_is_next_below_the_ceiling_decides_what_is_kept() {
    on_one_thread(async {
        let house = House::new();
        let other = house.waits("b");
        tokio::task::yield_now().await;
        house.keeper.0.set(Need::Others);
        house.give("a", 1);
        house.keeper.0.set(Need::Own);
        house.give("a", 2);
        assert_eq!(*house.closed.borrow(), [1, 2], "neither serves whom the place is for");
        house.keeper.0.set(Need::Nobody);
        house.give("a", 3);
        house.give("b", 4);
        assert_eq!((other.await.unwrap(), house.bench.idle()), (Some(4), 1));
        house.bench.shut();
        house.give("a", 5);
        assert_eq!(*house.closed.borrow(), [1, 2, 3, 5]);
    });
}

#[test]
fn one_that_died_on_the_shelf_is_not_handed_out() {
    on_one_thread(async {
        let house = House::new();
        house.give("a", 1);
        let dead = Fake { name: 2, quiet: false, closed: house.closed.clone() };
        house.bench.give_back(&house.upstream, &"a", Kept::new(dead, Instant::now()));
        assert_eq!(house.bench.take(&"a").map(|kept| kept.item.name), Some(1));
        assert_eq!(*house.closed.borrow(), [2]);
    });
}
