//! When a direct connection is looked for.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::punch::agent::Message;
use futures_util::future::BoxFuture;
use tokio::sync::{Notify, watch};

use super::local_ports::Ports;
use super::outcome::{Verdict, Why};
use super::run::{Driver, Introduction, Outlet};
use super::settings::Settings;
use crate::migrate::Arrivals;

/// When a direct connection is looked for, and from which ports.
pub enum Search {
    /// From the beginning.
    AtOnce(Ports),
    /// When the link turns out not to be short: it has carried half of what a line takes of a link's bytes
    /// (`contract/way.md`, 256 KiB), or the peer looks, or it has been there for so long. Looking costs both sides more than a
    /// short link does altogether. It is for links that may use the relay.
    WhenWorth {
        /// Ready when it may begin.
        ports: BoxFuture<'static, io::Result<Ports>>,
        /// Short links are over within.
        lasts: Duration,
    },
}

impl From<Ports> for Search {
    fn from(ports: Ports) -> Self {
        Self::AtOnce(ports)
    }
}

impl fmt::Debug for Search {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtOnce(ports) => f.debug_tuple("AtOnce").field(ports).finish(),
            Self::WhenWorth { lasts, .. } => f.debug_struct("WhenWorth").field("lasts", lasts).finish_non_exhaustive(),
        }
    }
}

/// A search, as who waits for it sees it. Dropped, it ends.
#[derive(Debug)]
pub(crate) struct Searching {
    pub(crate) arrivals: Arrivals,
    pub(crate) verdict: watch::Receiver<Verdict>,
    /// Begins it, after so long if not before; none: it has begun.
    pub(crate) begin: Option<(Arc<Notify>, Duration)>,
}

impl Search {
    /// Begins, or waits for the moment to.
    ///
    /// # Errors
    /// When the process has too many files open, and it is to begin at once.
    pub(crate) fn start(self, introduction: Introduction, settings: Settings) -> io::Result<Searching> {
        match self {
            Self::AtOnce(ports) => {
                let (driver, arrivals, verdict) = Driver::new(ports, introduction, settings)?;
                tokio::spawn(driver.run());
                Ok(Searching { arrivals, verdict, begin: None })
            }
            Self::WhenWorth { ports, lasts } => {
                let (outlet, arrivals, verdict) = Outlet::new(Verdict::Unneeded);
                let begin = Arc::new(Notify::new());
                tokio::spawn(later(ports, begin.clone(), introduction, settings, outlet));
                Ok(Searching { arrivals, verdict, begin: Some((begin, lasts)) })
            }
        }
    }
}

async fn later(
    ports: BoxFuture<'static, io::Result<Ports>>,
    begin: Arc<Notify>,
    mut introduction: Introduction,
    settings: Settings,
    outlet: Outlet,
) {
    let first = tokio::select! {
        () = outlet.arrivals.closed() => return,
        () = begin.notified() => None,
        Some(message) = introduction.line.told.recv() => Some(message),
    };
    if first == Some(Message::Relay) {
        outlet.verdict.send_replace(Verdict::Relayed(Why::PeerGaveUp));
        return;
    }
    outlet.verdict.send_replace(Verdict::Looking);
    let ports = tokio::select! {
        () = outlet.arrivals.closed() => return,
        ports = ports => ports,
    };
    let (tell, verdict) = (introduction.line.tell.clone(), outlet.verdict.clone());
    match (ports.and_then(|ports| Driver::with(outlet, ports, introduction, settings)), first) {
        (Ok(driver), Some(said)) => driver.go_on(said).await,
        (Ok(driver), None) => driver.run().await,
        (Err(error), _) => {
            tracing::debug!(%error, "a direct way cannot be looked for");
            let _ = tell.send(Message::Relay); // the peer need not look either; if it does not hear it, it looks in vain
            verdict.send_replace(Verdict::Relayed(Why::NoPort));
        }
    }
}
