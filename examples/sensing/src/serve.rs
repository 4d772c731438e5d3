//! Both doors of a function: HTTP, and the domain's.

use std::convert::Infallible;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::rc::Rc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nearpath_domain::Answer;
use nearpath_domain::post::Settings;
use nearpath_domain::post::polled::{Post, Received};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};

use crate::call::Calls;
use crate::function::Role;

/// Answers until it is told to end (SIGTERM).
pub(crate) async fn run(role: Rc<Role>) -> io::Result<()> {
    let port = std::env::var("PORT").ok().and_then(|port| port.parse().ok()).unwrap_or(5000);
    let calls = Rc::new(Calls::from_environment());
    if let Some(door) = std::env::var_os("NEARPATH_DISPATCH") {
        let (post, driver) = Post::dial(Path::new(&door), Settings::default()).await.map_err(io::Error::other)?;
        tokio::task::spawn_local(driver);
        post.ready()?;
        calls.joined(post.clone());
        tokio::task::spawn_local(attend(post, Rc::clone(&role), Rc::clone(&calls)));
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    let mut end = signal(SignalKind::terminate())?;
    loop {
        tokio::select! {
            _ = end.recv() => return Ok(()),
            accepted = listener.accept() => {
                tokio::task::spawn_local(connection(accepted?.0, Rc::clone(&role), Rc::clone(&calls)));
            }
        }
    }
}

/// Calls through memory, any number at a time.
async fn attend(post: Post, role: Rc<Role>, calls: Rc<Calls>) {
    while let Some(received) = post.next().await {
        tokio::task::spawn_local(answer_in_memory(received, Rc::clone(&role), Rc::clone(&calls)));
    }
}

async fn answer_in_memory(received: Received, role: Rc<Role>, calls: Rc<Calls>) {
    let outcome = role.answer(&received.body, &calls).await;
    received.answer(match outcome {
        Ok(body) => Answer::ok(body),
        Err((status, text)) => Answer { status, body: text.into(), ..Answer::default() },
    });
}

async fn connection(stream: TcpStream, role: Rc<Role>, calls: Rc<Calls>) {
    if stream.set_nodelay(true).is_err() {
        return; // it has gone
    }
    let service = service_fn(|request| answer_http(request, Rc::clone(&role), Rc::clone(&calls)));
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await; // a caller that breaks off is no news
}

async fn answer_http(
    request: Request<Incoming>,
    role: Rc<Role>,
    calls: Rc<Calls>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let outcome = match request.into_body().collect().await {
        Ok(body) => role.answer(&body.to_bytes(), &calls).await,
        Err(error) => Err((400, error.to_string())),
    };
    let (status, body) = match outcome {
        Ok(body) => (200, body),
        Err((status, text)) => (status, text.into()),
    };
    let answer = Response::builder().status(status).header("content-type", "application/json");
    Ok(answer.body(Full::new(body)).unwrap_or_default())
}
