//! The session with one watchdog after its identity was sent: changes, callees, handshakes and
//! counters.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nearpath_types::frames::{
    self, CallTally, CalleeEntry, HandshakeMessage, IdentityFrameError, WatchdogFrame,
};
use nearpath_types::policy::CallTransport;
use nearpath_types::{Eip, InstanceAddr, InstanceLocality, RoutingSnapshot};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::callees::{callee_addresses, reachable_callees};
use super::direct_socket::InstanceSocket;
use super::handshake_jobs::HandshakeJobs;
use super::remote_peers::RemotePeers;
use super::watchdog_stream::WatchdogStream;
use super::{CallerInstance, HandshakeHalf, IdentityContext, IdentityIssuer};
use crate::direct_stats::CallReporter;
use crate::machine::{DirectPathGuard, MachineSocket};
use crate::remote_paths::RemoteCalls;

/// Minimum interval between frames of a watchdog, which limits the cost of a flood.
const FRAME_INTERVAL: Duration = Duration::from_millis(1);

pub(super) struct WatchdogSession {
    stream: WatchdogStream,
    /// Cleared after an invalid frame.
    is_listening: bool,
    /// Name of its incarnation.
    name: Arc<str>,
    caller: CallerInstance,
    issuer: Arc<dyn IdentityIssuer>,
    context: IdentityContext,
    /// Socket for other nodes.
    socket: SocketState,
    /// Callees that were sent last.
    callees: Vec<CalleeEntry>,
    /// Direct path to each callee's instance; `None` where there is none.
    paths: HashMap<InstanceAddr, Option<DirectPathGuard>>,
    jobs: HandshakeJobs,
    reporter: CallReporter,
}

/// Socket for other nodes.
enum SocketState {
    /// None was needed so far.
    Unopened,
    Open(InstanceSocket),
    /// This machine offers none.
    Unavailable,
}

impl WatchdogSession {
    pub(super) fn new(
        stream: WatchdogStream,
        (name, caller): (Arc<str>, CallerInstance),
        issuer: Arc<dyn IdentityIssuer>,
        context: IdentityContext,
    ) -> Self {
        let reporter = context
            .direct_stats
            .reporter(caller.function.clone(), caller.instance);
        let (callees, paths, jobs) = (
            Vec::new(),
            HashMap::new(),
            HandshakeJobs::new(Instant::now()),
        );
        Self {
            stream,
            is_listening: true,
            name,
            caller,
            issuer,
            context,
            socket: SocketState::Unopened,
            callees,
            paths,
            jobs,
            reporter,
        }
    }

    /// Runs until the watchdog ends or stops reading.
    pub(super) async fn run(mut self, mut frames: mpsc::Receiver<Vec<u8>>) {
        // The first callees are sent without waiting for a change.
        self.context.snapshots.mark_changed();
        let mut issued = true;
        loop {
            let done = tokio::select! {
                frame = frames.recv(), if issued => match frame {
                    Some(frame) => self.stream.write_frame(&frame).await,
                    None => {
                        issued = false; // the identity stays valid until the instance is gone
                        Ok(())
                    }
                },
                Ok(()) = self.context.snapshots.changed() => self.send_callees().await,
                Ok(()) = self.context.direct.peers.changed() => self.send_callees().await,
                frame = self.stream.next_frame(), if self.is_listening => {
                    // Bounds the work that one watchdog can cause: at most 1000 frames per second.
                    // Sleeping before the frame is handled delays only this session.
                    sleep(FRAME_INTERVAL).await;
                    self.handle_frame(frame).await
                }
                else => return,
            };
            if done.is_err() {
                return;
            }
        }
    }

