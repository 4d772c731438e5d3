//! A worker on a machine of the fixture: its control connection, and links to others.

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

/// Time limit for a peer.
const PEER_TIMEOUT: Duration = Duration::from_secs(20);

type AwaitedPeers = Arc<Mutex<HashMap<String, oneshot::Sender<PeerSession>>>>;

/// A worker behind a NAT.
pub(crate) struct NatWorker {
    pub(crate) machine: Arc<NodeThread>,
    pub(crate) id: SpiffeId,
    connection: ControlConnection,
    credentials: Credentials,
    awaited: AwaitedPeers,
    dispatcher: AbortHandle,
}

/// Two workers with the data that their introduction needs.
pub(crate) struct WorkerPair {
    /// The caller and the callee.
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
    /// Creates options with these transports for hole punching, and the relay.
    pub(crate) fn over_transports(transports: &[Transport]) -> Self {
        Self {
            over: transports.to_vec(),
            settings: driver::DriverSettings::default(),
        }
    }
}

impl NatWorker {
    /// Opens the control connection of the worker of that name, and waits until it is established.
    pub(crate) async fn start_worker(
        fixture: &RendezvousSetup,
        place: &Place,
        name: &str,
        transport: ControlTransport,
    ) -> Result<Self, BenchError> {
        Self::start_on(
            fixture,
            place,
            Arc::new(NodeThread::start(&place.node)?),
            name,
            transport,
        )
        .await
    }

    /// Starts a worker on a running machine.
    pub(crate) async fn start_on(
        fixture: &RendezvousSetup,
        place: &Place,
        machine: Arc<NodeThread>,
        name: &str,
        transport: ControlTransport,
    ) -> Result<Self, BenchError> {
        let id = SpiffeId::for_gateway("bench", name);
        let family = if place.address_of(IpFamily::V4).is_some() {
            IpFamily::V4
        } else {
            IpFamily::V6
        };
        let (settings, awaited) = (
            fixture.control_settings(&id, transport, family)?,
            AwaitedPeers::default(),
        );
        let dispatched = awaited.clone();
        let (connection, dispatcher) = machine
            .run_in_node(async move {
                let (connection, events) = ControlConnection::open(settings);
                // Spawned before the welcome: a call may arrive with it.
                let dispatcher = tokio::spawn(dispatch_peers(events, dispatched)).abort_handle();
                // Only a registered worker can be called.
                let welcomed = tokio::time::timeout(PEER_TIMEOUT, connection.welcome()).await;
                welcomed.ok().flatten().map(|_| (connection, dispatcher))
            })
            .await
            .ok_or_else(|| format!("{id} cannot connect to the rendezvous"))?;
        let credentials = fixture.issue_credentials(&id)?;
        Ok(Self {
            machine,
            id,
            connection,
            credentials,
            awaited,
            dispatcher,
        })
    }

    /// Returns a pair with this worker as caller and the other as callee.
    pub(crate) fn pair_with(
        &self,
        peer: &Self,
        fixture: &RendezvousSetup,
    ) -> Result<WorkerPair, BenchError> {
        let one = |worker: &Self, other: &Self| {
            Ok::<_, BenchError>((
                worker.connection.clone(),
                worker.peer_tls(other, fixture)?,
                worker.machine.clone(),
            ))
        };
        Ok(WorkerPair {
            sides: [one(self, peer)?, one(peer, self)?],
            awaited: peer.awaited.clone(),
        })
    }

    /// Returns the TLS configuration of this worker towards a peer.
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
        self.dispatcher.abort();
    }
}

async fn dispatch_peers(mut events: mpsc::Receiver<ControlEvent>, awaited: AwaitedPeers) {
    while let Some(event) = events.recv().await {
        if let ControlEvent::IncomingCall(session) = event {
            let receiver = lock_awaited(&awaited).remove(&session.grant.about);
            if let Some(receiver) = receiver {
                let _ = receiver.send(session); // without a receiver the session is dropped, which hangs up
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
    /// Opens a link and runs `work` at each end. `work` gets its role (caller or not), and the time
    /// at which both sides were ready and the call began.
    pub(crate) async fn run_session<T, F>(
        &self,
        options: &LinkOptions,
        work: impl Fn(P2pLink, bool, Instant) -> F + Send + Sync + Clone + 'static,
    ) -> io::Result<[T; 2]>
    where
        T: Send + 'static,
        F: Future<Output = io::Result<T>> + Send,
    {
        // Unique over all pairs, since workers are shared between them.
        static NEXT_SESSION: AtomicU64 = AtomicU64::new(0);
        // Relaxed: only uniqueness matters, nothing is published by it.
        let about = NEXT_SESSION.fetch_add(1, Ordering::Relaxed).to_string();
        let (call_sender, called) = oneshot::channel();
        // Before the call goes out: the callee's dispatcher drops calls that are not expected.
        lock_awaited(&self.awaited).insert(about.clone(), call_sender);
        let [
            (connection, pair, machine),
            (other_connection, other_pair, other_machine),
        ] = &self.sides;
        let begun = Instant::now();
        let calls = {
            let (connection, pair, about, options, work) = (
                connection.clone(),
                pair.clone(),
                about.clone(),
                options.clone(),
                work.clone(),
            );
            machine.run_in_node(async move {
                let ports = LocalPorts::bind(&options.over)?;
                let session = connection
                    .call_for(&pair, &about, PEER_TIMEOUT)
                    .await
                    .map_err(io::Error::other)?;
                work(
                    connection
                        .connect(session, pair, ports, options.settings)
                        .await?,
                    true,
                    begun,
                )
                .await
            })
        };
        let is_called = {
            let (connection, pair, options) = (
                other_connection.clone(),
                other_pair.clone(),
                options.clone(),
            );
            other_machine.run_in_node(async move {
                let ports = LocalPorts::bind(&options.over)?;
                let session = called.await.map_err(io::Error::other)?;
                work(
                    connection
                        .connect(session, pair, ports, options.settings)
                        .await?,
                    false,
                    begun,
                )
                .await
            })
        };
        let met = tokio::try_join!(calls, is_called);
        // A failed session leaves its entry, which would keep a channel for ever.
        lock_awaited(&self.awaited).remove(&about);
        met.map(|(caller, callee)| [caller, callee])
    }
}
