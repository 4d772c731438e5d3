//! Decision that a call's process is a server in place of a handler, from its ports and its output:
//! pure.

use std::collections::BTreeSet;

use tokio::time::{Duration, Instant};

use crate::process::ListeningPorts;

/// Time between two looks at the ports of a silent process.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// Port of a server in a call's group of processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FoundServer {
    /// The call's own process is the server, so the call never ends.
    Leader(u16),
    /// Another process listens. It may be the server below a shell, or a handler's helper that the
    /// handler does not use yet, such as a browser: the call may still end.
    Member(u16),
}

/// Looks for a server until the process's output ends; see the module documentation.
#[derive(Debug)]
pub(super) struct ServerCheck {
    next_look: Instant,
    has_output: bool,
    /// Ports without a connection at the last look.
    idle_before: BTreeSet<u16>,
}

impl ServerCheck {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            next_look: now + LOOK_INTERVAL,
            has_output: false,
            idle_before: BTreeSet::new(),
        }
    }

    /// Returns when to look at the ports.
    pub(super) fn next_look(&self) -> Instant {
        self.next_look
    }

    /// Notes output. A process that goes on writing is no server, but a banner proves nothing.
    pub(super) fn note_output(&mut self, now: Instant) {
        *self = Self {
            has_output: true,
            ..Self::new(now)
        };
    }

    /// Returns the server that was found.
    ///
    /// A handler that listens before its first output does not take its call from stdin. Otherwise
    /// a port counts if it had no connection at two looks without output between them.
    pub(super) fn look(&mut self, now: Instant, ports: &ListeningPorts) -> Option<FoundServer> {
        self.next_look = now + LOOK_INTERVAL;
        let idle_twice = &ports.idle & &self.idle_before;
        self.idle_before.clone_from(&ports.idle);
        let mut of_leader = ports.of_leader.iter().copied();
        let leader = of_leader.find(|port| !self.has_output || idle_twice.contains(port));
        let member = || idle_twice.first().copied().map(FoundServer::Member);
        leader.map(FoundServer::Leader).or_else(member)
    }
}

#[cfg(test)]
mod tests {
    use super::FoundServer::{Leader, Member};
    use super::*;

    fn ports(of_leader: &[u16], idle: &[u16]) -> ListeningPorts {
        ListeningPorts {
            of_group: BTreeSet::new(),
            of_leader: of_leader.iter().copied().collect(),
            idle: idle.iter().copied().collect(),
        }
    }

    #[test]
    fn a_leader_that_listens_in_silence_is_a_server() {
        let now = Instant::now();
        let mut check = ServerCheck::new(now);
        assert_eq!(check.look(now, &ports(&[], &[])), None);
        assert_eq!(check.look(now, &ports(&[80], &[])), Some(Leader(80)));
    }

    #[test]
    fn another_port_of_the_group_counts_when_nobody_connects_to_it() {
        let now = Instant::now();
        let mut check = ServerCheck::new(now);
        assert_eq!(check.look(now, &ports(&[], &[80])), None, "it may be new");
        assert_eq!(check.look(now, &ports(&[], &[])), None, "a helper in use");
        assert_eq!(check.look(now, &ports(&[], &[80])), None);
        let found = check.look(now, &ports(&[], &[80, 90]));
        assert_eq!(found, Some(Member(80)));
    }

    #[test]
    fn output_resets_the_check_and_does_not_end_it() {
        let now = Instant::now();
        let mut check = ServerCheck::new(now);
        assert_eq!(check.look(now, &ports(&[], &[80])), None);
        let later = now + LOOK_INTERVAL;
        check.note_output(later);
        assert_eq!(check.next_look(), later + LOOK_INTERVAL);
        assert_eq!(check.look(later, &ports(&[80], &[80])), None, "a banner");
        let found = check.look(later, &ports(&[80], &[70, 80]));
        assert_eq!(found, Some(Leader(80)));
    }
}
