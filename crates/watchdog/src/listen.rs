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
use nearpath_wire::identity::PeerRefusal;
use nearpath_wire::mtls::{AcceptedPeer, DetectedProtocol, PeekedStream};
use nearpath_wire::not_run_header;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::caller_access::{CallerAccess, refuse_request};
use crate::caller_socket::Socket;
use crate::drain::CloseWatch;
use crate::incoming_body::IncomingBody;
use crate::response_body::WatchdogBody;
use crate::serve::{WatchdogState, handle_request, metrics_response};
use crate::stream_timeouts::{BusyCount, TimeoutStream};

/// Largest head of a request in bytes.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Most header fields of a request.
const MAX_HEADERS: usize = 128;
/// Bytes of one HTTP/2 stream that may be on the way unread, and four times that of a connection.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// Connections that the kernel keeps until they are accepted; it caps this at `net.core.somaxconn`.
const ACCEPT_BACKLOG: u32 = 4096;
/// Longest handshake, where the reading of heads has no limit; and how long a peer that is not admitted may be told so.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection that was made before the end may take to bring its first call: who opened it could not know, and cannot tell
/// whether it ran.
const FIRST_CALL_GRACE: Duration = Duration::from_secs(1);
/// Pause after accept fails, usually for want of file descriptors: trying at once would burn the core.
pub(crate) const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(10);

/// Opens a port; with `shared`, one that another listener of this program has on another address.
///
/// # Errors
/// With the address in the text.
pub(crate) fn bind_listener(addr: SocketAddr, reuse_port: bool) -> io::Result<TcpListener> {
    let named = |fault: io::Error| {
        io::Error::new(fault.kind(), format!("cannot listen on {addr}: {fault}"))
    };
    let socket = if addr.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?; // a port is free again at once when its owner has gone
    socket.set_reuseport(reuse_port)?;
    socket.bind(addr).map_err(named)?;
    socket.listen(ACCEPT_BACKLOG).map_err(named)
}

/// Accepts until the watch says to close.
pub(crate) async fn accept_connections(
    listener: TcpListener,
    app: Arc<WatchdogState>,
    mut watch: CloseWatch,
) {
    let http = Arc::new(http_builder(TokioExecutor::new()));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = watch.wait_close_requested() => return,
        };
        match accepted {
            Ok(accepted) => drop(tokio::spawn(handle_connection(
                accepted,
                Arc::clone(&http),
                Arc::clone(&app),
                watch.clone(),
            ))),
            Err(_) => tokio::time::sleep(ACCEPT_RETRY_DELAY).await,
        }
    }
}

/// How connections are served.
pub(crate) fn http_builder<E>(executor: E) -> Builder<E> {
    let mut builder = Builder::new(executor);
    builder
        .http1()
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD_BYTES)
        .half_close(false);
    let mut http2 = builder.http2();
    http2
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from_secs(20))
        .max_header_list_size(MAX_HEAD_BYTES as u32);
    http2
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(4 * STREAM_WINDOW_BYTES)
        .max_concurrent_streams(1024);
    builder
}

async fn handle_connection(
    (stream, from): (TcpStream, SocketAddr),
    http: Arc<Builder<TokioExecutor>>,
    app: Arc<WatchdogState>,
    mut watch: CloseWatch,
) {
    let _ = stream.set_nodelay(true); // a connection that is already gone shows it at the first read
    let plain = CallerAccess::Plain(app.config.transport);
    if !app.tls_acceptor.may_accept_tls() {
        return serve_http(
            Socket::Plain(stream),
            plain,
            &Notify::const_new(),
            &http,
            app,
            watch,
        )
        .await;
    }
    let begun = tokio::select! {
        begun = PeekedStream::peek(stream) => begun,
        () = wait_drain_grace(&mut watch) => return,
    };
    match begun {
        // On the heap, so that a plain connection is no larger for it.
        Ok(begun) if begun.detected_protocol() == DetectedProtocol::Tls => {
            Box::pin(serve_tls(begun, from, &http, app, watch)).await
        }
        Ok(begun) => {
            serve_http(
                Socket::Begun(begun),
                plain,
                &Notify::const_new(),
                &http,
                app,
                watch,
            )
            .await
        }
        Err(_) => {} // it broke off before it said anything
    }
}

