//! Events of clients, servers, adapters and redeployments.

use super::*;

impl Simulation {
    pub(super) fn request_socket(&mut self, function: usize, wait: Duration) {
        let (key, deadline) = (self.current_keys[function], self.now + wait);
        match self
            .state
            .request_socket(self.now, key, RequesterId(function as u32), deadline)
        {
            RequestOutcome::Take(socket) => {
                let waits = self.clients.values().any(|client| client.key == key);
                assert!(!waits, "a new client does not pass a waiting one");
                self.hand_out(key, Some(socket));
            }
            RequestOutcome::Wait(ticket) => {
                let last = self.clients.insert(
                    ticket,
                    SimulatedClient {
                        key,
                        function,
                        deadline,
                    },
                );
                assert!(last.is_none(), "a ticket is never used again");
            }
            RequestOutcome::Refused(RefusalReason::TimedOut { .. }) => {
                assert!(
                    deadline <= self.now,
                    "a waiting client is not refused at once"
                )
            }
            RequestOutcome::Refused(why) => assert!(
                why == RefusalReason::KeyForgotten && self.keys[&key].forgotten,
                "{why:?}"
            ),
        }
    }

    pub(super) fn confirm_taken(&mut self, index: usize, fate: SocketFate) {
        let Some(socket) = self
            .pick_socket(index, fate)
            .filter(|socket| self.sockets[socket].was_open)
        else {
            return;
        };
        self.state.confirm_taken(self.now, socket);
        let socket_record = self.sockets.get_mut(&socket).expect("it was picked");
        (socket_record.fate, socket_record.handed_out) = (SocketFate::InUse, true);
    }

    pub(super) fn cancel_wait(&mut self, index: usize) {
        let Some(ticket) = self
            .clients
            .keys()
            .nth(index % self.clients.len().max(1))
            .copied()
        else {
            return;
        };
        self.clients.remove(&ticket);
        assert!(self.state.cancel_wait(self.now, ticket));
    }

    pub(super) fn connect_socket(&mut self, index: usize) {
        let Some(socket) = self.pick_socket(index, SocketFate::Connecting) else {
            return;
        };
        let socket_record = self.sockets.get_mut(&socket).expect("it was picked");
        (
            socket_record.fate,
            socket_record.opened_at,
            socket_record.was_open,
        ) = (SocketFate::Warm, self.now, true);
        self.state.socket_connected(self.now, socket);
    }

    pub(super) fn end_socket(&mut self, index: usize, fate: SocketFate) {
        let Some(socket) = self.pick_socket(index, fate) else {
            return;
        };
        self.sockets.remove(&socket);
        self.state.socket_closed(self.now, socket);
    }

    /// An adapter keeps a used connection, unless another key needs the slot.
    pub(super) fn idle_socket(&mut self, index: usize) {
        let Some(socket) = self.pick_socket(index, SocketFate::InUse) else {
            return;
        };
        let key = self.sockets[&socket].key;
        match self.state.next_waiter(key) {
            NextWaiter::None | NextWaiter::SameKey => {
                self.sockets.get_mut(&socket).expect("it was picked").fate =
                    SocketFate::IdleAtAdapter
            }
            NextWaiter::OtherKey => {
                self.sockets.remove(&socket);
                self.state.socket_closed(self.now, socket);
            }
        }
        self.apply_actions();
        self.serve_from_idle();
    }

    /// Adapters give their idle connections to their own clients.
    fn serve_from_idle(&mut self) {
        let idle = self
            .sockets
            .iter()
            .filter(|(_, socket_record)| socket_record.fate == SocketFate::IdleAtAdapter);
        let idle: Vec<_> = idle
            .map(|(socket, socket_record)| (*socket, socket_record.key))
            .collect();
        for (socket, key) in idle {
            let own = self
                .clients
                .iter()
                .find(|(_, client)| client.key == key)
                .map(|(ticket, _)| *ticket);
            if let Some(ticket) = own {
                self.clients.remove(&ticket);
                self.state.cancel_wait(self.now, ticket);
                self.sockets.get_mut(&socket).expect("it is there").fate = SocketFate::InUse;
            }
        }
    }

    pub(super) fn set_limits(&mut self, function: usize, max: u32, warm: u32) {
        let key = self.current_keys[function];
        let known = self.keys.get_mut(&key).expect("it was declared");
        (known.max, known.warm) = (max, warm);
        self.state.set_limits(self.now, key, max, warm);
    }

    pub(super) fn redeploy_function(&mut self, function: usize, max: u32, warm: u32) {
        let old = self.current_keys[function];
        self.current_keys[function] = self.declare(self.keys[&old].group, max, warm);
        self.state.retire_key(self.now, old);
        self.keys.get_mut(&old).expect("it was declared").retired = Some(self.now);
    }

    /// The last instance of an old key is gone.
    pub(super) fn forget_key(&mut self, index: usize) {
        let old: Vec<_> = self
            .keys
            .iter()
            .filter(|(_, key)| key.retired.is_some() && !key.forgotten)
            .map(|(id, _)| *id)
            .collect();
        let Some(key) = old.get(index % old.len().max(1)).copied() else {
            return;
        };
        self.keys.get_mut(&key).expect("it was declared").forgotten = true;
        self.state.forget_key(self.now, key);
    }
}
