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
use nearpath_types::egress::{EgressHost, EgressSpec};
use nearpath_types::pool_status::PoolStatus;
use nearpath_types::{Eip, FunctionId, InstanceId};

use crate::addresses::{
    AddressTable, DestinationAddress, UnreachableDestination, WILDCARD_NETWORK,
};
use crate::proxy::{self, CommandChannels, EgressCommand};
use nearpath_connpool::destination::{EgressDestination, PoolKey};
use nearpath_connpool::keys::{KeyRegistry, SecretContents};

/// How long a report is waited for: who asks holds others up.
const REPORT_TIMEOUT: Duration = Duration::from_secs(1);

/// Where an instance asks for names below a declared one, on its own loopback.
const NAME_SERVER_ADDRESS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 53), 53);

/// How a function's log is written to: what happened to its connections, in words for the tenant.
pub type TenantLogFn = Box<dyn Fn(&FunctionId, InstanceId, String) + Send>;

/// An instance that is about to start, and where its function may go.
#[derive(Clone)]
pub struct AdmissionRequest {
    /// Its id.
    pub instance: InstanceId,
    /// Whose instance it is.
    pub function: FunctionId,
    /// The chain of its function.
    pub chain: Option<String>,
    /// The address that its packets come from.
    pub eip: Eip,
    /// Where it may go.
    pub egress: Vec<EgressSpec>,
    /// The secrets that those name, with their contents.
    pub secrets: BTreeMap<String, Vec<u8>>,
}

/// An instance that may go out, until this is dropped: then its connections end. Dropping waits until all is here that it wrote to destinations with
/// `writes=async`: a millisecond; seconds, where one of them does not take it.
#[derive(Debug)]
pub struct AdmittedInstance {
    handle: EgressHandle,
    instance: InstanceId,
    eip: Eip,
    holds: Vec<DestinationHold>,
    /// What the instance has to know to get there.
    pub routes: Vec<Known>,
    /// Sockets that the node is to have inside: then [`attend`](Self::attend) takes them.
    pub inner_sockets: Vec<InnerSocket>,
    /// Whether its connects are to be asked about: then [`supervise_connects`](Self::supervise) takes the listener.
    pub is_intercepted: bool,
    /// Destinations that were declared and that it cannot reach, in words for the tenant.
    pub unreachable: Vec<UnreachableDestination>,
    /// What else is odd about what was declared, in words for the tenant.
    pub warnings: Vec<String>,
}

/// What an instance uses of a destination's place.
#[derive(Debug)]
struct DestinationHold {
    /// In the switch.
    address: Option<Ipv4Addr>,
    /// At which the switch is listened at.
    port: Option<u16>,
    key: PoolKey,
}

/// The pool of a node. Clones are the same; it ends with the last one, and with the last [`AdmittedInstance`].
#[derive(Clone)]
pub struct EgressHandle(Arc<HandleShared>);

struct HandleShared {
    egress_listener: Arc<EgressListener>,
    /// Whether a warm socket can take the place of a function's own on this machine.
    can_intercept: bool,
    state: Mutex<HandleState>,
    channels: CommandChannels,
}

/// What is answered for now.
struct HandleState {
    addresses: AddressTable,
    keys: KeyRegistry,
    port_users: BTreeMap<u16, u32>,
}

impl EgressHandle {
    /// Starts the thread. `gateway` is the gateway's address in the node's network.
    ///
    /// # Errors
    /// When there is no thread or no descriptor to be had.
    pub fn start(
        doorway: Arc<EgressListener>,
        gateway: Ipv4Addr,
        tell: TenantLogFn,
    ) -> io::Result<Self> {
        let (wires, fenced) = proxy::start_thread(tell, Arc::clone(&doorway))?;
        let shortcut = fenced.and_then(|()| check_interception_support());
        let shortcut = shortcut
            .inspect_err(|why| tracing::info!(%why, "the node carries all connections itself"))
            .is_ok();
        let desk = HandleState {
            addresses: AddressTable::new(gateway),
            keys: KeyRegistry::default(),
            port_users: BTreeMap::new(),
        };
        Ok(Self(Arc::new(HandleShared {
            egress_listener: doorway,
            can_intercept: shortcut,
            state: Mutex::new(desk),
            channels: wires,
        })))
    }

