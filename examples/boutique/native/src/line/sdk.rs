//! Calls through nearpath's SDK: shared memory, or HTTP through the gateway to whom no memory leads.

use std::time::Duration;

use bytes::Bytes;
use nearpath::{CallOptions, ErrorKind};

use super::Parcel;
use crate::services::Service;
use crate::words::{Passed, Problem};

const PATIENCE: Duration = Duration::from_secs(10);
/// Between two attempts to send, and how many.
const PAUSE: Duration = Duration::from_millis(1);
const ATTEMPTS: usize = 1000;

pub(crate) struct Sdk {
    /// Memory or nothing: for measuring.
    pub(super) near_only: bool,
}

impl Sdk {
    pub(super) async fn ask(
        &self,
        to: Service,
        path: &'static str,
        body: Bytes,
        passed: &Passed,
    ) -> Result<Parcel, Problem> {
        let lost = |error: nearpath::Error| Problem::new(502, error.to_string());
        let mut ask = CallOptions::default().path(path).deadline(PATIENCE);
        if self.near_only {
            ask = ask.shm_only();
        }
        for (name, value) in passed {
            ask = ask.header(name, value).map_err(lost)?;
        }
        match self.call(to.name(), body, ask).await {
            Ok(answer) => Ok(Parcel {
                status: answer.status(),
                platform: false,
                body: answer.into_body().into(),
            }),
            Err(error) => match error.kind() {
                ErrorKind::Platform { status, text, .. } => Ok(Parcel {
                    status: *status,
                    platform: true,
                    body: Bytes::from(text.clone()),
                }),
                _ => Err(lost(error)),
            },
        }
    }

    /// What memory could not take is tried again soon where it may go no other way: callees give credit as they answer.
    async fn call(
        &self,
        name: &str,
        body: Bytes,
        ask: CallOptions,
    ) -> Result<nearpath::Response, nearpath::Error> {
        let first = nearpath::call_with(name, body.clone(), ask.clone()).await;
        match first {
            Err(error) if self.near_only && matches!(error.kind(), ErrorKind::Unsent(_)) => {
                Box::pin(again(name, body, ask)).await
            }
            first => first,
        }
    }
}

async fn again(
    name: &str,
    body: Bytes,
    ask: CallOptions,
) -> Result<nearpath::Response, nearpath::Error> {
    for _ in 0..ATTEMPTS {
        tokio::time::sleep(PAUSE).await;
        match nearpath::call_with(name, body.clone(), ask.clone()).await {
            Err(error) if matches!(error.kind(), ErrorKind::Unsent(_)) => {}
            done => return done,
        }
    }
    nearpath::call_with(name, body, ask).await
}
