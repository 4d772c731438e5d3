//! What stands between a worker and the rendezvous, and breaks.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use nearpath_p2p::control::{Heard, Line};
use nearpath_testkit::p2p::rendezvous::{House, Worker, next};

/// Which connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Lines,
    Relays,
}

/// What has become of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Goes,
    /// Both ends are told.
    Cut,
    /// The worker's end is told; the rendezvous' end stays, and nothing comes of it.
    Forgotten,
}

/// Passes connections on until it is told otherwise.
pub(crate) struct Proxy {
    pub(crate) addr: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    connections: Vec<(What, watch::Sender<Fate>)>,
    refused: Vec<What>,
}

impl Proxy {
    pub(crate) async fn to(rendezvous: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (addr, state) = (listener.local_addr().unwrap(), Arc::<Mutex<State>>::default());
        tokio::spawn({
            let state = Arc::clone(&state);
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(pass(stream, rendezvous, Arc::clone(&state)));
                }
            }
        });
        Self { addr, state }
    }

    /// A worker that comes this way.
    pub(crate) async fn worker(&self, house: &House, name: &str) -> Worker {
        let mut settings = house.settings(house.ticket("sort", name));
        settings.place = format!("ws://{}", self.addr).parse().unwrap();
        let (line, mut heard) = Line::open(settings.clone());
        assert!(matches!(next(&mut heard).await, Heard::Here(_)));
        Worker { line, heard, settings }
    }

    /// How many there were and are broken now.
    pub(crate) fn cut(&self, what: What) -> usize {
        self.end(what, Fate::Cut)
    }

    pub(crate) fn forget(&self, what: What) -> usize {
        self.end(what, Fate::Forgotten)
    }

    /// No more of these come through.
    pub(crate) fn refuse(&self, what: What) {
        self.state.lock().unwrap().refused.push(what);
        self.cut(what);
    }

    fn end(&self, what: What, fate: Fate) -> usize {
        let mut state = self.state.lock().unwrap();
        let ended = state.connections.extract_if(.., |(of, _)| *of == what);
        ended.filter(|(_, sender)| sender.send(fate).is_ok()).count()
    }
}

async fn pass(mut worker: TcpStream, rendezvous: SocketAddr, state: Arc<Mutex<State>>) -> Option<()> {
    let mut request = vec![0; 4096];
    let n = worker.read(&mut request).await.ok()?;
    let request = &request[..n];
    let what = if request.starts_with(b"GET /v1/line") { What::Lines } else { What::Relays };
    let mut fate = {
        let mut state = state.lock().unwrap();
        if state.refused.contains(&what) {
            return None;
        }
        let (sender, fate) = watch::channel(Fate::Goes);
        state.connections.push((what, sender));
        fate
    };
    let mut there = TcpStream::connect(rendezvous).await.ok()?;
    there.write_all(request).await.ok()?;
    let forgotten = tokio::select! {
        _ = copy_bidirectional(&mut worker, &mut there) => false,
        fate = fate.wait_for(|fate| *fate != Fate::Goes) => fate.is_ok_and(|fate| *fate == Fate::Forgotten),
    };
    drop(worker);
    if forgotten {
        std::future::pending::<()>().await; // `there` stays
    }
    Some(())
}
