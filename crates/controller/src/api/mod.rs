//! OpenFaaS's REST API, as an axum router.
//!
//! A request passes `record` (one log line), `auth`, its handler, and leaves as JSON, as nothing but a status, or
//! as a `Refused`: text, with the reason in `X-Nearpath-Reason`. What a handler reads comes through the
//! extractors of `input`, so that every error of reading has the same shape.

mod auth;
mod functions;
mod info;
mod input;
mod later;
mod logs;
mod namespaces;
mod node_status;
mod record;
mod refused;
mod secrets;
mod site;
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
pub use auth::basic;
#[doc(hidden)]
pub use site::is_loopback;

use refused::Refused;

/// Largest request body in bytes.
pub const MAX_BODY: usize = 1 << 20;

impl Controller {
    /// The API: `/system/…`, `/ui/`, `/healthz`, and `/async-function/…`, which is yet to come. Needs a tokio runtime.
    pub fn router(&self) -> Router {
        let system = Router::new()
            .route(
                "/functions",
                get(functions::list).post(functions::deploy).put(functions::update).delete(functions::remove),
            )
            .route("/function/{name}", get(functions::describe))
            .route("/scale-function/{name}", post(functions::scale))
            .route("/secrets", get(secrets::list).post(secrets::create).put(secrets::update).delete(secrets::remove))
            .route("/namespaces", get(namespaces::list))
            .route("/namespace/", post(namespaces::create_unnamed))
            .route(
                "/namespace/{name}",
                get(namespaces::describe).post(namespaces::create).put(namespaces::update).delete(namespaces::remove),
            )
            .route("/logs", get(logs::logs))
            .route("/info", get(info::info))
            .route("/telemetry", get(later::telemetry))
            .route("/alert", post(later::alert))
            .merge(node_status::routes());
        Router::new()
            .nest("/system", system)
            .route("/async-function/{*name}", post(later::asynchronous))
            .route("/healthz", get(info::healthz))
            .route("/ui/", get(info::ui))
            .route("/", get(info::to_ui))
            .fallback(unknown)
            .method_not_allowed_fallback(wrong_method)
            .layer(from_fn_with_state(self.clone(), auth::check))
            .layer(axum::middleware::from_fn(record::record))
            .with_state(self.clone())
    }

    /// Answers one request, whatever its body type: what a gateway calls. Build the router once with [`Self::router`]
    /// and use [`answer`] where the cost of building it matters.
    pub fn answer<B>(&self, request: Request<B>) -> BoxFuture<'static, Response<Body>>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        answer(self.router(), request)
    }
}

/// Answers one request with a router that was built before; cloning a router is cheap.
pub fn answer<B>(router: Router, request: Request<B>) -> BoxFuture<'static, Response<Body>>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    router.oneshot(request.map(Body::new)).map(|Ok(response)| response).boxed()
}

async fn unknown(request: axum::extract::Request) -> Refused {
    Refused::new(Reason::NotFound, format!("there is nothing at {}", request.uri().path()))
}

async fn wrong_method(request: axum::extract::Request) -> Refused {
    let text = format!("{} does not take {}", request.uri().path(), request.method());
    Refused::new(Reason::MethodNotAllowed, text)
}
