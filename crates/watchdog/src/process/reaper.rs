//! Collects every child that ends: own ones for those who wait for them, orphans so that no zombie stays.

use std::collections::HashMap;
use std::io;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, wait};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use super::{ProcessGroup, TenantExit};

/// See the module's text.
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
    /// Begins to collect, as a task of the current runtime.
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

    /// Starts a command. Its end cannot be collected before it is noted here: the collector runs on the same thread.
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
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let Some(own) = self.lock_state().own_children.remove(&pid) else {
                continue;
            };
            let _ = own.exit_sender.send(status.into()); // nobody waits: a call that was given up
        }
    }

    /// Signals a group. The leader's number names it as long as any member lives; it may have been given to a younger child
    /// only when none does.
    pub(super) fn signal_group(&self, leader: Pid, serial: u64, signal: Signal) {
        let state = self.lock_state();
        if state
            .own_children
            .get(&leader)
            .is_none_or(|own| own.serial == serial)
        {
            let _ = kill_process_group(leader, signal); // all gone: what was wanted
        }
    }

    fn lock_state(&self) -> std::sync::MutexGuard<'_, ReaperState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
