//! The order confirmation. "Sending" is a line in the log when `SHOP_LOG` is set.

use crate::goods::{Call, Confirm, Sent};
use crate::words::{Problem, Request, Response};

pub(super) fn answer(request: &Request) -> Result<Response, Problem> {
    match request.path() {
        Confirm::PATH => Ok(request.reply(&send(request.read()?)?)),
        _ => Err(request.unknown()),
    }
}

fn send(asked: Confirm) -> Result<Sent, Problem> {
    if !asked.email.contains('@') {
        return Err(Problem::wrong("no e-mail address in the order"));
    }
    if std::env::var_os("SHOP_LOG").is_some() {
        eprintln!(
            "confirmation of {} for {}",
            asked.order.order_id, asked.email
        );
    }
    Ok(Sent {
        sent_to: asked.email,
    })
}
