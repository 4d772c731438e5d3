//! Decides when the search for a direct connection starts.

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

/// Start of the search, and its ports.
pub enum SearchPlan {
    /// Search from the beginning.
    Immediately(LocalPorts),
    /// Search once the link turns out not to be short.
    ///
    /// That is when it has used half of what a control connection carries per link
    /// (`contract/migration.md`, 256 KiB), when the peer searches, or when it has existed for some time.
    /// A search costs both sides more than a short link in total (decision 50). Only for links that
    /// may use the relay.
    OnDemand {
        /// Ports; ready when the search may start.
        ports: BoxFuture<'static, io::Result<LocalPorts>>,
        /// Age at which a link is no longer short.
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

/// Search, as the link sees it. Dropping it ends the search.
#[derive(Debug)]
pub(crate) struct RunningSearch {
    pub(crate) connections: DirectConnections,
    pub(crate) outcome: watch::Receiver<SearchOutcome>,
    /// Trigger of the search, and the time after which it starts anyway; `None`: it has started.
    pub(crate) trigger: Option<(Arc<Notify>, Duration)>,
}

impl SearchPlan {
    /// Starts the search, or waits for its trigger.
    ///
    /// # Errors
    /// Fails when an immediate search finds too many open files.
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
        // A link that is gone before its search cost nothing: no port was bound.
        () = outputs.connections.closed() => return,
        () = trigger.notified() => None,
        // The peer searches: this side must answer, or the peer would probe in vain.
        Some(message) = introduction.signaling.incoming.recv() => Some(message),
    };
    if first == Some(PunchMessage::FallBack) {
        outputs
            .outcome
            .send_replace(SearchOutcome::Relayed(RelayReason::PeerGaveUp));
        return;
    }
    // The search counts as running before the ports are ready, so that the relay's head start
    // begins.
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
            tracing::debug!(%error, "driver: search failed");
            // Spares the peer its search; without this message it searches in vain.
            let _ = signaling_sender.send(PunchMessage::FallBack);
            outcome.send_replace(SearchOutcome::Relayed(RelayReason::NoPort));
        }
    }
}
