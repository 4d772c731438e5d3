//! From a session to a connection.

use std::io;
use std::sync::Arc;

use crate::punch::nat::Report;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use nearpath_wire::pair::Pair;
use tokio::sync::watch;

use super::resumable_relay::{Cut, Dial, Dialling, Lasting, Prospect, Search, Times, Words};
use super::{DialError, Line, Meeting, RelayStream, Settings};
use crate::driver::{self, Verdict};
use crate::link::{self, Begun, Link};
use crate::message::Pass;
use crate::migrate::Relay;
use crate::nat_survey;

impl Line {
    /// A connection to the peer of a session that was granted on this line: over the line at first and then the relay, if
    /// `settings` allow one, and directly as soon as there is a way. Both sides do this.
    ///
    /// # Errors
    /// When the line is over, the relay is not to be had, or there is no way; and when the peer is not who was meant.
    pub async fn connect(
        &self,
        meeting: Meeting,
        pair: Arc<Pair>,
        search: impl Into<driver::Search>,
        settings: driver::Settings,
    ) -> io::Result<Link> {
        let over = || io::Error::new(io::ErrorKind::NotConnected, "the line to the rendezvous is over");
        let here = self.here().await.ok_or_else(over)?;
        let (wants_relay, pass, relaying) = (settings.agent.relay, meeting.granted.pass.clone(), settings.relaying);
        let head_start = relaying.head_start(here.rendezvous.round_trip);
        let times = Times { head_start, heard: relaying.heard.max(head_start), patience: relaying.patience };
        let (introduction, side, words) =
            meeting.divide(&here.welcome.you, here.observers(), pair).map_err(io::Error::other)?;
        let begun = link::begin(search, introduction, settings)?;
        let relay = wants_relay.then(|| self.relay(pass, words, &begun, times));
        begun.over(side, relay).await
    }

    /// Which kind of NAT stands before this machine, as far as UDP and the rendezvous' observers tell; takes a second.
    ///
    /// # Errors
    /// When the line is over, or the rendezvous has no observer for UDP.
    pub async fn nat(&self) -> io::Result<Report> {
        let over = || io::Error::new(io::ErrorKind::NotConnected, "the line to the rendezvous is over");
        let here = self.here().await.ok_or_else(over)?;
        nat_survey::detect(&here.servers(), &here.asker()).await
    }

    fn relay(&self, pass: Pass, words: Words, begun: &Begun, times: Times) -> Box<dyn Relay> {
        let dial = Rendezvous { settings: self.settings.clone(), pass };
        let search = Search { prospects: prospects(begun.verdict()), begin: begun.beginning() };
        Box::new(Lasting::new(dial, words, search, times))
    }
}

/// Where a session's relay is.
struct Rendezvous {
    settings: Arc<Settings>,
    pass: Pass,
}

impl Dial for Rendezvous {
    type Relay = RelayStream;

    fn dial(&mut self) -> Dialling<RelayStream> {
        let (settings, pass) = (self.settings.clone(), self.pass.clone());
        Box::pin(async move { RelayStream::open(&settings, &pass).await.map_err(Cut::from) })
    }
}

impl From<DialError> for Cut {
    fn from(error: DialError) -> Self {
        Self { is_final: error.is_final(), error: io::Error::other(error) }
    }
}

/// As a search goes on.
fn prospects(verdict: watch::Receiver<Verdict>) -> BoxStream<'static, Prospect> {
    let next = async |mut verdict: watch::Receiver<Verdict>| {
        loop {
            verdict.changed().await.ok()?;
            let known = *verdict.borrow_and_update();
            match known {
                Verdict::Unneeded => (),
                Verdict::Looking => return Some((Prospect::Looking, verdict)),
                Verdict::Direct { .. } => return Some((Prospect::Direct, verdict)),
                Verdict::Relayed(_) | Verdict::Ended(_) => return Some((Prospect::Hopeless, verdict)),
            }
        }
    };
    stream::unfold(verdict, next).boxed()
}
