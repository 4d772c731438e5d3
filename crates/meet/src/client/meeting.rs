//! A session that the rendezvous granted, from one side.

use std::sync::Arc;
use std::time::Instant;

use nearpath_punch::agent::Message;
use nearpath_punch::session::{SameIdentity, Session};
use nearpath_types::SpiffeId;
use nearpath_wire::pair::Pair;
use tokio::sync::mpsc;

use super::Order;
use super::ahead::{Early, Words};
use crate::driver::{self, Introduction, Observers};
use crate::hello::{Hello, Side};
use crate::message::{Base64, Granted, Said, Word};

/// Both sides have one until it is dropped: then the rendezvous is told that it is needed no longer.
#[derive(Debug)]
pub struct Meeting {
    /// What the rendezvous gave.
    pub granted: Granted,
    /// By this machine's clock.
    pub until: Instant,
    /// What went with one's own call.
    pub(super) hello: Option<Box<Hello>>,
    pub(super) words: mpsc::UnboundedReceiver<Word>,
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
            if let Ok(message) = Message::try_from(self.words.recv().await?) {
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

    /// The same, what this side is for TLS, and what takes the first bytes of a way.
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
            let _ = ahead.send((0, hello.0)); // `early` is there
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
    fn teller(&self) -> Box<dyn Fn(Early) + Send> {
        let (session, orders) = (self.granted.session, self.orders.downgrade());
        Box::new(move |(at, bytes)| {
            let word = Word::Bytes { at, bytes: Base64(bytes) };
            if let Some(orders) = orders.upgrade() {
                let _ = orders.send(Order::Say(Said::Tell { session, word })); // over the relay it comes as well
            }
        })
    }

    async fn pass_on(
        mut self,
        mut said: mpsc::UnboundedReceiver<Message>,
        told: mpsc::UnboundedSender<Message>,
        ahead: mpsc::UnboundedSender<Early>,
    ) {
        let mut listening = true;
        loop {
            tokio::select! {
                message = said.recv() => match message {
                    Some(message) => self.tell(message),
                    None => return,
                },
                word = self.words.recv(), if listening => match word {
                    Some(Word::Bytes { at, bytes }) => drop(ahead.send((at, bytes.0))),
                    Some(word) => drop(Message::try_from(word).map(|message| told.send(message))),
                    None => listening = false,
                },
            }
        }
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Say(Said::HangUp { session: self.granted.session })); // a line that is over needs none
    }
}
