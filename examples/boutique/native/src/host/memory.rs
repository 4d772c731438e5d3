//! A function of a chain: calls come through shared memory, and over HTTP as well.

use std::rc::Rc;

use http::{HeaderValue, Method};
use nearpath_domain::Answer;
use nearpath_domain::post::Settings;
use nearpath_domain::post::polled::{Post, Received};
use tokio::task::spawn_local;

use super::Shop;
use crate::Outcome;
use crate::args::Args;
use crate::line::Line;
use crate::words::{PASSED_ON, Request, Response};

/// Serves until the node hangs up or the process is told to stop.
pub(crate) async fn serve(args: &Args) -> Outcome {
    let Some(door) = &args.door else {
        return Err(
            "no door to shared memory: deploy this as a function of a chain, or choose another --transport".into()
        );
    };
    let (post, driver) = Post::dial(door, Settings::default()).await?;
    spawn_local(driver);
    let shop = args.shop(Line::memory(args, post.clone()));
    post.ready()?;
    spawn_local(attend(post, shop.clone()));
    super::http::serve(args.listen, shop).await
}

async fn attend(post: Post, shop: Rc<Shop>) {
    while let Some(received) = post.next().await {
        spawn_local(answer(received, shop.clone()));
    }
}

async fn answer(received: Received, shop: Rc<Shop>) {
    let answer = shop.answer(&request(&received, &shop)).await;
    received.answer(written(answer.unwrap_or_else(Response::from)));
}

fn request(received: &Received, shop: &Shop) -> Request {
    let mut request = Request::call("", shop.encoding, received.body.clone());
    for field in received.fields().flatten() {
        let Ok(value) = std::str::from_utf8(field.value) else { continue };
        match field.name {
            ":method" => request.method = Method::from_bytes(field.value).unwrap_or(Method::POST),
            ":path" => request.target = value.to_owned(),
            "cookie" => request.cookie = value.to_owned(),
            "accept" => request.html = value.contains("text/html"),
            name => {
                let known = PASSED_ON.into_iter().find(|known| *known == name);
                request.passed.extend(known.map(|known| (known, value.to_owned())));
            }
        }
    }
    request
}

fn written(response: Response) -> Answer {
    let Response { status, content_type, cookies, body } = response;
    let mut fields = Vec::with_capacity(1 + cookies.len());
    fields.push(("content-type".into(), content_type.as_bytes().into()));
    let cookies = cookies.into_iter().filter(|cookie| HeaderValue::from_str(cookie).is_ok());
    fields.extend(cookies.map(|cookie| ("set-cookie".into(), cookie.into())));
    Answer { status, fields, body, ..Answer::default() }
}
