//! Connections of endpoints: accept, handshake, messages, disconnect.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;

use nearpath_shm::sockmap::RECORD_BYTES;
use nearpath_shm::{EndpointId, SockmapRecord};
use nearpath_types::InstanceId;
use tokio::sync::mpsc;

use super::{AcceptTask, DomainActor, EndpointConnection};
use crate::clock;
use crate::node_side::connection::{self, ConnectionKey, MAX_QUEUED_PACKETS, SocketEvent};
use crate::node_side::endpoint_socket::{self, OwnedListener};
use crate::node_side::endpoint_state::{self, EndpointState};
use crate::node_side::{InstanceFault, WatchdogPid};
use crate::protocol::{
    DomainIsolation, EndpointMessage, HelloMessage, NodeMessage, PROTOCOL_VERSION, RefusedMessage,
    WelcomeMessage,
};
use crate::topology::EndpointOwner;

impl DomainActor {
    pub(super) fn start_accepting(
        &mut self,
        who: EndpointOwner,
        watchdog: Option<WatchdogPid>,
        listener: OwnedListener,
    ) {
        let key = self.next_key();
        let task = tokio::spawn(connection::accept_connections(
            key,
            listener,
            self.events.clone(),
        ))
        .abort_handle();
        self.accept_tasks
            // The handle is kept: a listener never ends by itself when its instance does.
            .insert(
                key,
                AcceptTask {
                    owner: who,
                    watchdog,
                    task,
                },
            );
    }

    pub(super) fn start_connection(
        &mut self,
        who: EndpointOwner,
        watchdog: Option<WatchdogPid>,
        socket: OwnedFd,
    ) {
        let key = self.next_key();
        // The kernel names the process (unix(7), SO_PEERCRED): no message can claim to be it. The
        // number cannot have another owner, because its instance ends with the watchdog.
        let is_watchdog = watchdog.is_some_and(|pid| endpoint_socket::is_peer(&socket, pid));
        let (packets, outbox) = mpsc::channel(MAX_QUEUED_PACKETS);
        tokio::spawn(connection::serve_connection(
            key,
            socket,
            outbox,
            self.events.clone(),
        ));
        self.connections.insert(
            key,
            EndpointConnection {
                owner: who,
                is_watchdog,
                endpoint: None,
                outbound: packets,
                channels: BTreeSet::new(),
            },
        );
    }

    pub(super) fn handle_event(&mut self, events: SocketEvent) {
        match events {
            SocketEvent::Accepted(accept_key, socket) => {
                let Some((who, watchdog)) = self
                    .accept_tasks
                    .get(&accept_key)
                    .map(|entrance| (entrance.owner.clone(), entrance.watchdog))
                else {
                    return;
                };
                let there = self
                    .connections
                    .values()
                    .filter(|connection| connection.owner == who)
                    .count();
                // Beyond the limit the socket is dropped: one instance must not use up the ids of
                // the domain.
                if there < self.settings.max_endpoints {
                    self.start_connection(who, watchdog, socket);
                }
            }
            SocketEvent::Message(key, message, descriptors) => {
                if let Err(what) = self.handle_message(key, message, descriptors) {
                    self.disconnect_faulty(key, what);
                }
            }
            SocketEvent::ForbiddenSend(key, what) => self.check_forbidden_send(key, &what),
            SocketEvent::Closed(key, None) => self.remove_connection(key),
            SocketEvent::Closed(key, Some(what)) => self.disconnect_faulty(key, what),
        }
    }

    fn handle_message(
        &mut self,
        key: ConnectionKey,
        message: EndpointMessage,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), String> {
        let Some(connection) = self.connections.get(&key) else {
            return Ok(());
        };
        let actions = match (message, connection.endpoint) {
            (EndpointMessage::Hello(hello), None) => return self.handle_hello(key, &hello),
            (EndpointMessage::Hello(_), Some(_)) => return Err("a second hello".into()),
            (_, None) => return Err("it sent a message before its hello".into()),
            (EndpointMessage::Ready {}, Some(endpoint)) => self.topology.mark_ready(endpoint),
            (EndpointMessage::Pool(own), Some(endpoint)) => {
                self.pools.accept_pool(endpoint, own, descriptors)?;
                self.topology.complete_endpoint(endpoint)
            }
            (EndpointMessage::Broken(broken), Some(endpoint)) => {
                self.log_broken(broken.channel, endpoint);
                self.topology
                    .handle_broken(endpoint, broken.channel, clock::monotonic_now())
                    .map_err(|fault| fault.to_string())?
            }
            (EndpointMessage::Drained(drained), Some(endpoint)) => self
                .topology
                .handle_drained(endpoint, drained.channel, clock::monotonic_now())
                .map_err(|fault| fault.to_string())?,
        };
        self.perform_actions(actions);
        Ok(())
    }

