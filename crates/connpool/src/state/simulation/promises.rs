//! Carries out the pool's actions, and checks its promises.

use super::*;

impl Simulation {
    /// Carries out all actions, except closes, which take time.
    pub(super) fn apply_actions(&mut self) {
        while let Some(action) = self.state.poll() {
            match action {
                StateAction::Connect(key, socket) => self.open_socket(key, socket),
                StateAction::Give(ticket, socket) => self.give_socket(ticket, socket),
                StateAction::Refuse(ticket, why) => self.refuse_waiter(ticket, why),
                StateAction::Close(socket) => self.close_socket(socket),
                StateAction::Reclaim(key) => self.reclaim_idle(key),
            }
        }
    }

    pub(super) fn hand_out(&mut self, key: KeyId, socket: Option<SocketId>) {
        let Some(socket) = socket else { return };
        let socket_record = self
            .sockets
            .get_mut(&socket)
            .expect("only an open connection is handed out");
        assert_eq!(socket_record.key, key, "a connection serves its own key");
        assert_eq!(
            (socket_record.fate, socket_record.handed_out),
            (SocketFate::Warm, false),
            "only an unused connection is handed out"
        );
        assert!(
            self.now.duration_since(socket_record.opened_at) < IDLE_TIMEOUT,
            "only a connection that has not expired is handed out"
        );
        let retired = self.keys[&key].retired;
        assert!(
            retired.is_none_or(|retired| socket_record.opened_at >= retired),
            "no connection from before the change"
        );
        (socket_record.fate, socket_record.handed_out) = (SocketFate::InUse, true);
    }

    fn open_socket(&mut self, key: KeyId, socket: SocketId) {
        let group = self.keys[&key].group;
        assert!(
            self.open_in_group(group) < self.keys[&key].max,
            "nothing is opened above the limit"
        );
        let old = self.sockets.insert(
            socket,
            SimulatedSocket {
                key,
                fate: SocketFate::Connecting,
                opened_at: self.now,
                was_open: false,
                handed_out: false,
            },
        );
        assert!(old.is_none(), "a connection's id is never used again");
    }

    fn give_socket(&mut self, ticket: WaitTicket, socket: SocketId) {
        let client = self
            .clients
            .remove(&ticket)
            .expect("only a waiting client is given one");
        let own = self
            .clients
            .iter()
            .filter(|(_, other)| (other.function, other.key) == (client.function, client.key));
        assert!(
            own.into_iter().all(|(other, _)| *other > ticket),
            "first come, first served"
        );
        self.hand_out(client.key, Some(socket));
    }

    fn refuse_waiter(&mut self, ticket: WaitTicket, why: RefusalReason) {
        let client = self
            .clients
            .remove(&ticket)
            .expect("only a waiting client is refused");
        match why {
            RefusalReason::TimedOut { .. } => {
                assert!(
                    client.deadline <= self.now,
                    "no client is refused too early"
                )
            }
            RefusalReason::KeyForgotten => assert!(self.keys[&client.key].forgotten),
            RefusalReason::Failed | RefusalReason::QueueFull => {}
        }
    }

    fn close_socket(&mut self, socket: SocketId) {
        let socket_record = self
            .sockets
            .get_mut(&socket)
            .expect("only a known connection is closed");
        assert!(
            matches!(
                socket_record.fate,
                SocketFate::Connecting | SocketFate::Warm
            ) && !socket_record.handed_out,
            "a connection in use is not closed: {socket_record:?}"
        );
        socket_record.fate = SocketFate::Closing;
    }

    fn reclaim_idle(&mut self, key: KeyId) {
        let group = self.keys[&key].group;
        let idle = self.sockets.iter().find(|(_, socket_record)| {
            socket_record.fate == SocketFate::IdleAtAdapter
                && self.keys[&socket_record.key].group == group
        });
        if let Some(socket) = idle.map(|(socket, _)| *socket) {
            self.sockets.remove(&socket);
            self.state.socket_closed(self.now, socket);
        }
    }

    /// Returns the connections of a group in any phase.
    fn open_in_group(&self, group: usize) -> u32 {
        self.sockets
            .values()
            .filter(|socket_record| self.keys[&socket_record.key].group == group)
            .count() as u32
    }

    fn count_sockets(&self, key: KeyId, fate: SocketFate) -> u32 {
        self.sockets
            .values()
            .filter(|socket_record| socket_record.key == key && socket_record.fate == fate)
            .count() as u32
    }

    pub(super) fn check_promises(&self) {
        for (key, declared) in &self.keys {
            let Some(figures) = self.state.key_figures(*key) else {
                assert!(
                    declared.forgotten
                        && self
                            .sockets
                            .values()
                            .all(|socket_record| socket_record.key != *key),
                    "every open connection is known"
                );
                continue;
            };
            let open = self
                .sockets
                .values()
                .filter(|socket_record| socket_record.key == *key)
                .count() as u32;
            assert_eq!(figures.open, open, "the count matches the open connections");
            assert_eq!(figures.open_in_group, self.open_in_group(declared.group));
            assert_eq!(
                figures.warm,
                self.count_sockets(*key, SocketFate::Warm),
                "every open connection is in use or warm"
            );
            assert_eq!(
                figures.connecting,
                self.count_sockets(*key, SocketFate::Connecting)
            );
            assert!(
                figures.warm
                    <= if declared.retired.is_some() {
                        0
                    } else {
                        declared.warm
                    },
                "no more than the maximum is kept warm"
            );
            let waiting = self
                .clients
                .values()
                .filter(|client| client.key == *key)
                .count() as u32;
            assert_eq!(figures.waiting, waiting, "every waiting client is known");
        }
        (0..GROUPS.len()).for_each(|group| self.check_group(group));
    }

    /// Checks that no client waits without a reason.
    fn check_group(&self, group: usize) {
        let here = |key: &KeyId| self.keys[key].group == group;
        let mut queued = 0;
        for key in self.keys.keys().filter(|key| here(key)) {
            let waiting = self
                .clients
                .values()
                .filter(|client| client.key == *key)
                .count() as u32;
            let opening = self.count_sockets(*key, SocketFate::Connecting);
            if waiting > opening {
                queued += waiting - opening;
                assert!(
                    self.open_in_group(group) >= self.keys[key].max,
                    "a queued client has no free slot: {key:?}"
                );
                assert_eq!(
                    self.count_sockets(*key, SocketFate::Warm),
                    0,
                    "a queued client has no warm connection"
                );
            }
        }
        let closing = self
            .sockets
            .values()
            .filter(|socket_record| {
                here(&socket_record.key) && socket_record.fate == SocketFate::Closing
            })
            .count() as u32;
        let warm_count = self
            .sockets
            .values()
            .filter(|socket_record| {
                here(&socket_record.key) && socket_record.fate == SocketFate::Warm
            })
            .count();
        assert!(
            queued <= closing || warm_count == 0,
            "warm connections make room for queued clients"
        );
        let due = self.state.wake_at();
        let overdue = self
            .clients
            .values()
            .filter(|client| client.deadline < self.now && here(&client.key))
            .count() as u32;
        let opening = self
            .sockets
            .values()
            .filter(|socket_record| {
                here(&socket_record.key) && socket_record.fate == SocketFate::Connecting
            })
            .count() as u32;
        assert!(
            overdue <= opening || due.is_some_and(|due| due <= self.now),
            "no client is queued past its deadline"
        );
    }
}
