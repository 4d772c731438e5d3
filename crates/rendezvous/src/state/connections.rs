//! Connections: arrival, departure, expiry.

use std::sync::Arc;

use super::types::{ActiveConnection, StateTimer, WorkerName};
use super::{ClockReading, ControlConnectionId, RendezvousAction, RendezvousState, SecretRng};
use nearpath_p2p::message::{CloseReason, HexBytes, RendezvousMessage};
use nearpath_p2p::ticket::WorkerTicket;

impl<C: SecretRng> RendezvousState<C> {
    /// Adds a connection.
    ///
    /// The newest connection of a worker wins: the older one may be dead without notice (decision
    /// 36). Kept messages follow, then the calls that waited for the worker.
    pub fn connect(
        &mut self,
        connection: ControlConnectionId,
        ticket: &WorkerTicket,
        now: ClockReading,
    ) -> Vec<RendezvousAction> {
        let name = Arc::new(WorkerName {
            job: ticket.job.clone(),
            id: ticket.worker.clone(),
        });
        // Before the limit is checked: a reconnecting worker frees its own place.
        if let Some(older) = self.connection_of(&name) {
            self.counts.displaced += 1;
            self.close_connection(older, CloseReason::Displaced);
        }
        if self.is_over_limit(ticket) {
            // The connection was never added, so there is nothing to remove.
            self.actions
                .push(RendezvousAction::Close(connection, CloseReason::TooMany));
            return self.take_actions();
        }
        self.counts.connected += 1;
        self.add_connection(connection, &name, ticket, now);
        // Kept messages before grants: they belong to older sessions.
        self.send_kept_messages(connection, &name);
        self.grant_waiting_calls(&name, now);
        self.take_actions()
    }

    /// Removes a connection. Its waiting calls end; sessions stay.
    pub fn disconnect(&mut self, connection: ControlConnectionId) {
        let Some(name) = self.connections.remove(&connection) else {
            return;
        };
        self.remove_from_job(&name, connection);
        let Some(worker) = self.workers.get_mut(&name) else {
            return;
        };
        if let Some(active) = worker.connection.take() {
            self.timers
                .remove(&(active.until, StateTimer::Connection(connection)));
        }
        // The worker repeats its calls when it reconnects (see `ControlConnection`).
        for number in std::mem::take(&mut worker.own_calls) {
            self.stop_waiting(number);
        }
        self.remove_if_unused(&name);
    }

    /// Closes all connections; used once.
    pub fn close_all(&mut self) -> Vec<RendezvousAction> {
        let connections: Vec<ControlConnectionId> = self.connections.keys().copied().collect();
        connections
            .into_iter()
            .for_each(|connection| self.close_connection(connection, CloseReason::Draining));
        self.take_actions()
    }

    /// Closes a connection whose ticket has expired.
    pub(super) fn expire_connection(&mut self, connection: ControlConnectionId) {
        self.close_connection(connection, CloseReason::Expired);
    }

    pub(super) fn remove_if_unused(&mut self, name: &WorkerName) {
        if self
            .workers
            .get(name)
            .is_some_and(super::WorkerRecord::is_unused)
        {
            self.workers.remove(name);
        }
    }

    fn close_connection(&mut self, connection: ControlConnectionId, reason: CloseReason) {
        if self.connections.contains_key(&connection) {
            self.actions
                .push(RendezvousAction::Close(connection, reason));
            self.disconnect(connection);
        }
    }

    fn is_over_limit(&self, ticket: &WorkerTicket) -> bool {
        let job_connections = self.jobs.get(&ticket.job).map_or(0, |job| job.connections);
        self.connections.len() >= self.limits.max_connections
            || job_connections >= self.limits.max_job_connections
    }

    fn add_connection(
        &mut self,
        connection: ControlConnectionId,
        name: &Arc<WorkerName>,
        ticket: &WorkerTicket,
        now: ClockReading,
    ) {
        let until = now.at + now.time_left(ticket.until);
        self.timers
            .insert((until, StateTimer::Connection(connection)));
        self.connections.insert(connection, name.clone());
        let worker = self.workers.entry(name.clone()).or_default();
        worker.connection = Some(ActiveConnection {
            id: connection,
            until,
            until_unix: ticket.until,
        });
        let job = self.jobs.entry(name.job.clone()).or_default();
        job.connections += 1;
        // The last leader wins, as the newest connection does.
        if ticket.leader {
            job.leader = Some(connection);
        }
    }

    fn remove_from_job(&mut self, name: &WorkerName, connection: ControlConnectionId) {
        let Some(job) = self.jobs.get_mut(&name.job) else {
            return;
        };
        job.connections -= 1;
        // A newer leader's connection survives the end of the older one.
        job.leader = job.leader.filter(|leader| *leader != connection);
        if job.connections == 0 {
            self.jobs.remove(&name.job);
        }
    }

    /// Sends the messages that were kept for the worker, in their order.
    fn send_kept_messages(&mut self, connection: ControlConnectionId, name: &WorkerName) {
        let Some(worker) = self.workers.get(name) else {
            return;
        };
        for id in &worker.sessions {
            let Some(session_state) = self.sessions.get_mut(id) else {
                continue;
            };
            let Some(side) = session_state.side_of(name) else {
                continue;
            };
            let session = HexBytes(*id);
            // Messages of the other side stay: both directions share one queue.
            for (to, message) in std::mem::take(&mut session_state.kept) {
                if to == side {
                    self.actions.push(RendezvousAction::Send(
                        connection,
                        RendezvousMessage::SessionMessage { session, message },
                    ));
                } else {
                    session_state.kept.push_back((to, message));
                }
            }
        }
    }
}
