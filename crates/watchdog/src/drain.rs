//! The end of all connections: they are told to finish, and waited for.

use tokio::sync::{mpsc, watch};

/// Proof that something is still at work; the drain waits until all are gone.
pub(crate) type Open = mpsc::Sender<()>;

/// Tells connections to finish, and waits for them.
#[derive(Debug)]
pub(crate) struct Closing {
    close: watch::Sender<bool>,
    open: Open,
    gone: mpsc::Receiver<()>,
}

/// What a connection needs to know of [`Closing`].
#[derive(Debug, Clone)]
pub(crate) struct Watch {
    closing: watch::Receiver<bool>,
    pub(crate) open: Open,
}

impl Watch {
    /// Returns when connections are to finish.
    pub(crate) async fn closed(&mut self) {
        let _ = self.closing.wait_for(|closing| *closing).await;
    }

    /// Returns when nobody waits any more for connections to finish.
    pub(crate) async fn given_up(&mut self) {
        while self.closing.changed().await.is_ok() {}
    }
}

impl Closing {
    pub(crate) fn new() -> Self {
        let (open, gone) = mpsc::channel(1);
        Self { close: watch::Sender::new(false), open, gone }
    }

    pub(crate) fn watch(&self) -> Watch {
        Watch { closing: self.close.subscribe(), open: self.open.clone() }
    }

    /// Ports close at once, connections after the answer they are giving; done when the last call has ended.
    pub(crate) async fn finish(self) {
        let Self { close, open, mut gone } = self;
        close.send_replace(true);
        drop(open);
        let _ = gone.recv().await; // always `None`, when no sender is left
    }
}
