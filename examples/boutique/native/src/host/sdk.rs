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
    Ok(nearpath::FunctionServer::new(handler)
        .listen_on(args.listen)
        .run()?)
}

async fn answer(
    came: nearpath::Request,
    shop: Rc<Shop>,
) -> Result<nearpath::Response, nearpath::Error> {
    let to_service = came.caller().is_some(); // it knows what it asked for: no head is needed
    let answer = shop.answer(&read(&came, &shop)).await;
    written(answer.unwrap_or_else(Response::from), to_service)
}

/// Looks at every field once.
fn read(came: &nearpath::Request, shop: &Shop) -> Request {
    let mut request = Request::call(came.path(), shop.encoding, came.body().clone());
    request.method = Method::from_bytes(came.method().as_bytes()).unwrap_or(Method::POST);
    for (name, value) in came.head().iter() {
        let Ok(value) = std::str::from_utf8(value) else {
            continue;
        };
        match name {
            "cookie" => request.cookie = value.to_owned(),
            "accept" => request.html = value.contains("text/html"),
            name => {
                let known = PASSED_ON.into_iter().find(|known| *known == name);
                request
                    .passed
                    .extend(known.map(|known| (known, value.to_owned())));
            }
        }
    }
    request
}

fn written(response: Response, to_service: bool) -> Result<nearpath::Response, nearpath::Error> {
    let mut written = nearpath::Response::new(response.body).with_status(response.status);
    if !to_service {
        written = written.with_header("content-type", response.content_type)?;
    }
    for cookie in response.cookies {
        written = written.with_header("set-cookie", cookie)?;
    }
    Ok(written)
}