    /// Sends the callees if they have changed.
    async fn send_callees(&mut self) -> io::Result<()> {
        let snapshot = Arc::clone(&self.context.snapshots.borrow_and_update());
        self.open_paths(&snapshot).await;
        let remote = self.update_socket(&snapshot).await?.callees;
        let is_reachable = |addr| self.paths.get(&addr).is_some_and(Option::is_some);
        let callees = match self.caller.addr {
            Some(_) => reachable_callees(&snapshot, &self.caller.function, is_reachable, &remote),
            // Its calls do not pass the watchdog.
            None => Vec::new(),
        };
        // Most snapshots change other functions; then the watchdog is not woken.
        if callees == self.callees {
            return Ok(());
        }
        let peers = callees.iter().flat_map(|callee| &callee.peers);
        let peers = peers.filter(|peer| peer.locality == InstanceLocality::SameNode);
        self.reporter
            .set_reachable(peers.map(|peer| InstanceAddr(peer.addr)).collect());
        self.reporter.set_remote(called_elsewhere(&callees));
        self.callees = callees;
        self.stream
            .write_frame(&frames::callees_frame(&self.callees))
            .await
    }

    /// Updates the socket for other nodes, which is opened when there are other nodes. Returns the
    /// peers there.
    async fn update_socket(&mut self, snapshot: &RoutingSnapshot) -> io::Result<RemotePeers> {
        // Also the version that the socket uses, so that the loop is not woken for it again.
        let has_nodes = !self.context.direct.peers.borrow_and_update().is_empty();
        if has_nodes && matches!(self.socket, SocketState::Unopened) && self.speaks_quic(snapshot) {
            self.socket = self.open_socket().await?;
        }
        Ok(match &mut self.socket {
            SocketState::Open(socket) => socket.update(snapshot, &self.caller, &*self.issuer),
            SocketState::Unopened | SocketState::Unavailable => RemotePeers::default(),
        })
    }

    fn speaks_quic(&self, snapshot: &RoutingSnapshot) -> bool {
        let route = snapshot.functions.get(&self.caller.function);
        route.is_some_and(|route| route.policy.transport == CallTransport::Quic)
    }

    /// Opens a socket and hands it to the watchdog.
    async fn open_socket(&mut self) -> io::Result<SocketState> {
        let machine = Arc::clone(&self.context.machine);
        let opened = spawn_blocking(move || machine.open_machine_socket()).await;
        let MachineSocket {
            socket,
            port,
            peers,
        } = match opened {
            Ok(Ok(Some(opened))) => opened,
            Ok(Err(error)) => {
                tracing::warn!(instance = %self.name, %error, "no socket for direct calls between nodes: calls go by the nodes");
                return Ok(SocketState::Unavailable);
            }
            Ok(Ok(None)) | Err(_) => return Ok(SocketState::Unavailable), // a panic there is printed
        };
        self.stream
            .write_with_descriptor(&frames::socket_frame(), socket)
            .await?;
        let (name, registry) = (Arc::clone(&self.name), self.context.direct.clone());
        let socket = InstanceSocket::new(name, port, peers, registry);
        Ok(SocketState::Open(socket))
    }

    /// Opens paths before the callees are sent, and keeps them until the instances are gone.
    async fn open_paths(&mut self, snapshot: &RoutingSnapshot) {
        let addresses: Vec<_> = callee_addresses(snapshot, &self.caller.function).collect();
        // Dropping a guard closes the path, before new ones are opened.
        self.paths.retain(|addr, _| addresses.contains(addr));
        let new: Vec<_> = addresses
            .into_iter()
            .filter(|addr| !self.paths.contains_key(addr))
            .collect();
        let Some(from) = self.caller.addr.filter(|_| !new.is_empty()) else {
            return;
        };
        let machine = Arc::clone(&self.context.machine);
        // Permissions are system calls on BPF maps, which block.
        let opening = spawn_blocking(move || {
            let path_to = |to: InstanceAddr| {
                (
                    to,
                    eip_of(from)
                        .zip(eip_of(to))
                        .and_then(|(from, to)| machine.open_direct_path(from, to)),
                )
            };
            new.into_iter().map(path_to).collect::<Vec<_>>()
        });
        self.paths.extend(opening.await.unwrap_or_default()); // a panic there is printed
    }

