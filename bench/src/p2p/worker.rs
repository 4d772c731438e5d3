//! A worker on a machine of the town: its line to the rendezvous, and links to others.

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

use super::machine::Machine;
use super::town::{Lines, Town};
use crate::remote::Error;

/// A peer may take so long to come.
const WITHIN: Duration = Duration::from_secs(20);

type Awaited = Arc<Mutex<HashMap<String, oneshot::Sender<PeerSession>>>>;

/// See the module.
pub(crate) struct Worker {
    pub(crate) machine: Arc<Machine>,
    pub(crate) id: SpiffeId,
    line: ControlConnection,
    credentials: Credentials,
    awaited: Awaited,
    listening: AbortHandle,
}

/// Two workers that know of each other what they need to be introduced.
pub(crate) struct Couple {
    /// In this order they call and are called.
    sides: [(ControlConnection, Arc<PeerTlsConfig>, Arc<Machine>); 2],
    awaited: Awaited,
}

/// How a link is made.
#[derive(Debug, Clone)]
pub(crate) struct How {
    pub(crate) over: Vec<Transport>,
    pub(crate) settings: driver::DriverSettings,
}

impl How {
    /// Over these transports, and the relay until then.
    pub(crate) fn over(transports: &[Transport]) -> Self {
        Self {
            over: transports.to_vec(),
            settings: driver::DriverSettings::default(),
        }
    }
}

impl Worker {
    /// Opens the line of the worker of that name, and waits until it is there.
    pub(crate) async fn begin(
        town: &Town,
        place: &Place,
        name: &str,
        lines: Lines,
    ) -> Result<Self, Error> {
        Self::on(
            town,
            place,
            Arc::new(Machine::start(&place.node)?),
            name,
            lines,
        )
        .await
    }

    /// The same on a machine that runs already.
    pub(crate) async fn on(
        town: &Town,
        place: &Place,
        machine: Arc<Machine>,
        name: &str,
        lines: Lines,
    ) -> Result<Self, Error> {
        let id = SpiffeId::for_gateway("bench", name);
        let family = if place.address_of(IpFamily::V4).is_some() {
            IpFamily::V4
        } else {
            IpFamily::V6
        };
        let (settings, awaited) = (town.settings(&id, lines, family)?, Awaited::default());
        let hearing = awaited.clone();
        let (line, listening) = machine
            .run(async move {
                let (line, heard) = ControlConnection::open(settings);
                let listening = tokio::spawn(listen(heard, hearing)).abort_handle();
                let here = tokio::time::timeout(WITHIN, line.welcome()).await;
                here.ok().flatten().map(|_| (line, listening))
            })
            .await
            .ok_or_else(|| format!("{id} does not get to the rendezvous"))?;
        let credentials = town.credentials(&id)?;
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
    pub(crate) fn with(&self, peer: &Self, town: &Town) -> Result<Couple, Error> {
        let one = |worker: &Self, other: &Self| {
            Ok::<_, Error>((
                worker.line.clone(),
                worker.pair(other, town)?,
                worker.machine.clone(),
            ))
        };
        Ok(Couple {
            sides: [one(self, peer)?, one(peer, self)?],
            awaited: peer.awaited.clone(),
        })
    }

    /// How it proves itself to a peer.
    pub(crate) fn pair(&self, peer: &Self, town: &Town) -> Result<Arc<PeerTlsConfig>, Error> {
        town.pair(&self.credentials, &peer.id)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

async fn listen(mut heard: mpsc::Receiver<ControlEvent>, awaited: Awaited) {
    while let Some(heard) = heard.recv().await {
        if let ControlEvent::IncomingCall(meeting) = heard {
            let taker = lock(&awaited).remove(&meeting.grant.about);
            if let Some(taker) = taker {
                let _ = taker.send(meeting); // nobody waits any more: dropped, it hangs up
            }
        }
    }
}

fn lock(
    awaited: &Awaited,
) -> std::sync::MutexGuard<'_, HashMap<String, oneshot::Sender<PeerSession>>> {
    awaited.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Couple {
    /// Makes a link, and does something with it at each end: `work` is told whether it is the caller's, and when both sides were ready and the
    /// call began.
    pub(crate) async fn meet<T, F>(
        &self,
        how: &How,
        work: impl Fn(P2pLink, bool, Instant) -> F + Send + Sync + Clone + 'static,
    ) -> io::Result<[T; 2]>
    where
        T: Send + 'static,
        F: Future<Output = io::Result<T>> + Send,
    {
        static MEETINGS: AtomicU64 = AtomicU64::new(0);
        let about = MEETINGS.fetch_add(1, Ordering::Relaxed).to_string();
        let (tell, called) = oneshot::channel();
        lock(&self.awaited).insert(about.clone(), tell);
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
            machine.run(async move {
                let ports = LocalPorts::bind(&how.over)?;
                let meeting = line
                    .call_for(&pair, &about, WITHIN)
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
            other_machine.run(async move {
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
        lock(&self.awaited).remove(&about);
        met.map(|(caller, callee)| [caller, callee])
    }
}
