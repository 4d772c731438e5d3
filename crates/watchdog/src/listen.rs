//! Ports and connections: HTTP/1.1 and h2c on one port, both also over TLS, told apart by their
//! first bytes.

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
use nearpath_wire::lingering_close::LingeringStream;
use nearpath_wire::mtls::{AcceptedPeer, DetectedProtocol, PeekedStream};
use nearpath_wire::not_run_header;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::caller_access::{CallerAccess, refuse_request};
use crate::caller_socket::{CallerSocket, CallerTcpStream};
use crate::drain::CloseWatch;
use crate::incoming_body::IncomingBody;
use crate::response_body::WatchdogBody;
use crate::serve::{WatchdogState, handle_request, metrics_response};
use crate::stream_timeouts::{BusyCount, TimeoutStream};

/// Maximum bytes of a request's head.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Maximum number of header fields of a request.
const MAX_HEADERS: usize = 128;
/// Flow-control window of an HTTP/2 stream in bytes; a connection has four times that.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// Connections that the kernel queues before accept; capped by `net.core.somaxconn` (listen(2)).
const ACCEPT_BACKLOG: u32 = 4096;
/// Time limit of a TLS handshake without `read_timeout`, and of telling a refused peer the reason.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the first call of a connection that was made before the drain: its caller could not
/// know of the drain, and cannot tell whether the call ran.
const FIRST_CALL_GRACE: Duration = Duration::from_secs(1);
/// Delay after a failed accept, usually for lack of descriptors: an immediate retry would burn the
/// core.
pub(crate) const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(10);

/// Opens a port. With `reuse_port`, other sockets of the same user may listen on it, at other addresses.
///
/// # Errors
/// The error of the system, with the address.
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

/// Accepts connections until the watch closes, then those that the kernel has queued before.
pub(crate) async fn accept_connections(
    listener: TcpListener,
    app: Arc<WatchdogState>,
    mut watch: CloseWatch,
) {
    let http = Arc::new(http_builder(TokioExecutor::new()));
    let connection_watch = watch.clone();
    let serve = |accepted| {
        let (http, app) = (Arc::clone(&http), Arc::clone(&app));
        // Detached: the token in the watch makes the drain wait for the task.
        drop(tokio::spawn(handle_connection(
            accepted,
            http,
            app,
            connection_watch.clone(),
        )));
    };
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = watch.wait_close_requested() => break,
        };
        match accepted {
            Ok(accepted) => serve(accepted),
            Err(_) => tokio::time::sleep(ACCEPT_RETRY_DELAY).await,
        }
    }
    // Their callers hold open connections, perhaps with a request in it: closing the port resets
    // them (tcp(7)).
    for accepted in queued_connections(listener) {
        serve(accepted);
    }
}

/// Closes a port; returns the connections that wait to be accepted.
fn queued_connections(listener: TcpListener) -> Vec<(TcpStream, SocketAddr)> {
    // tokio accepts only what its last poll has seen; accept(2) tells what is there.
    let Ok(listener) = listener.into_std() else {
        return Vec::new();
    };
    let accepted = std::iter::from_fn(|| listener.accept().ok());
    let registered = accepted.map_while(|(stream, from)| {
        stream.set_nonblocking(true).ok()?;
        Some((TcpStream::from_std(stream).ok()?, from))
    });
    registered.collect()
}

/// Returns the HTTP settings of all connections.
pub(crate) fn http_builder<E>(executor: E) -> Builder<E> {
    let mut builder = Builder::new(executor);
    // A caller that closes its writing side has left: half-closed connections are not kept.
    builder
        .http1()
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD_BYTES)
        .half_close(false);
    let mut http2 = builder.http2();
    // PINGs find callers that vanished. HTTP/1.1 has none, hence the timeouts of `TimeoutStream`.
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

/// Returns whether a connection is meant for the gateway's listener, which has ended: an answer would
/// be that of the calling function itself.
fn is_for_gateway(stream: &TcpStream, app: &WatchdogState) -> bool {
    let listener = app.config.instance_env.gateway_listener;
    listener.is_some_and(|listener| stream.local_addr().is_ok_and(|to| to == listener))
}

