//! A controller on its own folder, with a fleet that only records, and a client.

use std::path::Path;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use nearpath_controller::{
    AuthMode, Controller, ControllerConfig, Fleet, HeldFolders, StoreOpenError, api,
};
use nearpath_testkit::within;
use nearpath_types::chain_status::{EdgeStatus, MemoryStatus, PathStatus};
use nearpath_types::pool_status::PoolStatus;
use nearpath_types::status::UsageStatus;
use nearpath_types::{
    DesiredFunction, DesiredState, FunctionId, FunctionMap, LogLine, LogQuery, ObservedFunction,
    Revision, StatusQuery, StatusReport, StatusSource, VirtualAddress,
};
use tempfile::TempDir;
use tokio::sync::{mpsc, watch};

use crate::contract;

/// Opens the controller as soon as the directory is free. A process that another test has just
/// forked has a copy of every descriptor until it executes its program, including the lock of a
/// closed controller.
async fn open_when_free(config: ControllerConfig, fleet: &Arc<FakeFleet>) -> Controller {
    loop {
        match Controller::open(config.clone(), fleet.clone(), fleet.clone()).await {
            Err(StoreOpenError::InUse { .. }) => tokio::task::yield_now().await,
            opened => return opened.unwrap(),
        }
    }
}

/// Records the applied state and the log queries.
pub(crate) struct FakeFleet {
    desired: watch::Sender<DesiredState>,
    pub(crate) observed: Mutex<FunctionMap<ObservedFunction>>,
    pub(crate) log_queries: Mutex<Vec<LogQuery>>,
    pub(crate) log_lines: Mutex<Option<mpsc::Receiver<LogLine>>>,
    /// Revisions whose folders were asked for.
    pub(crate) copied: Arc<Mutex<Vec<(FunctionId, Revision)>>>,
}

impl Default for FakeFleet {
    fn default() -> Self {
        let (applied, _) = watch::channel(DesiredState::default());
        Self {
            desired: applied,
            observed: Mutex::default(),
            log_queries: Mutex::default(),
            log_lines: Mutex::default(),
            copied: Arc::default(),
        }
    }
}

impl FakeFleet {
    /// Current desired state of a function.
    pub(crate) fn desired_function(&self, name: &str) -> Option<DesiredFunction> {
        let desired = self.desired.borrow();
        let function = desired.functions.get(&name.parse().unwrap());
        function.map(|function| DesiredFunction::clone(function))
    }

    pub(crate) fn desired_address(&self, name: &str) -> Option<VirtualAddress> {
        let desired = self.desired.borrow();
        let address = desired.addresses.get(&name.parse().unwrap());
        address.map(|address| **address)
    }

    /// Waits until this number of replicas is desired.
    pub(crate) async fn wait_for_replicas(&self, name: &str, replicas: u32) {
        let mut applied = self.desired.subscribe();
        while self
            .desired_function(name)
            .map(|function| function.replicas)
            != Some(replicas)
        {
            within(applied.changed()).await.unwrap();
        }
    }
}

impl Fleet for FakeFleet {
    fn apply_desired(&self, desired: DesiredState) {
        drop(tokio::runtime::Handle::current()); // promised by the trait: a node may want to spawn
        self.desired.send_replace(desired);
    }
    fn has_folder(&self, path: PathBuf) -> BoxFuture<'static, bool> {
        std::future::ready(!path.starts_with("/missing") && !path.to_string_lossy().contains(':'))
            .boxed()
    }
    fn hold_folders(&self) -> Arc<dyn HeldFolders> {
        Arc::new(ImageFolders(Arc::clone(&self.copied)))
    }
    fn observed_functions(&self) -> FunctionMap<ObservedFunction> {
        self.observed.lock().unwrap().clone()
    }
    fn read_logs(&self, query: LogQuery) -> mpsc::Receiver<LogLine> {
        self.log_queries.lock().unwrap().push(query);
        self.log_lines
            .lock()
            .unwrap()
            .take()
            .unwrap_or_else(|| mpsc::channel(1).1)
    }
    fn function_usage(&self, _: FunctionId) -> BoxFuture<'static, UsageStatus> {
        std::future::ready(UsageStatus {
            cpu: 12.5,
            total_memory_bytes: 4_096.0,
        })
        .boxed()
    }
    fn invocation_count(&self, _: &FunctionId) -> u64 {
        7
    }
}

/// Takes the folders of images for the copies.
struct ImageFolders(Arc<Mutex<Vec<(FunctionId, Revision)>>>);

