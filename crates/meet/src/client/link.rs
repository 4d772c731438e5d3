//! From a session to a connection.

use std::io;
use std::sync::Arc;

use nearpath_punch::nat::Report;
use nearpath_wire::pair::Pair;

use super::ahead::{Ahead, Words};
use super::{Line, Meeting, RelayStream};
use crate::driver::{self, Ports};
use crate::kind;
use crate::link::{self, Link};
use crate::message::Pass;
use crate::way::Relay;

impl Line {
    /// A connection to the peer of a session that was granted on this line: over the relay at once, if `settings` allow one,
    /// and directly as soon as there is a way. Both sides do this.
    ///
    /// # Errors
    /// When the line is over, the relay is not to be had, or there is no way; and when the peer is not who was meant.
    pub async fn connect(
        &self,
        meeting: Meeting,
        pair: Arc<Pair>,
        ports: Ports,
        settings: driver::Settings,
    ) -> io::Result<Link> {
        let over = || io::Error::new(io::ErrorKind::NotConnected, "the line to the rendezvous is over");
        let here = self.here().await.ok_or_else(over)?;
        let (wants_relay, pass) = (settings.agent.relay, meeting.granted.pass.clone());
        let (introduction, side, words) =
            meeting.divide(&here.welcome.you, here.observers(), pair).map_err(io::Error::other)?;
        let begun = link::begin(ports, introduction, settings)?; // it looks while the relay is opened
        begun.over(side, wants_relay.then(|| self.relay(pass, words))).await
    }

    /// Which kind of NAT stands before this machine, as far as UDP and the rendezvous' observers tell; takes a second.
    ///
    /// # Errors
    /// When the line is over, or the rendezvous has no observer for UDP.
    pub async fn nat(&self) -> io::Result<Report> {
        let over = || io::Error::new(io::ErrorKind::NotConnected, "the line to the rendezvous is over");
        let here = self.here().await.ok_or_else(over)?;
        kind::detect(&here.servers(), &here.asker()).await
    }

    fn relay(&self, pass: Pass, words: Words) -> Box<dyn Relay> {
        let settings = self.settings.clone();
        let opening = async move { RelayStream::open(&settings, &pass).await.map_err(io::Error::other) };
        Box::new(Ahead::new(opening, words))
    }
}
