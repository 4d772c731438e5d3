//! Handle of the node to the egress proxy: admits instances and releases them.
//!
//! Addresses, routes and listeners are set up here, on the thread that starts the instance, which
//! may block. Connections run on the thread `pool`, which stays in the machine's network namespace,
//! where destinations are.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nearpath_kernel::egress_listener::EgressListener;
use nearpath_kernel::probe::check_interception_support;
use nearpath_kernel::sandbox::{DestinationRoute, InnerSocket};
use nearpath_types::egress::{EgressHost, EgressSpec, limit_group};
use nearpath_types::pool_status::PoolStatus;
use nearpath_types::{Eip, FunctionId, InstanceId};

use crate::addresses::{
    AddressTable, DestinationAddress, UnreachableDestination, WILDCARD_NETWORK,
};
use crate::admission::{AdmissionRequest, TenantLogFn};
use crate::client_tls::create_authority;
use crate::proxy::{self, CommandChannels, EgressCommand};
use nearpath_connpool::destination::{EgressDestination, PoolKey};
use nearpath_connpool::keys::{KeyRegistry, SecretContents};

/// Maximum wait for a report. The caller serves a status query and delays others.
const REPORT_TIMEOUT: Duration = Duration::from_secs(1);

/// Name server of instances with wildcard destinations, on their own loopback.
const NAME_SERVER_ADDRESS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 53), 53);

/// An admitted instance. Dropping it ends the instance's connections. The drop waits until its
/// writes to destinations with `writes=async` have arrived here: about a millisecond, or up to 2 s
/// if a destination does not accept them.
#[derive(Debug)]
pub struct AdmittedInstance {
    handle: EgressHandle,
    instance: InstanceId,
    eip: Eip,
    holds: Vec<DestinationHold>,
    /// Routes and host names that the instance needs.
    pub routes: Vec<DestinationRoute>,
    /// Sockets that the node opens inside the instance; pass them to
    /// [`serve_inner_sockets`](Self::serve_inner_sockets).
    pub inner_sockets: Vec<InnerSocket>,
    /// True if its connects are intercepted; pass the listener to
    /// [`supervise_connects`](Self::supervise_connects).
    pub is_intercepted: bool,
    /// Declared destinations that the instance cannot reach.
    pub unreachable: Vec<UnreachableDestination>,
    /// Other oddities of the declarations, in words for the tenant.
    pub warnings: Vec<String>,
}

/// Resources that an instance holds for one destination.
#[derive(Debug)]
struct DestinationHold {
    /// Address in the hub namespace.
    address: Option<Ipv4Addr>,
    /// Port of the listener in the hub namespace.
    port: Option<u16>,
    key: PoolKey,
}

/// Handle to the egress proxy of a node. Clones share it. The proxy ends with the last handle and
/// the last [`AdmittedInstance`].
#[derive(Clone)]
pub struct EgressHandle(Arc<HandleShared>);

struct HandleShared {
    egress_listener: Arc<EgressListener>,
    /// True if warm sockets can replace functions' own sockets on this machine.
    can_intercept: bool,
    state: Mutex<HandleState>,
    channels: CommandChannels,
    authority_pem: String,
}

/// Assigned addresses, keys and ports.
struct HandleState {
    addresses: AddressTable,
    keys: KeyRegistry,
    port_users: BTreeMap<u16, u32>,
    /// Nodes that share the limit of a declaration, by its limit group; absent: this one alone.
    node_counts: BTreeMap<String, u32>,
}

impl EgressHandle {
    /// Starts the thread. `gateway` is the gateway's address in the node's network.
    ///
    /// # Errors
    /// When no thread or descriptor is available.
    pub fn start(
        egress_listener: Arc<EgressListener>,
        gateway: Ipv4Addr,
        log: TenantLogFn,
    ) -> io::Result<Self> {
        let authority = create_authority()?;
        let authority_pem = authority.to_pem();
        let (channels, guard_state) =
            proxy::start_thread(log, Arc::clone(&egress_listener), authority)?;
        // Without the guard a function could connect a handed-over socket anywhere (ADR 30).
        let can_intercept = guard_state.and_then(|()| check_interception_support());
        let can_intercept = can_intercept
            .inspect_err(|why| tracing::info!(%why, "socket interception unavailable, the egress proxy carries all connections"))
            .is_ok();
        let state = HandleState {
            addresses: AddressTable::new(gateway),
            keys: KeyRegistry::default(),
            port_users: BTreeMap::new(),
            node_counts: BTreeMap::new(),
        };
        Ok(Self(Arc::new(HandleShared {
            egress_listener,
            can_intercept,
            state: Mutex::new(state),
            channels,
            authority_pem,
        })))
    }

