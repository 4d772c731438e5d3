//! Calls through nearpath's SDK: shared memory, or HTTP through the gateway to whom no memory
//! leads.

use std::time::Duration;

use bytes::Bytes;
use nearpath::{CallOptions, ErrorKind};

use super::PeerReply;
use crate::message::{ForwardedHeaders, ServiceError};
use crate::services::ShopService;

const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two attempts to send, and how many.
const RETRY_DELAY: Duration = Duration::from_millis(1);
const MAX_ATTEMPTS: usize = 1000;

pub(crate) struct SdkPeerClient {
    /// Memory or nothing: for measuring.
    pub(super) shm_only: bool,
}

impl SdkPeerClient {
    pub(super) async fn send_call(
        &self,
        to: ShopService,
        path: &'static str,
        body: Bytes,
        passed: &ForwardedHeaders,
    ) -> Result<PeerReply, ServiceError> {
        let lost = |error: nearpath::Error| ServiceError::new(502, error.to_string());
        let mut ask = CallOptions::default().path(path).deadline(CALL_TIMEOUT);
        if self.shm_only {
            ask = ask.shm_only();
        }
        for (name, value) in passed {
            ask = ask.header(name, value).map_err(lost)?;
        }
        match self.call_function(to.name(), body, ask).await {
            Ok(answer) => Ok(PeerReply {
                status: answer.status(),
                platform: false,
                body: answer.into_body().into(),
            }),
            Err(error) => match error.kind() {
                ErrorKind::Platform { status, text, .. } => Ok(PeerReply {
                    status: *status,
                    platform: true,
                    body: Bytes::from(text.clone()),
                }),
                _ => Err(lost(error)),
            },
        }
    }

    /// Calls a function, and retries soon when shared memory is full and no other path is allowed:
    /// callees return credit as they answer.
    async fn call_function(
        &self,
        name: &str,
        body: Bytes,
        ask: CallOptions,
    ) -> Result<nearpath::Response, nearpath::Error> {
        let first = nearpath::call_with(name, body.clone(), ask.clone()).await;
        match first {
            Err(error) if self.shm_only && matches!(error.kind(), ErrorKind::Unsent(_)) => {
                Box::pin(retry_call(name, body, ask)).await
            }
            first => first,
        }
    }
}

async fn retry_call(
    name: &str,
    body: Bytes,
    ask: CallOptions,
) -> Result<nearpath::Response, nearpath::Error> {
    for _ in 0..MAX_ATTEMPTS {
        tokio::time::sleep(RETRY_DELAY).await;
        match nearpath::call_with(name, body.clone(), ask.clone()).await {
            Err(error) if matches!(error.kind(), ErrorKind::Unsent(_)) => {}
            done => return done,
        }
    }
    nearpath::call_with(name, body, ask).await
}