impl HeldFolders for ImageFolders {
    fn revision_folder(
        &self,
        function: FunctionId,
        revision: Revision,
        image: String,
    ) -> BoxFuture<'static, Result<PathBuf, String>> {
        self.0.lock().unwrap().push((function, revision));
        let folder = PathBuf::from(image.trim_start_matches("file://"));
        let found = folder.is_dir().then_some(folder);
        std::future::ready(found.ok_or_else(|| "no such folder".to_owned())).boxed()
    }
}

impl StatusSource for FakeFleet {
    /// A row in the default namespace, and a row in another.
    fn status(&self, query: StatusQuery) -> StatusReport {
        fn rows<T>(row: impl Fn(String) -> T) -> Vec<T> {
            ["openfaas-fn", "elsewhere"]
                .map(|namespace| row(namespace.to_owned()))
                .into()
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

/// A reply, read completely.
#[derive(Debug)]
pub(crate) struct ApiReply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl ApiReply {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }
}

/// A controller without authentication.
pub(crate) struct ControllerFixture {
    pub(crate) fleet: Arc<FakeFleet>,
    pub(crate) controller: Controller,
    router: Router,
    folder: Option<TempDir>,
}

impl ControllerFixture {
    pub(crate) async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut fixture = Self::open_on(folder.path()).await;
        fixture.folder = Some(folder);
        fixture
    }

    /// Data directory of a fixture made by [`ControllerFixture::new`].
    pub(crate) fn data_dir(&self) -> &Path {
        self.folder.as_ref().unwrap().path()
    }

    pub(crate) async fn open_on(folder: &Path) -> Self {
        Self::with_config(test_config(folder, AuthMode::Disabled)).await
    }

    pub(crate) async fn with_config(config: ControllerConfig) -> Self {
        let fleet = Arc::new(FakeFleet::default());
        let controller = within(open_when_free(config, &fleet)).await;
        Self {
            router: controller.build_router(),
            fleet,
            controller,
            folder: None,
        }
    }

    /// Closes the controller and opens it again on the same folder.
    pub(crate) async fn reopen(self) -> Self {
        self.reopen_declared_in(None).await
    }

    /// Closes the controller and opens it again, with a source.
    pub(crate) async fn reopen_declared_in(self, declared_in: Option<PathBuf>) -> Self {
        let folder = self.folder;
        drop((self.router, self.controller));
        let config = ControllerConfig {
            declared_in,
            ..test_config(folder.as_ref().unwrap().path(), AuthMode::Disabled)
        };
        let mut fixture = Self::with_config(config).await;
        fixture.folder = folder;
        fixture
    }

    /// Sends a request and checks the reply against the contract.
    pub(crate) async fn call_api(
        &self,
        method: &str,
        path: &str,
        body: impl Into<Body>,
    ) -> ApiReply {
        self.send_request(
            Request::builder()
                .method(method)
                .uri(path)
                .body(body.into())
                .unwrap(),
        )
        .await
    }

    pub(crate) async fn get_path(&self, path: &str) -> ApiReply {
        self.call_api("GET", path, "").await
    }

    pub(crate) async fn send_request(&self, request: Request<Body>) -> ApiReply {
        let (method, path) = (
            request.method().to_string(),
            request.uri().path().to_owned(),
        );
        let response = within(api::answer_with_router(self.router.clone(), request)).await;
        let (parts, body) = response.into_parts();
        contract::check_documented(&method, &path, parts.status.as_u16());
        let bytes = within(body.collect()).await.unwrap().to_bytes();
        ApiReply {
            status: parts.status,
            headers: parts.headers,
            text: String::from_utf8(bytes.into()).unwrap(),
        }
    }

    /// Sends a request whose reply must have `status`.
    pub(crate) async fn expect_status(
        &self,
        status: u16,
        method: &str,
        path: &str,
        body: &str,
    ) -> ApiReply {
        let reply = self.call_api(method, path, body.to_owned()).await;
        assert_eq!(
            reply.status.as_u16(),
            status,
            "{method} {path} {body}: {}",
            reply.text
        );
        reply
    }

    /// Deploys a function without settings.
    pub(crate) async fn deploy_function(&self, name: &str) {
        self.expect_status(202, "POST", "/system/functions", &spec_json(name, ""))
            .await;
    }
}

pub(crate) fn test_config(folder: &Path, auth: AuthMode) -> ControllerConfig {
    ControllerConfig {
        auth,
        ..ControllerConfig::new(folder)
    }
}

/// JSON of a function, with more fields (`,"key":value`).
pub(crate) fn spec_json(name: &str, more: &str) -> String {
    format!(r#"{{"service":"{name}","image":"file:///srv/{name}"{more}}}"#)
}
