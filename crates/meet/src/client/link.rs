//! From a session to a connection.

use std::io;
use std::sync::Arc;

use nearpath_punch::nat::Report;
use nearpath_wire::pair::Pair;

use super::{Line, Meeting, RelayStream};
use crate::driver::{self, Ports};
use crate::kind;
use crate::link::{self, Link};
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
        let relay = if settings.agent.relay { Some(self.relay(&meeting).await?) } else { None };
        let introduction = meeting.introduce(&here.welcome.you, here.observers(), pair);
        link::connect(ports, introduction.map_err(io::Error::other)?, relay, settings).await
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

    async fn relay(&self, meeting: &Meeting) -> io::Result<Box<dyn Relay>> {
        let opened = RelayStream::open(&self.settings, &meeting.granted.pass).await;
        Ok(Box::new(opened.map_err(io::Error::other)?))
    }
}
