//! The node's handle: who may go out, from when to when.
//!
//! Addresses, routes and listeners are made here, on the thread that starts the instance, which may block; connections are all on one thread of their
//! own, `pool`, which stays in the network of the machine, where destinations are.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nearpath_kernel::egress_listener::EgressListener;
use nearpath_kernel::probe::check_interception_support;
use nearpath_kernel::sandbox::{DestinationRoute as Known, InnerSocket};
use nearpath_types::egress::{Egress, Host};
use nearpath_types::pool::PoolStatus;
use nearpath_types::{Eip, FunctionId, InstanceId};

use crate::addresses::{BELOW, NoPlace, Place, Places};
use crate::proxy::{self, Order, Wires};
use nearpath_connpool::destination::{Destination, Key};
use nearpath_connpool::keys::{Keys, Secrets};

/// How long a report is waited for: who asks holds others up.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where an instance asks for names below a declared one, on its own loopback.
const NAMES: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 53), 53);

/// How a function's log is written to: what happened to its connections, in words for the tenant.
pub type Tell = Box<dyn Fn(&FunctionId, InstanceId, String) + Send>;

/// An instance that is about to start, and where its function may go.
#[derive(Clone)]
pub struct Admission {
    /// Its id.
    pub instance: InstanceId,
    /// Whose instance it is.
    pub function: FunctionId,
    /// The chain of its function.
    pub chain: Option<String>,
    /// The address that its packets come from.
    pub eip: Eip,
    /// Where it may go.
    pub egress: Vec<Egress>,
    /// The secrets that those name, with their contents.
    pub secrets: BTreeMap<String, Vec<u8>>,
}

/// An instance that may go out, until this is dropped: then its connections end. Dropping waits until all is here that it wrote to destinations with
/// `writes=async`: a millisecond; seconds, where one of them does not take it.
#[derive(Debug)]
pub struct Admitted {
    pool: Pool,
    instance: InstanceId,
    eip: Eip,
    held: Vec<Held>,
    /// What the instance has to know to get there.
    pub known: Vec<Known>,
    /// Sockets that the node is to have inside: then [`attend`](Self::attend) takes them.
    pub hatches: Vec<InnerSocket>,
    /// Whether its connects are to be asked about: then [`supervise`](Self::supervise) takes the listener.
    pub listened: bool,
    /// Destinations that were declared and that it cannot reach, in words for the tenant.
    pub troubles: Vec<NoPlace>,
    /// What else is odd about what was declared, in words for the tenant.
    pub remarks: Vec<String>,
}

/// What an instance uses of a destination's place.
#[derive(Debug)]
struct Held {
    /// In the switch.
    address: Option<Ipv4Addr>,
    /// At which the switch is listened at.
    port: Option<u16>,
    key: Key,
}

/// The pool of a node. Clones are the same; it ends with the last one, and with the last [`Admitted`].
#[derive(Clone)]
pub struct Pool(Arc<Shared>);

struct Shared {
    doorway: Arc<EgressListener>,
    /// Whether a warm socket can take the place of a function's own on this machine.
    shortcut: bool,
    desk: Mutex<Desk>,
    wires: Wires,
}

/// What is answered for now.
struct Desk {
    places: Places,
    keys: Keys,
    ports: BTreeMap<u16, u32>,
}

impl Pool {
    /// Starts the thread. `gateway` is the gateway's address in the node's network.
    ///
    /// # Errors
    /// When there is no thread or no descriptor to be had.
    pub fn start(doorway: Arc<EgressListener>, gateway: Ipv4Addr, tell: Tell) -> io::Result<Self> {
        let (wires, fenced) = proxy::start(tell, Arc::clone(&doorway))?;
        let shortcut = fenced.and_then(|()| check_interception_support());
        let shortcut =
            shortcut.inspect_err(|why| tracing::info!(%why, "the node carries all connections itself")).is_ok();
        let desk = Desk { places: Places::new(gateway), keys: Keys::default(), ports: BTreeMap::new() };
        Ok(Self(Arc::new(Shared { doorway, shortcut, desk: Mutex::new(desk), wires })))
    }

