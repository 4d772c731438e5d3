//! Collects every child that ends: own ones for those who wait for them, orphans so that no zombie stays.

use std::collections::HashMap;
use std::io;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, wait};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use super::{Exit, Group};

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Reaper(Mutex<Living>);

#[derive(Debug, Default)]
struct Living {
    next: u64,
    own: HashMap<Pid, Own>,
}

#[derive(Debug)]
struct Own {
    serial: u64,
    tell: oneshot::Sender<Exit>,
}

impl Reaper {
    /// Begins to collect, as a task of the current runtime.
    ///
    /// # Errors
    /// When the signal handler cannot be installed.
    pub(crate) fn run() -> io::Result<Arc<Self>> {
        let reaper = Arc::new(Self::default());
        let mut ended = signal(SignalKind::child())?;
        let collector = Arc::clone(&reaper);
        tokio::spawn(async move {
            while ended.recv().await.is_some() {
                collector.collect();
            }
        });
        Ok(reaper)
    }

    /// Starts a command. Its end cannot be collected before it is noted here: the collector runs on the same thread.
    pub(super) fn start(
        self: &Arc<Self>,
        command: &mut Command,
    ) -> io::Result<(Group, oneshot::Receiver<Exit>, Child)> {
        let child = command.spawn()?;
        let leader = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("the kernel's numbers are positive");
        let (tell, exit) = oneshot::channel();
        let mut living = self.living();
        living.next += 1;
        let serial = living.next;
        living.own.insert(leader, Own { serial, tell });
        drop(living);
        Ok((Group { leader, serial, reaper: Arc::clone(self), released: false }, exit, child))
    }

    fn collect(&self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let Some(own) = self.living().own.remove(&pid) else { continue };
            let _ = own.tell.send(status.into()); // nobody waits: a call that was given up
        }
    }

    /// Signals a group. The leader's number names it as long as any member lives; it may have been given to a younger child
    /// only when none does.
    pub(super) fn signal(&self, leader: Pid, serial: u64, signal: Signal) {
        let living = self.living();
        if living.own.get(&leader).is_none_or(|own| own.serial == serial) {
            let _ = kill_process_group(leader, signal); // all gone: what was wanted
        }
    }

    fn living(&self) -> std::sync::MutexGuard<'_, Living> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