async fn handle_connection(
    (stream, from): (TcpStream, SocketAddr),
    http: Arc<Builder<TokioExecutor>>,
    app: Arc<WatchdogState>,
    mut watch: CloseWatch,
) {
    if is_for_gateway(&stream, &app) {
        return;
    }
    let _ = stream.set_nodelay(true); // a connection that is already gone shows it at the first read
    let stream = LingeringStream::new(stream);
    let plain = CallerAccess::Plain(app.config.transport);
    // Without an identity there is no TLS to tell apart.
    if !app.tls_acceptor.may_accept_tls() {
        return serve_http(
            CallerSocket::Plain(stream),
            plain,
            &Notify::const_new(),
            &http,
            app,
            watch,
        )
        .await;
    }
    let peeked = tokio::select! {
        peeked = PeekedStream::peek(stream) => peeked,
        () = wait_drain_grace(&mut watch) => return,
    };
    match peeked {
        // On the heap, so that a plain connection is no larger for it.
        Ok(peeked) if peeked.detected_protocol() == DetectedProtocol::Tls => {
            Box::pin(serve_tls(peeked, from, &http, app, watch)).await
        }
        Ok(peeked) => {
            serve_http(
                CallerSocket::Peeked(peeked),
                plain,
                &Notify::const_new(),
                &http,
                app,
                watch,
            )
            .await
        }
        Err(_) => {} // closed before its first byte
    }
}

/// Serves a connection over TLS. It takes no more calls once the peer's certificate has expired,
/// and is cut when it is revoked.
async fn serve_tls(
    peeked: PeekedStream<CallerTcpStream>,
    from: SocketAddr,
    http: &Builder<TokioExecutor>,
    app: Arc<WatchdogState>,
    watch: CloseWatch,
) {
    let limit = app.config.read_timeout.unwrap_or(HANDSHAKE_TIMEOUT);
    let Ok((stream, mut peer)) = app.tls_acceptor.accept_peer(peeked, from, limit).await else {
        return;
    }; // the peer got a TLS alert
    let (caller, expired) = (CallerAccess::of_peer(&peer), Notify::new());
    let refused = matches!(caller, CallerAccess::Refused(_));
    let serving = serve_http(
        CallerSocket::Tls(Box::new(stream)),
        caller,
        &expired,
        http,
        app,
        watch,
    );
    // A refused peer gets the reason over HTTP, but cannot hold the connection open.
    if refused {
        return drop(timeout(limit, serving).await);
    }
    tokio::select! {
        () = serving => {}
        () = wait_access_lost(&mut peer, &expired) => {}
    }
}

/// Returns when the connection must be cut.
async fn wait_access_lost(peer: &mut AcceptedPeer, expired: &Notify) {
    while let PeerRefusal::Expired(_) = peer.wait_refused().await {
        expired.notify_one(); // open calls go on
        peer.policy_changed().await;
    }
}

/// Serves HTTP until the caller closes, the drain begins, or `close_requested`; open calls end
/// first.
async fn serve_http(
    stream: CallerSocket,
    caller: CallerAccess,
    close_requested: &Notify,
    http: &Builder<TokioExecutor>,
    app: Arc<WatchdogState>,
    mut watch: CloseWatch,
) {
    let token = watch.token.clone();
    let (busy, first_call) = (BusyCount::default(), Notify::new());
    let unread = stream.unread_input();
    let io = TimeoutStream::new(
        stream,
        busy.clone(),
        app.config.read_timeout,
        app.config.write_timeout,
    );
    let service = service_fn(|request: Request<Incoming>| {
        first_call.notify_one();
        let request = unread.watch_request(request);
        // Decided for each request, because health checks are exempt from encryption.
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
        // The connection first: after a pause of the whole process its first call is perhaps there.
        biased;
        _ = connection.as_mut() => return, // errors end the connection alone; calls are recorded one by one
        () = close_requested.notified() => {}
        // A first call may be on its way already, so the connection stays open for it.
        () = async {
            watch.wait_close_requested().await;
            let _ = timeout(FIRST_CALL_GRACE, first_call.notified()).await;
        } => {}
    }
    // Open calls finish, and HTTP/2 callers get a GOAWAY (RFC 9113 section 6.8).
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

/// Marks a response after which the call may go to another instance, and removes the mark from all
/// others.
fn mark_not_run(mut response: Response<WatchdogBody>) -> Response<WatchdogBody> {
    // The extension proves that the watchdog made the response: no tenant can set one.
    let own = response
        .extensions()
        .get()
        .copied()
        .filter(|reason: &Reason| reason.did_not_run());
    not_run_header::set_not_run(response.headers_mut(), own);
    response
}

/// Returns some time after the drain began.
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
            let stream = LingeringStream::new(stream);
            let unread = stream.unread_input();
            let service = service_fn(|request| {
                let request = unread.watch_request(request);
                std::future::ready(metrics_response(&app, &request))
            });
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of the future that an `async fn` with these parameters returns.
    fn future_bytes<A, B, C, D, F: Future>(_: fn(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }

    /// Every open connection of the gateway or of a caller holds one.
    #[test]
    fn the_future_of_a_connection_keeps_its_bound() {
        let bytes = future_bytes(handle_connection);
        assert!(bytes <= 2_760, "{bytes} bytes");
    }
}
