//! Reasons of platform errors.
//!
//! [`Reason`] is generated from `contract/reasons.toml`, the list for answers, metrics, logs and
//! documents.

#[rustfmt::skip]
mod generated;

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

pub use generated::Reason;

impl Reason {
    /// Returns whether an instance's platform that gives this reason has certainly not handed the
    /// call to its code. A body that did not arrive whole may have been handed on in part; a
    /// caller that knows better may still repeat the call.
    pub const fn did_not_run(self) -> bool {
        // A slow request may have reached the code in part.
        self.retry_is_safe() && !matches!(self, Self::SlowRequest)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error of the platform, with its component, its reason, and the setting that governs it.
///
/// Displays as `gateway: queue_timeout: no instance of checkout.openfaas-fn was free within 10s
/// (nearpath.io/queue-timeout)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlatformError {
    /// `gateway`, `watchdog`, `node`, `controller`.
    pub component: &'static str,
    /// Reason.
    pub reason: Reason,
    /// The setting that governs it, as the operator or tenant writes it.
    pub setting: Option<&'static str>,
    /// Event, with names and numbers.
    pub message: Cow<'static, str>,
    /// Time after which a retry can succeed, if it is known.
    pub retry_after: Option<Duration>,
}

/// Value of `Allow` beside 405: the methods of functions (RFC 9110 section 15.5.6).
pub const FUNCTION_METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

impl PlatformError {
    /// Creates an error that no setting governs.
    pub fn new(
        component: &'static str,
        reason: Reason,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            component,
            reason,
            setting: None,
            message: message.into(),
            retry_after: None,
        }
    }

    /// Sets the time after which a retry can succeed.
    #[must_use]
    pub fn retry_after(mut self, time: Duration) -> Self {
        self.retry_after = Some(time);
        self
    }

    /// Names the setting that governs it.
    #[must_use]
    pub fn governed_by(mut self, setting: &'static str) -> Self {
        self.setting = Some(setting);
        self
    }

    /// Returns the error as JSON, for callers that accept it.
    pub fn to_json(&self) -> String {
        let error_json = ErrorJson {
            component: self.component,
            reason: self.reason.name(),
            setting: self.setting,
            message: &self.message,
            retry_is_safe: self.reason.retry_is_safe(),
        };
        serde_json::to_string(&error_json).expect("five plain fields become JSON")
    }
}

/// The fields of a [`PlatformError`] as callers read them.
#[derive(Serialize)]
struct ErrorJson<'a> {
    component: &'a str,
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    setting: Option<&'a str>,
    message: &'a str,
    retry_is_safe: bool,
}

impl fmt::Display for PlatformError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.component, self.reason, self.message)?;
        match self.setting {
            Some(setting) => write!(f, " ({setting})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for PlatformError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_contract_and_the_code_are_one_list() {
        let text = include_str!("../../../../contract/reasons.toml");
        let contract: std::collections::BTreeMap<String, toml::Table> =
            toml::from_str(text).unwrap();
        let live: Vec<_> = contract
            .iter()
            .filter(|(_, entry)| !entry.contains_key("retired"))
            .collect();
        assert_eq!(live.len(), Reason::ALL.len());
        for reason in Reason::ALL {
            let entry = &contract[reason.name()];
            assert_eq!(
                entry["number"].as_integer(),
                Some(*reason as i64),
                "{reason}"
            );
            assert_eq!(
                entry["status"].as_integer(),
                Some(i64::from(reason.status())),
                "{reason}"
            );
            assert_eq!(
                entry["retry"].as_bool(),
                Some(reason.retry_is_safe()),
                "{reason}"
            );
        }
    }

    #[test]
    fn json_names_the_setting_where_one_governs_it() {
        let error = PlatformError::new("gateway", Reason::QueueTimeout, "no instance was free");
        let plain = r#"{"component":"gateway","reason":"queue_timeout","message":"no instance was free","retry_is_safe":true}"#;
        assert_eq!(error.to_json(), plain);
        let governed = error.governed_by("nearpath.io/queue-timeout").to_json();
        assert!(
            governed.contains(r#""setting":"nearpath.io/queue-timeout","message""#),
            "{governed}"
        );
    }
}
