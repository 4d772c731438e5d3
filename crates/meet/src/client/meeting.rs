//! A session that the rendezvous granted, from one side.

use std::sync::Arc;
use std::time::Instant;

use nearpath_punch::agent::Message;
use nearpath_punch::session::{SameIdentity, Session};
use nearpath_types::SpiffeId;
use nearpath_wire::pair::Pair;
use tokio::sync::mpsc;

use super::Order;
use crate::driver::{self, Introduction, Observers};
use crate::message::{Granted, Said, Word};

/// Both sides have one until it is dropped: then the rendezvous is told that it is needed no longer.
#[derive(Debug)]
pub struct Meeting {
    /// What the rendezvous gave.
    pub granted: Granted,
    /// By this machine's clock.
    pub until: Instant,
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
        self.words.recv().await.map(Message::from)
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
        let session = self.session(you)?;
        let (tell, said) = mpsc::unbounded_channel();
        let (pass, told) = mpsc::unbounded_channel();
        tokio::spawn(self.pass_on(said, pass));
        Ok(Introduction { session, line: driver::Line { tell, told }, observers, pair })
    }

    async fn pass_on(mut self, mut said: mpsc::UnboundedReceiver<Message>, told: mpsc::UnboundedSender<Message>) {
        let mut listening = true;
        loop {
            tokio::select! {
                message = said.recv() => match message {
                    Some(message) => self.tell(message),
                    None => return,
                },
                message = self.hear(), if listening => match message {
                    Some(message) => drop(told.send(message)),
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
