//! A function of nearpath's, on its SDK: calls come through shared memory, and over HTTP as well.

use std::rc::Rc;

use http::Method;

use super::ServiceServer;
use crate::ServiceResult;
use crate::args::ServiceArgs;
use crate::client::PeerClient;
use crate::message::{FORWARDED_HEADERS, ServiceRequest, ServiceResponse};

/// Serves until the process is told to stop.
pub(crate) fn serve(args: &ServiceArgs) -> ServiceResult {
    let shop = args.build_server(PeerClient::new_sdk(args));
    let handler = move |request: nearpath::Request| answer_call(request, Rc::clone(&shop));
    Ok(nearpath::FunctionServer::new(handler)
        .listen_on(args.listen)
        .run()?)
}

async fn answer_call(
    came: nearpath::Request,
    shop: Rc<ServiceServer>,
) -> Result<nearpath::Response, nearpath::Error> {
    let to_service = came.caller().is_some(); // it knows what it asked for: no head is needed
    let answer = shop.answer_request(&read_request(&came, &shop)).await;
    to_sdk(answer.unwrap_or_else(ServiceResponse::from), to_service)
}

/// Looks at every field once.
fn read_request(came: &nearpath::Request, shop: &ServiceServer) -> ServiceRequest {
    let mut request = ServiceRequest::for_call(came.path(), shop.encoding, came.body().clone());
    request.method = Method::from_bytes(came.method().as_bytes()).unwrap_or(Method::POST);
    for (name, value) in came.head().iter() {
        let Ok(value) = std::str::from_utf8(value) else {
            continue;
        };
        match name {
            "cookie" => request.cookie = value.to_owned(),
            "accept" => request.html = value.contains("text/html"),
            name => {
                let known = FORWARDED_HEADERS.into_iter().find(|known| *known == name);
                request
                    .passed
                    .extend(known.map(|known| (known, value.to_owned())));
            }
        }
    }
    request
}

fn to_sdk(
    response: ServiceResponse,
    to_service: bool,
) -> Result<nearpath::Response, nearpath::Error> {
    let mut written = nearpath::Response::new(response.body).with_status(response.status);
    if !to_service {
        written = written.with_header("content-type", response.content_type)?;
    }
    for cookie in response.cookies {
        written = written.with_header("set-cookie", cookie)?;
    }
    Ok(written)
}
