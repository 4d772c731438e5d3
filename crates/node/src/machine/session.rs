//! Ending all processes of a session, for instances that have neither a PID namespace nor a cgroup.
//!
//! A process that makes a session of its own escapes; only a namespace or a cgroup would hold it.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

/// How often it is looked again for processes that were made meanwhile; a fork bomb must not hold the node up.
const ROUNDS: usize = 16;

/// Kills every process of `session` but its leader, until none is found. The leader must not have been waited for yet:
/// until then its number belongs to no other session.
pub(super) fn kill(session: Pid) {
    for _ in 0..ROUNDS {
        let members = members(session);
        if members.is_empty() {
            return;
        }
        for member in members {
            let _ = kill_process(member, Signal::KILL); // it may have ended by itself
        }
    }
}

fn members(session: Pid) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let others = numbers.filter_map(Pid::from_raw).filter(|pid| *pid != session);
    others.filter(|pid| is_alive_in(*pid, session)).collect()
}

fn is_alive_in(pid: Pid, session: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.is_ok_and(|stat| alive_session(&stat) == Some(session.as_raw_nonzero().get()))
}

/// The session of a process that has not ended, from its `stat` (`man 5 proc_pid_stat`). The name in it may hold anything.
pub fn alive_session(stat: &str) -> Option<i32> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let session = fields.nth(2)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(session)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_is_found_whatever_the_name() {
        assert_eq!(alive_session("12 (sh) S 1 12 7 0 -1"), Some(7));
        assert_eq!(alive_session("12 (a) Z 1) R 1 12 8 0"), Some(8));
        assert_eq!(alive_session("12 (sh) Z 1 12 7 0 -1"), None);
        assert_eq!(alive_session("12 (sh"), None);
    }
}
