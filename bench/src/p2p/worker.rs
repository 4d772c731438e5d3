//! A worker on a machine of the fixture: its line to the rendezvous, and links to others.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nearpath_p2p::Transport;
use nearpath_p2p::control::{ControlConnection, ControlEvent, PeerSession};
use nearpath_p2p::driver::{self, LocalPorts};
use nearpath_p2p::link::P2pLink;
use nearpath_testkit::lab::nat::{IpFamily, SiteMachine as Place};
use nearpath_types::SpiffeId;
use nearpath_wire::identity::Credentials;
use nearpath_wire::p2p_tls::PeerTlsConfig;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use super::fixture::{ControlTransport, RendezvousSetup};
use super::node_thread::NodeThread;
use crate::remote::BenchError;

/// A peer may take so long to come.
const PEER_TIMEOUT: Duration = Duration::from_secs(20);

type AwaitedPeers = Arc<Mutex<HashMap<String, oneshot::Sender<PeerSession>>>>;

/// A worker behind a NAT.
pub(crate) struct NatWorker {
    pub(crate) machine: Arc<NodeThread>,
    pub(crate) id: SpiffeId,
    line: ControlConnection,
    credentials: Credentials,
    awaited: AwaitedPeers,
    listening: AbortHandle,
}

/// Two workers that know of each other what they need to be introduced.
pub(crate) struct WorkerPair {
    /// In this order they call and are called.
    sides: [(ControlConnection, Arc<PeerTlsConfig>, Arc<NodeThread>); 2],
    awaited: AwaitedPeers,
}

/// Options of a link.
#[derive(Debug, Clone)]
pub(crate) struct LinkOptions {
    pub(crate) over: Vec<Transport>,
    pub(crate) settings: driver::DriverSettings,
}

impl LinkOptions {
    /// Over these transports, and the relay until then.
    pub(crate) fn over_transports(transports: &[Transport]) -> Self {
        Self {
            over: transports.to_vec(),
            settings: driver::DriverSettings::default(),
        }
    }
}

impl NatWorker {
    /// Opens the line of the worker of that name, and waits until it is there.
    pub(crate) async fn start_worker(
        fixture: &RendezvousSetup,
        place: &Place,
        name: &str,
        lines: ControlTransport,
    ) -> Result<Self, BenchError> {
        Self::start_on(
            fixture,
            place,
            Arc::new(NodeThread::start(&place.node)?),
            name,
            lines,
        )
        .await
    }

    /// The same on a machine that runs already.
    pub(crate) async fn start_on(
        fixture: &RendezvousSetup,
        place: &Place,
        machine: Arc<NodeThread>,
        name: &str,
        lines: ControlTransport,
    ) -> Result<Self, BenchError> {
        let id = SpiffeId::for_gateway("bench", name);
        let family = if place.address_of(IpFamily::V4).is_some() {
            IpFamily::V4
        } else {
            IpFamily::V6
        };
        let (settings, awaited) = (
            fixture.control_settings(&id, lines, family)?,
            AwaitedPeers::default(),
        );
        let hearing = awaited.clone();
        let (line, listening) = machine
            .run_in_node(async move {
                let (line, heard) = ControlConnection::open(settings);
                // Spawned before the welcome: a call may arrive with it.
                let listening = tokio::spawn(dispatch_peers(heard, hearing)).abort_handle();
                // Only a registered worker can be called.
                let here = tokio::time::timeout(PEER_TIMEOUT, line.welcome()).await;
                here.ok().flatten().map(|_| (line, listening))
            })
            .await
            .ok_or_else(|| format!("{id} does not get to the rendezvous"))?;
        let credentials = fixture.issue_credentials(&id)?;
        Ok(Self {
            machine,
            id,
            line,
            credentials,
            awaited,
            listening,
        })
    }

    /// This one will call, the other one be called.
    pub(crate) fn pair_with(
        &self,
        peer: &Self,
        fixture: &RendezvousSetup,
    ) -> Result<WorkerPair, BenchError> {
        let one = |worker: &Self, other: &Self| {
            Ok::<_, BenchError>((
                worker.line.clone(),
                worker.peer_tls(other, fixture)?,
                worker.machine.clone(),
            ))
        };
        Ok(WorkerPair {
            sides: [one(self, peer)?, one(peer, self)?],
            awaited: peer.awaited.clone(),
        })
    }

    /// TLS configuration of this worker towards a peer.
    pub(crate) fn peer_tls(
        &self,
        peer: &Self,
        fixture: &RendezvousSetup,
    ) -> Result<Arc<PeerTlsConfig>, BenchError> {
        fixture.peer_tls(&self.credentials, &peer.id)
    }
}

impl Drop for NatWorker {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

async fn dispatch_peers(mut heard: mpsc::Receiver<ControlEvent>, awaited: AwaitedPeers) {
    while let Some(heard) = heard.recv().await {
        if let ControlEvent::IncomingCall(meeting) = heard {
            let taker = lock_awaited(&awaited).remove(&meeting.grant.about);
            if let Some(taker) = taker {
                let _ = taker.send(meeting); // without a receiver the session is dropped, which hangs up
            }
        }
    }
}

fn lock_awaited(
    awaited: &AwaitedPeers,
) -> std::sync::MutexGuard<'_, HashMap<String, oneshot::Sender<PeerSession>>> {
    // A panic elsewhere does not corrupt a map of channels.
    awaited.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WorkerPair {
    /// Makes a link, and does something with it at each end: `work` is told whether it is the
    /// caller's, and when both sides were ready and the call began.
    pub(crate) async fn run_meeting<T, F>(
        &self,
        how: &LinkOptions,
        work: impl Fn(P2pLink, bool, Instant) -> F + Send + Sync + Clone + 'static,
    ) -> io::Result<[T; 2]>
    where
        T: Send + 'static,
        F: Future<Output = io::Result<T>> + Send,
    {
        // Unique over all pairs, since workers are shared between them.
        static MEETINGS: AtomicU64 = AtomicU64::new(0);
        // Relaxed: only uniqueness matters, nothing is published by it.
        let about = MEETINGS.fetch_add(1, Ordering::Relaxed).to_string();
        let (tell, called) = oneshot::channel();
        // Before the call goes out: the callee's dispatcher drops calls that are not expected.
        lock_awaited(&self.awaited).insert(about.clone(), tell);
        let [
            (line, pair, machine),
            (other_line, other_pair, other_machine),
        ] = &self.sides;
        let begun = Instant::now();
        let calls = {
            let (line, pair, about, how, work) = (
                line.clone(),
                pair.clone(),
                about.clone(),
                how.clone(),
                work.clone(),
            );
            machine.run_in_node(async move {
                let ports = LocalPorts::bind(&how.over)?;
                let meeting = line
                    .call_for(&pair, &about, PEER_TIMEOUT)
                    .await
                    .map_err(io::Error::other)?;
                work(
                    line.connect(meeting, pair, ports, how.settings).await?,
                    true,
                    begun,
                )
                .await
            })
        };
        let is_called = {
            let (line, pair, how) = (other_line.clone(), other_pair.clone(), how.clone());
            other_machine.run_in_node(async move {
                let ports = LocalPorts::bind(&how.over)?;
                let meeting = called.await.map_err(io::Error::other)?;
                work(
                    line.connect(meeting, pair, ports, how.settings).await?,
                    false,
                    begun,
                )
                .await
            })
        };
        let met = tokio::try_join!(calls, is_called);
        // A failed meeting leaves its entry, which would keep a channel for ever.
        lock_awaited(&self.awaited).remove(&about);
        met.map(|(caller, callee)| [caller, callee])
    }
}
