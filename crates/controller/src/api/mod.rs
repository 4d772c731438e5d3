//! OpenFaaS's REST API, as an axum router.
//!
//! A request passes `request_log` (one log line), `auth` and its handler. The response is JSON, a
//! bare status, or an `ApiError`: text, with the reason in `X-Nearpath-Reason`. Handlers read their
//! input through the extractors of `extractors`, so that all input errors have the same shape.

mod api_error;
mod auth;
mod backup;
mod extractors;
mod function_shares;
mod functions;
mod image;
mod info;
mod log_follower;
mod logs;
mod namespaces;
mod node_routes;
mod node_status;
mod nodes;
mod not_implemented;
mod peer_queries;
mod request_log;
mod request_origin;
mod secrets;
mod status;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use nearpath_types::Reason;
use tower::ServiceExt;

use crate::controller::Controller;
#[doc(hidden)] // for the fuzz targets
pub use auth::decode_basic;
#[doc(hidden)]
pub use request_origin::is_loopback;

use api_error::ApiError;

/// Largest request body, in bytes.
pub const MAX_BODY_BYTES: usize = 1 << 20;

/// Router of the API, for programs that keep one. Clones are cheap.
pub type ApiRouter = Router;

impl Controller {
    /// Router of the API: `/system/…`, `/ui/`, `/healthz`, and `/async-function/…`, which is not
    /// implemented yet. Needs a tokio runtime.
    pub fn build_router(&self) -> Router {
        let system = Router::new()
            .route(
                "/functions",
                get(functions::list_functions)
                    .post(functions::deploy_function)
                    .put(functions::update_function)
                    .delete(functions::remove_function),
            )
            .route("/function/{name}", get(functions::describe_function))
            .route("/scale-function/{name}", post(functions::scale_function))
            .route(
                "/secrets",
                get(secrets::list_secrets)
                    .post(secrets::create_secret)
                    .put(secrets::update_secret)
                    .delete(secrets::remove_secret),
            )
            .route("/namespaces", get(namespaces::list_namespaces))
            .route("/namespace/", post(namespaces::create_namespace_from_body))
            .route(
                "/namespace/{name}",
                get(namespaces::describe_namespace)
                    .post(namespaces::create_namespace)
                    .put(namespaces::update_namespace)
                    .delete(namespaces::remove_namespace),
            )
            .route("/logs", get(logs::stream_logs))
            .route("/nodes", get(nodes::list_nodes))
            .route("/backup", get(backup::stream_backup))
            .route("/info", get(info::system_info))
            .route("/telemetry", get(not_implemented::system_telemetry))
            .route("/alert", post(not_implemented::scale_alert))
            .merge(node_status::status_routes());
        Router::new()
            .nest("/system", system)
            .route("/async-function/{*name}", post(not_implemented::async_call))
            .route("/healthz", get(info::health_check))
            .route("/ui/", get(info::ui_page))
            .route("/", get(info::redirect_to_ui))
            .fallback(unknown_path)
            .method_not_allowed_fallback(wrong_method)
            // The layer that is added last runs first: refused logins are logged too.
            .layer(from_fn_with_state(self.clone(), auth::authenticate))
            .layer(from_fn_with_state(self.clone(), request_log::log_request))
            .with_state(self.clone())
    }

    /// Router of the queries of other nodes, about this node alone: `/node/v1/status/…` and
    /// `/node/v1/logs`. The caller checks that the request comes from a node.
    pub fn build_node_router(&self) -> Router {
        node_routes::build(self)
    }

    /// Answers one request of any body type, for a gateway. Where the cost of a router matters,
    /// build it once with [`Self::build_router`] and use [`answer_with_router`].
    pub fn answer_request<B>(&self, request: Request<B>) -> BoxFuture<'static, Response<Body>>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        answer_with_router(self.build_router(), request)
    }
}

/// Answers one request with an existing router; cloning a router is cheap.
pub fn answer_with_router<B>(
    router: Router,
    request: Request<B>,
) -> BoxFuture<'static, Response<Body>>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    router
        .oneshot(request.map(Body::new))
        .map(|Ok(response)| response)
        .boxed()
}

async fn unknown_path(request: axum::extract::Request) -> ApiError {
    ApiError::new(
        Reason::NotFound,
        format!("there is nothing at {}", request.uri().path()),
    )
}

async fn wrong_method(request: axum::extract::Request) -> ApiError {
    let text = format!(
        "{} does not support {}",
        request.uri().path(),
        request.method()
    );
    ApiError::new(Reason::MethodNotAllowed, text)
}