    /// Lets an instance out, before it starts. Blocks for about a tenth of a millisecond.
    ///
    /// # Errors
    /// When the kernel refuses a route or a listener, or the pool's thread has ended; nothing is left behind then.
    pub fn admit_instance(&self, who: &AdmissionRequest) -> io::Result<AdmittedInstance> {
        let AdmissionRequest { instance, eip, .. } = *who;
        let (known, troubles, remarks) = (Vec::new(), Vec::new(), Vec::new());
        let (pool, held, hatches, listened) = (self.clone(), Vec::new(), Vec::new(), false);
        let mut admitted = AdmittedInstance {
            handle: pool,
            instance,
            eip,
            holds: held,
            routes: known,
            inner_sockets: hatches,
            is_intercepted: listened,
            unreachable: troubles,
            warnings: remarks,
        };
        let mut destinations = Vec::new();
        for egress in &who.egress {
            destinations.extend(self.assign_destination(who, egress, &mut admitted)?);
        }
        admitted.is_intercepted = self.0.can_intercept
            && destinations
                .iter()
                .any(EgressDestination::can_be_handed_over);
        let (done, wait) = std::sync::mpsc::sync_channel(1);
        self.send_command(EgressCommand::Admit(
            Box::new(who.clone()),
            destinations,
            done,
        ))?;
        wait.recv().map_err(|_| thread_ended())?;
        Ok(admitted)
    }

    /// From now on nothing is kept open for nobody, warm or used: the node is about to end. What is in use stays, and who asks is served by new connections.
    pub fn drain_idle(&self) {
        let _ = self.send_command(EgressCommand::DrainIdle); // a thread that has ended keeps nothing
    }

    /// How things stand, owner by owner and destination by destination. Waits for the thread, which is busy for milliseconds at most; nothing, once it has
    /// ended.
    pub fn pool_statuses(&self) -> Vec<PoolStatus> {
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let asked = self.send_command(EgressCommand::Report(tell));
        asked
            .ok()
            .and_then(|()| told.recv_timeout(REPORT_TIMEOUT).ok())
            .unwrap_or_default()
    }

    /// Waits until what functions wrote to destinations with `writes=async` is delivered, or until `deadline`. Whether all of it is.
    pub fn wait_delivered(&self, deadline: Duration) -> bool {
        let (done, wait) = std::sync::mpsc::sync_channel(1);
        let asked = self.send_command(EgressCommand::WaitDelivered(done));
        asked.is_ok_and(|()| wait.recv_timeout(deadline).is_ok())
    }

    /// A call of a function has arrived whose egress declares reads: they are issued before its code asks for them. Never waits; is passed over where there
    /// is too much of it.
    pub fn prefetch(&self, function: &FunctionId) {
        let _ = self.0.channels.prefetch_hints.try_send(function.clone());
    }

    fn assign_destination(
        &self,
        who: &AdmissionRequest,
        egress: &EgressSpec,
        admitted: &mut AdmittedInstance,
    ) -> io::Result<Option<EgressDestination>> {
        let mut desk = self.lock_state();
        let place = match desk.addresses.assign_address(egress) {
            Ok(place) => place,
            Err(trouble) => {
                admitted.unreachable.push(trouble);
                return Ok(None);
            }
        };
        let secrets = named_secrets(egress, &who.secrets);
        let key = desk
            .keys
            .acquire_key(&who.function, who.chain.as_deref(), egress, &secrets);
        if let Some((other, max)) = desk.keys.find_limit_conflict(&key, egress) {
            let own = egress.max;
            admitted.warnings.push(format!(
                "egress {}: max={own} here, max={max} in {other}: all connections of a namespace to a place count together, and each \
                 function stops at its own `max`; declare the same",
                key.host_port
            ));
        }
        let (stands, held) = (
            place.visible_ip(),
            DestinationHold {
                address: None,
                port: None,
                key: key.clone(),
            },
        );
        match place {
            DestinationAddress::Routed {
                address,
                is_first: first,
            } => {
                admitted.holds.push(DestinationHold {
                    address: Some(address),
                    port: Some(egress.port),
                    ..held
                });
                admitted.add_route((address, 32), &egress.host);
                if first {
                    self.0.egress_listener.add_address(address)?;
                }
                self.0.egress_listener.allow_instance(who.eip, address)?;
                self.listen_on_port(&mut desk, egress.port)?;
            }
            DestinationAddress::InsideInstance(address) => {
                admitted.holds.push(held);
                admitted
                    .inner_sockets
                    .push(InnerSocket::tcp(address, egress.port));
            }
            DestinationAddress::Wildcard => {
                admitted.holds.push(DestinationHold {
                    port: Some(egress.port),
                    ..held
                });
                admitted.enable_name_server();
                self.0
                    .egress_listener
                    .add_network(WILDCARD_NETWORK.0, WILDCARD_NETWORK.1)?;
                self.listen_on_port(&mut desk, egress.port)?;
            }
        }
        Ok(Some(EgressDestination {
            egress: egress.clone(),
            visible_ip: stands,
            key,
            secrets,
        }))
    }