    /// Returns the certificate of the authority in whose name the node answers clients that need
    /// TLS, as PEM.
    pub fn authority_pem(&self) -> &str {
        &self.0.authority_pem
    }

    /// Admits an instance before it starts. Blocks for about 0.1 ms.
    ///
    /// # Errors
    /// When the kernel refuses a route or a listener, or the thread has ended. Everything is undone
    /// then.
    pub fn admit_instance(&self, request: &AdmissionRequest) -> io::Result<AdmittedInstance> {
        let AdmissionRequest { instance, eip, .. } = *request;
        let (routes, unreachable, warnings) = (Vec::new(), Vec::new(), Vec::new());
        let (handle, holds, inner_sockets, is_intercepted) =
            (self.clone(), Vec::new(), Vec::new(), false);
        // Created first: when a later step fails, its drop undoes the earlier ones.
        let mut instance_handle = AdmittedInstance {
            handle,
            instance,
            eip,
            holds,
            routes,
            inner_sockets,
            is_intercepted,
            unreachable,
            warnings,
        };
        let mut destinations = Vec::new();
        for egress in &request.egress {
            destinations.extend(self.assign_destination(request, egress, &mut instance_handle)?);
        }
        instance_handle.is_intercepted = self.0.can_intercept
            && destinations
                .iter()
                .any(EgressDestination::can_be_handed_over);
        // The instance must not start before its connections are permitted.
        let (done, wait) = std::sync::mpsc::sync_channel(1);
        self.send_command(EgressCommand::Admit(
            Box::new(request.clone()),
            destinations,
            done,
        ))?;
        wait.recv().map_err(|_| thread_ended())?;
        Ok(instance_handle)
    }

    /// Sets the numbers of nodes that share the limits of declarations, by limit group
    /// ([`nearpath_types::egress::limit_group`]). Connections in use stay open.
    pub fn set_node_counts(&self, changes: BTreeMap<String, u32>) {
        self.lock_state().node_counts.extend(changes.clone());
        // A thread that has ended has no limits.
        let _ = self.send_command(EgressCommand::SetNodeCounts(changes));
    }

    /// Closes idle connections and keeps none from now on: the node is shutting down. Connections
    /// in use stay, and requests get new connections.
    pub fn drain_idle(&self) {
        // A thread that has ended keeps nothing.
        let _ = self.send_command(EgressCommand::DrainIdle);
    }

