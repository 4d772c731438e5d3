//! Calls through nearpath's SDK: shared memory, or HTTP through the gateway to whom no memory leads.

use std::time::Duration;

use bytes::Bytes;
use nearpath::{Ask, Kind};

use super::Parcel;
use crate::services::Service;
use crate::words::{Passed, Problem};

const PATIENCE: Duration = Duration::from_secs(10);

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
        let mut ask = Ask::default().path(path).deadline(PATIENCE);
        if self.near_only {
            ask = ask.near_only();
        }
        for (name, value) in passed {
            ask = ask.header(name, value).map_err(lost)?;
        }
        match nearpath::call_with(to.name(), body, ask).await {
            Ok(answer) => Ok(Parcel { status: answer.status(), platform: false, body: answer.into_body() }),
            Err(error) => match error.kind() {
                Kind::Platform { status, text, .. } => {
                    Ok(Parcel { status: *status, platform: true, body: Bytes::from(text.clone()) })
                }
                _ => Err(lost(error)),
            },
        }
    }
}