    /// One instance more wants somebody to listen at a port of the switch.
    fn listen_on_port(&self, desk: &mut HandleState, port: u16) -> io::Result<()> {
        let users = desk.port_users.entry(port).or_default();
        *users += 1;
        match *users {
            1 => self.send_command(EgressCommand::Listen(
                port,
                self.0.egress_listener.listen_on(port)?,
            )),
            _ => Ok(()),
        }
    }

    fn release_instance(&self, admitted: &AdmittedInstance) {
        let (done, wait) = std::sync::mpsc::sync_channel(1);
        let left = self.send_command(EgressCommand::Remove(admitted.instance, admitted.eip, done)); // a thread that has ended has no connections
        let _ = left.map(|()| wait.recv()); // nor has one that ends meanwhile
        let mut desk = self.lock_state();
        for DestinationHold { address, port, key } in &admitted.holds {
            desk.keys.release_key(key);
            if let Some(address) = *address {
                self.0
                    .egress_listener
                    .forbid_instance(admitted.eip, address);
                if desk.addresses.release_address(address) {
                    self.0.egress_listener.remove_address(address);
                }
            }
            if let Some(port) = port.filter(|port| desk.release_port(*port)) {
                let _ = self.send_command(EgressCommand::StopListening(port)); // as above
            }
        }
    }

    fn send_command(&self, order: EgressCommand) -> io::Result<()> {
        self.0
            .channels
            .commands
            .send(order)
            .map_err(|_| thread_ended())
    }

    fn lock_state(&self) -> MutexGuard<'_, HandleState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner) // counts are changed in one step each
    }
}

impl HandleState {
    /// One instance less; whether nobody is listened for there any more.
    fn release_port(&mut self, port: u16) -> bool {
        let Some(users) = self.port_users.get_mut(&port) else {
            return false;
        };
        *users -= 1;
        let last = *users == 0;
        if last {
            self.port_users.remove(&port);
        }
        last
    }
}

impl AdmittedInstance {
    /// Takes the socket at which the instance's listener arrives ([`nearpath_kernel::sandbox::LaunchedInstance::listener`]).
    ///
    /// # Errors
    /// When the pool's thread has ended; the instance's connects fail then, too.
    pub fn supervise_connects(&self, listener: OwnedFd) -> io::Result<()> {
        self.handle
            .send_command(EgressCommand::Supervise(self.eip, listener))
    }

    /// Takes the socket at which the node's sockets inside the instance arrive ([`nearpath_kernel::sandbox::LaunchedInstance::inner_sockets`]).
    ///
    /// # Errors
    /// When the pool's thread has ended.
    pub fn serve_inner_sockets(&self, hatches: OwnedFd) -> io::Result<()> {
        self.handle.send_command(EgressCommand::ServeInnerSockets(
            self.eip,
            self.inner_sockets.clone(),
            hatches,
        ))
    }

    /// The instance's resolver asks the node.
    fn enable_name_server(&mut self) {
        let names = InnerSocket::UdpV4(NAME_SERVER_ADDRESS);
        if !self.inner_sockets.contains(&names) {
            self.inner_sockets.push(names);
            self.routes.push(Known {
                address: WILDCARD_NETWORK.0,
                prefix_len: WILDCARD_NETWORK.1,
                hostname: None,
            });
        }
    }

    /// A name and its address are written down once, whatever ports are declared.
    fn add_route(&mut self, (address, length): (Ipv4Addr, u8), host: &EgressHost) {
        let name = match host {
            EgressHost::Name(name) => Some(name.clone()),
            _ => None,
        };
        let known = Known {
            address,
            prefix_len: length,
            hostname: name,
        };
        if !self.routes.contains(&known) {
            self.routes.push(known);
        }
    }
}

impl Drop for AdmittedInstance {
    fn drop(&mut self) {
        self.handle.clone().release_instance(self);
    }
}

/// Those of the secrets that a destination names.
fn named_secrets(egress: &EgressSpec, all: &SecretContents) -> SecretContents {
    egress
        .secret_names()
        .filter_map(|name| Some((name.to_owned(), all.get(name)?.clone())))
        .collect()
}

fn thread_ended() -> io::Error {
    io::Error::other("the pool's thread has ended")
}

impl fmt::Debug for EgressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("doorway", &self.0.egress_listener)
            .finish_non_exhaustive()
    }
}

/// Secrets never reach a log.
impl fmt::Debug for AdmissionRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} to {} destinations",
            self.instance,
            self.function,
            self.egress.len()
        )
    }
}

/// Answered when an admission holds.
pub(crate) type DoneSender = SyncSender<()>;