    /// Ends the thread, once no instance runs, and waits for it. Its cgroup is removed then; the end
    /// of the process alone would leave it.
    pub fn stop(&self) {
        let _ = self.send_command(EgressCommand::Stop); // fails when it has ended
        let thread = &self.0.channels.thread;
        let thread = thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("egress proxy: the thread panicked");
        }
    }

    /// Returns the status by owner and destination. Waits for the thread, which is busy for
    /// milliseconds at most. Empty once the thread has ended.
    pub fn pool_statuses(&self) -> Vec<PoolStatus> {
        let (sender, statuses) = std::sync::mpsc::sync_channel(1);
        let sent = self.send_command(EgressCommand::Report(sender));
        sent.ok()
            .and_then(|()| statuses.recv_timeout(REPORT_TIMEOUT).ok())
            .unwrap_or_default()
    }

    /// Waits until all writes of functions to destinations with `writes=async` are delivered.
    /// Returns false if `deadline` passes first.
    pub fn wait_delivered(&self, deadline: Duration) -> bool {
        let (done, wait) = std::sync::mpsc::sync_channel(1);
        let sent = self.send_command(EgressCommand::WaitDelivered(done));
        sent.is_ok_and(|()| wait.recv_timeout(deadline).is_ok())
    }

    /// Prefetches the declared reads of a function that is being called. Never waits; drops the
    /// hint when the queue is full.
    pub fn prefetch(&self, function: &FunctionId) {
        // A full queue drops the hint: a prefetch is only an optimization.
        let _ = self.0.channels.prefetch_hints.try_send(function.clone());
    }

    fn assign_destination(
        &self,
        request: &AdmissionRequest,
        egress: &EgressSpec,
        instance_handle: &mut AdmittedInstance,
    ) -> io::Result<Option<EgressDestination>> {
        let mut state = self.lock_state();
        let assigned = match state.addresses.assign_address(egress) {
            Ok(assigned) => assigned,
            // Others still work, so the instance starts without this destination.
            Err(reason) => {
                instance_handle.unreachable.push(reason);
                return Ok(None);
            }
        };
        let secrets = named_secrets(egress, &request.secrets);
        let key = state.keys.acquire_key(
            &request.function,
            request.chain.as_deref(),
            egress,
            &secrets,
        );
        if let Some(warning) = limit_warning(&state.keys, &key, egress) {
            instance_handle.warnings.push(warning);
        }
        let group = limit_group(key.namespace(), &egress.host_port());
        let nodes = state.node_counts.get(&group).copied().unwrap_or(1);
        if let Some(warning) = share_warning(egress, nodes) {
            instance_handle.warnings.push(warning);
        }
        self.open_route(&mut state, instance_handle, egress, assigned, &key)?;
        Ok(Some(EgressDestination {
            wildcard: None,
            egress: egress.clone(),
            visible_ip: assigned.visible_ip(),
            key,
            secrets,
        }))
    }

    /// Opens the way from an instance to a destination: a route and a listener, or an inner socket.
    fn open_route(
        &self,
        state: &mut HandleState,
        instance_handle: &mut AdmittedInstance,
        egress: &EgressSpec,
        assigned: DestinationAddress,
        key: &PoolKey,
    ) -> io::Result<()> {
        let hold = DestinationHold {
            address: None,
            port: None,
            key: key.clone(),
        };
        match assigned {
            DestinationAddress::Routed { address, is_first } => {
                // Recorded before the kernel calls, so that a failure below releases it.
                instance_handle.holds.push(DestinationHold {
                    address: Some(address),
                    port: Some(egress.port),
                    ..hold
                });
                instance_handle.add_route((address, 32), &egress.host);
                if is_first {
                    self.0.egress_listener.add_address(address)?;
                }
                self.0
                    .egress_listener
                    .allow_instance(instance_handle.eip, address)?;
                self.listen_on_port(state, egress.port)?;
            }
            DestinationAddress::InsideInstance(address) => {
                instance_handle.holds.push(hold);
                instance_handle
                    .inner_sockets
                    .push(InnerSocket::tcp(address, egress.port));
            }
            DestinationAddress::Wildcard => {
                instance_handle.holds.push(DestinationHold {
                    port: Some(egress.port),
                    ..hold
                });
                instance_handle.enable_name_server();
                self.0
                    .egress_listener
                    .add_network(WILDCARD_NETWORK.0, WILDCARD_NETWORK.1)?;
                self.listen_on_port(state, egress.port)?;
            }
        }
        Ok(())
    }

    /// Adds a user to a port, and a listener for the first one.
    fn listen_on_port(&self, state: &mut HandleState, port: u16) -> io::Result<()> {
        let users = state.port_users.entry(port).or_default();
        *users += 1;
        match *users {
            1 => self.send_command(EgressCommand::Listen(
                port,
                self.0.egress_listener.listen_on(port)?,
            )),
            _ => Ok(()),
        }
    }

    fn release_instance(&self, instance_handle: &AdmittedInstance) {
        let (done, wait) = std::sync::mpsc::sync_channel(1);
        // A thread that has ended, now or meanwhile, has no connections.
        let sent = self.send_command(EgressCommand::Remove(
            instance_handle.instance,
            instance_handle.eip,
            done,
        ));
        let _ = sent.map(|()| wait.recv());
        let mut state = self.lock_state();
        for DestinationHold { address, port, key } in &instance_handle.holds {
            state.keys.release_key(key);
            if let Some(address) = *address {
                // First the instance's own permission, then the route that others may share.
                self.0
                    .egress_listener
                    .forbid_instance(instance_handle.eip, address);
                if state.addresses.release_address(address) {
                    self.0.egress_listener.remove_address(address);
                }
            }
            if let Some(port) = port.filter(|port| state.release_port(*port)) {
                // A thread that has ended has no listeners.
                let _ = self.send_command(EgressCommand::StopListening(port));
            }
        }
    }

    fn send_command(&self, command: EgressCommand) -> io::Result<()> {
        self.0
            .channels
            .commands
            .send(command)
            .map_err(|_| thread_ended())
    }

    fn lock_state(&self) -> MutexGuard<'_, HandleState> {
        // Every change is a single step, so a poisoned lock is safe to use.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HandleState {
    /// Removes a user of a port. Returns true for the last one.
    fn release_port(&mut self, port: u16) -> bool {
        let Some(users) = self.port_users.get_mut(&port) else {
            return false;
        };
        *users -= 1;
        let is_last = *users == 0;
        if is_last {
            self.port_users.remove(&port);
        }
        is_last
    }
}

