//! Killing of all processes of a session, for instances without a PID namespace or cgroup.
//!
//! A process that creates its own session escapes; only a namespace or a cgroup could hold it.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

/// Maximum number of searches for processes that were created meanwhile. A fork bomb must not block
/// the node.
const MAX_KILL_ROUNDS: usize = 16;

/// Kills every process of `session` except its leader, until none is left. The leader must not have
/// been waited for, so its id is not reused.
pub(super) fn kill_session(session: Pid) {
    // /proc is no snapshot: a member may fork between the look and its kill.
    for _ in 0..MAX_KILL_ROUNDS {
        let members = session_members(session);
        if members.is_empty() {
            return;
        }
        for member in members {
            let _ = kill_process(member, Signal::KILL); // it may have ended already
        }
    }
}

fn session_members(session: Pid) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let others = numbers
        .filter_map(Pid::from_raw)
        .filter(|pid| *pid != session);
    others.filter(|pid| is_alive_in(*pid, session)).collect()
}

fn is_alive_in(pid: Pid, session: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.is_ok_and(|stat| alive_session(&stat) == Some(session.as_raw_nonzero().get()))
}

/// Parses the session of a living process from its `stat` (`man 5 proc_pid_stat`). The process name
/// may contain anything.
pub fn alive_session(stat: &str) -> Option<i32> {
    // The last parenthesis, because the process name may contain some.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let session = fields.nth(2)?.parse().ok()?;
    // Zombies and dead processes cannot be killed again.
    (!matches!(state, "Z" | "X")).then_some(session)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_is_parsed_for_any_process_name() {
        assert_eq!(alive_session("12 (sh) S 1 12 7 0 -1"), Some(7));
        assert_eq!(alive_session("12 (a) Z 1) R 1 12 8 0"), Some(8));
        assert_eq!(alive_session("12 (sh) Z 1 12 7 0 -1"), None);
        assert_eq!(alive_session("12 (sh"), None);
    }
}
