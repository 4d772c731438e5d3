//! Connections of other nodes that the node's service takes over.

use std::rc::Rc;

use futures_util::future::BoxFuture;
use http::Response;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use nearpath_wire::Body;

use crate::context::WorkerContext;
use crate::control::{NodeResponse, UpgradeTask};

/// Waits for the service's response. After an upgrade, the connection is served on this thread, which has
/// its socket.
pub(super) async fn respond(
    worker: Rc<WorkerContext>,
    answer: BoxFuture<'static, NodeResponse>,
    upgrade: OnUpgrade,
) -> Response<Body> {
    let NodeResponse {
        response,
        upgrade: task,
    } = answer.await;
    if let Some(task) = task {
        // No drain waits for it: such a connection ends with an instance, which ends later.
        let service = worker.count_service();
        worker.spawn(async move {
            serve_upgraded(upgrade, task).await;
            drop(service);
        });
    }
    response
}

async fn serve_upgraded(upgrade: OnUpgrade, task: UpgradeTask) {
    match upgrade.await {
        // In this task, not in one of the runtime: `Registration::clear` needs the thread of its events.
        Ok(upgraded) => task(TokioIo::new(upgraded)).await,
        Err(error) => tracing::debug!(%error, "a node left before its connection was upgraded"),
    }
}
