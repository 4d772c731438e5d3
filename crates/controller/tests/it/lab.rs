//! A controller on a folder of its own, with a fleet that only remembers, and a client.

use std::path::Path;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use nearpath_controller::{Auth, Config, Controller, Fleet, OpenError, api};
use nearpath_testkit::within;
use nearpath_types::chain::{EdgeStatus, MemoryStatus, PathStatus};
use nearpath_types::pool::PoolStatus;
use nearpath_types::status::Usage;
use nearpath_types::{
    Desired, DesiredFunction, FunctionId, LogLine, LogQuery, ObservedFunction, StatusQuery, StatusReport, StatusSource,
};
use tempfile::TempDir;
use tokio::sync::{mpsc, watch};

use crate::contract;

/// Opens it as soon as the directory is free: a process that another test is just starting has, until it runs its program, a
/// copy of every descriptor, also of the lock of a controller that has closed.
async fn opened(config: Config, fleet: &Arc<FakeFleet>) -> Controller {
    loop {
        match Controller::open(config.clone(), fleet.clone(), fleet.clone()).await {
            Err(OpenError::InUse { .. }) => tokio::task::yield_now().await,
            opened => return opened.unwrap(),
        }
    }
}

/// Remembers what it was told.
pub(crate) struct FakeFleet {
    applied: watch::Sender<Desired>,
    pub(crate) observed: Mutex<Arc<Vec<ObservedFunction>>>,
    pub(crate) asked: Mutex<Vec<LogQuery>>,
    pub(crate) lines: Mutex<Option<mpsc::Receiver<LogLine>>>,
}

impl Default for FakeFleet {
    fn default() -> Self {
        let (applied, _) = watch::channel(Desired::default());
        Self { applied, observed: Mutex::default(), asked: Mutex::default(), lines: Mutex::default() }
    }
}

impl FakeFleet {
    /// What is wanted of a function now.
    pub(crate) fn wants(&self, name: &str) -> Option<DesiredFunction> {
        let id: FunctionId = name.parse().unwrap();
        self.applied.borrow().functions.iter().find(|function| function.spec.id() == id).cloned()
    }

    /// Waits until as many replicas are wanted.
    pub(crate) async fn until_replicas(&self, name: &str, replicas: u32) {
        let mut applied = self.applied.subscribe();
        while self.wants(name).map(|function| function.replicas) != Some(replicas) {
            within(applied.changed()).await.unwrap();
        }
    }
}

impl Fleet for FakeFleet {
    fn apply(&self, desired: Desired) {
        drop(tokio::runtime::Handle::current()); // promised by the trait: a node may want to spawn
        self.applied.send_replace(desired);
    }
    fn observed(&self) -> Arc<Vec<ObservedFunction>> {
        self.observed.lock().unwrap().clone()
    }
    fn logs(&self, query: LogQuery) -> mpsc::Receiver<LogLine> {
        self.asked.lock().unwrap().push(query);
        self.lines.lock().unwrap().take().unwrap_or_else(|| mpsc::channel(1).1)
    }
    fn usage(&self, _: FunctionId) -> BoxFuture<'static, Usage> {
        std::future::ready(Usage { cpu: 12.5, total_memory_bytes: 4_096.0 }).boxed()
    }
    fn invocations(&self, _: &FunctionId) -> u64 {
        7
    }
}

impl StatusSource for FakeFleet {
    /// One row in the default namespace, one in another.
    fn status(&self, query: StatusQuery) -> StatusReport {
        fn rows<T>(row: impl Fn(String) -> T) -> Vec<T> {
            ["openfaas-fn", "elsewhere"].map(|namespace| row(namespace.to_owned())).into()
        }
        match query.name() {
            "edges" => StatusReport::Edges(rows(|namespace| EdgeStatus {
                caller: format!("front.{namespace}"),
                namespace,
                ..EdgeStatus::default()
            })),
            "memory" => StatusReport::Memory(rows(|namespace| MemoryStatus {
                chain: "shop".into(),
                namespace,
                ..MemoryStatus::default()
            })),
            "paths" => StatusReport::Paths(rows(|namespace| PathStatus {
                caller: "gateway".into(),
                callee: format!("front.{namespace}"),
                ..PathStatus::default()
            })),
            "pool" => StatusReport::Pool(rows(|namespace| PoolStatus {
                owner: format!("front.{namespace}"),
                namespace,
                pins: [("LISTEN".to_owned(), 1)].into(),
                oldest_seconds: Some(0.5),
                ..PoolStatus::default()
            })),
            _ => query.read(serde_json::json!([])).unwrap(),
        }
    }
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }
}

/// A controller without authentication.
pub(crate) struct Lab {
    pub(crate) fleet: Arc<FakeFleet>,
    pub(crate) controller: Controller,
    router: Router,
    folder: Option<TempDir>,
}

impl Lab {
    pub(crate) async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut lab = Self::on(folder.path()).await;
        lab.folder = Some(folder);
        lab
    }

    /// The data directory of a lab made by [`Lab::new`].
    pub(crate) fn path(&self) -> &Path {
        self.folder.as_ref().unwrap().path()
    }

    pub(crate) async fn on(folder: &Path) -> Self {
        Self::with(config(folder, Auth::Off)).await
    }

    pub(crate) async fn with(config: Config) -> Self {
        let fleet = Arc::new(FakeFleet::default());
        let controller = within(opened(config, &fleet)).await;
        Self { router: controller.router(), fleet, controller, folder: None }
    }

    /// Closes the controller and opens it anew on the same folder.
    pub(crate) async fn reopened(self) -> Self {
        let folder = self.folder;
        drop((self.router, self.controller));
        let mut lab = Self::on(folder.as_ref().unwrap().path()).await;
        lab.folder = folder;
        lab
    }

    /// Sends a request and holds the answer against the contract.
    pub(crate) async fn call(&self, method: &str, path: &str, body: impl Into<Body>) -> Reply {
        self.send(Request::builder().method(method).uri(path).body(body.into()).unwrap()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.call("GET", path, "").await
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Reply {
        let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
        let response = within(api::answer(self.router.clone(), request)).await;
        let (parts, body) = response.into_parts();
        contract::check(&method, &path, parts.status.as_u16());
        let bytes = within(body.collect()).await.unwrap().to_bytes();
        Reply { status: parts.status, headers: parts.headers, text: String::from_utf8(bytes.into()).unwrap() }
    }

    /// Sends a request that has to be answered with `status`.
    pub(crate) async fn expect(&self, status: u16, method: &str, path: &str, body: &str) -> Reply {
        let reply = self.call(method, path, body.to_owned()).await;
        assert_eq!(reply.status.as_u16(), status, "{method} {path} {body}: {}", reply.text);
        reply
    }

    /// Deploys a function that is nothing but its name.
    pub(crate) async fn deploy(&self, name: &str) {
        self.expect(202, "POST", "/system/functions", &spec(name, "")).await;
    }
}

pub(crate) fn config(folder: &Path, auth: Auth) -> Config {
    Config { auth, ..Config::new(folder) }
}

/// A function's JSON with more fields (`,"key":value`).
pub(crate) fn spec(name: &str, more: &str) -> String {
    format!(r#"{{"service":"{name}","image":"file:///srv/{name}"{more}}}"#)
}
