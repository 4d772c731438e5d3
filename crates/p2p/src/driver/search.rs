//! When a direct connection is looked for.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::punch::agent::PunchMessage;
use futures_util::future::BoxFuture;
use tokio::sync::{Notify, watch};

use super::local_ports::LocalPorts;
use super::outcome::{RelayReason, SearchOutcome};
use super::run::{DriverOutputs, PeerIntroduction, PunchDriver};
use super::settings::DriverSettings;
use crate::migrate::DirectConnections;

/// When a direct connection is looked for, and from which ports.
pub enum SearchPlan {
    /// From the beginning.
    Immediately(LocalPorts),
    /// When the link turns out not to be short: it has carried half of what a line takes of a link's bytes
    /// (`contract/way.md`, 256 KiB), or the peer looks, or it has been there for so long. Looking costs both sides more than a
    /// short link does altogether. It is for links that may use the relay.
    OnDemand {
        /// Ready when it may begin.
        ports: BoxFuture<'static, io::Result<LocalPorts>>,
        /// Short links are over within.
        short_link_age: Duration,
    },
}

impl From<LocalPorts> for SearchPlan {
    fn from(ports: LocalPorts) -> Self {
        Self::Immediately(ports)
    }
}

impl fmt::Debug for SearchPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Immediately(ports) => f.debug_tuple("AtOnce").field(ports).finish(),
            Self::OnDemand {
                short_link_age: lasts,
                ..
            } => f
                .debug_struct("WhenWorth")
                .field("lasts", lasts)
                .finish_non_exhaustive(),
        }
    }
}

/// A search, as who waits for it sees it. Dropped, it ends.
#[derive(Debug)]
pub(crate) struct RunningSearch {
    pub(crate) connections: DirectConnections,
    pub(crate) outcome: watch::Receiver<SearchOutcome>,
    /// Begins it, after so long if not before; none: it has begun.
    pub(crate) trigger: Option<(Arc<Notify>, Duration)>,
}

impl SearchPlan {
    /// Begins, or waits for the moment to.
    ///
    /// # Errors
    /// When the process has too many files open, and it is to begin at once.
    pub(crate) fn start(
        self,
        introduction: PeerIntroduction,
        settings: DriverSettings,
    ) -> io::Result<RunningSearch> {
        match self {
            Self::Immediately(ports) => {
                let (driver, connections, outcome) =
                    PunchDriver::new(ports, introduction, settings)?;
                tokio::spawn(driver.run());
                Ok(RunningSearch {
                    connections,
                    outcome,
                    trigger: None,
                })
            }
            Self::OnDemand {
                ports,
                short_link_age: lasts,
            } => {
                let (outputs, connections, outcome) = DriverOutputs::new(SearchOutcome::NotNeeded);
                let trigger = Arc::new(Notify::new());
                tokio::spawn(search_on_demand(
                    ports,
                    trigger.clone(),
                    introduction,
                    settings,
                    outputs,
                ));
                Ok(RunningSearch {
                    connections,
                    outcome,
                    trigger: Some((trigger, lasts)),
                })
            }
        }
    }
}

async fn search_on_demand(
    ports: BoxFuture<'static, io::Result<LocalPorts>>,
    trigger: Arc<Notify>,
    mut introduction: PeerIntroduction,
    settings: DriverSettings,
    outputs: DriverOutputs,
) {
    let first = tokio::select! {
        () = outputs.connections.closed() => return,
        () = trigger.notified() => None,
        Some(message) = introduction.signaling.incoming.recv() => Some(message),
    };
    if first == Some(PunchMessage::FallBack) {
        outputs
            .outcome
            .send_replace(SearchOutcome::Relayed(RelayReason::PeerGaveUp));
        return;
    }
    outputs.outcome.send_replace(SearchOutcome::Searching);
    let ports = tokio::select! {
        () = outputs.connections.closed() => return,
        ports = ports => ports,
    };
    let (signaling_sender, outcome) = (
        introduction.signaling.outgoing.clone(),
        outputs.outcome.clone(),
    );
    match (
        ports.and_then(|ports| PunchDriver::with(outputs, ports, introduction, settings)),
        first,
    ) {
        (Ok(driver), Some(message)) => driver.run_after_message(message).await,
        (Ok(driver), None) => driver.run().await,
        (Err(error), _) => {
            tracing::debug!(%error, "a direct way cannot be looked for");
            let _ = signaling_sender.send(PunchMessage::FallBack); // the peer need not look either; if it does not hear it, it looks in vain
            outcome.send_replace(SearchOutcome::Relayed(RelayReason::NoPort));
        }
    }
}
