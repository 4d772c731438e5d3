//! Connects to the peer of a granted session.

use std::io;
use std::sync::Arc;

use crate::punch::nat::NatReport;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use nearpath_wire::p2p_tls::PeerTlsConfig;
use tokio::sync::watch;

use super::resumable_relay::{
    ControlChannel, DirectStatus, RelayDial, RelayDialFuture, RelayFailure, RelayTimeouts,
    ResumableRelay, SearchWatch,
};
use super::{ControlConnection, ControlSettings, DialError, PeerSession, RelayStream};
use crate::driver::{self, SearchOutcome};
use crate::link::{self, P2pLink, PendingLink};
use crate::message::SignedToken;
use crate::migrate::RelayConnection;
use crate::nat_survey;

impl ControlConnection {
    /// Connects to the peer of a session that was granted on this connection. Both sides call this.
    ///
    /// Bytes go over the control connection first, then over the relay if `settings` allow one, and
    /// directly as soon as possible.
    ///
    /// # Errors
    /// Fails when the control connection has ended, when there is neither a relay nor a direct
    /// connection, and when the peer has another identity.
    pub async fn connect(
        &self,
        session: PeerSession,
        pair: Arc<PeerTlsConfig>,
        search: impl Into<driver::SearchPlan>,
        settings: driver::DriverSettings,
    ) -> io::Result<P2pLink> {
        let closed_error = || {
            io::Error::new(
                io::ErrorKind::NotConnected,
                "the connection to the rendezvous is closed",
            )
        };
        let connected = self.connected().await.ok_or_else(closed_error)?;
        let (wants_relay, token, policy) = (
            settings.agent.allow_relay,
            session.grant.relay_token.clone(),
            settings.relay_policy,
        );
        let head_start = policy.head_start(connected.server.round_trip);
        // A shorter acknowledgement timeout would open the relay before the head start is over.
        let times = RelayTimeouts {
            head_start,
            ack_timeout: policy.ack_timeout.max(head_start),
            resume_timeout: policy.resume_timeout,
        };
        let (introduction, side, channel) = session
            .split_for_link(&connected.welcome.worker, connected.observers(), pair)
            .map_err(io::Error::other)?;
        // Searched before the relay opens: the direct connection is 80 to 100 ms sooner (decision
        // 35).
        let pending = link::start_link(search, introduction, settings)?;
        let relay = wants_relay.then(|| self.resumable_relay(token, channel, &pending, times));
        pending.connect_over(side, relay).await
    }

    /// Detects the kind of NAT in front of this machine, as far as UDP and the rendezvous'
    /// observers show it; takes a second.
    ///
    /// # Errors
    /// Fails when the control connection has ended, or the rendezvous has no observer for UDP.
    pub async fn detect_nat(&self) -> io::Result<NatReport> {
        let closed_error = || {
            io::Error::new(
                io::ErrorKind::NotConnected,
                "the connection to the rendezvous is closed",
            )
        };
        let connected = self.connected().await.ok_or_else(closed_error)?;
        nat_survey::detect_nat(&connected.udp_observers(), &connected.binding_client()).await
    }

    fn resumable_relay(
        &self,
        token: SignedToken,
        channel: ControlChannel,
        pending: &PendingLink,
        times: RelayTimeouts,
    ) -> Box<dyn RelayConnection> {
        let dial = RelayDialer {
            settings: self.settings.clone(),
            token,
        };
        let search = SearchWatch {
            direct_status: direct_status_of(pending.outcome()),
            trigger: pending.search_trigger(),
        };
        Box::new(ResumableRelay::new(dial, channel, search, times))
    }
}

/// Dials a session's relay.
struct RelayDialer {
    settings: Arc<ControlSettings>,
    token: SignedToken,
}

impl RelayDial for RelayDialer {
    type Relay = RelayStream;

    fn dial(&mut self) -> RelayDialFuture<RelayStream> {
        let (settings, token) = (self.settings.clone(), self.token.clone());
        Box::pin(async move {
            RelayStream::open(&settings, &token)
                .await
                .map_err(RelayFailure::from)
        })
    }
}

impl From<DialError> for RelayFailure {
    fn from(error: DialError) -> Self {
        Self {
            is_final: error.is_final(),
            error: io::Error::other(error),
        }
    }
}

/// Returns the state of the direct connection as the search continues.
fn direct_status_of(outcome: watch::Receiver<SearchOutcome>) -> BoxStream<'static, DirectStatus> {
    let next = async |mut verdict: watch::Receiver<SearchOutcome>| {
        loop {
            verdict.changed().await.ok()?;
            let outcome_now = *verdict.borrow_and_update();
            match outcome_now {
                // An on-demand search that has not started is no news for the relay.
                SearchOutcome::NotNeeded => (),
                SearchOutcome::Searching => return Some((DirectStatus::Searching, verdict)),
                SearchOutcome::Direct { .. } => return Some((DirectStatus::Found, verdict)),
                SearchOutcome::Relayed(_) | SearchOutcome::Failed(_) => {
                    return Some((DirectStatus::Unavailable, verdict));
                }
            }
        }
    };
    stream::unfold(outcome, next).boxed()
}
