//! The API without a node, for external test suites (schemathesis) and for trying clients.
//!
//! `cargo run -p nearpath-controller --example api -- FOLDER 127.0.0.1:PORT`. User and password are
//! `admin`; no function ever has an instance.

use std::convert::Infallible;
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hyper_util::rt::{TokioIo, TokioTimer};
use nearpath_controller::{
    AdminCredentials, AuthMode, Controller, ControllerConfig, Fleet, HeldFolders, api,
};
use nearpath_types::status::UsageStatus;
use nearpath_types::{
    DesiredState, FunctionId, FunctionMap, LogLine, LogQuery, ObservedFunction, Revision,
    StatusQuery, StatusReport, StatusSource,
};
use tokio::sync::mpsc;

struct EmptyFleet;

impl Fleet for EmptyFleet {
    fn apply_desired(&self, _: DesiredState) {}
    fn has_folder(&self, _: PathBuf) -> BoxFuture<'static, bool> {
        std::future::ready(true).boxed()
    }
    fn hold_folders(&self) -> Arc<dyn HeldFolders> {
        Arc::new(NoFolders)
    }
    fn observed_functions(&self) -> FunctionMap<ObservedFunction> {
        FunctionMap::default()
    }
    fn read_logs(&self, _: LogQuery) -> mpsc::Receiver<LogLine> {
        mpsc::channel(1).1
    }
    fn function_usage(&self, _: FunctionId) -> BoxFuture<'static, UsageStatus> {
        std::future::ready(UsageStatus::default()).boxed()
    }
    fn invocation_count(&self, _: &FunctionId) -> u64 {
        0
    }
}

struct NoFolders;

impl HeldFolders for NoFolders {
    fn revision_folder(
        &self,
        _: FunctionId,
        _: Revision,
        _: String,
    ) -> BoxFuture<'static, Result<PathBuf, String>> {
        std::future::ready(Err("this fleet runs nothing".to_owned())).boxed()
    }
}

impl StatusSource for EmptyFleet {
    fn status(&self, query: StatusQuery) -> StatusReport {
        query
            .read(serde_json::json!([]))
            .expect("every report may be empty")
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    nearpath_daemon::logs::init(nearpath_daemon::logs::LogFormat::Text);
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("first argument: a folder")?;
    let listener =
        tokio::net::TcpListener::bind(arguments.next().ok_or("second argument: ADDRESS:PORT")?)
            .await?;
    let admin = AdminCredentials {
        user: "admin".to_owned(),
        password: "admin".to_owned(),
    };
    let config = ControllerConfig {
        auth: AuthMode::Provided(admin),
        ..ControllerConfig::new(folder)
    };
    let router = Controller::open(config, Arc::new(EmptyFleet), Arc::new(EmptyFleet))
        .await?
        .build_router();
    loop {
        let (stream, _) = listener.accept().await?;
        let router = router.clone();
        let service = hyper::service::service_fn(move |request| {
            api::answer_with_router(router.clone(), request).map(Ok::<_, Infallible>)
        });
        let mut http = hyper::server::conn::http1::Builder::new();
        tokio::spawn(
            http.timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), service),
        );
    }
}