/// A connection with TLS. It takes no more calls when its peer's certificate has ended, and is cut when the peer was taken back.
async fn serve_tls(
    peeked: PeekedStream<TcpStream>,
    from: SocketAddr,
    http: &Builder<TokioExecutor>,
    app: Arc<WatchdogState>,
    watch: CloseWatch,
) {
    let limit = app.config.read_timeout.unwrap_or(HANDSHAKE_TIMEOUT);
    let Ok((stream, mut peer)) = app.tls_acceptor.accept_peer(peeked, from, limit).await else {
        return;
    }; // the peer has its alert
    let (caller, expired) = (CallerAccess::of_peer(&peer), Notify::new());
    let refused = matches!(caller, CallerAccess::Refused(_));
    let serving = serve_http(
        Socket::Tls(Box::new(stream)),
        caller,
        &expired,
        http,
        app,
        watch,
    );
    if refused {
        return drop(timeout(limit, serving).await);
    }
    tokio::select! {
        () = serving => {}
        () = wait_access_lost(&mut peer, &expired) => {}
    }
}

/// Returns when the connection is to be cut.
async fn wait_access_lost(peer: &mut AcceptedPeer, expired: &Notify) {
    while let PeerRefusal::Expired(_) = peer.wait_refused().await {
        expired.notify_one(); // calls that are under way go on
        peer.policy_changed().await;
    }
}

/// Until the caller has had enough, or the watchdog, or `ending` says so; then calls that are under way end first.
async fn serve_http(
    stream: Socket,
    caller: CallerAccess,
    close_requested: &Notify,
    http: &Builder<TokioExecutor>,
    app: Arc<WatchdogState>,
    mut watch: CloseWatch,
) {
    let token = watch.token.clone();
    let (busy, first_call) = (BusyCount::default(), Notify::new());
    let io = TimeoutStream::new(
        stream,
        busy.clone(),
        app.config.read_timeout,
        app.config.write_timeout,
    );
    let service = service_fn(|request: Request<Incoming>| {
        first_call.notify_one();
        let refusal = caller.refusal_for(request.uri().path());
        let (app, busy, open) = (Arc::clone(&app), busy.begin_request(), token.clone());
        async move {
            Ok::<_, Infallible>(match refusal {
                None => mark_not_run(
                    handle_request(app, request.map(IncomingBody::Http), busy, open).await,
                ),
                Some(fault) => refuse_request(&request, &fault),
            })
        }
    });
    let connection = http.serve_connection_with_upgrades(TokioIo::new(io), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return, // its end is the caller's affair; calls are recorded one by one
        () = close_requested.notified() => {}
        () = async {
            watch.wait_close_requested().await;
            let _ = timeout(FIRST_CALL_GRACE, first_call.notified()).await;
        } => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

/// Marks an answer of the watchdog's own after which the call may go to another instance, and no other.
fn mark_not_run(mut response: Response<WatchdogBody>) -> Response<WatchdogBody> {
    let own = response
        .extensions()
        .get()
        .copied()
        .filter(|reason: &Reason| reason.did_not_run());
    not_run_header::set_not_run(response.headers_mut(), own);
    response
}

/// A while after connections are to finish.
async fn wait_drain_grace(watch: &mut CloseWatch) {
    watch.wait_close_requested().await;
    tokio::time::sleep(FIRST_CALL_GRACE).await;
}

/// Serves `/metrics` until the process ends.
pub(crate) async fn accept_metrics(listener: TcpListener, app: Arc<WatchdogState>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        let app = Arc::clone(&app);
        tokio::spawn(async move {
            let service =
                service_fn(|request| std::future::ready(metrics_response(&app, &request)));
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}
