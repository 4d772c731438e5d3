//! Peers that do what the test says, with any certificate: TLS with HTTP/1.1, and QUIC.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use nearpath_types::SpiffeId;
use nearpath_wire::identity::{Credentials, RootCertificate, Trust};
use nearpath_wire::mtls::{AlpnProtocol, MtlsConnector, TlsVersion};
use nearpath_wire::quic::{CallerConfig, EarlyData};
use rcgen::{CertificateParams, Issuer, KeyPair, SanType};
use rustls::pki_types::CertificateDer;
use tokio::sync::oneshot;
use tokio::task::LocalSet;

/// Trust domain of `nearpath ca`.
pub(super) const TRUST_DOMAIN: &str = "nearpath";
/// Time for a connection.
const DIAL_LIMIT: Duration = Duration::from_secs(10);

/// Signs a certificate for `id` with the root in the folder of an authority.
pub(super) fn sign(
    authority: &Path,
    id: SpiffeId,
    name: &str,
    (from, until): (SystemTime, SystemTime),
) -> Credentials {
    let read = |file: &str| std::fs::read_to_string(authority.join(file)).unwrap();
    let root_key = KeyPair::from_pem(&read("ca.key")).unwrap();
    let issuer = Issuer::from_ca_cert_pem(&read("ca.crt"), root_key).unwrap();
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    let uri = id.to_string().try_into().unwrap();
    params.subject_alt_names.push(SanType::URI(uri));
    (params.not_before, params.not_after) = (from.into(), until.into());
    let key = KeyPair::generate().unwrap();
    let certificate: CertificateDer<'static> =
        params.signed_by(&key, &issuer).unwrap().der().clone();
    Credentials {
        id,
        name: name.to_owned(),
        chain: vec![certificate],
        key: key.serialize_der(),
        not_after: until,
    }
}

/// Credentials of the gateway of a node, valid for an hour.
pub(super) fn node_credentials(authority: &Path, node: &str) -> Credentials {
    let now = SystemTime::now();
    let minute = Duration::from_secs(60);
    let validity = (now - minute, now + 60 * minute);
    sign(
        authority,
        SpiffeId::for_gateway(TRUST_DOMAIN, node),
        node,
        validity,
    )
}

/// Trust in the roots of an authority's folder.
pub(super) fn trust(authority: &Path) -> Trust {
    let pem = std::fs::read(authority.join("ca.crt")).unwrap();
    let roots = RootCertificate::parse_all(&pem).unwrap();
    let roots: Vec<_> = roots.into_iter().map(|root| root.der).collect();
    Trust::new(TRUST_DOMAIN, &roots).unwrap().for_nodes()
}

/// A call of a function, for another function or for a client outside.
pub(super) fn call_of(function: &str, caller: Option<&str>) -> Request<Full<Bytes>> {
    let request = Request::get("/")
        .header("host", "node")
        .header("x-nearpath-function", function);
    let request = match caller {
        Some(caller) => request.header("x-nearpath-caller", caller),
        None => request,
    };
    request.body(Full::default()).unwrap()
}

/// Lines of the state stream of node b as a node of an older release reads them, to its end. It never pings.
/// `begun` is sent when the whole state has come.
pub(super) async fn read_state(
    addr: SocketAddr,
    (credentials, trust): (Credentials, Trust),
    begun: oneshot::Sender<()>,
) -> Vec<String> {
    let connector = MtlsConnector::new(&credentials, &trust, &Default::default()).unwrap();
    let (version, protocol) = (TlsVersion::Tls13, AlpnProtocol::Http1);
    let dialed = connector.dial_worker(addr, "b", version, protocol, DIAL_LIMIT);
    let (stream, _) = dialed.await.unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("/node/v1/state").header("host", "node");
    let request = request.body(Full::<Bytes>::default()).unwrap();
    let mut body = sender.send_request(request).await.unwrap().into_body();
    let (mut text, mut begun) = (String::new(), Some(begun));
    while let Some(Ok(frame)) = body.frame().await {
        let bytes = frame.into_data().unwrap_or_default();
        text += std::str::from_utf8(&bytes).unwrap();
        if text.contains("\"complete\":true") {
            begun.take().map(|begun| begun.send(()));
        }
    }
    text.lines().map(str::to_owned).collect()
}

/// Sends a request over TLS to node b. Returns status and text, or the error.
pub(super) async fn send_over_tls(
    addr: SocketAddr,
    (credentials, trust): (&Credentials, &Trust),
    request: Request<Full<Bytes>>,
) -> Result<(u16, String), String> {
    let connector = MtlsConnector::new(credentials, trust, &Default::default()).unwrap();
    let (version, protocol) = (TlsVersion::Tls13, AlpnProtocol::Http1);
    let dialed = connector.dial_worker(addr, "b", version, protocol, DIAL_LIMIT);
    let (stream, _) = dialed.await.map_err(|error| error.to_string())?;
    let opened = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = opened.map_err(|error| format!("{error:?}"))?;
    let driver = tokio::spawn(connection);
    let answered = sender.send_request(request).await;
    let (head, body) = answered.map_err(|error| format!("{error:?}"))?.into_parts();
    let body = body.collect().await.map_err(|error| format!("{error:?}"))?;
    driver.abort();
    let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
    Ok((head.status.as_u16(), text))
}

/// Opens a stream to a function on node b, and returns it, or status and text of the refusal.
pub(super) async fn open_stream(
    addr: SocketAddr,
    (credentials, trust): (&Credentials, &Trust),
    (caller, callee, port): (&str, &str, u16),
) -> Result<TokioIo<Upgraded>, (u16, String)> {
    let connector = MtlsConnector::new(credentials, trust, &Default::default()).unwrap();
    let (version, protocol) = (TlsVersion::Tls13, AlpnProtocol::Http1);
    let dialed = connector.dial_worker(addr, "b", version, protocol, DIAL_LIMIT);
    let (stream, _) = dialed.await.unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    let path = format!("/node/v1/stream?function={callee}&caller={caller}&port={port}");
    let request = Request::get(path)
        .header("host", "node")
        .header("connection", "upgrade")
        .header("upgrade", "nearpath-tcp");
    let request = request.body(Full::<Bytes>::default()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    match response.status().as_u16() {
        101 => Ok(TokioIo::new(hyper::upgrade::on(response).await.unwrap())),
        status => {
            let body = response.into_body().collect().await.unwrap().to_bytes();
            Err((status, String::from_utf8_lossy(&body).into_owned()))
        }
    }
}

/// Sends a request over QUIC to node b. Returns status and text, or the error.
pub(super) async fn send_over_quic(
    addr: SocketAddr,
    (credentials, trust): (&Credentials, &Trust),
    request: Request<Full<Bytes>>,
) -> Result<(u16, String), String> {
    let (head, _) = request.into_parts();
    let request = Request::from_parts(head, Bytes::new());
    let caller = CallerConfig::new(credentials, trust.clone(), &Default::default()).unwrap();
    let sending = async {
        let socket = UdpSocket::bind(("0.0.0.0", 0)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let dialer = caller.open_dialer(socket).unwrap();
        let dialed = dialer.dial_worker(addr, "b", DIAL_LIMIT).await;
        let connection = dialed.map_err(|error| error.to_string())?;
        let called = connection.call_buffered(request, EarlyData::Never).await;
        let (head, body) = called.map_err(|error| error.to_string())?.into_parts();
        let body = body.collect().await.map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        Ok((head.status.as_u16(), text))
    };
    LocalSet::new().run_until(sending).await
}
