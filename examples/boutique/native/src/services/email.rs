//! The order confirmation. "Sending" is a line in the log when `SHOP_LOG` is set.

use crate::api::{ConfirmOrder, ConfirmationResult, ServiceCall};
use crate::message::{ServiceError, ServiceRequest, ServiceResponse};

pub(super) fn answer_request(request: &ServiceRequest) -> Result<ServiceResponse, ServiceError> {
    match request.path() {
        ConfirmOrder::PATH => Ok(request.reply(&send_confirmation(request.decode_body()?)?)),
        _ => Err(request.not_found()),
    }
}

fn send_confirmation(asked: ConfirmOrder) -> Result<ConfirmationResult, ServiceError> {
    if !asked.email.contains('@') {
        return Err(ServiceError::bad_request("no e-mail address in the order"));
    }
    if std::env::var_os("SHOP_LOG").is_some() {
        eprintln!(
            "confirmation of {} for {}",
            asked.order.order_id, asked.email
        );
    }
    Ok(ConfirmationResult {
        sent_to: asked.email,
    })
}
