//! Ports and connections: HTTP/1.1 and h2c on the same port, and both in TLS, told apart by their first bytes.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use nearpath_types::Reason;
use nearpath_wire::identity::Refusal;
use nearpath_wire::mutual::{Begun, Guest, Opening};
use nearpath_wire::unseen;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::arrival::Arrival;
use crate::body::Body;
use crate::caller::{Caller, turn_away};
use crate::drain::Watch;
use crate::patience::{Busy, Patient};
use crate::serve::{App, answer, show_metrics};
use crate::socket::Socket;

/// Largest head of a request in bytes.
const HEAD: usize = 64 * 1024;
/// Most header fields of a request.
const HEADERS: usize = 128;
/// Bytes of one HTTP/2 stream that may be on the way unread, and four times that of a connection.
const WINDOW: u32 = 256 * 1024;
/// Connections that the kernel keeps until they are accepted; it caps this at `net.core.somaxconn`.
const BACKLOG: u32 = 4096;
/// Longest handshake, where the reading of heads has no limit; and how long a peer that is not admitted may be told so.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a connection that was made before the end may take to bring its first call: who opened it could not know, and cannot tell
/// whether it ran.
const FIRST_CALL: Duration = Duration::from_secs(1);
/// Pause after accept fails, usually for want of file descriptors: trying at once would burn the core.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Opens a port; with `shared`, one that another listener of this program has on another address.
///
/// # Errors
/// With the address in the text.
pub(crate) fn bind(addr: SocketAddr, shared: bool) -> io::Result<TcpListener> {
    let named = |fault: io::Error| io::Error::new(fault.kind(), format!("cannot listen on {addr}: {fault}"));
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?; // a port is free again at once when its owner has gone
    socket.set_reuseport(shared)?;
    socket.bind(addr).map_err(named)?;
    socket.listen(BACKLOG).map_err(named)
}

/// Accepts until the watch says to close.
pub(crate) async fn accept(listener: TcpListener, app: Arc<App>, mut watch: Watch) {
    let http = Arc::new(http(TokioExecutor::new()));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = watch.closed() => return,
        };
        match accepted {
            Ok(accepted) => {
                drop(tokio::spawn(connection(accepted, Arc::clone(&http), Arc::clone(&app), watch.clone())))
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// How connections are served.
pub(crate) fn http<E>(executor: E) -> Builder<E> {
    let mut builder = Builder::new(executor);
    builder.http1().max_headers(HEADERS).max_buf_size(HEAD).half_close(false);
    let mut http2 = builder.http2();
    http2.timer(TokioTimer::new()).keep_alive_interval(Duration::from_secs(20)).max_header_list_size(HEAD as u32);
    http2.initial_stream_window_size(WINDOW).initial_connection_window_size(4 * WINDOW).max_concurrent_streams(1024);
    builder
}

async fn connection(
    (stream, from): (TcpStream, SocketAddr),
    http: Arc<Builder<TokioExecutor>>,
    app: Arc<App>,
    mut watch: Watch,
) {
    let _ = stream.set_nodelay(true); // a connection that is already gone shows it at the first read
    let plain = Caller::Plain(app.config.transport);
    if !app.entrance.may_open() {
        return serve(Socket::Plain(stream), plain, &Notify::const_new(), &http, app, watch).await;
    }
    let begun = tokio::select! {
        begun = Begun::look(stream) => begun,
        () = late(&mut watch) => return,
    };
    match begun {
        // On the heap, so that a plain connection is no larger for it.
        Ok(begun) if begun.opening() == Opening::Tls => Box::pin(secured(begun, from, &http, app, watch)).await,
        Ok(begun) => serve(Socket::Begun(begun), plain, &Notify::const_new(), &http, app, watch).await,
        Err(_) => {} // it broke off before it said anything
    }
}

/// A connection with TLS. It takes no more calls when its peer's certificate has ended, and is cut when the peer was taken back.
async fn secured(
    begun: Begun<TcpStream>,
    from: SocketAddr,
    http: &Builder<TokioExecutor>,
    app: Arc<App>,
    watch: Watch,
) {
    let limit = app.config.read_timeout.unwrap_or(HANDSHAKE);
    let Ok((stream, mut guest)) = app.entrance.accept(begun, from, limit).await else { return }; // the peer has its alert
    let (caller, expired) = (Caller::of(&guest), Notify::new());
    let refused = matches!(caller, Caller::Refused(_));
    let serving = serve(Socket::Tls(Box::new(stream)), caller, &expired, http, app, watch);
    if refused {
        return drop(timeout(limit, serving).await);
    }
    tokio::select! {
        () = serving => {}
        () = shut_out(&mut guest, &expired) => {}
    }
}

/// Returns when the connection is to be cut.
async fn shut_out(guest: &mut Guest, expired: &Notify) {
    while let Refusal::Expired(_) = guest.refused().await {
        expired.notify_one(); // calls that are under way go on
        guest.ruled_anew().await;
    }
}

/// Until the caller has had enough, or the watchdog, or `ending` says so; then calls that are under way end first.
async fn serve(
    stream: Socket,
    caller: Caller,
    ending: &Notify,
    http: &Builder<TokioExecutor>,
    app: Arc<App>,
    mut watch: Watch,
) {
    let open = watch.open.clone();
    let (busy, first) = (Busy::default(), Notify::new());
    let io = Patient::new(stream, busy.clone(), app.config.read_timeout, app.config.write_timeout);
    let service = service_fn(|request: Request<Incoming>| {
        first.notify_one();
        let refusal = caller.refusal(request.uri().path());
        let (app, busy, open) = (Arc::clone(&app), busy.enter(), open.clone());
        async move {
            Ok::<_, Infallible>(match refusal {
                None => said(answer(app, request.map(Arrival::Wire), busy, open).await),
                Some(fault) => turn_away(&request, &fault),
            })
        }
    });
    let connection = http.serve_connection_with_upgrades(TokioIo::new(io), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return, // its end is the caller's affair; calls are recorded one by one
        () = ending.notified() => {}
        () = async {
            watch.closed().await;
            let _ = timeout(FIRST_CALL, first.notified()).await;
        } => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

/// Marks an answer of the watchdog's own after which the call may go to another instance, and no other.
fn said(mut response: Response<Body>) -> Response<Body> {
    let own = response.extensions().get().copied().filter(|reason: &Reason| reason.did_not_run());
    unseen::mark(response.headers_mut(), own);
    response
}

/// A while after connections are to finish.
async fn late(watch: &mut Watch) {
    watch.closed().await;
    tokio::time::sleep(FIRST_CALL).await;
}

/// Serves `/metrics` until the process ends.
pub(crate) async fn accept_metrics(listener: TcpListener, app: Arc<App>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let app = Arc::clone(&app);
        tokio::spawn(async move {
            let service = service_fn(|request| std::future::ready(show_metrics(&app, &request)));
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}
