//! Drain of all connections: they are told to finish, and waited for.

use tokio::sync::{mpsc, watch};

/// Token of work in progress; the drain waits until all are dropped.
pub(crate) type DrainToken = mpsc::Sender<()>;

/// Starts the drain and waits for its end.
#[derive(Debug)]
pub(crate) struct DrainControl {
    close_sender: watch::Sender<bool>,
    token: DrainToken,
    all_closed: mpsc::Receiver<()>,
}

/// Side of a connection: learns when to close, and holds a token.
#[derive(Debug, Clone)]
pub(crate) struct CloseWatch {
    close_receiver: watch::Receiver<bool>,
    pub(crate) token: DrainToken,
}

impl CloseWatch {
    /// Returns when connections must finish.
    pub(crate) async fn wait_close_requested(&mut self) {
        // An error means that the control is gone, which is a reason to close as well.
        let _ = self.close_receiver.wait_for(|closing| *closing).await;
    }

    /// Returns when the drain has ended or was given up.
    pub(crate) async fn wait_drain_ended(&mut self) {
        // The sender is dropped with the future of `drain_connections`, also when its timeout
        // cancels it.
        while self.close_receiver.changed().await.is_ok() {}
    }
}

impl DrainControl {
    pub(crate) fn new() -> Self {
        let (token, all_closed) = mpsc::channel(1);
        Self {
            close_sender: watch::Sender::new(false),
            token,
            all_closed,
        }
    }

    pub(crate) fn subscribe(&self) -> CloseWatch {
        CloseWatch {
            close_receiver: self.close_sender.subscribe(),
            token: self.token.clone(),
        }
    }

    /// Closes ports at once, and connections after their current response. Returns when the last
    /// call has ended.
    pub(crate) async fn drain_connections(self) {
        let Self {
            close_sender,
            token,
            mut all_closed,
        } = self;
        close_sender.send_replace(true);
        // The own token first, or the receiver would never see the last one dropped.
        drop(token);
        let _ = all_closed.recv().await; // always `None`, when no sender is left
    }
}
