//! The end of all connections: they are told to finish, and waited for.

use tokio::sync::{mpsc, watch};

/// Proof that something is still at work; the drain waits until all are gone.
pub(crate) type DrainToken = mpsc::Sender<()>;

/// Tells connections to finish, and waits for them.
#[derive(Debug)]
pub(crate) struct DrainControl {
    close_sender: watch::Sender<bool>,
    token: DrainToken,
    all_closed: mpsc::Receiver<()>,
}

/// What a connection needs to know of [`DrainControl`].
#[derive(Debug, Clone)]
pub(crate) struct CloseWatch {
    close_receiver: watch::Receiver<bool>,
    pub(crate) token: DrainToken,
}

impl CloseWatch {
    /// Returns when connections are to finish.
    pub(crate) async fn wait_close_requested(&mut self) {
        let _ = self.close_receiver.wait_for(|closing| *closing).await;
    }

    /// Returns when nobody waits any more for connections to finish.
    pub(crate) async fn wait_drain_ended(&mut self) {
        while self.close_receiver.changed().await.is_ok() {}
    }
}

impl DrainControl {
    pub(crate) fn new() -> Self {
        let (token, all_closed) = mpsc::channel(1);
        Self {
            close_sender: watch::Sender::new(false),
            token: token,
            all_closed: all_closed,
        }
    }

    pub(crate) fn subscribe(&self) -> CloseWatch {
        CloseWatch {
            close_receiver: self.close_sender.subscribe(),
            token: self.token.clone(),
        }
    }

    /// Ports close at once, connections after the answer they are giving; done when the last call has ended.
    pub(crate) async fn drain_connections(self) {
        let Self {
            close_sender,
            token,
            all_closed: mut gone,
        } = self;
        close_sender.send_replace(true);
        drop(token);
        let _ = gone.recv().await; // always `NoConnection`, when no sender is left
    }
}
