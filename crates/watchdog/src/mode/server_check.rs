//! Decision that a call's process is a server in place of a handler, from its ports and its output:
//! pure.

use std::collections::BTreeSet;

use tokio::time::{Duration, Instant};

use crate::process::ListeningPorts;

/// Time between two looks at the ports of a silent process.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

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

    /// Returns the port of the server that the process is.
    ///
    /// A handler that listens before its first output does not take its call from stdin. Other
    /// processes of the group may be a handler's helpers, such as a browser: they are connected to,
    /// so a port counts if it had no connection at two looks without output between them.
    pub(super) fn look(&mut self, now: Instant, ports: &ListeningPorts) -> Option<u16> {
        self.next_look = now + LOOK_INTERVAL;
        let of_leader = ports.of_leader.first().filter(|_| !self.has_output);
        let mut idle_twice = ports.idle.intersection(&self.idle_before);
        let found = of_leader.or(idle_twice.next()).copied();
        self.idle_before.clone_from(&ports.idle);
        found
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(check.look(now, &ports(&[80], &[])), Some(80));
    }

    #[test]
    fn a_port_of_the_group_counts_when_nobody_connects_to_it() {
        let now = Instant::now();
        let mut check = ServerCheck::new(now);
        assert_eq!(check.look(now, &ports(&[], &[80])), None, "it may be new");
        assert_eq!(check.look(now, &ports(&[], &[])), None, "a helper in use");
        assert_eq!(check.look(now, &ports(&[], &[80])), None);
        assert_eq!(check.look(now, &ports(&[], &[80, 90])), Some(80));
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
        assert_eq!(check.look(later, &ports(&[80], &[80])), Some(80));
    }
}
