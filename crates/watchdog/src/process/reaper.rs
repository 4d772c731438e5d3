//! Reaper of all children: hands exits of own ones to their waiters, and collects orphans so that
//! no zombie stays.

use std::collections::HashMap;
use std::io;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, wait};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use super::{ProcessGroup, TenantExit};

/// Collector of exited children.
#[derive(Debug, Default)]
pub(crate) struct ChildReaper(Mutex<ReaperState>);

#[derive(Debug, Default)]
struct ReaperState {
    next_serial: u64,
    own_children: HashMap<Pid, OwnChild>,
}

#[derive(Debug)]
struct OwnChild {
    serial: u64,
    exit_sender: oneshot::Sender<TenantExit>,
}

impl ChildReaper {
    /// Starts collecting, as a task of the current runtime.
    ///
    /// # Errors
    /// When the signal handler cannot be installed.
    pub(crate) fn start_collecting() -> io::Result<Arc<Self>> {
        let reaper = Arc::new(Self::default());
        let mut ended = signal(SignalKind::child())?;
        let collector = Arc::clone(&reaper);
        tokio::spawn(async move {
            while ended.recv().await.is_some() {
                collector.collect_exited();
            }
        });
        Ok(reaper)
    }

    /// Starts a command. Its exit cannot be collected before it is recorded: the collector runs on
    /// the same thread.
    pub(super) fn spawn_child(
        self: &Arc<Self>,
        command: &mut Command,
    ) -> io::Result<(ProcessGroup, oneshot::Receiver<TenantExit>, Child)> {
        let child = command.spawn()?;
        let leader = i32::try_from(child.id())
            .ok()
            .and_then(Pid::from_raw)
            .expect("the kernel's numbers are positive");
        let (exit_sender, exit) = oneshot::channel();
        let mut state = self.lock_state();
        state.next_serial += 1;
        // The serial number tells two processes with the same pid apart.
        let serial = state.next_serial;
        state.own_children.insert(
            leader,
            OwnChild {
                serial,
                exit_sender,
            },
        );
        drop(state);
        Ok((
            ProcessGroup {
                leader,
                serial,
                reaper: Arc::clone(self),
                is_detached: false,
            },
            exit,
            child,
        ))
    }

    fn collect_exited(&self) {
        // One SIGCHLD may stand for several exits (signal(7)), so all are collected.
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            // Unknown: an orphan that PID 1 inherited.
            let Some(own) = self.lock_state().own_children.remove(&pid) else {
                continue;
            };
            let _ = own.exit_sender.send(status.into()); // the receiver is gone: the call was given up
        }
    }

    /// Signals a group. The leader's pid names the group while any member lives. It may belong to a
    /// younger child only when none does.
    pub(super) fn signal_group(&self, leader: Pid, serial: u64, signal: Signal) {
        let state = self.lock_state();
        // Another serial number means a younger child: the group that was meant is gone.
        if state
            .own_children
            .get(&leader)
            .is_none_or(|own| own.serial == serial)
        {
            let _ = kill_process_group(leader, signal); // all gone: what was wanted
        }
    }

    fn lock_state(&self) -> std::sync::MutexGuard<'_, ReaperState> {
        // Every critical section is a single step, so the state is sound after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