    fn handle_hello(&mut self, key: ConnectionKey, hello: &HelloMessage) -> Result<(), String> {
        let unfit = match hello.version {
            PROTOCOL_VERSION => endpoint_state::unsupported_feature(&self.settings, hello),
            _ => Some(format!(
                "this node speaks version {PROTOCOL_VERSION} of the dispatch protocol"
            )),
        };
        if let Some(reason) = unfit {
            self.send_on_connection(
                key,
                &NodeMessage::Refused(RefusedMessage {
                    reason: reason.clone(),
                }),
                Vec::new(),
            );
            return Err(reason);
        }
        let Some(who) = self
            .connections
            .get(&key)
            .map(|connection| connection.owner.clone())
        else {
            return Ok(());
        };
        let Some(endpoint) = self.topology.reserve_endpoint(who.clone(), hello.serves) else {
            return Err("the domain has no endpoint id left".into());
        };
        if hello.substitute {
            self.topology.set_standby(endpoint);
        }
        if hello.serves_only {
            self.topology.set_serves_only(endpoint);
        }
        if let Some(connection) = self.connections.get_mut(&key) {
            connection.endpoint = Some(endpoint);
        }
        self.admit_endpoint(key, endpoint, &who, hello)
            .map_err(|error| format!("its wakeup cell cannot be created: {error}"))?;
        // A strict endpoint gets no channels before its peers can receive its pool.
        if self.settings.isolation != DomainIsolation::Strict {
            let actions = self.topology.complete_endpoint(endpoint);
            self.perform_actions(actions);
        }
        Ok(())
    }

    fn admit_endpoint(
        &mut self,
        key: ConnectionKey,
        endpoint: EndpointId,
        who: &EndpointOwner,
        hello: &HelloMessage,
    ) -> io::Result<()> {
        let (state, seated) = EndpointState::create(
            &self.settings.delivery,
            (key, endpoint),
            hello,
            &self.events,
        )?;
        let (pool, classes) = self.pools.for_new_endpoint()?;
        let descriptors = pool.into_iter().chain(seated).collect();
        let welcome = WelcomeMessage {
            domain: self.settings.name.clone(),
            endpoint: endpoint.get(),
            function: who.function().cloned(),
            instance: who.instance(),
            pool: self.pools.region_bytes(),
            max_held_bytes: self.settings.max_held_bytes,
            capacity: self.settings.ring_capacity,
            delivery: self.settings.delivery.mode(),
            isolation: self.settings.isolation,
            classes,
        };
        let connection = self.connections.get(&key);
        let is_watchdog = connection.is_some_and(|connection| connection.is_watchdog);
        self.stats.add_endpoint(endpoint, who.clone(), is_watchdog);
        // Before the welcome: sending it wakes the endpoint through its cell.
        self.endpoints.insert(endpoint, state);
        self.send_on_connection(key, &NodeMessage::Welcome(welcome), descriptors);
        Ok(())
    }

    /// Checks refused records. A channel that the endpoint never had is forged; an earlier one has
    /// merely ended meanwhile.
    fn check_forbidden_send(&mut self, key: ConnectionKey, tried: &[u8]) {
        let Some(connection) = self.connections.get(&key) else {
            return;
        };
        let (records, rest) = tried.as_chunks::<RECORD_BYTES>();
        let forged = |channel: &u32| !connection.channels.contains(channel);
        let what = match records
            .iter()
            .map(|record| SockmapRecord::from_bytes(record).channel)
            .find(forged)
        {
            Some(channel) => {
                format!("it sent a descriptor on channel {channel}, which it does not have")
            }
            None if !rest.is_empty() => "it sent less than a descriptor".into(),
            // A refused record of a channel that has ended meanwhile is no violation.
            None => return,
        };
        self.disconnect_faulty(key, what);
    }

    /// Disconnects an endpoint that violated the protocol.
    pub(super) fn disconnect_faulty(&mut self, key: ConnectionKey, what: String) {
        if let Some(connection) = self.connections.get(&key) {
            // Fails when no receiver wants to know of faults.
            let _ = self.faults.send(InstanceFault {
                instance: connection.owner.instance(),
                reason: what,
            });
        }
        self.remove_connection(key);
    }

    /// Removes the endpoint of a closed socket.
    fn remove_connection(&mut self, key: ConnectionKey) {
        let Some(connection) = self.connections.remove(&key) else {
            return;
        };
        if let Some(endpoint) = connection.endpoint {
            // Before the topology acts: from now on the kernel carries no record to or from the id.
            if let Some(exchange) = self.sockmap_exchange() {
                exchange.remove_endpoint(endpoint);
                exchange.revoke_channel(endpoint, 0);
            }
            self.endpoints.remove(&endpoint);
            // The peers keep their mappings: messages that the endpoint had sent are still read.
            self.pools.remove_pool(endpoint);
            self.stats.remove_endpoint(endpoint);
            let actions = self
                .topology
                .remove_endpoint(endpoint, clock::monotonic_now());
            self.perform_actions(actions);
        }
        if let Some(instance) = connection.owner.instance() {
            self.notify_if_empty(instance);
        }
    }

    pub(super) fn remove_instance(&mut self, instance: InstanceId) {
        let of = |who: &EndpointOwner| who.instance() == Some(instance);
        self.accept_tasks.retain(|_, entrance| {
            let goes = of(&entrance.owner);
            if goes {
                entrance.task.abort();
            }
            !goes
        });
        let keys: Vec<ConnectionKey> = self
            .connections
            .iter()
            .filter(|(_, connection)| of(&connection.owner))
            .map(|(&key, _)| key)
            .collect();
        keys.into_iter().for_each(|key| self.remove_connection(key));
        // After its endpoints are gone: until then `withdrawn` keeps them from getting new
        // channels.
        self.topology.forget_instance(instance);
        self.notify_if_empty(instance);
    }

    pub(super) fn notify_if_empty(&mut self, instance: InstanceId) {
        if self.topology.instance_endpoints(instance).is_empty() {
            self.notify_quiet(instance);
        }
    }
}
