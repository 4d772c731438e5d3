//! The node's side of a domain: one task owns the pool and the channels, and does what the [`Registrar`] decides.
//!
//! Every party's socket has a small task that reads packets and writes letters; a party that does not read its letters, or
//! speaks nonsense, is disconnected. All else happens in the task of the hub, in order.

mod calls;
mod connection;
mod delivery;
mod door;
mod edges;
mod house;
mod ledger;
mod pools;
mod seat;

use std::io;
use std::os::fd::OwnedFd;

use nearpath_shm::geometry::Size;
use nearpath_types::{FunctionId, InstanceId};
use tokio::sync::{mpsc, oneshot};

pub use calls::Calls;
pub use delivery::{Delivery, Exchange};
pub use door::Door;
pub use edges::{EdgeCounters, LARGEST, MOST_PAST, RETENTION};
pub use ledger::{Held, Holdings, Ledger, Roll};
pub use nearpath_shm::Party;
pub use nearpath_shm::counters::{BUCKETS, Reading};
pub use nearpath_shm::region::Pages;

pub use crate::protocol::Isolation;

use crate::packet;
use crate::protocol::Terms;
use crate::registrar::{Edge, Who};
use house::House;
use pools::Pools;

/// What a domain is made of.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Its name, for people.
    pub name: String,
    /// Size classes of the pool; in a strict domain, of each party's own.
    pub sizes: Vec<Size>,
    /// Pages of the pool.
    pub pages: Pages,
    /// Bytes of slots that one party may hold.
    pub bound: u64,
    /// Descriptors in each ring.
    pub capacity: u32,
    /// Parties that one instance may have.
    pub parties: usize,
    /// How descriptors go.
    pub delivery: Delivery,
    /// Who can write where.
    pub isolation: Isolation,
}

impl Settings {
    /// About 44 MB of address space, of which only what is used becomes memory.
    pub fn named(name: impl Into<String>) -> Self {
        let class = |size, count| Size { size, count };
        let sizes =
            vec![class(256, 4096), class(1024, 4096), class(4096, 2048), class(65_536, 256), class(1 << 20, 16)];
        Self {
            name: name.into(),
            sizes,
            pages: Pages::Small,
            bound: 16 << 20,
            capacity: 256,
            parties: 64,
            delivery: Delivery::Ring,
            isolation: Isolation::Shared,
        }
    }

    /// The same, strict: a pool for each party, a quarter as large.
    pub fn strict(self) -> Self {
        let quarter = |size: &Size| Size { count: (size.count / 4).max(1), ..*size };
        Self { sizes: self.sizes.iter().map(quarter).collect(), isolation: Isolation::Strict, ..self }
    }
}

/// An instance broke the protocol: it counts as failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Which; none for the gateway.
    pub instance: Option<InstanceId>,
    /// What it did, for people.
    pub what: String,
}

enum Order {
    Declare(Vec<(Edge, Terms)>),
    Admit(Who, Door),
    Withdraw(InstanceId, oneshot::Sender<()>),
    Gone(InstanceId),
    Edges(oneshot::Sender<Vec<EdgeCounters>>),
    Usage(oneshot::Sender<Usage>),
    Stop(oneshot::Sender<()>),
}

/// What a domain holds at this moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Parties that live.
    pub parties: usize,
    /// Channels that are mapped.
    pub channels: usize,
    /// Slots that are not free.
    pub slots: u32,
    /// Bytes of these slots.
    pub bytes: u64,
}

/// A handle to a domain; clones are the same domain. The domain ends with [`Hub::stop`], or with the last handle.
#[derive(Debug, Clone)]
pub struct Hub {
    orders: mpsc::UnboundedSender<Order>,
}

impl Hub {
    /// Makes the pool and starts the domain's task on the current runtime.
    pub fn start(settings: Settings) -> io::Result<(Self, mpsc::UnboundedReceiver<Fault>)> {
        Self::start_with(settings, &Ledger::default())
    }

    /// The same, written down in a ledger that the caller can read, and that may hold an earlier domain of that name.
    pub fn start_with(settings: Settings, ledger: &Ledger) -> io::Result<(Self, mpsc::UnboundedReceiver<Fault>)> {
        let pools = Pools::new(&settings)?;
        let writer = ledger.begin(pools.clone(), settings.pages, settings.bound);
        let (orders, inbox) = mpsc::unbounded_channel();
        let (faults, told) = mpsc::unbounded_channel();
        tokio::spawn(House::new(settings, pools, writer, faults).run(inbox));
        Ok((Self { orders }, told))
    }

    /// The edges as they are from now on, all of them.
    pub fn declare(&self, edges: impl IntoIterator<Item = (FunctionId, FunctionId)>) {
        self.declare_with(edges.into_iter().map(|edge| (edge, Terms::default())));
    }

    /// The edges as they are from now on, all of them, each with what it is good for.
    pub fn declare_with(&self, edges: impl IntoIterator<Item = ((FunctionId, FunctionId), Terms)>) {
        self.order(Order::Declare(edges.into_iter().collect()));
    }

    /// Lets an instance in. Its parties say themselves when they are ready.
    pub fn admit(&self, instance: InstanceId, function: FunctionId, door: Door) {
        self.order(Order::Admit(Who::Instance(instance, function), door));
    }

    /// A connected socket for a thread of the gateway, which may call every function of the domain.
    pub fn gateway_socket(&self) -> io::Result<OwnedFd> {
        let (ours, theirs) = packet::pair()?;
        self.order(Order::Admit(Who::Gateway, Door::Connected(ours)));
        Ok(theirs)
    }

    /// An instance gets no new calls. Returns when those that are open have ended, or the instance is gone.
    pub async fn withdraw(&self, instance: InstanceId) {
        let (done, quiet) = oneshot::channel();
        self.order(Order::Withdraw(instance, done));
        let _ = quiet.await;
    }

    /// An instance is no more: its sockets are closed, its parties count as dead. Nobody is let in for it any more.
    pub fn gone(&self, instance: InstanceId) {
        self.order(Order::Gone(instance));
    }

    /// What every edge counted; see [`Ledger::edges`], which need not wait for the domain's task.
    pub async fn edges(&self) -> Vec<EdgeCounters> {
        let (give, take) = oneshot::channel();
        self.order(Order::Edges(give));
        take.await.unwrap_or_default()
    }

    /// What the domain holds. Looks at every slot of the pool: for tests and for people.
    pub async fn usage(&self) -> Usage {
        let (give, take) = oneshot::channel();
        self.order(Order::Usage(give));
        take.await.unwrap_or_default()
    }

    /// Ends the domain: every party's socket is closed, every channel as well.
    pub async fn stop(&self) {
        let (done, stopped) = oneshot::channel();
        self.order(Order::Stop(done));
        let _ = stopped.await;
    }

    fn order(&self, order: Order) {
        let _ = self.orders.send(order); // the task is gone: so is the domain
    }
}