    /// Lets an instance out, before it starts. Blocks for about a tenth of a millisecond.
    ///
    /// # Errors
    /// When the kernel refuses a route or a listener, or the pool's thread has ended; nothing is left behind then.
    pub fn admit(&self, who: &Admission) -> io::Result<Admitted> {
        let Admission { instance, eip, .. } = *who;
        let (known, troubles, remarks) = (Vec::new(), Vec::new(), Vec::new());
        let (pool, held, hatches, listened) = (self.clone(), Vec::new(), Vec::new(), false);
        let mut admitted = Admitted { pool, instance, eip, held, known, hatches, listened, troubles, remarks };
        let mut destinations = Vec::new();
        for egress in &who.egress {
            destinations.extend(self.place(who, egress, &mut admitted)?);
        }
        admitted.listened = self.0.shortcut && destinations.iter().any(Destination::may_be_given);
        let (done, wait) = std::sync::mpsc::sync_channel(1);
        self.order(Order::Admit(Box::new(who.clone()), destinations, done))?;
        wait.recv().map_err(|_| ended())?;
        Ok(admitted)
    }

    /// From now on nothing is kept open for nobody, warm or used: the node is about to end. What is in use stays, and who asks is served by new connections.
    pub fn rest(&self) {
        let _ = self.order(Order::Rest); // a thread that has ended keeps nothing
    }

    /// How things stand, owner by owner and destination by destination. Waits for the thread, which is busy for milliseconds at most; nothing, once it has
    /// ended.
    pub fn report(&self) -> Vec<PoolStatus> {
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let asked = self.order(Order::Report(tell));
        asked.ok().and_then(|()| told.recv_timeout(PATIENCE).ok()).unwrap_or_default()
    }

    /// Waits until what functions wrote to destinations with `writes=async` is delivered, or until `deadline`. Whether all of it is.
    pub fn settle(&self, deadline: Duration) -> bool {
        let (done, wait) = std::sync::mpsc::sync_channel(1);
        let asked = self.order(Order::Settle(done));
        asked.is_ok_and(|()| wait.recv_timeout(deadline).is_ok())
    }

    /// A call of a function has arrived whose egress declares reads: they are issued before its code asks for them. Never waits; is passed over where there
    /// is too much of it.
    pub fn foresee(&self, function: &FunctionId) {
        let _ = self.0.wires.hints.try_send(function.clone());
    }

    fn place(&self, who: &Admission, egress: &Egress, admitted: &mut Admitted) -> io::Result<Option<Destination>> {
        let mut desk = self.desk();
        let place = match desk.places.take(egress) {
            Ok(place) => place,
            Err(trouble) => {
                admitted.troubles.push(trouble);
                return Ok(None);
            }
        };
        let secrets = named(egress, &who.secrets);
        let key = desk.keys.take(&who.function, who.chain.as_deref(), egress, &secrets);
        if let Some((other, max)) = desk.keys.contradicts(&key, egress) {
            let own = egress.max;
            admitted.remarks.push(format!(
                "egress {}: max={own} here, max={max} in {other}: all connections of a namespace to a place count together, and each \
                 function stops at its own `max`; declare the same",
                key.to
            ));
        }
        let (stands, held) = (place.address(), Held { address: None, port: None, key: key.clone() });
        match place {
            Place::Standing { address, first } => {
                admitted.held.push(Held { address: Some(address), port: Some(egress.port), ..held });
                admitted.know((address, 32), &egress.host);
                if first {
                    self.0.doorway.add_address(address)?;
                }
                self.0.doorway.allow_instance(who.eip, address)?;
                self.listen(&mut desk, egress.port)?;
            }
            Place::Inside(address) => {
                admitted.held.push(held);
                admitted.hatches.push(InnerSocket::tcp(address, egress.port));
            }
            Place::Below => {
                admitted.held.push(Held { port: Some(egress.port), ..held });
                admitted.ask_for_names();
                self.0.doorway.add_network(BELOW.0, BELOW.1)?;
                self.listen(&mut desk, egress.port)?;
            }
        }
        Ok(Some(Destination { egress: egress.clone(), stands, key, secrets }))
    }

