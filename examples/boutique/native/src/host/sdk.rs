//! A function of nearpath's, on its SDK: calls come through shared memory, and over HTTP as well.

use std::rc::Rc;

use http::Method;

use super::Shop;
use crate::Outcome;
use crate::args::Args;
use crate::line::Line;
use crate::words::{PASSED_ON, Request, Response};

/// Serves until the process is told to stop.
pub(crate) fn serve(args: &Args) -> Outcome {
    let shop = args.shop(Line::sdk(args));
    let handler = move |request: nearpath::Request| answer(request, Rc::clone(&shop));
    Ok(nearpath::Server::new(handler).listen(args.listen).run()?)
}

async fn answer(request: nearpath::Request, shop: Rc<Shop>) -> Result<nearpath::Response, nearpath::Error> {
    let answer = shop.answer(&read(&request, &shop)).await;
    written(answer.unwrap_or_else(Response::from))
}

fn read(came: &nearpath::Request, shop: &Shop) -> Request {
    let passed = |name| Some((name, came.header(name)?.to_owned()));
    Request {
        method: Method::from_bytes(came.method().as_bytes()).unwrap_or(Method::POST),
        target: came.path().to_owned(),
        cookie: came.header("cookie").unwrap_or("").to_owned(),
        html: came.header("accept").is_some_and(|accept| accept.contains("text/html")),
        passed: PASSED_ON.into_iter().filter_map(passed).collect(),
        encoding: shop.encoding,
        body: came.body().clone(),
    }
}

fn written(response: Response) -> Result<nearpath::Response, nearpath::Error> {
    let mut written = nearpath::Response::new(response.body).with_status(response.status);
    written = written.with_header("content-type", response.content_type)?;
    for cookie in response.cookies {
        written = written.with_header("set-cookie", cookie)?;
    }
    Ok(written)
}