    /// Handles a frame. After an invalid one the watchdog is ignored.
    async fn handle_frame(&mut self, frame: io::Result<Option<Vec<u8>>>) -> io::Result<()> {
        let bad = |fault: IdentityFrameError| io::Error::new(io::ErrorKind::InvalidData, fault);
        let read = frame.and_then(|frame| {
            frame
                .map(|frame| WatchdogFrame::read(&frame).map_err(bad))
                .transpose()
        });
        match read {
            Ok(Some(WatchdogFrame::Handshake(half))) => return self.answer_handshake(half).await,
            Ok(Some(WatchdogFrame::Tallies(all))) => self.count_tallies(&all),
            Ok(None) => self.is_listening = false, // frames of the issuer may still follow
            Err(fault) => {
                let CallerInstance {
                    function, instance, ..
                } = &self.caller;
                tracing::warn!(%function, %instance, "watchdog sent an invalid frame and is ignored from now on: {fault}");
                self.is_listening = false;
            }
        }
        Ok(())
    }

    /// Answers a handshake with a permitted callee, on a blocking thread and one step at a time.
    async fn answer_handshake(&mut self, half: HandshakeMessage) -> io::Result<()> {
        let HandshakeMessage { callee, datagrams } = half;
        let known = self
            .callees
            .iter()
            .flat_map(|callee| &callee.peers)
            .any(|peer| peer.name == callee && peer.locality == InstanceLocality::SameNode);
        // Only declared callees: others may not be reached, so their key must not be used.
        let Some(from) = self.caller.addr.filter(|_| known) else {
            return Ok(());
        };
        let job = self.jobs.take_or_begin(&callee, Instant::now(), || {
            self.issuer.open_half(&callee, from.0)
        });
        let step = match job {
            // A step costs some tenths of a millisecond of cryptography. A panic there is printed.
            Some(job) => spawn_blocking(move || step_handshake(job, &datagrams))
                .await
                .ok(),
            None => None,
        };
        let datagrams = match step {
            Some((datagrams, unfinished)) => {
                unfinished
                    .into_iter()
                    .for_each(|half| self.jobs.put_back(callee.clone(), half));
                datagrams
            }
            None => Vec::new(),
        };
        self.stream
            .write_frame(&frames::handshake_frame(&HandshakeMessage {
                callee,
                datagrams,
            }))
            .await
    }

    fn count_tallies(&self, all: &[CallTally]) {
        let snapshot = self.context.snapshots.borrow();
        let caller_route = snapshot.functions.get(&self.caller.function);
        let chain = caller_route.and_then(|route| route.policy.chain.as_ref());
        // The watchdog is the tenant's process: it must not count on edges of others.
        let is_declared = |tally: &&CallTally| {
            caller_route.is_some_and(|route| route.policy.may_call(&tally.callee))
        };
        all.iter()
            .filter(is_declared)
            .for_each(|tally| self.reporter.report(chain, tally));
    }
}

/// Returns the instances on other nodes that take new calls, by callee.
fn called_elsewhere(callees: &[CalleeEntry]) -> RemoteCalls {
    let mut elsewhere = RemoteCalls::new();
    for callee in callees {
        let peers = callee.peers.iter();
        let remote = peers
            .filter(|peer| !peer.leaving && peer.locality == InstanceLocality::OtherNode)
            .map(|peer| peer.name.clone());
        let names: Vec<_> = remote.collect();
        if !names.is_empty() {
            elsewhere.insert(callee.function.clone(), names);
        }
    }
    elsewhere
}

type OpenHandshake = (Box<dyn HandshakeHalf>, u32);

fn step_handshake(
    (mut half, steps): OpenHandshake,
    datagrams: &[Vec<u8>],
) -> (Vec<Vec<u8>>, Option<OpenHandshake>) {
    let result = half.step(datagrams);
    (result.datagrams, (!result.done).then_some((half, steps)))
}

fn eip_of(addr: InstanceAddr) -> Option<Eip> {
    match addr.ip() {
        std::net::IpAddr::V4(ip) => Some(Eip(ip)),
        std::net::IpAddr::V6(_) => None,
    }
}