impl AdmittedInstance {
    /// Passes the socket on which the instance's seccomp listener arrives
    /// ([`nearpath_kernel::sandbox::LaunchedInstance::listener`]).
    ///
    /// # Errors
    /// When the thread has ended; the instance's connects fail then as well.
    pub fn supervise_connects(&self, listener: OwnedFd) -> io::Result<()> {
        self.handle
            .send_command(EgressCommand::Supervise(self.eip, listener))
    }

    /// Passes the socket on which the node's sockets inside the instance arrive
    /// ([`nearpath_kernel::sandbox::LaunchedInstance::inner_sockets`]).
    ///
    /// # Errors
    /// When the thread has ended.
    pub fn serve_inner_sockets(&self, inner_sockets: OwnedFd) -> io::Result<()> {
        self.handle.send_command(EgressCommand::ServeInnerSockets(
            self.eip,
            self.inner_sockets.clone(),
            inner_sockets,
        ))
    }

    /// Lets the instance resolve names at the node.
    fn enable_name_server(&mut self) {
        let names = InnerSocket::UdpV4(NAME_SERVER_ADDRESS);
        if !self.inner_sockets.contains(&names) {
            self.inner_sockets.push(names);
            self.routes.push(DestinationRoute {
                address: WILDCARD_NETWORK.0,
                prefix_len: WILDCARD_NETWORK.1,
                hostname: None,
            });
        }
    }

    /// Adds the route of a destination, and its host name, once for all declared ports.
    fn add_route(&mut self, (address, length): (Ipv4Addr, u8), host: &EgressHost) {
        let name = match host {
            EgressHost::Name(name) => Some(name.clone()),
            _ => None,
        };
        let route = DestinationRoute {
            address,
            prefix_len: length,
            hostname: name,
        };
        if !self.routes.contains(&route) {
            self.routes.push(route);
        }
    }
}

impl Drop for AdmittedInstance {
    fn drop(&mut self) {
        // Cloned, because the call borrows the whole instance.
        self.handle.clone().release_instance(self);
    }
}

/// Returns a warning if another function of the namespace declares a different `max`.
fn limit_warning(keys: &KeyRegistry, key: &PoolKey, egress: &EgressSpec) -> Option<String> {
    let (other, max) = keys.find_limit_conflict(key, egress)?;
    let own_max = egress.max;
    Some(format!(
        "egress {}: max={own_max} here but max={max} in {other}: connections of a namespace to one destination count together, and each \
                 function stops at its own `max`; declare the same value",
        key.host_port
    ))
}

/// Returns a warning if there are more nodes than connections: each may open one.
fn share_warning(egress: &EgressSpec, nodes: u32) -> Option<String> {
    let max = egress.max;
    let (host_port, is_short) = (egress.host_port(), nodes > max);
    is_short.then(|| {
        format!(
            "egress {host_port}: max={max} is less than the {nodes} nodes that share it: each opens one connection, \
             {nodes} in all; declare max={nodes} or more, or run the functions on fewer nodes"
        )
    })
}

/// Returns the secrets that a destination names.
fn named_secrets(egress: &EgressSpec, all: &SecretContents) -> SecretContents {
    egress
        .secret_names()
        .filter_map(|name| Some((name.to_owned(), all.get(name)?.clone())))
        .collect()
}

fn thread_ended() -> io::Error {
    io::Error::other("the egress proxy's thread has ended")
}

impl fmt::Debug for EgressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EgressHandle")
            .field("egress_listener", &self.0.egress_listener)
            .finish_non_exhaustive()
    }
}
