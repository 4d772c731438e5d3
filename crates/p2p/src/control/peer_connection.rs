//! A session that the rendezvous granted, from one side.

use std::sync::Arc;
use std::time::Instant;

use crate::punch::agent::Message;
use crate::punch::session::{SameIdentity, Session};
use nearpath_types::SpiffeId;
use nearpath_wire::pair::Pair;
use tokio::sync::mpsc;

use super::Order;
use super::resumable_relay::{Spoken, Words};
use super::sequence::Saying;
use crate::driver::{self, Introduction, Observers};
use crate::handshake::{Hello, Side};
use crate::message::{Granted, Said, Word};
use crate::migrate::Piece;

/// Both sides have one until it is dropped: then the rendezvous is told that it is needed no longer.
#[derive(Debug)]
pub struct Meeting {
    /// What the rendezvous gave.
    pub granted: Granted,
    /// By this machine's clock.
    pub until: Instant,
    /// What went with one's own call.
    pub(super) hello: Option<Box<Hello>>,
    pub(super) words: mpsc::UnboundedReceiver<Spoken>,
    pub(super) orders: mpsc::UnboundedSender<Order>,
}

impl Meeting {
    /// The session, for the punching machine.
    ///
    /// # Errors
    /// When the rendezvous introduced a worker to itself.
    pub fn session(&self, you: &SpiffeId) -> Result<Session, SameIdentity> {
        let (grant, _) = self.granted.grant(Instant::now());
        Session::new(&grant, you, &self.granted.peer, self.until)
    }

    /// Tells the other side.
    pub fn tell(&self, message: Message) {
        let said = Said::Tell { session: self.granted.session, word: Word::from(message) };
        let _ = self.orders.send(Order::Say(said)); // a line that is over is heard of by the agent's patience
    }

    /// What the other side tells; `None`: it says no more.
    pub async fn hear(&mut self) -> Option<Message> {
        loop {
            if let Spoken::Word(word) = self.words.recv().await?
                && let Ok(message) = Message::try_from(word)
            {
                return Some(message);
            }
        }
    }

    /// What a driver needs. What the two say is passed on until the driver ends, then the rendezvous is told.
    ///
    /// # Errors
    /// See [`Self::session`].
    pub fn introduce(
        self,
        you: &SpiffeId,
        observers: Observers,
        pair: Arc<Pair>,
    ) -> Result<Introduction, SameIdentity> {
        self.divide(you, observers, pair).map(|(introduction, ..)| introduction)
    }

    /// The same, what this side is for TLS, and what takes the beginning of a way. The session is needed until that is dropped, too.
    pub(super) fn divide(
        mut self,
        you: &SpiffeId,
        observers: Observers,
        pair: Arc<Pair>,
    ) -> Result<(Introduction, Side, Words), SameIdentity> {
        let session = self.session(you)?;
        let side = self.side();
        let (tell, said) = mpsc::unbounded_channel();
        let (pass, told) = mpsc::unbounded_channel();
        let (ahead, early) = mpsc::unbounded_channel();
        let words = Words { tell: self.teller(), said: side.said(), told: early };
        if let Some(hello) = self.granted.hello.take() {
            let first = Saying::Piece { number: 0, has: 0, piece: Piece::Bytes(hello.0) };
            let _ = ahead.send(first); // `early` is there
        }
        tokio::spawn(self.pass_on(said, pass, ahead));
        Ok((Introduction { session, line: driver::Line { tell, told }, observers, pair }, side, words))
    }

    fn side(&mut self) -> Side {
        match self.granted.call {
            Some(_) => Side::Caller(self.hello.take()),
            None => Side::Called,
        }
    }

    /// It does not keep the line open.
    fn teller(&self) -> Box<dyn Fn(Saying) + Send> {
        let (session, orders) = (self.granted.session, self.orders.downgrade());
        Box::new(move |saying| {
            if let Some(orders) = orders.upgrade() {
                let order = match Spoken::of(saying, session) {
                    Spoken::Word(word) => Order::Say(Said::Tell { session, word }),
                    Spoken::Parcel(parcel) => Order::Carry(parcel),
                };
                let _ = orders.send(order); // what is not acknowledged goes over the relay
            }
        })
    }

    async fn pass_on(
        mut self,
        said: mpsc::UnboundedReceiver<Message>,
        told: mpsc::UnboundedSender<Message>,
        ahead: mpsc::UnboundedSender<Saying>,
    ) {
        let (mut said, mut ahead) = (Some(said), Some(ahead));
        let mut listening = true;
        while said.is_some() || ahead.is_some() {
            tokio::select! {
                message = next(&mut said), if said.is_some() => match message {
                    Some(message) => self.tell(message),
                    None => said = None,
                },
                () = closed(&ahead), if ahead.is_some() => ahead = None,
                word = self.words.recv(), if listening => match word.map(Saying::try_from) {
                    Some(Ok(saying)) => drop(ahead.as_ref().map(|ahead| ahead.send(saying))),
                    Some(Err(word)) => drop(Message::try_from(word).map(|message| told.send(message))),
                    None => (listening, ahead) = (false, None),
                },
            }
        }
    }
}

async fn next(said: &mut Option<mpsc::UnboundedReceiver<Message>>) -> Option<Message> {
    said.as_mut()?.recv().await
}

async fn closed(ahead: &Option<mpsc::UnboundedSender<Saying>>) {
    if let Some(ahead) = ahead {
        ahead.closed().await;
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Say(Said::HangUp { session: self.granted.session })); // a line that is over needs none
    }
}
