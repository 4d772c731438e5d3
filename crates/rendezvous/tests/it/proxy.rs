//! Proxy between a worker and the rendezvous, which breaks on request.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use nearpath_p2p::control::{ControlConnection, ControlEvent};
use nearpath_testkit::p2p::rendezvous::{TestRendezvous, TestWorker, next_event};

/// Kind of connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionKind {
    Control,
    Relays,
}

/// Fate of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionFate {
    Forwarding,
    /// Closed at both ends.
    Cut,
    /// Closed at the worker's end only; the rendezvous' end stays open and silent.
    Forgotten,
}

/// Proxy that forwards until a test breaks it.
pub(crate) struct TestProxy {
    pub(crate) addr: SocketAddr,
    state: Arc<Mutex<ProxyState>>,
}

#[derive(Default)]
struct ProxyState {
    connections: Vec<(ConnectionKind, watch::Sender<ConnectionFate>)>,
    refused: Vec<ConnectionKind>,
}

impl TestProxy {
    pub(crate) async fn start(rendezvous: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (addr, state) = (
            listener.local_addr().unwrap(),
            Arc::<Mutex<ProxyState>>::default(),
        );
        tokio::spawn({
            let state = Arc::clone(&state);
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(forward_connection(stream, rendezvous, Arc::clone(&state)));
                }
            }
        });
        Self { addr, state }
    }

    /// Connects a worker through the proxy.
    pub(crate) async fn worker(&self, fixture: &TestRendezvous, name: &str) -> TestWorker {
        let mut settings = fixture.control_settings(fixture.ticket("sort", name));
        settings.url = format!("ws://{}", self.addr).parse().unwrap();
        let (connection, mut events) = ControlConnection::open(settings.clone());
        assert!(matches!(
            next_event(&mut events).await,
            ControlEvent::Connected(_)
        ));
        TestWorker {
            connection,
            events,
            settings,
        }
    }

    /// Breaks all connections of a kind. Returns their number.
    pub(crate) fn cut_all(&self, kind: ConnectionKind) -> usize {
        self.end_all(kind, ConnectionFate::Cut)
    }

    pub(crate) fn forget_all(&self, kind: ConnectionKind) -> usize {
        self.end_all(kind, ConnectionFate::Forgotten)
    }

    /// Refuses further connections of a kind.
    pub(crate) fn refuse_new(&self, kind: ConnectionKind) {
        self.state.lock().unwrap().refused.push(kind);
        self.cut_all(kind);
    }

    fn end_all(&self, kind: ConnectionKind, fate: ConnectionFate) -> usize {
        let mut state = self.state.lock().unwrap();
        let ended = state.connections.extract_if(.., |(of, _)| *of == kind);
        ended
            .filter(|(_, sender)| sender.send(fate).is_ok())
            .count()
    }
}

async fn forward_connection(
    mut worker: TcpStream,
    rendezvous: SocketAddr,
    state: Arc<Mutex<ProxyState>>,
) -> Option<()> {
    let mut request = vec![0; 4096];
    let n = worker.read(&mut request).await.ok()?;
    let request = &request[..n];
    let kind = if request.starts_with(b"GET /v1/control") {
        ConnectionKind::Control
    } else {
        ConnectionKind::Relays
    };
    let mut fate = {
        let mut state = state.lock().unwrap();
        if state.refused.contains(&kind) {
            return None;
        }
        let (sender, fate) = watch::channel(ConnectionFate::Forwarding);
        state.connections.push((kind, sender));
        fate
    };
    let mut upstream = TcpStream::connect(rendezvous).await.ok()?;
    upstream.write_all(request).await.ok()?;
    let forgotten = tokio::select! {
        _ = copy_bidirectional(&mut worker, &mut upstream) => false,
        fate = fate.wait_for(|fate| *fate != ConnectionFate::Forwarding) => fate.is_ok_and(|fate| *fate == ConnectionFate::Forgotten),
    };
    drop(worker);
    if forgotten {
        std::future::pending::<()>().await; // keeps `upstream` open
    }
    Some(())
}