    /// One instance more wants somebody to listen at a port of the switch.
    fn listen(&self, desk: &mut Desk, port: u16) -> io::Result<()> {
        let users = desk.ports.entry(port).or_default();
        *users += 1;
        match *users {
            1 => self.order(Order::Listen(port, self.0.doorway.listen_on(port)?)),
            _ => Ok(()),
        }
    }

    fn leave(&self, admitted: &Admitted) {
        let (done, wait) = std::sync::mpsc::sync_channel(1);
        let left = self.order(Order::Leave(admitted.instance, admitted.eip, done)); // a thread that has ended has no connections
        let _ = left.map(|()| wait.recv()); // nor has one that ends meanwhile
        let mut desk = self.desk();
        for Held { address, port, key } in &admitted.held {
            desk.keys.give_back(key);
            if let Some(address) = *address {
                self.0.doorway.forbid_instance(admitted.eip, address);
                if desk.places.give_back(address) {
                    self.0.doorway.remove_address(address);
                }
            }
            if let Some(port) = port.filter(|port| desk.leave_port(*port)) {
                let _ = self.order(Order::Close(port)); // as above
            }
        }
    }

    fn order(&self, order: Order) -> io::Result<()> {
        self.0.wires.orders.send(order).map_err(|_| ended())
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.0.desk.lock().unwrap_or_else(PoisonError::into_inner) // counts are changed in one step each
    }
}

impl Desk {
    /// One instance less; whether nobody is listened for there any more.
    fn leave_port(&mut self, port: u16) -> bool {
        let Some(users) = self.ports.get_mut(&port) else { return false };
        *users -= 1;
        let last = *users == 0;
        if last {
            self.ports.remove(&port);
        }
        last
    }
}

impl Admitted {
    /// Takes the socket at which the instance's listener arrives ([`nearpath_kernel::sandbox::LaunchedInstance::listener`]).
    ///
    /// # Errors
    /// When the pool's thread has ended; the instance's connects fail then, too.
    pub fn supervise(&self, listener: OwnedFd) -> io::Result<()> {
        self.pool.order(Order::Supervise(self.eip, listener))
    }

    /// Takes the socket at which the node's sockets inside the instance arrive ([`nearpath_kernel::sandbox::LaunchedInstance::inner_sockets`]).
    ///
    /// # Errors
    /// When the pool's thread has ended.
    pub fn attend(&self, hatches: OwnedFd) -> io::Result<()> {
        self.pool.order(Order::Attend(self.eip, self.hatches.clone(), hatches))
    }

    /// The instance's resolver asks the node.
    fn ask_for_names(&mut self) {
        let names = InnerSocket::UdpV4(NAMES);
        if !self.hatches.contains(&names) {
            self.hatches.push(names);
            self.known.push(Known { address: BELOW.0, prefix_len: BELOW.1, hostname: None });
        }
    }

    /// A name and its address are written down once, whatever ports are declared.
    fn know(&mut self, (address, length): (Ipv4Addr, u8), host: &Host) {
        let name = match host {
            Host::Name(name) => Some(name.clone()),
            _ => None,
        };
        let known = Known { address, prefix_len: length, hostname: name };
        if !self.known.contains(&known) {
            self.known.push(known);
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.pool.clone().leave(self);
    }
}

/// Those of the secrets that a destination names.
fn named(egress: &Egress, all: &Secrets) -> Secrets {
    egress.secrets().filter_map(|name| Some((name.to_owned(), all.get(name)?.clone()))).collect()
}

fn ended() -> io::Error {
    io::Error::other("the pool's thread has ended")
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("doorway", &self.0.doorway).finish_non_exhaustive()
    }
}

/// Secrets never reach a log.
impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} to {} destinations", self.instance, self.function, self.egress.len())
    }
}

/// Answered when an admission holds.
pub(crate) type Done = SyncSender<()>;
