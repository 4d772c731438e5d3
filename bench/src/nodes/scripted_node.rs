//! A node that speaks [contract/node.md](../../../contract/node.md) and runs nothing: it reports
//! functions that do not exist.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nearpath_wire::node_tls::{NodeCredentials, NodeTls};
use rustls::ServerConfig;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::app_folder::AppFolder;
use super::machines::Machine;
use super::node_process::NodePorts;
use crate::remote::BenchError;

/// Functions of a line, as the contract permits.
const MAX_LINE_FUNCTIONS: usize = 1_000;
/// Interval of lines without a change. The contract demands one each second.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);
/// Incarnation of the node.
const INCARNATION: &str = "00000000000000ff";
/// Changes that a subscriber may be late.
const MAX_LATE_CHANGES: usize = 1_024;

/// A running scripted node. Dropping it ends its connections.
pub(crate) struct ScriptedNode {
    shared: Arc<NodeShared>,
    _tasks: JoinSet<()>,
}

struct NodeShared {
    name: String,
    /// Ready instances by function.
    functions: Mutex<Vec<(String, u64)>>,
    changes: broadcast::Sender<(String, u64)>,
}

impl ScriptedNode {
    /// Serves other nodes at the machine's address, with the node's certificate. The runtime must run
    /// on a thread of the machine.
    ///
    /// # Errors
    /// When the port is in use.
    pub(crate) async fn start(
        app: &AppFolder,
        (name, machine): (&str, &Machine),
        functions: Vec<String>,
    ) -> Result<Self, BenchError> {
        let folder = app.certificates(name);
        let tls = NodeTls::new(NodeCredentials::load(&folder, SystemTime::now())?)?;
        let addr = machine.socket_addr(NodePorts::of_place(0).nodes);
        let listener = machine.node.enter(|| {
            let listener = std::net::TcpListener::bind(addr)?;
            listener.set_nonblocking(true)?;
            Ok::<_, io::Error>(listener)
        })?;
        let shared = Arc::new(NodeShared {
            name: name.to_owned(),
            functions: Mutex::new(functions.into_iter().map(|name| (name, 1)).collect()),
            changes: broadcast::channel(MAX_LATE_CHANGES).0,
        });
        let mut tasks = JoinSet::new();
        let config = http1_config(tls.tls_server_config());
        tasks.spawn(accept_all(
            TcpListener::from_std(listener)?,
            TlsAcceptor::from(config),
            Arc::clone(&shared),
        ));
        Ok(Self {
            shared,
            _tasks: tasks,
        })
    }

    /// Returns whether another node reads the state.
    pub(crate) fn is_subscribed(&self) -> bool {
        self.shared.changes.receiver_count() > 0
    }

    /// Changes the ready instances of the n-th function.
    pub(crate) fn set_ready(&self, number: usize, ready: u64) {
        let mut functions = self.shared.lock_functions();
        let count = functions.len().max(1);
        if let Some((name, value)) = functions.get_mut(number % count) {
            *value = ready;
            // Without a subscriber the change is in the next whole state.
            let _ = self.shared.changes.send((name.clone(), ready));
        }
    }
}

/// The responses here are HTTP/1.1.
fn http1_config(config: &Arc<ServerConfig>) -> Arc<ServerConfig> {
    let mut config = ServerConfig::clone(config);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

async fn accept_all(listener: TcpListener, acceptor: TlsAcceptor, shared: Arc<NodeShared>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, shared) = (acceptor.clone(), Arc::clone(&shared));
        connections.spawn(async move {
            // A client that breaks off is the other node's decision.
            let _ = shared.serve(acceptor, stream).await;
        });
    }
}

impl NodeShared {
    fn lock_functions(&self) -> std::sync::MutexGuard<'_, Vec<(String, u64)>> {
        self.functions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve(&self, acceptor: TlsAcceptor, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut stream = BufReader::new(acceptor.accept(stream).await?);
        loop {
            let (mut first, mut line) = (String::new(), String::new());
            if stream.read_line(&mut first).await? == 0 {
                return Ok(());
            }
            while stream.read_line(&mut line).await? > 2 {
                line.clear();
            }
            match first.split(' ').nth(1) {
                Some("/node/v1/state") => return self.send_state(stream.get_mut()).await,
                _ => send_ping(stream.get_mut()).await?,
            }
        }
    }

    /// Sends the whole state, then each change.
    async fn send_state(&self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n\r\n";
        to.write_all(head.as_bytes()).await?;
        // Before the state is read: no change may be between both.
        let mut changes = self.changes.subscribe();
        for line in self.first_lines() {
            send_line(to, &line).await?;
        }
        for number in 1_u64.. {
            let change = tokio::time::timeout(HEARTBEAT_INTERVAL, changes.recv());
            // The number counts changes alone.
            let mut next = change.await;
            while next.is_err() {
                send_line(to, &json!({ "heartbeat": true })).await?;
                next = tokio::time::timeout(HEARTBEAT_INTERVAL, changes.recv()).await;
            }
            let Ok(Ok((name, ready))) = next else {
                return Ok(());
            };
            let set = json!({ name: { "ready": ready, "requests": 0 } });
            send_line(to, &json!({ "change": { "number": number, "set": set } })).await?;
        }
        Ok(())
    }

    fn first_lines(&self) -> Vec<Value> {
        let functions = self.lock_functions();
        let mut lines = vec![json!({ "hello": {
            "protocol": 1, "node": self.name, "incarnation": INCARNATION, "version": "bench",
            "started": unix_time().as_secs(),
        } })];
        let part = |functions: &[(String, u64)]| -> Map<String, Value> {
            let load = |ready| json!({ "ready": ready, "requests": 0 });
            let entry = |(name, ready): &(String, u64)| (name.clone(), load(*ready));
            functions.iter().map(entry).collect()
        };
        let parts = functions.chunks(MAX_LINE_FUNCTIONS);
        lines.extend(parts.map(|some| json!({ "state": { "set": part(some) } })));
        lines.push(json!({ "state": { "set": {}, "complete": true } }));
        lines
    }
}

async fn send_ping(to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    let time = u64::try_from(unix_time().as_micros()).unwrap_or_default();
    let body = json!({ "time": time, "incarnation": INCARNATION }).to_string();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length:";
    let text = format!("{head} {}\r\n\r\n{body}", body.len());
    to.write_all(text.as_bytes()).await?;
    to.flush().await
}

async fn send_line(to: &mut (impl AsyncWrite + Unpin), line: &Value) -> io::Result<()> {
    to.write_all(format!("{line}\n").as_bytes()).await?;
    to.flush().await
}

fn unix_time() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}
