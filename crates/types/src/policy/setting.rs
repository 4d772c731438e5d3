//! One setting as the tenant wrote it, and how it is read.

use std::str::FromStr;
use std::time::Duration;

use crate::duration;

use super::InvalidSetting;

/// A key, and its value if there is one.
pub(super) struct SettingText<'a> {
    pub(super) key: &'static str,
    pub(super) text: Option<&'a String>,
}

impl SettingText<'_> {
    pub(super) fn read_with<T, E: ToString>(
        &self,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<Option<T>, InvalidSetting> {
        let Some(text) = self.text else {
            return Ok(None);
        };
        parse(text).map(Some).map_err(|error| InvalidSetting {
            key: self.key,
            why: error.to_string(),
        })
    }

    pub(super) fn read_number<T: FromStr>(&self, default: T) -> Result<T, InvalidSetting> {
        let whole = |text: &str| {
            text.trim()
                .parse()
                .map_err(|_| format!("{text:?} is not a whole number"))
        };
        Ok(self.read_with(whole)?.unwrap_or(default))
    }

    pub(super) fn read_duration(&self, default: Duration) -> Result<Duration, InvalidSetting> {
        Ok(self.read_with(duration::parse_duration)?.unwrap_or(default))
    }
}
