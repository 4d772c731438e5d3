//! Why the platform refused, cut or lost a request.
//!
//! One list for answers, metrics, logs and documents: `contract/reasons.toml`. A test holds this file against it.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($($variant:ident = $number:literal, $name:literal, $status:literal, $retry:literal;)*) => {
        /// A reason; texts and who can mend it are in `contract/reasons.toml`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[repr(u8)]
        #[allow(missing_docs)] // documented in contract/reasons.toml
        pub enum Reason {
            $($variant = $number,)*
        }

        impl Reason {
            /// Every reason, by number.
            pub const ALL: &'static [Reason] = &[$(Reason::$variant,)*];

            /// Its name in metrics, logs and the `X-Nearpath-Reason` header.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The HTTP status that a caller sees.
            pub const fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)* }
            }

            /// Whether the same request may be sent again without running twice.
            pub const fn retry_is_safe(self) -> bool {
                match self { $(Self::$variant => $retry,)* }
            }
        }
    };
}

reasons! {
    BadRequest = 1, "bad_request", 400, false;
    NoFunction = 2, "no_function", 404, false;
    NotAllowed = 3, "not_allowed", 403, false;
    MethodNotAllowed = 4, "method_not_allowed", 405, false;
    BodyTooLarge = 5, "body_too_large", 413, false;
    HeadersTooLarge = 6, "headers_too_large", 431, false;
    SlowRequest = 7, "slow_request", 408, true;
    Overload = 8, "overload", 429, true;
    QueueTimeout = 9, "queue_timeout", 503, true;
    ColdTimeout = 10, "cold_timeout", 503, true;
    Draining = 11, "draining", 503, true;
    ConnectFailed = 12, "connect_failed", 502, true;
    InstanceDied = 13, "instance_died", 502, false;
    FirstByteTimeout = 14, "first_byte_timeout", 504, false;
    IdleTimeout = 15, "idle_timeout", 504, false;
    TotalTimeout = 16, "total_timeout", 504, false;
    ResponseCut = 17, "response_cut", 502, false;
    CallerGone = 18, "caller_gone", 499, false;
    FunctionFailed = 19, "function_failed", 500, false;
    ExecTimeout = 20, "exec_timeout", 504, false;
    Internal = 21, "internal", 500, false;
    Unauthorized = 22, "unauthorized", 401, false;
    NotFound = 23, "not_found", 404, false;
    Conflict = 24, "conflict", 409, false;
    NotImplemented = 25, "not_implemented", 501, false;
    StorageFull = 26, "storage_full", 507, true;
    ReadOnly = 27, "read_only", 503, true;
    AnswerTooLarge = 28, "answer_too_large", 502, false;
    TooEarly = 29, "too_early", 425, true;
}

impl Reason {
    /// Whether an instance's platform that says so has not handed the call to its code at all. A body that did not arrive whole may have been
    /// handed on in part, though to send it again is safe where the caller knows that it was not.
    pub const fn did_not_run(self) -> bool {
        self.retry_is_safe() && !matches!(self, Self::SlowRequest)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An error made by the platform: which component, why, and which setting governs it.
///
/// Displays as `gateway: queue_timeout: no instance of checkout.openfaas-fn was free within 10s (nearpath.io/queue-timeout)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlatformError {
    /// `gateway`, `watchdog`, `node`, `controller`.
    pub component: &'static str,
    /// Why.
    pub reason: Reason,
    /// The setting that governs it, as the operator or tenant writes it.
    pub setting: Option<&'static str>,
    /// What happened, with names and numbers.
    pub message: Cow<'static, str>,
}

impl PlatformError {
    /// An error that no setting governs.
    pub fn new(component: &'static str, reason: Reason, message: impl Into<Cow<'static, str>>) -> Self {
        Self { component, reason, setting: None, message: message.into() }
    }

    /// Names the setting that governs it.
    #[must_use]
    pub fn governed_by(mut self, setting: &'static str) -> Self {
        self.setting = Some(setting);
        self
    }

    /// As it is written for callers who accept JSON.
    pub fn to_json(&self) -> String {
        let shown = Shown {
            component: self.component,
            reason: self.reason.name(),
            setting: self.setting,
            message: &self.message,
            retry_is_safe: self.reason.retry_is_safe(),
        };
        serde_json::to_string(&shown).expect("five plain fields become JSON")
    }
}

/// The fields of a [`PlatformError`] as callers read them.
#[derive(Serialize)]
struct Shown<'a> {
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
        let text = include_str!("../../../contract/reasons.toml");
        let contract: std::collections::BTreeMap<String, toml::Table> = toml::from_str(text).unwrap();
        let live: Vec<_> = contract.iter().filter(|(_, entry)| !entry.contains_key("retired")).collect();
        assert_eq!(live.len(), Reason::ALL.len());
        for reason in Reason::ALL {
            let entry = &contract[reason.name()];
            assert_eq!(entry["number"].as_integer(), Some(*reason as i64), "{reason}");
            assert_eq!(entry["status"].as_integer(), Some(i64::from(reason.status())), "{reason}");
            assert_eq!(entry["retry"].as_bool(), Some(reason.retry_is_safe()), "{reason}");
        }
    }

    #[test]
    fn json_names_the_setting_where_one_governs_it() {
        let error = PlatformError::new("gateway", Reason::QueueTimeout, "no instance was free");
        let plain =
            r#"{"component":"gateway","reason":"queue_timeout","message":"no instance was free","retry_is_safe":true}"#;
        assert_eq!(error.to_json(), plain);
        let governed = error.governed_by("nearpath.io/queue-timeout").to_json();
        assert!(governed.contains(r#""setting":"nearpath.io/queue-timeout","message""#), "{governed}");
    }
}
