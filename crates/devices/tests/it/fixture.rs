//! A gateway that serves device protocols only, and instances for its functions.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nearpath_daemon::drain::{self, DrainTrigger};
use nearpath_daemon::metrics::MetricsRegistry;
use nearpath_devices::Devices;
use nearpath_gateway::{Gateway, GatewaySettings, NoControl, ServingThreads, fixed};
use nearpath_types::FunctionPolicy;
use tokio::net::TcpListener;

/// A serving gateway; dropping it begins its drain.
pub(crate) struct GatewayFixture {
    gateway: Gateway,
    registry: MetricsRegistry,
    log: LogBuffer,
    _trigger: DrainTrigger,
    _serving: ServingThreads,
}

/// Collects the access log.
#[derive(Clone, Default)]
struct LogBuffer(Arc<Mutex<Vec<u8>>>);

impl io::Write for LogBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl GatewayFixture {
    pub(crate) fn start(devices: Devices) -> Self {
        let (registry, log) = (MetricsRegistry::default(), LogBuffer::default());
        let gateway = Gateway::new(GatewaySettings::default(), Arc::new(NoControl), &registry);
        let gateway = devices.attach(
            gateway.with_access_log(Box::new(log.clone())).unwrap(),
            &registry,
        );
        let (trigger, watch) = drain::channel();
        let serving = gateway
            .serve(Vec::new(), 2, Arc::new(|| Ok(())), watch)
            .unwrap();
        Self {
            gateway,
            registry,
            log,
            _trigger: trigger,
            _serving: serving,
        }
    }

    /// Publishes the function `echo` with one instance.
    pub(crate) fn publish_echo(&self, at: SocketAddr) {
        self.gateway.publish(&fixed::build_snapshot(
            &[("echo".parse().unwrap(), at)],
            &FunctionPolicy::default(),
        ));
    }

    pub(crate) fn metrics(&self) -> String {
        self.registry.encode()
    }

    /// Parses the access log.
    pub(crate) fn log_lines(&self) -> Vec<serde_json::Value> {
        let text = String::from_utf8(self.log.0.lock().unwrap().clone()).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

/// Starts an instance that answers every request with `body`.
pub(crate) async fn instance_answering(body: String) -> SocketAddr {
    start_instance(move |_| std::future::ready(body.clone())).await
}

/// Starts an instance that answers with what it got: method, target, headers and body.
pub(crate) async fn echo_instance() -> SocketAddr {
    start_instance(async |request: Request<Incoming>| {
        let (head, body) = request.into_parts();
        let mut text = format!("{} {}\n", head.method, head.uri);
        for (name, value) in &head.headers {
            text += &format!("{name}: {}\n", value.to_str().unwrap());
        }
        let body = body.collect().await.unwrap().to_bytes();
        text + &format!("\n{}", String::from_utf8_lossy(&body))
    })
    .await
}

async fn start_instance<F, R>(answer: F) -> SocketAddr
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + 'static,
    R: Future<Output = String> + Send + 'static,
{
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let at = socket.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = socket.accept().await {
            let answer = answer.clone();
            let service = service_fn(move |request| {
                let body = answer(request);
                async { Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(body.await)))) }
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    at
}
